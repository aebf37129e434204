"""A bucket in memory, by S3's protocol, with a counter of requests and the delay of a network: for measurements.

It speaks what pyarrow asks: list, head, get, put and delete, of one bucket, without checking signatures.
"""

from __future__ import annotations

import bisect
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

MADE = "2026-01-01T00:00:00.000Z"
LIST = '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'


class Bucket:
    """Names and contents. Those that were there from the start are made when they are asked for."""

    def __init__(self, names: list[str], content: Callable[[str], bytes], size: Callable[[str], int]) -> None:
        self.names = sorted(names)
        self.content, self.size = content, size
        self.written: dict[str, tuple[bytes, float]] = {}

    def read(self, name: str) -> tuple[bytes, float] | None:
        """Return an object and when it was written."""
        if name in self.written:
            return self.written[name]
        index = bisect.bisect_left(self.names, name)
        exists = index < len(self.names) and self.names[index] == name
        return (self.content(name), 1767225600.0) if exists else None

    def write(self, name: str, data: bytes) -> None:
        """Write an object."""
        index = bisect.bisect_left(self.names, name)
        if index == len(self.names) or self.names[index] != name:
            self.names.insert(index, name)
        self.written[name] = (data, time.time())

    def listing(self, prefix: str, delimiter: str, after: str, most: int) -> str:
        """Return a page of names as XML."""
        index = max(bisect.bisect_left(self.names, prefix), bisect.bisect_right(self.names, after) if after else 0)
        parts, count, last = [], 0, ""
        while index < len(self.names) and self.names[index].startswith(prefix) and count < most:
            name = last = self.names[index]
            cut = name.find(delimiter, len(prefix)) if delimiter else -1
            if cut >= 0:
                folder = name[: cut + 1]
                parts.append(f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>")
                last = folder + "\U0010ffff"
                index = bisect.bisect_right(self.names, last)
            else:
                size, made = self.size(name), MADE
                if name in self.written:
                    size = len(self.written[name][0])
                    made = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(self.written[name][1]))
                parts.append(
                    f"<Contents><Key>{escape(name)}</Key><LastModified>{made}</LastModified><Size>{size}</Size></Contents>"
                )
                index += 1
            count += 1
        more = index < len(self.names) and self.names[index].startswith(prefix)
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if more else ""
        about = f"<IsTruncated>{str(more).lower()}</IsTruncated><KeyCount>{count}</KeyCount>{token}"
        return f"{LIST}{about}{''.join(parts)}</ListBucketResult>"


def unchunked(data: bytes) -> bytes:
    """Return what AWS's client sends in chunks, each behind a line with its length."""
    chunks, offset = [], 0
    while size := int(data[offset : (end := data.index(b"\r\n", offset))].split(b";")[0], 16):
        chunks.append(data[end + 2 : end + 2 + size])
        offset = end + 4 + size
    return b"".join(chunks)


def serve(make: Callable[[], Bucket], delay: float, port: Any, counts: Any) -> None:
    """Answer until this process is ended."""
    bucket = make()
    tally: Counter[str] = Counter()
    parts: dict[str, dict[int, bytes]] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def handle_any(self) -> None:
            where = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(where.query, keep_blank_values=True).items()}
            name = unquote(where.path).lstrip("/").partition("/")[2]
            time.sleep(delay)
            kind = "LIST" if self.command == "GET" and not name else self.command
            tally[kind] += 1
            counts.value = ",".join(f"{kind} {count}" for kind, count in tally.items()).encode()
            data = self.body()
            if "aws-chunked" in self.headers.get("Content-Encoding", ""):
                data = unchunked(data)
            if kind == "LIST":
                after = query.get("continuation-token") or query.get("start-after") or ""
                most = int(query.get("max-keys", 1000))
                page = bucket.listing(query.get("prefix", ""), query.get("delimiter", ""), after, most)
                self.answer(200, page.encode(), Content_Type="application/xml")
            elif kind == "POST":
                self.upload(name, query)
            elif kind == "PUT":
                if "partNumber" in query:
                    parts.setdefault(query["uploadId"], {})[int(query["partNumber"])] = data
                else:
                    bucket.write(name, data)
                self.answer(200, ETag='"x"')
            elif (content := bucket.read(name)) is None:
                self.answer(200 if not name else 404)
            else:
                self.part(*content)

        def body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            chunks = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return b"".join(chunks)

        def upload(self, name: str, query: Mapping[str, str]) -> None:
            if "uploads" in query:
                body = (
                    f"<InitiateMultipartUploadResult><UploadId>{len(parts)}</UploadId></InitiateMultipartUploadResult>"
                )
                parts[str(len(parts))] = {}
            else:
                uploaded = parts.pop(query["uploadId"])
                bucket.write(name, b"".join(uploaded[number] for number in sorted(uploaded)))
                body = f"<CompleteMultipartUploadResult><Key>{escape(name)}</Key></CompleteMultipartUploadResult>"
            self.answer(200, f'<?xml version="1.0"?>{body}'.encode(), Content_Type="application/xml")

        def part(self, body: bytes, when: float) -> None:
            first, _, last = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
            start, end = int(first or 0), int(last or len(body) - 1)
            headers = {"Last_Modified": formatdate(when, usegmt=True), "ETag": '"x"'}
            if self.command == "HEAD":
                self.send_response(200)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
            else:
                headers |= {"Content_Range": f"bytes {start}-{end}/{len(body)}"}
                self.answer(206 if first else 200, body[start : end + 1], **headers)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    port.value = server.server_port
    server.serve_forever()


@contextmanager
def bucket(make: Callable[[], Bucket], delay: float = 0.02) -> Iterator[tuple[str, Callable[[], Mapping[str, int]]]]:
    """Serve a bucket from a process of its own; give the options of its URI, and a function that counts requests."""
    context = multiprocessing.get_context("spawn")
    port, counts = context.Value("i", 0), context.Array("c", 200)
    process = context.Process(target=serve, args=(make, delay, port, counts), daemon=True)
    process.start()
    try:
        while not port.value:
            time.sleep(0.05)

        def counted() -> dict[str, int]:
            words = counts.value.decode().split(",") if counts.value else []
            return {word.split()[0]: int(word.split()[1]) for word in words}

        yield f"endpoint_override=127.0.0.1:{port.value}&scheme=http&region=us-east-1", counted
    finally:
        process.terminate()
        process.join()
