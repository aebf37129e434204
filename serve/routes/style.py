"""Styles over HTTP."""

# No `from __future__ import annotations` here; `serve/app.py` says why.
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import FastAPI, Query, Request, Response

from retable.serve.gate import Bodies, respond
from retable.serve.models import Model, choose
from retable.serve.routes.common import Ask, Variant, body_of


def add(app: FastAPI, models: Sequence[Model], ask: Ask, bodies: Bodies) -> None:
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
