"""Styles over HTTP."""

# No `from __future__ import annotations` here; `serve/ingress/app.py` says why.
import secrets
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import FastAPI, Query, Request, Response

from retable.serve.deployments.video import Order
from retable.serve.ingress.middleware import BodyReader, respond
from retable.serve.ingress.routes.common import Ask, Variant, body_of
from retable.serve.launch.models import Model, choose


def add(app: FastAPI, models: Sequence[Model], ask: Ask, bodies: BodyReader) -> None:
    """Add `POST /v1/style/{style}` and `POST /v1/style/{style}/video`."""

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

    @app.post(
        "/v1/style/{style}/video",
        status_code=202,
        openapi_extra=body_of("video/mp4", "video/quicktime", "video/x-matroska", "video/webm", "video/x-msvideo"),
    )
    async def video(
        request: Request,
        style: str,
        model: Variant = "",
        size: Annotated[int, Query(ge=0, le=4096, description="Of the longer side; 0: the video's own.")] = 0,
        strength: Annotated[float, Query(ge=0, le=1, allow_inf_nan=False)] = 1.0,
        colours: Annotated[Literal["style", "original"], Query()] = "style",
        steady: Annotated[
            Literal["off", "statistics", "flow"],
            Query(description="Against flicker: statistics fixed over a shot; flow also blends along the motion."),
        ] = "off",
        format: Annotated[Literal["mp4", "webm", "mkv"], Query()] = "mp4",
    ) -> Response:
        """Take in a video to be painted in a style; `Location` names the job that says how far it is."""
        chosen = choose(models, style, model, "style")
        original = colours == "original"
        order = Order(
            sha256=chosen.sha256, size=size, strength=strength, original=original, steady=steady, format=format
        )
        async with bodies.read(request, bodies.limits.video_bytes) as body:
            # The id is made here: a replica that dies is asked again, and the same id twice is one job.
            return respond(await ask("jobs", "create", secrets.token_urlsafe(16), body, order), chosen)
