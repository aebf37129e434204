"""Retrieval over HTTP."""

# No `from __future__ import annotations` here; `serve/ingress/app.py` says why.
from collections.abc import Sequence
from typing import Annotated

from fastapi import FastAPI, Query, Request, Response

from retable.serve.ingress.middleware import BodyReader, respond
from retable.serve.ingress.routes.common import Ask, body_of
from retable.serve.launch.models import Model


def add(app: FastAPI, models: Sequence[Model], ask: Ask, bodies: BodyReader) -> None:
    """Add `GET` and `POST /v1/audio`, and `GET /v1/audio/{id}`."""

    @app.get("/v1/audio")
    async def search(
        q: Annotated[str, Query(min_length=1, max_length=bodies.limits.query_characters)],
        top: Annotated[int, Query(ge=1, le=bodies.limits.hits)] = 10,
    ) -> Response:
        """Find recordings by words: the best of each first, with the second at which it begins."""
        return respond(await ask("audio", "search", q, top), models[0])

    @app.post("/v1/audio", status_code=201, openapi_extra=body_of("audio/wav", "audio/flac", "audio/ogg", "audio/mpeg"))
    async def add(
        request: Request,
        name: Annotated[str, Query(max_length=200, description="What it is to be called.")] = "",
    ) -> Response:
        """Take in a recording: the next search finds it. The same recording twice is one."""
        async with bodies.read(request, bodies.limits.sound_bytes) as body:
            return respond(await ask("audio", "add", body, name), models[0])

    @app.get("/v1/audio/{id}")
    async def recording(request: Request, id: str) -> Response:
        """Return a recording that was found, or a range of its bytes."""
        return respond(await ask("audio", "recording", id, request.headers.get("range", "")))
