"""Forecasts over HTTP."""

# No `from __future__ import annotations` here; `serve/ingress/app.py` says why.
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import FastAPI, Query, Request, Response

from retable.platform.errors import nearest
from retable.serve.ingress.middleware import BodyReader, respond
from retable.serve.ingress.replies import Problem
from retable.serve.ingress.routes.common import Ask, Variant, body_of
from retable.serve.launch.models import Model, choose


def add(app: FastAPI, models: Sequence[Model], ask: Ask, bodies: BodyReader) -> None:
    """Add `POST /v1/weather`."""

    @app.post("/v1/weather", openapi_extra=body_of("application/x-hdf5", "application/x-npz"))
    async def forecast(
        request: Request,
        region: Annotated[str, Query(max_length=40)] = "",
        name: str = "",
        model: Variant = "",
        members: Annotated[str, Query(max_length=2000, description="Names or digests, with commas; all.")] = "",
        combine: Literal["mean", "vote"] = "mean",
        threshold: Annotated[float, Query(gt=0, lt=1, description="Of a vote: rain from here on.")] = 0.5,
        format: Literal["npz", "netcdf", "png", "gif"] = "npz",
        lead: Annotated[int, Query(ge=0, le=480, description="Minutes ahead of a PNG's one map; 0: all.")] = 0,
        time: Annotated[str, Query(max_length=40, description="Of the last image, UTC, ISO 8601.")] = "",
    ) -> Response:
        """Forecast rain from an hour of satellite images, (4, 11, S, S): probabilities in steps of 1/200."""
        chosen = members_of(models, members) or [choose(models, name or models[0].name, model, "forecaster")]
        async with bodies.read(request, bodies.limits.frames_bytes) as body:
            wanted = {"combine": combine, "threshold": threshold, "kind": format, "lead": lead, "time": time}
            answer = await ask("weather", "forecast", [each.sha256 for each in chosen], body, region, wanted)
        reply = respond(answer, chosen[0])
        if len(chosen) > 1 and reply.status_code < 400:
            reply.headers["X-Retable-Members"] = ", ".join(each.sha256 for each in chosen)
        return reply


def members_of(models: Sequence[Model], words: str) -> list[Model]:
    """Return the models of an ensemble, each once; none where no words are given.

    Raises:
        Problem: 404 where one is not served.
    """
    if words == "all":
        return list(models)
    members: dict[str, Model] = {}
    for word in filter(None, words.split(",")):
        named = [model for model in models if word in (model.name, model.variant, model.sha256)]
        if not named:
            raise Problem(404, f"no forecaster {word!r} is served{nearest(word, {model.name for model in models})}")
        members |= {model.sha256: model for model in named}
    return list(members.values())
