"""The straight line, predicted in halves and scored by a threshold: what follows training, in small."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from retable.platform.spec.task import Scale
from retable.tasks import line
from retable.tasks.line.config import Config as LineConfig


@dataclass(frozen=True, kw_only=True)
class Config(LineConfig):
    """A line's fit that may end early."""

    patience: int = 0


@dataclass(frozen=True, kw_only=True)
class View:
    """A fit at one epoch: which points it hits."""

    epoch: int = 0
    split: Literal["test", "validation"] = "test"
    limit: float = 0.5
    """The largest error of a hit."""
    tuned: bool = False
    """The limit is the median error of the validation points."""


def reads(view):
    plain = replace(view, limit=0.5, tuned=False)
    return (plain, replace(plain, split="validation")) if view.tuned else (plain,)


def shards(config, view, source):
    return f"{view.split}/left", f"{view.split}/right"


def truth(shard):
    x = np.linspace(0, 1, 5 if shard.startswith("test") else 3) * (-1 if shard.endswith("left") else 1)
    return x, 2 * x + 1


def predict(config, view, weights, source, shard):
    return {"y": truth(shard)[0] * weights["weight"].item() + weights["bias"].item()}


def summarise(config, view, predictions, source, shard):
    return {"error": np.abs(predictions["y"] - truth(shard)[1])}


def evaluate(config, view, summaries, source):
    error = {split: [s["error"] for name, s in summaries.items() if name.startswith(split)] for split in ("t", "v")}
    limit = np.median(np.concatenate(error["v"])) if view.tuned else view.limit
    own = np.concatenate(error[view.split[0]])
    return {"hits": float((own <= limit).mean()), "error": float(own.mean()), "shards": float(len(summaries))}


TASK = replace(
    line.TASK,
    name="halves",
    about="a straight line in two halves",
    config=Config,
    view=View,
    predict=predict,
    summarise=summarise,
    shards=shards,
    reads=reads,
    evaluate=evaluate,
    early_stop=lambda config: ("slope", config.patience) if config.patience else None,
    metrics=("hits", "error", "slope"),
    tables=dict,
    scales=lambda: {"smoke": Scale(about="seconds"), "quick": Scale(about="seconds")},
)
