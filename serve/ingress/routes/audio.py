"""Retrieval over HTTP."""

# No `from __future__ import annotations` here; `serve/ingress/app.py` says why.
from collections.abc import Sequence
from typing import Annotated

from fastapi import FastAPI, Query, Request, Response

from retable.serve.ingress.middleware import Ask, BodyReader, respond
from retable.serve.ingress.openapi import NUMBER, TEXT, Span, body_of, files, json_of, object_of
from retable.serve.launch.models import Model

_TAGS = {"type": "array", "items": TEXT, "description": "category and name of a file named by the UCS"}
_CHANCE = "how often words at random find as much; hits are listed in any case"
_HITS = json_of(
    object_of(
        hits={"type": "array", "items": object_of(id=TEXT, file=TEXT, score=NUMBER, offset=NUMBER, tags=_TAGS)},
        p={"type": ["number", "null"], "description": _CHANCE},
        verdict={"type": ["string", "null"], "enum": ["found", "doubtful", None]},
    ),
    example={
        "hits": [
            {"id": "2b1c0a9d8e7f6a5b", "file": "rain/1-17367-A.ogg", "score": 0.412, "offset": 1.0, "tags": []},
        ],
        "p": 0.0156,
        "verdict": "found",
    },
)


def add(app: FastAPI, models: Sequence[Model], ask: Ask, bodies: BodyReader) -> None:
    """Add `GET` and `POST /v1/audio`, and `GET /v1/audio/{id}`."""

    @app.get("/v1/audio", responses={200: _HITS})
    async def search(
        q: Annotated[str, Query(min_length=1, max_length=bodies.limits.query_characters, examples=["a dog barks"])],
        top: Annotated[int, Query(ge=1, le=bodies.limits.hits)] = 10,
    ) -> Response:
        """Find recordings by words: the best of each first, with the second at which it begins."""
        return respond(await ask("audio", "search", models[0].sha256, q, top), models[0])

    @app.post("/v1/audio", status_code=201, openapi_extra=body_of("audio/wav", "audio/flac", "audio/ogg", "audio/mpeg"))
    async def add(
        request: Request,
        name: Annotated[str, Query(max_length=200, description="What it is to be called.")] = "",
    ) -> Response:
        """Take in a recording: the next search finds it. The same recording twice is one."""
        async with bodies.read(request, bodies.limits.sound_bytes) as body:
            return respond(await ask("audio", "add", models[0].sha256, body, name), models[0])

    @app.get("/v1/audio/{id}", **files("audio/*", ranged=True))
    async def recording(id: str, span: Span = "") -> Response:
        """Return a recording that was found, or a range of its bytes."""
        return respond(await ask("audio", "recording", models[0].sha256, id, span))


def curl(model: Model) -> tuple[str, str]:
    """Return the options of a `curl` that asks a model, and the rest of its address."""
    return "", "?q=a+dog+barks&top=5"
