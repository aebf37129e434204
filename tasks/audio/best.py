"""Which pair of encoders is served: the one with the best mAP@10 on the validation split, never on the test split.

Runs that were trained on the validation split have no such number, and are passed over: one is served by its name.
"""

from __future__ import annotations

from collections.abc import Sequence

from retable.platform.api import TrainedRun
from retable.platform.errors import UserError
from retable.platform.models.select import Choice, choose
from retable.tasks.audio.config import SPLITS, trained_on

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

    scored = [run for run in runs if "validation" not in SPLITS[trained_on(run.config)]]
    if runs and not scored:
        raise UserError(f"no run for {NAME}: all {len(runs)} were trained on the validation set; name one of them")
    return {NAME: choose(NAME, scored, score, "validation mAP@10")}
