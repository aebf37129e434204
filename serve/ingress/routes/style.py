"""Styles over HTTP, and the jobs that paint videos."""

# No `from __future__ import annotations` here; `serve/ingress/app.py` says why.
import secrets
import shlex
from collections.abc import Sequence
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import FastAPI, Path, Query, Request, Response

from retable.serve.deployments.video import MEDIA, Order
from retable.serve.ingress.middleware import Ask, BodyReader, respond
from retable.serve.ingress.openapi import (
    NUMBER,
    TEXT,
    WHOLE,
    Span,
    Variant,
    body_of,
    files,
    json_of,
    named,
    object_of,
)
from retable.serve.launch.models import Model, choose

_JOB = json_of(
    object_of(
        id=TEXT,
        state={"type": "string", "enum": ["queued", "running", "done", "failed", "cancelled"]},
        frames=WHOLE,
        frames_total=WHOLE | {"description": "0: not known yet"},
        progress=NUMBER,
        optional={
            "ahead": WHOLE | {"description": "of a queued one: those before it"},
            "seconds_left": NUMBER | {"description": "of a running one"},
            "file": TEXT | {"description": "of one that is done: where it is"},
            "notes": {"type": "array", "items": TEXT, "description": "of one that is done: what was lost"},
            "detail": TEXT | {"description": "of one that failed: why"},
        },
    ),
    example={
        "id": "n0T6uE2jR4mXq8vLw1sYzA",
        "state": "running",
        "frames": 96,
        "frames_total": 240,
        "progress": 0.4,
        "seconds_left": 31.5,
    },
)


def add(app: FastAPI, models: Sequence[Model], ask: Ask, bodies: BodyReader) -> None:
    """Add `POST /v1/style/{style}` and `POST /v1/style/{style}/video`, and the jobs of videos."""
    served = named(models)

    @app.post(
        "/v1/style/{style}",
        openapi_extra=body_of("image/jpeg", "image/png", "image/webp", "image/gif", "image/tiff", "image/bmp"),
        **files("image/png", "image/jpeg"),
    )
    async def stylise(
        request: Request,
        style: Annotated[str, Path(json_schema_extra=served)],
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
        responses={202: _JOB},
    )
    async def video(
        request: Request,
        style: Annotated[str, Path(json_schema_extra=served)],
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
        order = Order(
            sha256=chosen.sha256,
            size=size,
            strength=strength,
            original=colours == "original",
            steady=steady,
            format=format,
        )
        async with bodies.read(request, bodies.limits.video_bytes) as body:
            # The id is made here: a replica that dies is asked again, and the same id twice is one job.
            return respond(await ask("jobs", "call", "create", secrets.token_urlsafe(16), body, order), chosen)

    @app.get("/v1/jobs/{id}", responses={200: _JOB})
    async def job(id: str) -> Response:
        """Return how far a job is: queued, running, done, failed (`detail` says why) or cancelled."""
        return respond(await ask("jobs", "call", "status", id))

    @app.get("/v1/jobs/{id}/file", **files(*MEDIA.values(), ranged=True))
    async def file(id: str, span: Span = "") -> Response:
        """Return what a job has made, or a range of its bytes."""
        return respond(await ask("jobs", "call", "file", id, span))

    @app.delete("/v1/jobs/{id}", status_code=204)
    async def cancel(id: str) -> Response:
        """Cancel a job; remove one that is over, with its file."""
        return respond(await ask("jobs", "call", "cancel", id))


def curl(model: Model) -> tuple[str, str]:
    """Return the options of a `curl` that asks a model, and the rest of its address."""
    out = shlex.quote(f"{model.name}.png")
    return f" --data-binary @photograph.jpg -o {out}", f"/{quote(model.name)}?size=1024"
