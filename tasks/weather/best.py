"""Which forecaster is served: the one with the best IoU on the validation split; the test split is never looked at.

Runs that were trained on the validation split have no such number, and are passed over: one is served by its name.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from retable.platform.api import TrainedRun
from retable.platform.errors import UserError
from retable.platform.models.select import Choice, choose
from retable.tasks.weather.config import trained_on_validation

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

    scored = [run for run in runs if not trained_on_validation(run.config)]
    if runs and not scored:
        raise UserError(f"no run for {NAME}: all {len(runs)} were trained on the validation set; name one of them")
    return {NAME: choose(NAME, scored, score, f"validation IoU at {threshold:g}", comparable=comparable)}


def comparable(run: TrainedRun) -> Hashable:
    """Return what runs have in common whose IoU can be compared: data, places, years, lead times and what rain is."""
    config = run.config
    asked = (config.regions, config.years, config.inputs, config.forecast, config.rain_threshold)
    return (run.result["data"], *asked)
