"""Endpoints about the server: health, models, limits."""

# No `from __future__ import annotations` here; `serve/ingress/app.py` says why.
import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import asdict

from fastapi import FastAPI, Response

from retable.serve.ingress.limits import Limits
from retable.serve.ingress.middleware import Ask
from retable.serve.ingress.replies import Json, Problem
from retable.serve.launch.models import Model


def add(app: FastAPI, models: Sequence[Model], ask: Ask, limits: Limits) -> None:
    """Add the routes for health, models and limits."""
    asking, answered = asyncio.Lock(), -math.inf
    problem: Problem | None = None
    digests: dict[str, list[str]] = {}
    for model in models:
        digests.setdefault(model.task, []).append(model.sha256)

    async def asked() -> Problem | None:
        try:
            async with asyncio.timeout(limits.ready_seconds):
                answers = await asyncio.gather(*(ask(task, "ready", own) for task, own in digests.items()))
        except Problem as problem:  # a full queue, a dead replica
            return problem
        except TimeoutError:
            return Problem(503, f"a model does not answer within {limits.ready_seconds:g} s").wait(5)
        return next((each for each in answers if isinstance(each, Problem)), None)

    @app.get("/-/healthz", include_in_schema=False)
    def live() -> Response:
        return Response("success")

    @app.get("/-/readyz", include_in_schema=False)
    async def ready() -> Json:
        """Ask every model, unless that was just done: what came of it is good for a while."""
        nonlocal answered, problem
        async with asking:
            if time.monotonic() - answered > limits.ready_seconds:
                problem, answered = await asked(), time.monotonic()
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
