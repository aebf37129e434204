"""Policies over HTTP."""

# No `from __future__ import annotations` here; `serve/ingress/app.py` says why.
import json
from collections.abc import Sequence
from typing import Annotated
from urllib.parse import quote

from fastapi import FastAPI, Path, Query, Request, Response

from retable.serve.ingress.middleware import Ask, BodyReader, respond
from retable.serve.ingress.openapi import NUMBER, Variant, body_of, json_of, named, object_of
from retable.serve.launch.models import Model, choose

_ACTIONS = json_of(
    object_of(actions={"type": "array", "items": {"type": "array", "items": NUMBER}}),
    example={"actions": [[0.12, 0.446, -0.783, -0.855, -0.294, -0.174]]},
)


def add(app: FastAPI, models: Sequence[Model], ask: Ask, bodies: BodyReader) -> None:
    """Add `POST /v1/rl/{environment}` and `POST /v1/rl/{environment}/episode`."""
    served = named(models)

    @app.post(
        "/v1/rl/{environment}",
        openapi_extra=body_of("application/json", example={"observations": [[0.0] * 17], "seed": 0}),
        responses={200: _ACTIONS},
    )
    async def act(
        request: Request, environment: Annotated[str, Path(json_schema_extra=served)], model: Variant = ""
    ) -> Response:
        """Choose an action for each row of observations; the same seed draws the same candidates."""
        chosen = choose(models, environment, model, "policy of the environment")
        async with bodies.read(request, bodies.limits.observations_bytes) as body:
            return respond(await ask("rl", "act", chosen.sha256, body), chosen)

    @app.post("/v1/rl/{environment}/episode")
    async def episode(
        environment: Annotated[str, Path(json_schema_extra=served)],
        model: Variant = "",
        seed: Annotated[int, Query(ge=0, lt=2**31)] = 0,
        steps: Annotated[int, Query(ge=1, le=bodies.limits.episode_steps)] = 200,
    ) -> Response:
        """Play the first steps of an episode in the simulator.

        The answer has `return`, the `rewards` of each step, `end` (`steps`, `limit` or `fell`), `weights` that are not
        0 of `weights_of`, the file's `bytes`; and for whoever draws it `frames` after every `every` steps of
        `seconds_per_step`, each x and y or z of both ends of each of the `bodies`, in mm.
        """
        chosen = choose(models, environment, model, "policy of the environment")
        return respond(await ask("rl", "episode", chosen.sha256, seed, steps), chosen)


def curl(model: Model) -> tuple[str, str]:
    """Return the options of a `curl` that asks a model, and the rest of its address."""
    row = json.dumps({"observations": [[0] * model.about.get("states", 17)]}, separators=(",", ":"))
    return f" --json '{row}'", f"/{quote(model.name)}" + (f"?model={quote(model.variant)}" if model.variant else "")
