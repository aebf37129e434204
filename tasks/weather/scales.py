"""The sizes at which the tables are run, and what each does to rows, epochs and data."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

from retable.platform.config import describe
from retable.platform.spec.table import AnyTable, Row
from retable.platform.spec.task import Scale
from retable.tasks.weather.tables import (
    ALL_RAIN,
    BASELINE_IMPROVED,
    CLIMATOLOGY,
    CONTEXT_TUNED,
    MOVED,
    MOVED_BY_PYSTEPS,
    OFFICIAL_ROW,
    PERSISTENCE,
    SWIN_BCE,
)


@dataclass(frozen=True)
class Reduced:
    """A reduced setting: what becomes of a row."""

    overrides: Mapping[str, object]
    """Changes to every run."""
    defaults: Mapping[str, object] = field(default_factory=dict, kw_only=True)
    """Changes to every run whose row does not set these fields itself."""
    models: Mapping[str, Mapping[str, object]]
    """Model -> what its rows change; a model that is not named is not run."""
    kept: Collection[str] | None = None
    """Labels of the rows of table 1 that are run, and no others; None: all rows."""

    def row(self, row: Row) -> Row | str:
        """Return a row with the model, training and epochs of this size, or why it is left out."""
        overrides = row.overrides or {}
        if self.kept is not None and row.label not in self.kept:
            return "to save time"
        if model_of(overrides) not in self.models:
            return "as their models are not run"
        if set((row.view or {}).get("scored", ())) - set(self.overrides["regions"]):  # type: ignore[call-overload]
            return "as this scale has not their regions"
        if isinstance(without := installed(row), str):
            return without
        view = dict(row.view or {})
        if view.get("epoch"):
            view["epoch"] = self.epoch(int(str(view["epoch"])), overrides)
        return dataclasses.replace(row, overrides=self.shrink(overrides), view=view)

    def note(self, table: AnyTable) -> str:
        """Return a table's note: what the settings are, and what becomes of the epochs that rows name."""
        shrunk = sorted({pair for row in table.rows if isinstance(row, Row) for pair in self.epochs(row)})
        settings = "; ".join(f"{model}: {describe(changes)}" for model, changes in self.models.items())
        epochs = ", ".join(f"{old} -> {new}" for old, new in shrunk)
        return f"Settings of this scale: {describe({**self.overrides, **self.defaults})}; {settings}. Epochs: {epochs}."

    def shrink(self, overrides: Mapping[str, object]) -> dict[str, object]:
        """Return overrides, and those of the run they start from, at this size."""
        changes = self.models[model_of(overrides)]
        if overrides.get("loss", "bce") != "bce":  # no other loss is short of rain
            changes = {path: value for path, value in changes.items() if not path.startswith("loss.")}
        small = {**self.defaults, **overrides, **changes}
        if "precision" in small:
            small["precision"] = "bfloat16"  # float16 needs its losses scaled, as is done on GPUs
        if "init.overrides" in small:
            parent = dict(small["init.overrides"])  # type: ignore[call-overload]
            small["init.overrides"] = tuple(self.shrink(parent).items())
            small["init.checkpoint"] = self.epoch(int(str(small["init.checkpoint"])), parent)
        return small

    def epoch(self, epoch: int, overrides: Mapping[str, object]) -> int:
        """Return the epoch of a reduced run that stands for one of the full run; a U-Net's is a part of 90."""
        full = 90 if model_of(overrides) == "unet" else self.length({}, overrides)
        return max(1, epoch * self.length(self.models[model_of(overrides)], overrides) // full)

    def length(self, changes: Mapping[str, object], overrides: Mapping[str, object]) -> int:
        """Return the epochs of a run whose overrides are changed; 90 where neither says."""
        return int(str({"epochs": 90, **overrides, **changes}["epochs"]))

    def epochs(self, row: Row) -> list[tuple[str, str]]:
        """Return what becomes of the epochs that a row names, for the note."""
        overrides = row.overrides or {}
        if model_of(overrides) not in self.models:
            return []
        full, reduced = (self.length(changes, overrides) for changes in ({}, self.models[model_of(overrides)]))
        epoch = int(str((row.view or {}).get("epoch", 0)))  # 0: the last one
        return [(f"{epoch or full:2d} of {full}", f"{self.epoch(epoch, overrides) if epoch else reduced} of {reduced}")]


def installed(row: Row) -> Row | str:
    """Return a row, or why it is left out where the library that it takes is not there."""
    if row.label == MOVED_BY_PYSTEPS.label and find_spec("pysteps") is None:
        return "as pysteps is not installed (pip install 'retable[pysteps]')"
    return row


def model_of(overrides: Mapping[str, object]) -> str:
    """Return the name of the model that overrides choose."""
    return str(overrides.get("model", "unet"))


SIMPLE: Mapping[str, Mapping[str, object]] = {
    "all_dry": {"epochs": 1, "batch": 2, "steps": 1},
    "all_rain": {"epochs": 1, "batch": 2, "steps": 1},
    "climatology": {"epochs": 1, "batch": 2, "steps": 0},
}
BRIEF = {"batch": 2, "steps": 2}
RAINIER = {"loss.positive_weight": 16.0, "initial_rain": 0.5}
"""With this weight 0.5 means one chance of rain in 17, about where an IoU of 0.06 is best, and the 6 % of pixels with
rain weigh as half."""
TINY = {
    "unet": {
        **RAINIER,
        "channels_last": True,
        "batch": 8,
        "model.filters": 8,
        "model.dropout": 0.1,
        "optimizer.learning_rate": 5e-3,
    },
    "swin": {
        **RAINIER,
        "channels_last": True,
        "batch": 4,
        "model.feature_size": 12,
        "model.window": 4,
        "model.checkpointing": False,
        "optimizer.learning_rate": 1e-3,
    },
    "vivit": {
        **RAINIER,
        "batch": 8,
        "model.dim": 64,
        "model.depth": 2,
        "model.heads": 2,
        "model.patch": 8,
        "optimizer.learning_rate": 1e-3,
    },
    "context": {"batch": 8, "loss.positive_weight": 5.0, "model.filters": 16, "model.levels": 4},
    "retrieval": {"batch": 8, "loss.positive_weight": 5.0, "model.filters": 8, "optimizer.learning_rate": 3e-3},
}
"""Networks of a size that a core trains in minutes. With a weight of 5, 0.5 means one chance of rain in six, about
where an IoU of 0.2 is best (p = IoU / (1 + IoU)). Most of a Swin's step is attention in windows of 7: these have 4."""

SMOKE = Reduced(
    overrides={"data": "generated-24", "regions": ["boxi_0015", "roxi_0004"], "patience": 0},
    models={
        **SIMPLE,
        "unet": {**BRIEF, "model.filters": 4, "epochs": 2},
        "swin": {**BRIEF, "batch": 1, "model.feature_size": 12, "model.window": 4, "epochs": 1},
        "vivit": {**BRIEF, "model.dim": 64, "model.depth": 2, "model.heads": 2, "epochs": 1},
        "context": {**BRIEF, "model.filters": 8, "model.levels": 3, "epochs": 1},
        "retrieval": {**BRIEF, "model.filters": 8, "epochs": 1},
    },
)
QUICK = Reduced(
    overrides={
        "data": "generated-24-quick",
        "regions": ["boxi_0015", "roxi_0004"],
        "years": [2019],
        "patience": 0,
    },
    defaults={"window_run": 4},
    models={
        **SIMPLE,
        "unet": {**TINY["unet"], "steps": 250, "epochs": 5},
        "swin": {**TINY["swin"], "batch": 2, "steps": 60, "epochs": 1},
        "context": {**TINY["context"], "steps": 300, "epochs": 1},
        "retrieval": {**TINY["retrieval"], "steps": 100, "epochs": 2},
    },
    kept={
        row.label
        for row in (
            OFFICIAL_ROW,
            BASELINE_IMPROVED,
            SWIN_BCE,
            ALL_RAIN,
            CLIMATOLOGY,
            PERSISTENCE,
            MOVED,
            CONTEXT_TUNED,
        )
    },
)
SMALL = Reduced(
    overrides={
        "data": "generated-24-small",
        "regions": ["boxi_0015", "roxi_0004", "roxi_0007"],
        "patience": 0,
    },
    defaults={"window_run": 4},
    models={
        **SIMPLE,
        "unet": {**TINY["unet"], "steps": 400, "epochs": 12},
        "swin": {**TINY["swin"], "steps": 150},
        "vivit": {**TINY["vivit"], "steps": 400, "epochs": 3},
        "context": {**TINY["context"], "steps": 150, "epochs": 7},
        "retrieval": {**TINY["retrieval"], "steps": 100, "epochs": 3},
    },
)


def scale(about: str, minutes: float, size: Reduced, seeds: tuple[int, ...]) -> Scale:
    """Return a scale; a training that is of no table starts from the U-Net's rows."""
    return Scale(
        about=about,
        minutes=minutes,
        overrides=size.overrides,
        start={**size.defaults, **size.models["unet"]},
        row=size.row,
        over={"seed": seeds},
        note=size.note,
    )


SCALES = {
    "smoke": scale("every row, two steps an epoch; scores mean nothing", 30, SMOKE, (0,)),
    "quick": scale(
        "baselines, two U-Nets, a Swin (too short to beat climatology) and ours, 24 x 24 pixels, 1 seed",
        2.5,
        QUICK,
        (0,),
    ),
    "small": scale(
        "every row by small networks (Swin: 12 features, windows of 4; 16 bits: bfloat16), 24 x 24 pixels, 3 seeds",
        480,
        SMALL,
        (0, 1, 2),
    ),
    "paper": Scale(about="the published setting: Weather4cast 2022, 252 x 252 pixels, GPUs", row=installed),
}
