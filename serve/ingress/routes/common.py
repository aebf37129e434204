"""What the routes of all tasks share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Query

from retable.serve.ingress.replies import Json, Problem, Reply

Ask = Callable[..., Awaitable[Reply | Problem]]
"""Asks a task's deployment: task, method, arguments."""
Variant = Annotated[str, Query(description="Which model, where several have the name: its variant or digest.")]


def body_of(*media: str, example: object = None) -> Json:
    """Return what OpenAPI says of a body that is read as it is."""
    plain = {"schema": {"type": "string", "format": "binary"}}
    content = {kind: {"example": example, "schema": {"type": "object"}} if example else plain for kind in media}
    return {"requestBody": {"required": True, "content": content}}
