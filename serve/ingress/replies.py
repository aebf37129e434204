"""Replies of a server, and problems in one line without file names or code."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from http import HTTPStatus
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

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(status, detail)
        self.status, self.detail = status, plain_line(detail)
        self.entries: dict[str, object] = {}
        self.headers: dict[str, str] = {}

    def wait(self, seconds: int) -> Problem:
        """Return the problem with the seconds after which to try again."""
        return self.header("Retry-After", str(seconds))

    def header(self, name: str, value: str) -> Problem:
        """Return the problem with a header of its answer."""
        self.headers[name] = value
        return self

    def having(self, **entries: object) -> Problem:
        """Return the problem with more entries, such as the field, what was got and what was wanted."""
        self.entries |= entries
        return self

    def reply(self) -> Reply:
        """Return what is sent."""
        about = {"type": "about:blank", "title": HTTPStatus(self.status).phrase, "status": self.status}
        body = json.dumps(about | {"detail": self.detail} | self.entries).encode()
        return Reply(body, PROBLEM, self.status, tuple(self.headers.items()))


def wrong(field: str, got: object, wanted: object) -> Problem:
    """Return the problem of a field that has another value or shape than is wanted."""
    entries = {"field": plain_line(field, SENT), "got": plain_line(str(got), SENT), "wanted": plain_line(str(wanted))}
    return Problem(422, "{field}: got {got}, wanted {wanted}".format(**entries)).having(**entries)


def kind_of(body: bytes, starts: Mapping[str, bytes], refusal: str) -> str:
    """Return the kind of file that a body begins as; `starts`: kind -> a regular expression of its first bytes.

    Raises:
        Problem: 415 where it is none of them.
    """
    for kind, start in starts.items():
        if re.match(start, body, re.DOTALL):
            return kind
    raise Problem(415, refusal)


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
