"""Which pair of encoders is served: the one with the best mAP@10 on the validation split, never on the test split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retable.platform.api import TrainedRun
from retable.platform.best import Choice, choose

NAME = "audio"


def best(runs: Sequence[TrainedRun]) -> dict[str, Choice]:
    """Return the best of trained pairs of encoders, under the name `audio`.

    Args:
        runs: finished ones of this task.

    Raises:
        UserError: where there is none that can be scored.
    """

    def score(run: TrainedRun) -> float:
        return run.score({"split": "validation"})["map10"]

    return {NAME: choose(NAME, runs, score, "validation mAP@10", is_real)}


def is_real(info: Mapping[str, Any]) -> bool:
    """Say whether a data set was recorded."""
    return info.get("kind") != "generated"
