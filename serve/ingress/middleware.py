"""Security middleware and responses: token, origin, host, limits of bodies, headers."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from fastapi import Request, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retable.serve.ingress.limits import LIMITS, Limits
from retable.serve.ingress.replies import Problem, Reply
from retable.serve.launch.address import loopback
from retable.serve.launch.models import Model

_SAFE = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of every answer: the page is allowed its own origin alone, and nobody may frame it."""


Ask = Callable[..., Awaitable[Reply | Problem]]
"""Asks a task's deployment: task, method, arguments."""


def respond(answer: Reply | Problem, model: Model | None = None) -> Response:
    """Return a deployment's reply as an HTTP response, with headers that identify the model."""
    reply = answer.reply() if isinstance(answer, Problem) else answer
    extra = model.headers() if model and reply.status < 400 else {}
    return Response(reply.body, reply.status, extra | dict(reply.headers), reply.media)


ALIVE, READY = "/-/healthz", "/-/readyz"
"""Paths for supervisors, which ask by IP address and without a token; a server that drains is alive, and not ready."""
_Answered = Callable[[str, str, int, float], None]
"""Is told of each answer: the route's path, the method, the status (0 where the client left before), and seconds."""


class SecurityMiddleware:
    """ASGI middleware: checks host, token and origin, turns errors into one line, and sets headers."""

    def __init__(
        self, app: ASGIApp, token: str, hosts: Sequence[str], answered: _Answered, limits: Limits = LIMITS
    ) -> None:
        self.app, self.token, self.hosts, self.answered, self.limits = app, token, hosts, answered, limits
        self.busy, self.closing = 0, False
        self.clients: Counter[str] = Counter()
        """Requests that each address has here now."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status, head, prefix = time.monotonic(), 0, scope["method"] == "HEAD", scope.get("root_path", "")
        scope = {**scope, "method": "GET"} if head else scope
        headers, client = Headers(scope=scope), (scope.get("client") or ("",))[0]

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status, headers = message["status"], MutableHeaders(scope=message)
                headers.update(_SAFE)
                if headers.get("location", "").startswith("/"):
                    headers["location"] = prefix + headers["location"]
            await send({**message, "body": b""} if head and message["type"] == "http.response.body" else message)

        self.busy += 1
        self.clients[client] += 1
        try:
            if self.closing and scope["path"].removeprefix(prefix) != ALIVE:
                raise Problem(503, "the server is about to end", wait=5)
            self.check(scope["method"], scope["path"].removeprefix(prefix), headers)
            most = self.limits.client_requests
            if most and self.clients[client] > most and client and not loopback(client):
                raise Problem(429, f"more than {most} requests of one client at once", wait=1)
            await self.app(scope, receive, sending)
        except Problem as problem:
            await respond(problem)(scope, receive, sending)
        except Exception:  # the answer is sent (`_fault`); Starlette raises what it was, for the log
            identity = headers.get("x-request-id", "")  # Serve's proxy sets it, and repeats it in the answer
            logging.getLogger("ray.serve").exception("request %r failed", identity[:64])
        finally:
            self.busy -= 1
            self.clients[client] -= 1
            if not self.clients[client]:
                del self.clients[client]
            route = getattr(scope.get("route"), "path", "")
            self.answered(route, scope["method"] if route else "-", status, time.monotonic() - begun)

    def check(self, method: str, path: str, headers: Headers) -> None:
        """Refuse a request that was sent to another name, without the token, or by another site's page.

        Another site may have made a name of its own lead here (DNS rebinding). A browser adds no token of its own: a
        request that has one is none of another site's page. Without a token, a browser sends such a page's request if
        no response is read. A proxy may replace the name that the browser asked; `hosts` has it. Other ports of this
        machine are other sites.

        Raises:
            Problem: 401, 403 or 421.
        """
        if path in (ALIVE, READY):
            return
        host = headers.get("host", "").lower()
        name = re.sub(r":\d+$", "", host)
        if self.hosts and not {host, name, name.strip("[]")} & set(self.hosts):
            detail = "this server answers to localhost, 127.0.0.1, and names of `retable serve --allowed-host`"
            raise Problem(421, detail)
        if self.token and path.startswith(("/v1/", "/openapi.json")):  # both tell what is served
            scheme, _, given = headers.get("authorization", "").partition(" ")
            digest = hashlib.sha256(given.strip().encode()).hexdigest()
            if not (hmac.compare_digest(digest, self.token) and scheme.lower() == "bearer"):  # in constant time
                detail = "a token is needed: the header `Authorization: Bearer TOKEN`"
                raise Problem(401, detail, headers={"WWW-Authenticate": "Bearer"})
        elif method not in ("GET", "HEAD") and "origin" in headers:
            origin = headers["origin"].partition("://")[2].lower()
            if origin not in {host, *(name for name in self.hosts if not loopback(name))}:
                raise Problem(403, "pages of other sites may not ask this server")


class BodyReader:
    """Reads request bodies; refuses one that is too long or slow, and too many bytes in flight."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.in_flight_bytes = limits, 0
        self.reading: dict[asyncio.Timeout, None] = {}
        """The time limits of bodies that are read, the one whose last byte is the oldest first."""

    @asynccontextmanager
    async def read(self, request: Request, most: int) -> AsyncIterator[bytes]:
        """Yield a request's body while the block runs.

        Raises:
            Problem: 413, 408 where it comes too slowly, or 503 where other requests hold too much.
        """
        long = Problem(413, f"the body is longer than {most} bytes", entries={"wanted": most})
        if int(request.headers.get("content-length", "0")) > most:
            raise long
        body, size = bytearray(), 0
        try:
            async with self.in_time() as clock:
                async for chunk in request.stream():
                    self.reading[clock] = self.reading.pop(clock, None)
                    clock.reschedule((clock.when() or 0.0) + len(chunk) / self.limits.body_rate)
                    body += chunk
                    size += len(chunk)
                    self.in_flight_bytes += len(chunk)
                    if size > most:
                        raise long
                    if self.in_flight_bytes > self.limits.held_bytes:
                        raise Problem(503, "too many large requests at once; try again in a moment", wait=2)
            content = bytes(body)
            body.clear()  # held once, as it is counted
            yield content
        finally:
            self.in_flight_bytes -= size

    @asynccontextmanager
    async def in_time(self) -> AsyncIterator[asyncio.Timeout]:
        """Yield a body's time limit, which ends at once where it is the slowest of too many.

        Raises:
            Problem: 408; the connection is closed, as the rest of the body may never come.
        """
        clock = asyncio.timeout(self.limits.body_seconds)
        try:
            async with clock:
                self.reading[clock] = None
                if len(self.reading) > self.limits.bodies:
                    slowest = next(timeout for timeout in self.reading if not timeout.expired())
                    del self.reading[slowest]
                    slowest.reschedule(0)
                yield clock
        except TimeoutError as error:
            raise Problem(408, "the body comes too slowly", headers={"Connection": "close"}) from error
        finally:
            self.reading.pop(clock, None)
