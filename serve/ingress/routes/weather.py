"""Forecasts over HTTP, and an hour of satellite images to try them with."""

# No `from __future__ import annotations` here; `serve/ingress/app.py` says why.
import io
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import quote

import numpy as np
from fastapi import FastAPI, Query, Request, Response

from retable.platform.commit import code_root
from retable.platform.errors import nearest
from retable.serve.ingress.middleware import Ask, BodyReader, respond
from retable.serve.ingress.openapi import Variant, body_of, files, named
from retable.serve.ingress.replies import Problem, Reply, wrong
from retable.serve.launch.models import Model, choose

EXAMPLE = code_root() / "tasks" / "weather" / "zoo" / "example" / "generated-36.npz"
_NPZ = "application/x-npz"


def add(app: FastAPI, models: Sequence[Model], ask: Ask, bodies: BodyReader) -> None:
    """Add `POST /v1/weather` and `GET /v1/weather/example`."""
    served, data = named(models, ""), EXAMPLE.read_bytes() if EXAMPLE.is_file() else b""
    regions = list(dict.fromkeys(region for model in models for region in model.about.get("regions", ())))

    @app.post(
        "/v1/weather",
        openapi_extra=body_of("application/x-hdf5", _NPZ),
        **files(_NPZ, "application/x-netcdf", "image/png", "image/gif"),
    )
    async def forecast(
        request: Request,
        # Networks forecast any region; its name goes into a file's attributes, which hold no control characters.
        region: Annotated[str, Query(max_length=40, pattern=r"^[^\x00-\x1f]*$", examples=regions)] = "",
        name: Annotated[str, Query(json_schema_extra=served)] = "",
        model: Variant = "",
        members: Annotated[str, Query(max_length=2000, description="Names or digests, with commas; all.")] = "",
        combine: Literal["mean", "vote"] = "mean",
        threshold: Annotated[float, Query(gt=0, lt=1, description="Of a vote: rain from here on.")] = 0.5,
        format: Literal["npz", "netcdf", "png", "gif"] = "npz",
        lead: Annotated[int, Query(ge=0, le=480, description="Minutes ahead of a PNG's one map; 0: all.")] = 0,
        time: Annotated[str, Query(max_length=40, description="Of the last image, UTC, ISO 8601.")] = "",
    ) -> Response:
        """Forecast rain from an hour of satellite images, (4, 11, S, S): probabilities in steps of 1/200."""
        chosen = members_of(models, members) or [choose(models, name, model, "forecaster")]
        async with bodies.read(request, bodies.limits.frames_bytes) as body:
            wanted = (combine, threshold, format, lead, time)
            answer = await ask(
                "weather", "forecast", [forecaster.sha256 for forecaster in chosen], body, region, *wanted
            )
        reply = respond(answer, chosen[0])
        if len(chosen) > 1 and reply.status_code < 400:
            reply.headers["X-Retable-Members"] = ", ".join(forecaster.sha256 for forecaster in chosen)
        return reply

    @app.get("/v1/weather/example", **files(_NPZ))
    def example(name: Annotated[str, Query(json_schema_extra=served)] = "", model: Variant = "") -> Response:
        """Return npz: `images` (4, 11, S, S) to be posted, `truth` uint8 (32, S, S): 0 dry, 1 rain, 2 not measured.

        Besides, `region` and `about` say which it is. The file may be posted as it is.
        """
        about = choose(models, name, model, "forecaster").about
        if not data or not fits(data, about):
            raise Problem(404, "there is no example of this forecaster's size; send images of your own")
        return respond(Reply(data, _NPZ))


def fits(data: bytes, about: Mapping[str, Any]) -> bool:
    """Return whether a forecaster reads the example: its size, inputs and, of a climatology, regions are those."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        anywhere = about.get("config", {}).get("model") != "climatology"
        supported = anywhere or str(arrays["region"]) in about.get("regions", ())
        inputs, side = len(arrays["images"]), arrays["truth"].shape[-1]
        return supported and (about.get("inputs", inputs), about.get("size")) == (inputs, side)


def members_of(models: Sequence[Model], words: str) -> list[Model]:
    """Return the models of an ensemble, each once; none where no words are given.

    Raises:
        Problem: 404 where one is not served, 422 where words name none.
    """
    if words == "all":
        return list(models)
    members: dict[str, Model] = {}
    for word in filter(None, map(str.strip, words.split(","))):
        chosen = [m for m in models if word.lower() == m.name.lower() or word in (m.variant, m.sha256)]
        if not chosen:
            raise Problem(404, f"no forecaster {word!r} is served{nearest(word, {model.name for model in models})}")
        members |= {model.sha256: model for model in chosen}
    if words and not members:
        raise wrong("members", repr(words), "names or digests, with commas, or all")
    return list(members.values())


def curl(model: Model) -> tuple[str, str]:
    """Return the options of a `curl` that asks a model, and the rest of its address."""
    region = next(iter(model.about.get("regions", ())), "")
    return " --data-binary @images.npz -o forecast.npz", f"?region={quote(region)}"
