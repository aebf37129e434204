"""Deployments that answer each request by itself: what batching is compared with."""

# No `from __future__ import annotations` in the modules of deployments; `serve/ingress/app.py` says why.
from typing import Any

from retable.serve.deployments import audio, rl, style, weather


class Policies(rl.Policies):
    """Policies, one request at a time."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.batch.set_max_batch_size(1)


class Styles(style.Styles):
    """Styles, one photograph at a time."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.batch.set_max_batch_size(1)


class Retrieval(audio.Retrieval):
    """Retrieval, one query at a time."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.batch.set_max_batch_size(1)


class Forecasters(weather.Forecasters):
    """Forecasters, one forecast at a time."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.batch.set_max_batch_size(1)
