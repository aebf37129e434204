"""The one address: what every request passes, and which deployment answers it. It decodes nothing and needs no GPU."""

# No `from __future__ import annotations` here: FastAPI reads the annotations of routes when it is given them, and would
# take `request: Request`, were it a text that it cannot resolve under Serve's ingress, for a query parameter. Each call
# would then be answered with 422.
import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retable.serve.answers import Problem, Reply, wrong
from retable.serve.limits import LIMITS, Limits
from retable.serve.models import Model, choose

PAGE = Path(__file__).parent / "page"
MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".jpg": "image/jpeg",
}
SAFE = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of every answer: the page is allowed its own origin alone, and nobody may frame it."""
TRIES = 4
"""How often a deployment is asked whose replica died: every request can be answered twice without harm."""

Ask = Callable[..., Awaitable[Reply | Problem]]
"""Asks a task's deployment: task, method, arguments."""


@serve.deployment(
    name="ingress",
    ray_actor_options={"num_cpus": 0.2},
    max_ongoing_requests=512,
    graceful_shutdown_wait_loop_s=0.2,
    health_check_period_s=5,
)
@serve.ingress()
class Ingress:
    """The deployment that HTTP reaches."""

    def __init__(self, models: Sequence[Model], handles: dict[str, DeploymentHandle[Any]], token: str, limits: Limits):
        self.models, self.handles, self.token, self.limits = models, handles, token, limits

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Return the application; Serve asks for it once the handles are here."""
        self.gate = build(self.models, self.ask, self.limits, self.token)
        return self.gate

    async def drain(self, seconds: float) -> int:
        """Take no more requests, and wait so long for those that were begun; return how many are left."""
        self.gate.closing = True
        end = time.monotonic() + seconds
        while self.gate.busy and time.monotonic() < end:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)  # the proxy has the last answer, and still sends it
        return self.gate.busy

    async def ask(self, task: str, method: str, *arguments: Any) -> Reply | Problem:
        """Ask a deployment; again where its replica died; never for longer than the limit.

        Raises:
            Problem: where it has too much to do, or does not come back.
        """
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await self._ask(task, method, *arguments)
        except TimeoutError as error:
            raise Problem(503, f"no answer within {self.limits.seconds:g} s; ask for less at once").wait(10) from error

    async def _ask(self, task: str, method: str, *arguments: Any) -> Reply | Problem:
        for attempt in range(TRIES):
            response = getattr(self.handles[task], method).remote(*arguments)
            try:
                answer: Reply | Problem = await response
                return answer
            except asyncio.CancelledError:
                response.cancel()
                raise
            except BackPressureError as error:
                raise Problem(503, f"{task} has more to do than it can; try again in a moment").wait(1) from error
            except RayActorError:
                await asyncio.sleep(0.2 * 2**attempt)
        raise Problem(503, f"{task} is starting again; try again in a moment").wait(5)


def build(models: Sequence[Model], ask: Ask, limits: Limits = LIMITS, token: str = "") -> "Gate":
    """Return the application, which asks deployments by `ask`; with the digest of a token it wants that token."""
    app = FastAPI(title="retable", version="1", docs_url=None, redoc_url=None)
    app.add_exception_handler(Problem, lambda request, error: respond(error))
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _fault)
    bodies = Bodies(limits)
    add_pages(app)
    add_facts(app, models, limits)
    tasks = {model.task for model in models}
    for task, add in {"rl": add_rl, "style": add_style, "audio": add_audio, "weather": add_weather}.items():
        if task in tasks:
            add(app, [model for model in models if model.task == task], ask, bodies)
    return Gate(app, token)


def respond(answer: Reply | Problem, model: Model | None = None) -> Response:
    """Return what a deployment answered as HTTP, with the headers that say which model it is from."""
    reply = answer.reply() if isinstance(answer, Problem) else answer
    said = model.headers() if model and reply.status < 400 else {}
    return Response(reply.body, reply.status, said | dict(reply.headers), reply.media)


def _http_problem(request: Request, error: Any) -> Response:
    known = {404: "there is nothing here; GET /v1/models says what is served", 405: f"{request.method} is not for this"}
    return respond(Problem(error.status_code, known.get(error.status_code, str(error.detail))))


def _invalid(request: Request, error: Any) -> Response:
    first = error.errors()[0]
    return respond(wrong(str(first["loc"][-1]), repr(first.get("input"))[:80], first["msg"].lower()))


def _fault(request: Request, error: Any) -> Response:
    return respond(Problem(500, "a fault of the server's; its log has it under the request's id"))


class Gate:
    """What every request passes: the token, one line for whatever fails, and the headers of every answer."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.token = app, token
        self.busy, self.closing = 0, False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SAFE)
            await send(message)

        self.busy += 1
        try:
            if self.closing:
                raise Problem(503, "the server is about to end").wait(5)
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


