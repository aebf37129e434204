"""Which forecaster is served: the one with the best IoU on the validation split; the test split is never looked at."""

from __future__ import annotations

from collections.abc import Sequence

from retable.platform.api import TrainedRun
from retable.platform.models.select import Choice, choose

NAME = "weather"


def best(runs: Sequence[TrainedRun], threshold: float = 0.5) -> dict[str, Choice]:
    """Return the best of trained forecasters, under the name `weather`.

    Args:
        runs: finished ones of this task.
        threshold: probability from which on rain is forecast.

    Raises:
        UserError: where there is none that can be scored.
    """

    def score(run: TrainedRun) -> float:
        return run.score({"split": "validation", "threshold": threshold})["iou"]

    return {NAME: choose(NAME, runs, score, f"validation IoU at {threshold:g}")}
