"""What every request passes before a route: the token, the origin, its body's length; and how answers are sent."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from fastapi import Request, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retable.serve.ingress.answers import Problem, Reply
from retable.serve.ingress.limits import Limits
from retable.serve.launch.models import Model

SAFE = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of every answer: the page is allowed its own origin alone, and nobody may frame it."""


def respond(answer: Reply | Problem, model: Model | None = None) -> Response:
    """Return what a deployment answered as HTTP, with the headers that say which model it is from."""
    reply = answer.reply() if isinstance(answer, Problem) else answer
    said = model.headers() if model and reply.status < 400 else {}
    return Response(reply.body, reply.status, said | dict(reply.headers), reply.media)


Answered = Callable[[str, str, int, float], None]
"""Is told of each answer: the route's path, the method, the status (0 where the client left before), and seconds."""


class Gate:
    """What every request passes: the token, one line for whatever fails, and the headers of every answer."""

    def __init__(self, app: ASGIApp, token: str, hosts: Sequence[str], answered: Answered) -> None:
        self.app, self.token, self.hosts, self.answered = app, token, hosts, answered
        self.busy, self.closing = 0, False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, begun, status = Headers(scope=scope), time.monotonic(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(SAFE)
            await send(message)

        self.busy += 1
        try:
            if self.closing:
                raise Problem(503, "the server is about to end").wait(5)
            check_host(headers.get("host", ""), self.hosts)
            check_origin(scope["method"], headers)
            if self.token and scope["path"].startswith("/v1/"):
                check_token(headers.get("authorization", ""), self.token)
            await self.app(scope, receive, sending)
        except Problem as problem:
            await respond(problem)(scope, receive, sending)
        except Exception:  # the answer is sent (`_fault`); Starlette raises what it was, for the log
            identity = headers.get("x-request-id", "")  # Serve's proxy sets it, and repeats it in the answer
            logging.getLogger("ray.serve").exception("request %r failed", identity[:64])
        finally:
            self.busy -= 1
            known = getattr(scope.get("route"), "path", "")
            self.answered(known, scope["method"] if known else "-", status, time.monotonic() - begun)


def check_host(host: str, names: Sequence[str]) -> None:
    """Refuse a request that was sent to another name, which another site may have made lead here (DNS rebinding).

    Raises:
        Problem: 421.
    """
    name = re.sub(r":\d+$", "", host).strip("[]").lower()
    if names and name not in names:
        raise Problem(421, "this server answers on this machine's own names: localhost, 127.0.0.1")


def check_token(authorization: str, digest: str) -> None:
    """Refuse a request without the right bearer token; how long that takes says nothing of the token.

    Raises:
        Problem: 401.
    """
    scheme, _, given = authorization.partition(" ")
    right = hmac.compare_digest(hashlib.sha256(given.strip().encode()).hexdigest(), digest)
    if not (right and scheme.lower() == "bearer"):
        raise Problem(401, "a token is needed: the header `Authorization: Bearer TOKEN`")


def check_origin(method: str, headers: Headers) -> None:
    """Refuse what another site's page sends, which a browser allows where nothing is read back.

    Raises:
        Problem: 403.
    """
    origin = headers.get("origin")
    if method not in ("GET", "HEAD") and origin and origin.partition("://")[2] != headers.get("host"):
        raise Problem(403, "pages of other sites may not ask this server")


class Bodies:
    """Reads bodies, counting while they come; refuses what is too long alone, and what is too much together."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.held = limits, 0

    @asynccontextmanager
    async def read(self, request: Request, most: int) -> AsyncIterator[bytes]:
        """Give a request's body while the block runs.

        Raises:
            Problem: 413, or 503 where other requests hold too much.
        """
        long = Problem(413, f"the body is longer than {most} bytes").having(wanted=most)
        if int(request.headers.get("content-length", "0")) > most:
            raise long
        body = bytearray()
        try:
            async for chunk in request.stream():
                body += chunk
                self.held += len(chunk)
                if len(body) > most:
                    raise long
                if self.held > self.limits.held_bytes:
                    raise Problem(503, "too many large requests at once; try again in a moment").wait(2)
            yield bytes(body)
        finally:
            self.held -= len(body)
