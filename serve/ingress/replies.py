"""Replies of a server, and problems in one line without file names or code."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from http import HTTPStatus

PROBLEM = "application/problem+json"
LONGEST = 300
"""Characters of a problem's line: it may repeat what was sent."""


@dataclass(frozen=True)
class Reply:
    """The body of an answer and its type; more headers where they are needed."""

    body: bytes
    media: str
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


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
    return Problem(422, f"{field}: got {got}, wanted {wanted}").having(field=field, got=str(got), wanted=str(wanted))


def plain_line(text: str) -> str:
    """Return a text as one line of bounded length, without a terminal's commands."""
    plain = re.sub(r"\s+", " ", "".join(letter if letter.isprintable() else " " for letter in text)).strip()
    return plain if len(plain) <= LONGEST else f"{plain[: LONGEST - 1]}…"
