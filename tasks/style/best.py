"""Which networks are served: of each painting the one with the lowest error on photographs that no table shows."""

from __future__ import annotations

from collections.abc import Sequence

from retable.platform.api import TrainedRun
from retable.platform.errors import UserError
from retable.platform.models.select import Choice, choose_each, group_by_name
from retable.tasks.style.config import TrainNetwork
from retable.tasks.style.data import tests
from retable.tasks.style.files.assets import PHOTOGRAPHS


def best(runs: Sequence[TrainedRun]) -> dict[str, Choice]:
    """Return the best network of each painting, by the painting's name; runs of version 1 are left out.

    Args:
        runs: finished ones of this task.

    Raises:
        UserError: where none can be judged.
    """
    named = group_by_name(runs, name)
    metric = "style and content error on photographs of no table"
    return choose_each(named, score, metric, mode="min")


def name(run: TrainedRun) -> str:
    """Return what a network is served as: its paintings, joined by `+`; empty for an optimised image.

    A conditional network is served with its first style; the others are to be had by `retable style export --painting`.
    """
    if not isinstance(run.config.method, TrainNetwork):
        return ""
    return run.config.style[0] if run.config.method.conditional else "+".join(run.config.style)


def score(run: TrainedRun) -> float:
    """Return the sum of a network's errors on the test photographs that are not shipped: tables show only those.

    Raises:
        UserError: where the run's data have no others, or are gone.
    """
    unseen = [photograph for photograph in tests(run.source) if photograph not in PHOTOGRAPHS]
    if not unseen:
        raise UserError(f"{run.source.folder}: all of its test photographs are in the tables; put others into test/")
    metrics = run.score({"content": unseen})
    return metrics["style_error"] + metrics["content_error"]
