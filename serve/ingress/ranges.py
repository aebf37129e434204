"""Files that are sent: whole, or the range of bytes that a request names."""

from __future__ import annotations

import re
from pathlib import Path

from retable.serve.ingress.replies import Problem, Reply


def send(path: Path, wanted: str, most: int, media: str) -> Reply:
    """Return a file, or a range of its bytes.

    Args:
        path: where it lies.
        wanted: the `Range` header; empty: all.
        most: bytes that are sent at once.
        media: its type.

    Raises:
        Problem: 404 where it is gone, and as `span`.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start, stop = span(wanted, size, most)
            file.seek(start)
            body = file.read(stop - start)
    except OSError as error:
        raise Problem(404, "the file is gone") from error
    headers: tuple[tuple[str, str], ...] = (("Accept-Ranges", "bytes"),)
    if wanted:
        headers = (*headers, ("Content-Range", f"bytes {start}-{stop - 1}/{size}"))
    return Reply(body, media, 206 if wanted else 200, headers)


def span(wanted: str, size: int, most: int) -> tuple[int, int]:
    """Return the bytes [start, stop) of a `Range` header, at most `most`; all without a header.

    Raises:
        Problem: 416 where there are no such bytes, 413 where all are more than is sent at once.
    """
    if not wanted:
        if size > most:
            raise Problem(413, f"the file has {size} bytes; ask for a range of at most {most}")
        return 0, size
    named = re.fullmatch(r"bytes=(\d{0,18})-(\d{0,18})", wanted.strip(), re.ASCII)
    if not named or not (named[1] or named[2]):
        raise Problem(416, "one range of bytes can be asked for: bytes=FIRST-LAST")
    start = int(named[1]) if named[1] else max(0, size - int(named[2]))
    stop = min(size, int(named[2]) + 1) if named[1] and named[2] else size
    if not start < stop:
        raise Problem(416, f"no such bytes; the file has {size}").header("Content-Range", f"bytes */{size}")
    return start, min(stop, start + most)