def add_pages(app: FastAPI) -> None:
    """Add the page: a few files, known by name beforehand."""
    files = {path.name: path for path in PAGE.iterdir() if path.suffix in MEDIA} if PAGE.is_dir() else {}

    @app.get("/", include_in_schema=False)
    def page() -> Response:
        return file("index.html")

    @app.get("/page/{name}", include_in_schema=False)
    def file(name: str) -> Response:
        if name not in files:
            raise HTTPException(404)
        return Response(files[name].read_bytes(), 200, {"Cache-Control": "no-cache"}, MEDIA[files[name].suffix])


def add_facts(app: FastAPI, models: Sequence[Model], limits: Limits) -> None:
    """Add what the server says of itself."""

    @app.get("/v1/models")
    def list_models() -> list[dict[str, Any]]:
        """Say which models are served: their files' digests, where they are from, and why these."""
        return [model.shown() for model in models]

    @app.get("/v1/limits")
    def show_limits() -> dict[str, Any]:
        """Say what a request may hold."""
        return asdict(limits)


def body_of(*media: str, example: Any = None) -> dict[str, Any]:
    """Return what OpenAPI says of a body that is read as it is."""
    plain = {"schema": {"type": "string", "format": "binary"}}
    content = {kind: {"example": example, "schema": {"type": "object"}} if example else plain for kind in media}
    return {"requestBody": {"required": True, "content": content}}


Variant = Annotated[str, Query(description="Which model, where several have the name: its variant or digest.")]
OBSERVATIONS = {"observations": [[0.0] * 17], "seed": 0}


def add_rl(app: FastAPI, models: Sequence[Model], ask: Ask, bodies: Bodies) -> None:
    """Add `POST /v1/rl/{environment}`."""

    @app.post("/v1/rl/{environment}", openapi_extra=body_of("application/json", example=OBSERVATIONS))
    async def act(request: Request, environment: str, model: Variant = "") -> Response:
        """Choose an action for each row of observations; the same seed draws the same candidates."""
        chosen = choose(models, environment, model, "policy of the environment")
        async with bodies.read(request, bodies.limits.observations_bytes) as body:
            return respond(await ask("rl", "act", chosen.sha256, body), chosen)


def add_style(app: FastAPI, models: Sequence[Model], ask: Ask, bodies: Bodies) -> None:
    """Add `POST /v1/style/{style}`."""

    @app.post("/v1/style/{style}", openapi_extra=body_of("image/jpeg", "image/png", "image/webp"))
    async def stylise(
        request: Request,
        style: str,
        model: Variant = "",
        size: Annotated[int, Query(ge=0, le=8192, description="Of the longer side; 0: the photograph's own.")] = 0,
        strength: Annotated[float, Query(ge=0, le=1, allow_inf_nan=False)] = 1.0,
        colours: Annotated[Literal["style", "original"], Query()] = "style",
        format: Annotated[Literal["png", "jpeg"], Query()] = "png",
    ) -> Response:
        """Paint a photograph in a style."""
        chosen = choose(models, style, model, "style")
        async with bodies.read(request, bodies.limits.picture_bytes) as body:
            wanted = (size, strength, colours == "original", format)
            return respond(await ask("style", "stylise", chosen.sha256, body, *wanted), chosen)


def add_audio(app: FastAPI, models: Sequence[Model], ask: Ask, bodies: Bodies) -> None:
    """Add `GET /v1/audio` and `GET /v1/audio/{id}`."""

    @app.get("/v1/audio")
    async def search(
        q: Annotated[str, Query(min_length=1, max_length=bodies.limits.query_characters)],
        top: Annotated[int, Query(ge=1, le=bodies.limits.hits)] = 10,
    ) -> Response:
        """Find recordings by words: the best of each first, with the second at which it begins."""
        return respond(await ask("audio", "search", q, top), models[0])

    @app.get("/v1/audio/{id}")
    async def recording(request: Request, id: str) -> Response:
        """Return a recording that was found, or a range of its bytes."""
        return respond(await ask("audio", "recording", id, request.headers.get("range", "")))


def add_weather(app: FastAPI, models: Sequence[Model], ask: Ask, bodies: Bodies) -> None:
    """Add `POST /v1/weather`."""

    @app.post("/v1/weather", openapi_extra=body_of("application/x-hdf5", "application/x-npz"))
    async def forecast(
        request: Request, region: Annotated[str, Query(max_length=40)] = "", name: str = "", model: Variant = ""
    ) -> Response:
        """Forecast rain from an hour of satellite images, (4, 11, S, S): probabilities in steps of 1/200, as npz."""
        chosen = choose(models, name or models[0].name, model, "forecaster")
        async with bodies.read(request, bodies.limits.frames_bytes) as body:
            return respond(await ask("weather", "forecast", chosen.sha256, body, region), chosen)
