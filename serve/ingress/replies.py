"""Replies of a server: JSON, files or ranges of them, and problems in one line without file names or code."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, ParamSpec

P = ParamSpec("P")
Json = dict[str, Any]
"""An object of JSON."""

PROBLEM = "application/problem+json"
LONGEST = 300
"""Characters of a problem's line: it may repeat what was sent."""
SENT = 80
"""Characters that the line repeats of a field's name, and of its value."""


@dataclass(frozen=True)
class Reply:
    """The body of an answer and its type; more headers where they are needed."""

    body: bytes
    media: str
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


def json_reply(content: object, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Reply:
    """Return plain values as JSON."""
    return Reply(json.dumps(content, separators=(",", ":")).encode(), "application/json", status, headers)


class Problem(Exception):
    """An error response (RFC 9457).

    Replicas return it instead of raising it: what is raised is a fault of theirs, and logged as one.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        wait: int = 0,
        headers: Mapping[str, str] | None = None,
        entries: Mapping[str, object] | None = None,
    ) -> None:
        """Describe a refusal.

        Args:
            status: of HTTP.
            detail: what is wrong, in a line.
            wait: seconds after which to try again; 0: the answer does not say.
            headers: more headers of the answer.
            entries: more entries of the body, such as the field, what was got and what was wanted.
        """
        super().__init__(status, detail)
        self.status, self.detail, self.entries = status, plain_line(detail), dict(entries or {})
        self.headers = dict(headers or {}) | ({"Retry-After": str(wait)} if wait else {})

    def reply(self) -> Reply:
        """Return what is sent."""
        about = {"type": "about:blank", "title": HTTPStatus(self.status).phrase, "status": self.status}
        body = json.dumps(about | {"detail": self.detail} | self.entries).encode()
        return Reply(body, PROBLEM, self.status, tuple(self.headers.items()))


def wrong(field: str, got: object, wanted: object, **more: object) -> Problem:
    """Return the problem of a field that has another value or shape than is wanted; `more`: entries of its body."""
    entries = {"field": plain_line(field, SENT), "got": plain_line(str(got), SENT), "wanted": plain_line(str(wanted))}
    return Problem(422, "{field}: got {got}, wanted {wanted}".format(**entries), entries=entries | more)


def kind_of(body: bytes, starts: Mapping[str, bytes], refusal: str) -> str:
    """Return the kind of file that a body begins as; `starts`: kind -> a regular expression of its first bytes.

    Raises:
        Problem: 415 where it is none of them.
    """
    for kind, start in starts.items():
        if re.match(start, body, re.DOTALL):
            return kind
    raise Problem(415, refusal)


def send(path: Path, wanted: str, most: int, media: str) -> Reply:
    """Return a file, or a range of its bytes.

    Args:
        path: where it lies.
        wanted: the `Range` header; empty, or of another unit than bytes: all.
        most: bytes that are sent at once.
        media: its type.

    Raises:
        Problem: 404 where it is gone, and as `span`.
    """
    wanted = wanted.strip().lower()
    if not wanted.startswith("bytes="):
        wanted = ""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start, stop = span(wanted, size, most)
            file.seek(start)
            body = file.read(stop - start)
    except OSError as error:
        raise Problem(404, "the file is gone") from error
    if not wanted:
        return Reply(body, media, 200, (("Accept-Ranges", "bytes"),))
    part = f"bytes {start}-{stop - 1}/{size}"
    return Reply(body, media, 206, (("Accept-Ranges", "bytes"), ("Content-Range", part)))


def span(wanted: str, size: int, most: int) -> tuple[int, int]:
    """Return the bytes [start, stop) of a range in bytes, `bytes=FIRST-LAST`, at most `most`; all without one.

    Raises:
        Problem: 416 where there are no such bytes, 413 where all are more than is sent at once.
    """
    if not wanted:
        if size > most:
            raise Problem(413, f"the file has {size} bytes; ask for a range of at most {most}")
        return 0, size
    named = re.fullmatch(r"bytes=(\d{0,18})-(\d{0,18})", wanted, re.ASCII)
    if not named or not (named[1] or named[2]):
        raise Problem(416, "one range of bytes can be asked for: bytes=FIRST-LAST")
    start = int(named[1]) if named[1] else max(0, size - int(named[2]))
    stop = min(size, int(named[2]) + 1) if named[1] and named[2] else size
    if not start < stop:
        raise Problem(416, f"no such bytes; the file has {size}", headers={"Content-Range": f"bytes */{size}"})
    return start, min(stop, start + most)


def returns_problems(
    method: Callable[P, Awaitable[Reply]],
) -> Callable[P, Coroutine[object, object, Reply | Problem]]:
    """Let a method of a deployment return the problems that it raises."""

    @functools.wraps(method)
    async def answered(*arguments: P.args, **named: P.kwargs) -> Reply | Problem:
        try:
            return await method(*arguments, **named)
        except Problem as problem:
            return problem

    return answered


def plain_line(text: str, longest: int = LONGEST) -> str:
    """Return a text as one line of bounded length, without a terminal's commands."""
    plain = re.sub(r"\s+", " ", "".join(letter if letter.isprintable() else " " for letter in text)).strip()
    return plain if len(plain) <= longest else f"{plain[: longest - 1]}…"
