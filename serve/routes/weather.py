"""Forecasts over HTTP."""

# No `from __future__ import annotations` here; `serve/app.py` says why.
from collections.abc import Sequence
from typing import Annotated

from fastapi import FastAPI, Query, Request, Response

from retable.serve.gate import Bodies, respond
from retable.serve.models import Model, choose
from retable.serve.routes.common import Ask, Variant, body_of


def add(app: FastAPI, models: Sequence[Model], ask: Ask, bodies: Bodies) -> None:
    """Add `POST /v1/weather`."""

    @app.post("/v1/weather", openapi_extra=body_of("application/x-hdf5", "application/x-npz"))
    async def forecast(
        request: Request, region: Annotated[str, Query(max_length=40)] = "", name: str = "", model: Variant = ""
    ) -> Response:
        """Forecast rain from an hour of satellite images, (4, 11, S, S): probabilities in steps of 1/200, as npz."""
        chosen = choose(models, name or models[0].name, model, "forecaster")
        async with bodies.read(request, bodies.limits.frames_bytes) as body:
            return respond(await ask("weather", "forecast", chosen.sha256, body, region), chosen)
