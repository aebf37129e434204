"""The sizes at which the tables are run, and what each does to rows, replicates and data."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from retable.platform.spec.table import Measurement, Row
from retable.platform.spec.task import Scale
from retable.tasks.rl.learning.readings import METHODS, label
from retable.tasks.rl.tables import ABLATION, DENSE, ENVIRONMENTS, RAW, ROUNDED

OURS = {"data": "recorded"}
DATA = ("recorded", "mixed")
"""Data sets that replace D4RL's expert and medium-expert data."""
BCQ_ROWS = {row.label for row in (*ABLATION.values(), *ROUNDED.values())}
"""Rows whose policy is BCQ's, or that are compared with such."""


def reduced(
    row: Row | Measurement,
    *,
    sparsities: Mapping[str, Sequence[float]],
    view: Mapping[str, object],
    environments: Sequence[str] = ENVIRONMENTS,
    counted: Collection[float] | None = None,
    raw: Mapping[str, Sequence[float]] = MappingProxyType({"dense": (0,), **dict.fromkeys(METHODS, RAW)}),
    everywhere: Collection[str] | None = None,
    training: Mapping[str, object] = MappingProxyType({}),
) -> Row | Measurement | str:
    """Return a row at a smaller size, or why it is left out; what is timed is the same at every size.

    Args:
        row: of a table.
        sparsities: of each method, those that are played.
        view: how policies are played.
        environments: those that are run.
        counted: sparsities of the rows that are only counted; None: all.
        raw: of each method, the sparsities that are played on raw states; 0 is the dense network's.
        everywhere: labels of rows that are played in every environment, the others in the first alone; None: all.
        training: how rows are trained, but for those that need no training.
    """
    if isinstance(row, Measurement):
        return row
    own = row.overrides or {}
    if own.get("environment", environments[0]) not in environments:
        return "in another environment"
    if "steps" not in own:
        row = dataclasses.replace(row, overrides={**own, **training})
    if row.view is None:
        left_out = counted is not None and own.get("prune.sparsity") not in (None, *counted)
        return "at other sparsities" if left_out else row
    played = raw if "states" in own else {"dense": (0,), **sparsities}
    if own.get("prune.sparsity", 0) not in played.get(str(own["prune"]), ()):
        return "at other sparsities"
    alone = everywhere is not None and row.label not in everywhere
    environment = {"environment": environments[0]} if alone and "environment" not in own else {}
    return dataclasses.replace(row, view={**row.view, **view}, overrides={**(row.overrides or {}), **environment})


def cloned(row: Row | Measurement, **size: Any) -> Row | Measurement | str:
    """Return a row at a size of `reduced` of a scale that trains BC alone, or why it is left out."""
    if isinstance(row, Measurement):
        return "as it is timed at the other scales"
    if row.label in BCQ_ROWS or (row.view is None and "steps" not in (row.overrides or {})):
        return "as BCQ is not trained"
    return reduced(row, **size)


QUICK = {"algorithm": "bc", "epochs": 1, "steps": 3000}
"""Training of the scale's rows, as in the next one."""
SMALL = {"epochs": 10, "steps": 1000}
FIRST = ("HalfCheetah",)

SCALES = {
    "smoke": Scale(
        about="proves every path, scores mean nothing; networks, masks and bytes are full size",
        minutes=5,
        overrides={**OURS, "epochs": 1, "steps": 10},  # all alike: so few updates cost less than more runs
        row=partial(reduced, sparsities=dict.fromkeys(METHODS, (0.5, 0.95)), view={"episodes": 2, "samples": 10}),
        over={"seed": (0, 1), "view.epoch": (1,), "data": DATA},
    ),
    "quick": Scale(
        about="HalfCheetah, 1 seed: masks and bytes at full size; BC at 95 %, 3,000 updates",
        minutes=2,
        overrides=OURS,
        start=QUICK,
        row=partial(
            cloned,
            sparsities=dict.fromkeys(("snip", "grasp", "erk", "random"), (0.95,)),
            counted=(0.8, 0.95),
            raw={"snip": (0.95,)},
            view={"episodes": 5},
            environments=FIRST,
            training=QUICK,
        ),
        over={
            "environment": FIRST,
            "seed": (0,),
            "view.policy": ("bc",),
            "view.epoch": (1,),
            "data": DATA[:1],
        },
    ),
    "small": Scale(
        about="3 seeds, 10,000 updates (masks and bytes: one), bfloat16 targets; HalfCheetah, at 95 % all environments",
        minutes=420,
        overrides={**OURS, "algorithm.target_precision": "bfloat16"},
        start=SMALL,
        row=partial(
            reduced,
            sparsities={
                **dict.fromkeys(METHODS, (0.95,)),
                **dict.fromkeys(("snip", "grasp"), (0.8, 0.9, 0.95, 0.99)),
            },
            raw={"dense": (0,), **dict.fromkeys(("snip", "grasp"), (0.95,))},
            view={"episodes": 10, "samples": 10},
            everywhere={
                DENSE.label,
                *(label(method, 0.95) for method in ("snip", "grasp", "erk")),
                label("snip", 0.95, "raw"),
            },
            training=SMALL,
        ),
        over={
            "environment": ENVIRONMENTS,
            "seed": (0, 1, 2),
            "view.epoch": (1, 2, 3, 4, 6, 8, 10),
            "data": DATA,
        },
    ),
    "paper": Scale(about="the published setting: 1,000,000 updates on D4RL expert data (masks and bytes need one)"),
}
