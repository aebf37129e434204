"""Any other task over HTTP: a file in, its answer out."""

# No `from __future__ import annotations` here; `serve/ingress/app.py` says why.
from collections.abc import Sequence
from typing import Annotated
from urllib.parse import quote

from fastapi import FastAPI, Path, Query, Request, Response

from retable.serve.ingress.middleware import Ask, BodyReader, respond
from retable.serve.ingress.openapi import Variant, body_of, files, named
from retable.serve.launch.models import Model, choose

File = Annotated[str, Query(max_length=200, description="The file's name, whose suffix says what it is.")]
Set = Annotated[list[str], Query(max_length=50, description="An option of the task, `field=value`.")]


def add(app: FastAPI, models: Sequence[Model], ask: Ask, bodies: BodyReader) -> None:
    """Add `POST /v1/TASK/{name}` for the models of one task."""
    task = models[0].task

    @app.post(f"/v1/{task}/{{name}}", openapi_extra=body_of("application/octet-stream"), **files("*/*"))
    async def answer(
        request: Request,
        name: Annotated[str, Path(json_schema_extra=named(models))],
        model: Variant = "",
        file: File = "",
        set: Set = [],  # noqa: B006
    ) -> Response:
        """Answer a file, as `retable predict` does; options are those of its `--set`."""
        chosen = choose(models, name, model, "model")
        async with bodies.read(request, bodies.limits.file_bytes) as body:
            return respond(await ask(task, "answer", chosen.sha256, file, set, body), chosen)


def curl(model: Model) -> tuple[str, str]:
    """Return the options of a `curl` that asks a model, and the rest of its address."""
    file = f"FILE{next(iter(model.about.get('files', ())), '')}"
    return f" --data-binary @{file}", f"/{quote(model.name)}?file={file}"
