"""Prometheus metrics and access log, in addition to Serve's own metrics of replicas and batches."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ray.util.metrics import Counter, Gauge, Histogram

from retable.serve.launch.models import Model

SECONDS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120]


class Metrics:
    """The ingress's own metrics; Ray's agent on each node has them, at the node's `MetricsExportPort`."""

    def __init__(self) -> None:
        keys = ("endpoint", "method", "status")
        self.requests = Counter("retable_requests", "Answered requests.", tag_keys=keys)
        self.seconds = Histogram(
            "retable_request_seconds",
            "From a request's head to the end of its answer.",
            boundaries=SECONDS,
            tag_keys=("endpoint", "method"),
        )
        self.served = Gauge(
            "retable_model", "1 for each model that is served.", tag_keys=("task", "name", "variant", "sha256", "run")
        )
        self.models: Sequence[Model] = ()

    def answered(self, endpoint: str, method: str, status: int, seconds: float) -> None:
        """Count an answer, and log it; Serve adds the request's id.

        Args:
            endpoint: the path of a route, `/v1/rl/{environment}`; empty where there is none. Never what was asked.
            method: of HTTP.
            status: of HTTP; 0 where the client left before the answer.
            seconds: from a request's head to the end of its answer.
        """
        tags = {"endpoint": endpoint or "none", "method": method}
        self.requests.inc(1, tags | {"status": str(status)})
        self.seconds.observe(max(seconds, 1e-6), tags)
        logging.getLogger("ray.serve").info(
            "%s %s %s %.1f ms", method, tags["endpoint"], status, 1000 * seconds, extra={"log_to_stderr": False}
        )

    def serve(self, models: Sequence[Model]) -> None:
        """Set which models are served."""
        for value, some in ((0, self.models), (1, models)):
            for model in some:
                tags = {
                    "task": model.task,
                    "name": model.name,
                    "variant": model.variant,
                    "sha256": model.sha256[:8],
                    "run": str(model.about.get("fingerprint", ""))[:8],
                }
                self.served.set(value, {key: text or "-" for key, text in tags.items()})
        self.models = models
