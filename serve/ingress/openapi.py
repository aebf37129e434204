"""OpenAPI schemas in `GET /openapi.json`, beyond those of the signatures of routes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

from fastapi import FastAPI, Header, Query, Response

from retable.serve.ingress.replies import PROBLEM, Json, Problem, wrong
from retable.serve.launch.models import Model

Variant = Annotated[str, Query(description="Which model, where several have the name: its variant or digest.")]
_SPAN = "One range of bytes: `bytes=FIRST-LAST`, `bytes=FIRST-` or `bytes=-LAST`; none: the whole file."
Span = Annotated[str, Header(alias="Range", description=_SPAN, json_schema_extra={"examples": ["bytes=0-999"]})]
TEXT, NUMBER, WHOLE = {"type": "string"}, {"type": "number"}, {"type": "integer"}
FILE = {"schema": {"type": "string", "format": "binary"}}


def body_of(*media: str, example: object = None) -> Json:
    """Return the OpenAPI schema of a body that is read as it is."""
    content = {kind: {"example": example, "schema": {"type": "object"}} if example else FILE for kind in media}
    return {"requestBody": {"required": True, "content": content}}


def named(models: Sequence[Model], *others: str) -> Json:
    """Return the OpenAPI schema of a parameter: the name of a model, or one of some other words."""
    names = list(dict.fromkeys(model.name for model in models))
    return {"enum": sorted({*names, *others}), "examples": names[:1]}


def object_of(optional: Json | None = None, **properties: object) -> Json:
    """Return the schema of an object that has these properties, and perhaps optional ones."""
    return {"type": "object", "required": list(properties), "properties": properties | (optional or {})}


def json_of(schema: Json, example: object) -> Json:
    """Return the OpenAPI schema of a JSON answer."""
    return {"content": {"application/json": {"schema": schema, "example": example}}}


def files(*media: str, ranged: bool = False) -> Json:
    """Return options of a route that answers a file of one of these types, or a range of its bytes."""
    content = {"content": dict.fromkeys(media, FILE)}
    part = {206: {"description": "The bytes that were asked for", **content}} if ranged else {}
    return {"response_class": Response, "responses": {200: content, **part}}


_ENTRIES = {"field": TEXT, "got": TEXT, "nearest": TEXT, "wanted": {"type": ["string", "integer"]}}
_PROBLEM_SCHEMA = object_of(_ENTRIES, type=TEXT, title=TEXT, status=WHOLE, detail=TEXT) | {
    "description": "RFC 9457: one clear line in `detail`; of a wrong value also its field, what was got and wanted.",
}
_EXAMPLES = (
    Problem(401, "a token is needed: the header `Authorization: Bearer TOKEN`"),
    Problem(404, "no style 'great_wav' is served; did you mean 'great_wave'?"),
    wrong("observations", "shape (1, 3)", "numbers of shape (rows, 17)"),
    Problem(503, "rl has more to do than it can; try again in a moment", wait=1),
)
"""Examples of problems; every endpoint may answer any of them."""
REFUSED: Json = {
    "description": "Refused",
    "content": {
        PROBLEM: {
            "schema": {"$ref": "#/components/schemas/Problem"},
            "examples": {str(problem.status): {"value": json.loads(problem.reply().body)} for problem in _EXAMPLES},
        }
    },
}
"""OpenAPI schema of a route's problems; FastAPI names none of its own where there is a `default`."""


class Documented(FastAPI):
    """An application whose OpenAPI document has the schema of problems and the token, too."""

    def openapi(self) -> Json:
        """Return the document."""
        documented = super().openapi()
        components = documented.setdefault("components", {})
        components["schemas"] = components.get("schemas", {}) | {"Problem": _PROBLEM_SCHEMA}
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        documented["security"] = [{}, {"token": []}]  # whether it is needed, the server's host says
        return documented
