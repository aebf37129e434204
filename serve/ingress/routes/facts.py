"""What the server says of itself."""

# No `from __future__ import annotations` here; `serve/ingress/app.py` says why.
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI

from retable.serve.ingress.limits import Limits
from retable.serve.launch.models import Model


def add(app: FastAPI, models: Sequence[Model], limits: Limits) -> None:
    """Add what the server says of itself."""

    @app.get("/v1/models")
    def list_models() -> list[dict[str, Any]]:
        """Say which models are served: their files' digests, where they are from, and why these."""
        return [model.shown() for model in models]

    @app.get("/v1/limits")
    def show_limits() -> dict[str, Any]:
        """Say what a request may hold."""
        return asdict(limits)
