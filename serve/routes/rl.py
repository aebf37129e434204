"""Policies over HTTP."""

# No `from __future__ import annotations` here; `serve/app.py` says why.
from collections.abc import Sequence

from fastapi import FastAPI, Request, Response

from retable.serve.gate import Bodies, respond
from retable.serve.models import Model, choose
from retable.serve.routes.common import Ask, Variant, body_of

OBSERVATIONS = {"observations": [[0.0] * 17], "seed": 0}


def add(app: FastAPI, models: Sequence[Model], ask: Ask, bodies: Bodies) -> None:
    """Add `POST /v1/rl/{environment}`."""

    @app.post("/v1/rl/{environment}", openapi_extra=body_of("application/json", example=OBSERVATIONS))
    async def act(request: Request, environment: str, model: Variant = "") -> Response:
        """Choose an action for each row of observations; the same seed draws the same candidates."""
        chosen = choose(models, environment, model, "policy of the environment")
        async with bodies.read(request, bodies.limits.observations_bytes) as body:
            return respond(await ask("rl", "act", chosen.sha256, body), chosen)
