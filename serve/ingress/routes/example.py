"""An hour of satellite images to try a forecaster with, and what the radar saw afterwards."""

# No `from __future__ import annotations` here; `serve/ingress/app.py` says why.
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from fastapi import FastAPI, Response

from retable.platform.commit import code_root
from retable.serve.ingress.middleware import respond
from retable.serve.ingress.replies import Problem, Reply
from retable.serve.ingress.routes.common import Variant
from retable.serve.launch.models import Model, choose

FILE = code_root() / "tasks" / "weather" / "zoo" / "example-generated-36.npz"


def add(app: FastAPI, models: Sequence[Model]) -> None:
    """Add `GET /v1/weather/example`."""
    data = FILE.read_bytes() if FILE.is_file() else b""

    @app.get("/v1/weather/example")
    def example(name: str = "", model: Variant = "") -> Response:
        """Return npz: `images` (4, 11, S, S) to be posted, `truth` uint8 (32, S, S): 0 dry, 1 rain, 2 not measured.

        Besides, `region` and `about` say which it is. The file may be posted as it is.
        """
        about = choose(models, name or models[0].name, model, "forecaster").about
        if not data or not fits(data, about):
            raise Problem(404, "there is no example of this forecaster's size; send images of your own")
        return respond(Reply(data, "application/x-npz"))


def fits(data: bytes, about: Mapping[str, Any]) -> bool:
    """Return whether a forecaster reads the example: its size and, of a climatology, its regions are those."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        anywhere = about.get("config", {}).get("model") != "climatology"
        known = anywhere or str(arrays["region"]) in about.get("regions", ())
        return bool(arrays["truth"].shape[-1] == about.get("size") and known)
