"""Endpoints about the server: the page, health, models, limits."""

# No `from __future__ import annotations` here; `serve/ingress/app.py` says why.
import asyncio
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import asdict

from fastapi import FastAPI, Response
from starlette.exceptions import HTTPException

from retable.platform.commit import code_root
from retable.serve.ingress.limits import Limits
from retable.serve.ingress.middleware import Ask
from retable.serve.ingress.replies import Json, Problem
from retable.serve.launch.models import Model, by_task

PAGE = code_root() / "serve" / "page"
MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".jpg": "image/jpeg",
}


async def unready(models: Sequence[Model], ask: Ask, seconds: float) -> Problem | None:
    """Return why models do not answer within so many seconds; none where all do."""
    digests = {task: [model.sha256 for model in own] for task, own in by_task(models).items()}
    try:
        async with asyncio.timeout(seconds):
            answers = await asyncio.gather(*(ask(task, "ready", own) for task, own in digests.items()))
    except Problem as problem:  # a full queue, a dead replica
        return problem
    except TimeoutError:
        return Problem(503, f"a model does not answer within {seconds:g} s", wait=5)
    except Exception:
        logging.getLogger("ray.serve").exception("a model does not answer")
        return Problem(503, "a model does not answer; the server's log says why", wait=5)
    return next((answer for answer in answers if isinstance(answer, Problem)), None)


def add(app: FastAPI, models: Sequence[Model], ask: Ask, limits: Limits) -> None:
    """Add the routes for the page, whose few files are known by name beforehand, and for health, models and limits."""
    files = {path.name: path for path in PAGE.iterdir() if path.suffix in MEDIA} if PAGE.is_dir() else {}
    asking, answered = asyncio.Lock(), -math.inf
    problem: Problem | None = None

    @app.get("/", include_in_schema=False)
    def page() -> Response:
        return file("index.html")

    @app.get("/page/{name}", include_in_schema=False)
    def file(name: str) -> Response:
        if name not in files:
            raise HTTPException(404)
        return Response(files[name].read_bytes(), 200, {"Cache-Control": "no-cache"}, MEDIA[files[name].suffix])

    @app.get("/-/healthz", include_in_schema=False)
    def live() -> Response:
        return Response("success")

    @app.get("/-/readyz", include_in_schema=False)
    async def ready() -> Json:
        """Ask every model, unless that was just done: what came of it is good for a while."""
        nonlocal answered, problem
        async with asking:
            if time.monotonic() - answered > limits.ready_seconds:
                problem, answered = await unready(models, ask, limits.ready_seconds), time.monotonic()
        if problem:
            raise problem
        return {"ready": bool(models), "models": len(models)}

    @app.get("/v1/models")
    def list_models() -> list[Json]:
        """Return the models that are served: their files' digests, where they are from, and why these."""
        return [asdict(model) for model in models]

    @app.get("/v1/limits")
    def show_limits() -> Json:
        """Return what a request may hold."""
        return asdict(limits)
