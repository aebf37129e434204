"""Resources of a training or prediction: the task's defaults, and the user's overrides."""

from __future__ import annotations

import dataclasses
import math
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from retable.platform.errors import UserError

if TYPE_CHECKING:
    from retable.platform.plan.plan import Plan
    from retable.platform.spec.task import Task

Stage = Literal["train", "predict"]


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """The resources of one training, or of the predictions of one view. Never a part of a config."""

    cpus: int = 1
    """CPUs, and torch threads, of work of one worker; several workers take one each, or a little less."""
    gpus: float = 0.0
    """GPUs of each worker: a fraction shares one; none are asked for where there are none."""
    memory: float = 1e9
    """Bytes of memory of each worker. A training at smoke scale was measured at 0.7 to 0.8 GB, of which 0.5 are Python,
    Ray and torch."""
    workers: int = 1

    def __str__(self) -> str:
        gpus = f", {self.gpus:g} GPU{'s' if self.gpus > 1 else ''}" if self.gpus else ""
        one = f"{self.cpus} CPU{'s' if self.cpus > 1 else ''}{gpus}, {self.memory / 1e9:.2g} GB"
        return one if self.workers == 1 else f"{self.workers} workers of {one}"


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Overrides for each training; None keeps the task's default (`Task.needs`). Never a part of a config."""

    workers: int | None = None
    cpus: int | None = None
    """CPUs, and torch threads, of a run with one worker."""
    gpus: float | None = None
    """GPUs of each worker."""
    checkpoint_every: int = 0
    """Steps between checkpoints within an epoch; 0: one about every half minute."""
    stream: bool = False
    """Read data as a stream even where they would fit in memory."""
    read_ahead: float = 0.0
    """GB of Ray's shared memory that a stream may read ahead; 0: half of it."""
    stack: int = 0
    """Most trainings of one group that train as one stack; 0: one on CPUs, on GPUs as many as keep every GPU busy."""
    track: str = ""
    """An experiment tracker that hears of each training: mlflow, wandb or tensorboard."""
    measure_on: str = ""
    """Custom resource, or accelerator type, of the nodes that measurements are taken on; else the command's machine."""
    deadline: float = math.inf
    """Seconds after which no training and no measurement begins, from when this value is made. What runs then goes on
    to its end, and what has finished is scored."""
    made: float = field(default_factory=time.time, compare=False, repr=False)
    """Time of creation of this value, in seconds since 1970."""

    @property
    def late(self) -> bool:
        """Whether the deadline has passed, by the clock of the machine that asks."""
        return time.time() > self.made + self.deadline

    def __post_init__(self) -> None:
        """Refuse values that are no numbers, or too small.

        Raises:
            UserError: naming the field.
        """
        least = {"workers": 1, "cpus": 1, "gpus": 0, "checkpoint_every": 0, "read_ahead": 0, "stack": 0, "deadline": 0}
        for name, lowest in least.items():
            value = getattr(self, name)
            kind = (int, float, np.number) if name in ("gpus", "read_ahead", "deadline") else (int, np.integer)
            if value is None and name in ("workers", "cpus", "gpus"):
                continue
            if not isinstance(value, kind) or isinstance(value, bool) or not value >= lowest:
                raise UserError(f"{name}={value!r}: a number of {lowest} or more")

    def needs(self, task: Task, config: object, gpus: float, stage: Stage = "train") -> Requirements:
        """Return the resources of a piece of work: the task's defaults with the user's overrides.

        Predictions are made by one worker each, and on a GPU only by tasks that can.

        Args:
            task: whose work it is.
            config: of the run.
            gpus: how many GPUs there are, or may come: a task's own wish is no more than that.
            stage: training, or prediction.
        """
        needs = task.needs(config, stage)
        needs = dataclasses.replace(needs, gpus=min(needs.gpus, gpus))
        names = ["gpus"] if stage == "predict" else ["workers", "cpus", "gpus"]
        overrides = {name: value for name in names if (value := getattr(self, name)) is not None}
        if stage == "predict" and not task.predicts_on_gpu(config):
            overrides = {}
        return dataclasses.replace(needs, **overrides)


def largest(several: Iterable[Requirements]) -> Requirements:
    """Return the resources that suffice for each member of a stack."""
    every = list(several)
    return Requirements(
        **{
            resource.name: max(getattr(needs, resource.name) for needs in every)
            for resource in dataclasses.fields(Requirements)
        }
    )


def summary(plan: Plan, resources: Resources | None = None) -> list[str]:
    """Return a line about the resources of each kind of training still to be done, the most frequent first."""
    chosen = resources or Resources()
    counts = Counter((t.task.name, chosen.needs(t.task, t.config, float("inf"))) for t in plan.missing)
    lines = [f"{name}: {needs} (x {count})" for (name, needs), count in counts.most_common()]
    wish = chosen.gpus is None and any(needs.gpus for _, needs in counts)
    return [*lines, "without a GPU: the same on CPUs alone"] if wish else lines
