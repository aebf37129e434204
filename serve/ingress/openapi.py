"""The parts of `GET /openapi.json` that routes do not declare: responses, problems, and examples."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fastapi import FastAPI

from retable.serve.ingress.replies import PROBLEM, Json, Problem, wrong
from retable.serve.launch.models import Model

TEXT, NUMBER, WHOLE = {"type": "string"}, {"type": "number"}, {"type": "integer"}
PROBLEM_SCHEMA = {
    "type": "object",
    "description": "RFC 9457: one clear line in `detail`; of a wrong value also its field, what was got and wanted.",
    "required": ["type", "title", "status", "detail"],
    "properties": {name: TEXT for name in ("type", "title", "detail", "field", "got", "nearest")}
    | {"status": WHOLE, "wanted": {"type": ["string", "integer"]}},
}
EXAMPLES = (
    Problem(401, "a token is needed: the header `Authorization: Bearer TOKEN`"),
    Problem(404, "no style 'great_wav' is served; did you mean 'great_wave'?"),
    wrong("observations", "shape (1, 3)", "numbers of shape (rows, 17)"),
    Problem(503, "rl has more to do than it can; try again in a moment").wait(1),
)
"""What problems look like; every endpoint may answer any of them."""
FILE = {"schema": {"type": "string", "format": "binary"}}


def _object_of(**properties: object) -> Json:
    """Return the schema of an object that has these properties."""
    return {"type": "object", "required": list(properties), "properties": properties}


ROWS = {"type": "array", "items": {"type": "array", "items": NUMBER}}
ACTIONS = {"actions": [[0.12, 0.446, -0.783, -0.855, -0.294, -0.174]]}
HITS = {
    "hits": [{"id": "2b1c0a9d8e7f6a5b", "file": "rain/1-17367-A.ogg", "score": 0.412, "offset": 1.0, "tags": []}],
    "p": 0.0156,
    "verdict": "found",
}
TAGS = {"type": "array", "items": TEXT, "description": "category and name of a file named by the UCS"}
HITS_SCHEMA: Json = _object_of(
    hits={"type": "array", "items": _object_of(id=TEXT, file=TEXT, score=NUMBER, offset=NUMBER, tags=TAGS)},
    p={
        "type": ["number", "null"],
        "description": "how often words at random find as much; hits are listed in any case",
    },
    verdict={"type": ["string", "null"], "enum": ["found", "doubtful", None]},
)
JOB = {
    "id": "n0T6uE2jR4mXq8vLw1sYzA",
    "state": "running",
    "frames": 96,
    "frames_total": 240,
    "progress": 0.4,
    "seconds_left": 31.5,
}
JOB_SCHEMA: Json = _object_of(
    id=TEXT,
    state={"type": "string", "enum": ["queued", "running", "done", "failed", "cancelled"]},
    frames=WHOLE,
    frames_total={"type": "integer", "description": "0: not known yet"},
    progress=NUMBER,
)
JOB_SCHEMA["properties"] |= {
    "ahead": WHOLE | {"description": "of a queued one: those before it"},
    "seconds_left": NUMBER | {"description": "of a running one"},
    "file": TEXT | {"description": "of one that is done: where it is"},
    "notes": {"type": "array", "items": TEXT, "description": "of one that is done: what was lost"},
    "detail": TEXT | {"description": "of one that failed: why"},
}
JOB_ANSWER = {"application/json": {"schema": JOB_SCHEMA, "example": JOB}}
ANSWERS: dict[tuple[str, str], Json] = {
    ("/v1/rl/{environment}", "post"): {"application/json": {"schema": _object_of(actions=ROWS), "example": ACTIONS}},
    ("/v1/style/{style}", "post"): {"image/png": FILE, "image/jpeg": FILE},
    ("/v1/audio", "get"): {"application/json": {"schema": HITS_SCHEMA, "example": HITS}},
    ("/v1/audio/{id}", "get"): {"audio/*": FILE},
    ("/v1/weather", "post"): dict.fromkeys(
        ("application/x-npz", "application/x-netcdf", "image/png", "image/gif"), FILE
    ),
    ("/v1/weather/example", "get"): {"application/x-npz": FILE},
    ("/v1/tables/{task}/{name}/picture", "get"): {"image/png": FILE},
    ("/v1/style/{style}/video", "post"): JOB_ANSWER,
    ("/v1/jobs/{id}", "get"): JOB_ANSWER,
    ("/v1/jobs/{id}/file", "get"): {"video/mp4": FILE, "video/webm": FILE, "video/x-matroska": FILE},
}
"""Path and method -> what is answered. Routes that are not here say it themselves."""
RANGED = ("/v1/audio/{id}", "/v1/jobs/{id}/file")
"""Paths of files, of which a range of bytes can be asked for."""
RANGE = {
    "name": "Range",
    "in": "header",
    "description": "one range of bytes, `bytes=FIRST-LAST`, `bytes=FIRST-` or `bytes=-LAST`; none: the whole file",
    "schema": TEXT,
    "example": "bytes=0-999",
}


def describe(app: FastAPI, models: Sequence[Model]) -> None:
    """Complete an application's OpenAPI document: responses, problems, and examples."""
    plain = app.openapi

    def document() -> Json:
        if app.openapi_schema is None:
            documented = plain()
            components = documented.setdefault("components", {})
            components["schemas"] = {
                name: schema
                for name, schema in components.get("schemas", {}).items()
                if name not in ("HTTPValidationError", "ValidationError")  # of FastAPI: ours are problems
            } | {"Problem": PROBLEM_SCHEMA}
            components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            documented["security"] = [{}, {"token": []}]  # whether it is needed, the server's host says
            for path, operations in documented["paths"].items():
                for method, operation in operations.items():
                    _complete(operation, path, method, models)
        return app.openapi_schema or {}

    app.openapi = document  # type: ignore[method-assign]


def _complete(operation: Json, path: str, method: str, models: Sequence[Model]) -> None:
    responses = operation["responses"]
    responses.pop("422", None)
    if (path, method) in ANSWERS:
        good = next(status for status in responses if status.startswith("2"))
        responses[good]["content"] = ANSWERS[path, method]
        if path in RANGED:
            responses["206"] = {"description": "The bytes that were asked for", "content": ANSWERS[path, method]}
            operation.setdefault("parameters", []).append(RANGE)
    examples = {str(each.status): {"value": json.loads(each.reply().body)} for each in EXAMPLES}
    content = {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": examples}}
    responses["default"] = {"description": "Refused", "content": content}
    names = {"environment": "rl", "style": "style"}
    for parameter in operation.get("parameters", ()):
        task = [*path.split("/"), "", ""][2] if parameter["name"] == "name" else names.get(parameter["name"])
        served = [model.name for model in models if model.task == task]
        if served and parameter["in"] in ("path", "query") and not path.startswith(("/v1/tables", "/v1/audio")):
            parameter["example"] = served[0]
            parameter["schema"] = _one_of(parameter["schema"], served)
        if (path, parameter["name"]) == ("/v1/audio", "q"):
            parameter["example"] = "a dog barks"
        regions = [region for model in models if model.task == "weather" for region in model.about.get("regions", ())]
        if (path, parameter["name"]) == ("/v1/weather", "region") and regions:
            parameter["example"] = regions[0]
            parameter["schema"]["examples"] = list(dict.fromkeys(regions))  # networks forecast any region


def _one_of(schema: Json, words: Sequence[str]) -> Json:
    """Return the schema of a parameter that takes one of some words, or is left out."""
    return {name: value for name, value in schema.items() if name != "default"} | {"enum": sorted(set(words))}
