"""Deployments that answer each request by itself: what batching is compared with."""

# No `from __future__ import annotations` in the modules of deployments; `serve/ingress/app.py` says why.
from typing import Any

from retable.serve.deployments import audio, rl, style, weather


def _alone(base: Any) -> Any:
    """Return the class of a deployment that takes one request at a time."""

    def __init__(self: Any, *given: Any, **named: Any) -> None:
        base.__init__(self, *given, **named)
        self.batch.set_max_batch_size(1)

    return type(base.__name__, (base,), {"__init__": __init__, "__module__": __name__})


Policies, Styles, Retrieval, Forecasters = map(
    _alone, (rl.Policies, style.Styles, audio.Retrieval, weather.Forecasters)
)
