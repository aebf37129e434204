"""A small HTTP server of files in memory, which can break, ignore ranges and list pages."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Files:
    """What is served below an address, by path without the first slash; and what was asked."""

    content: dict[str, bytes]
    address: str = ""
    breaks: list[int] = field(default_factory=list)
    """Bytes of a file after which each of the next answers breaks."""
    ranges: bool = True
    next: dict[str, str] = field(default_factory=dict)
    """Page -> the page that follows it."""
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    def __init__(self, files, *words):
        self.files = files
        super().__init__(*words)

    def do_GET(self):
        files, path = self.files, self.path.lstrip("/")
        files.asked.append((path, dict(self.headers)))
        if path not in files.content:
            self.send_error(404)
            return
        whole = files.content[path]
        wanted = self.headers.get("Range") if files.ranges else None
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(whole) - 1}/{len(whole)}")
        if path in files.next:
            self.send_header("Link", f'<{files.address}/{files.next[path]}>; rel="next"')
        self.send_header("Content-Length", str(len(whole) - start))
        self.end_headers()
        end = files.breaks.pop(0) if files.breaks else len(whole)
        self.wfile.write(whole[start:end])
        self.close_connection = True

    def log_message(self, *_):
        pass


@contextmanager
def serve(files):
    """Serve files on this machine while the block runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, files))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    files.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield files
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
