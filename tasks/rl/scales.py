"""The sizes at which the tables are run, and what each does to rows, replicates and data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from retable.platform.table import Measurement, Row
from retable.platform.task import Scale
from retable.tasks.rl.readings import METHODS
from retable.tasks.rl.tables import ENVIRONMENTS

OURS = {"data": "recorded"}
DATA = ("recorded", "mixed")
"""What takes the place of D4RL's expert and medium-expert data."""


@dataclass(frozen=True)
class Reduced:
    """A reduced setting: what becomes of a row."""

    sparsities: Mapping[str, Sequence[float]]
    """Of each method, those that are played; rows that are only counted are all run."""
    view: Mapping[str, object]
    """How policies are played."""
    environments: Sequence[str] = ENVIRONMENTS
    training: Mapping[str, object] = field(default_factory=dict)
    """How long rows are trained, but for those that need no training."""

    def row(self, row: Row | Measurement) -> Row | Measurement | str:
        """Return a row at this size, or why it is left out; what is timed is the same at every size."""
        if isinstance(row, Measurement):
            return row
        own = row.overrides or {}
        if own.get("environment", self.environments[0]) not in self.environments:
            return "in another environment"
        if "steps" not in own:
            row = dataclasses.replace(row, overrides={**own, **self.training})
        if row.view is None:
            return row
        if "prune.sparsity" in own and own["prune.sparsity"] not in self.sparsities[str(own["prune"])]:
            return "at other sparsities"
        return dataclasses.replace(row, view={**row.view, **self.view})


SMOKE = Reduced(sparsities=dict.fromkeys(METHODS, (0.5, 0.95)), view={"episodes": 2, "samples": 10})
SMALL = Reduced(
    # At 50 % an update takes as long as a dense one.
    sparsities={**dict.fromkeys(METHODS, (0.95,)), "snip": (0.9, 0.95)},
    view={"episodes": 10, "samples": 10},
    environments=("HalfCheetah",),
    training={"epochs": 10, "steps": 1000},
)

SCALES = {
    "smoke": Scale(
        about="minutes on two cores: proves every path, scores mean nothing; networks, masks and bytes are full size",
        overrides={**OURS, "epochs": 1, "steps": 10},  # all alike: so few updates cost less than more runs
        row=SMOKE.row,
        over={"seed": (0, 1), "view.epoch": (1,), "data": DATA},
    ),
    "small": Scale(
        about="70 to 90 minutes on two cores: HalfCheetah, 3 seeds, 10,000 updates, target pass in bfloat16",
        overrides={**OURS, "algorithm.target_precision": "bfloat16"},
        start=SMALL.training,
        row=SMALL.row,
        over={
            "environment": SMALL.environments,
            "seed": (0, 1, 2),
            "view.epoch": tuple(range(1, 11)),
            "data": DATA,
        },
    ),
    "paper": Scale(about="the published setting: 1,000,000 updates on D4RL expert data"),
}
