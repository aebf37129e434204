"""The sizes at which the tables are run, and what each does to rows, replicates and data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retable.platform.launch import describe
from retable.platform.table import Measurement, Row
from retable.platform.task import Scale
from retable.tasks.style.tables import UNTRAINED


@dataclass(frozen=True)
class Reduced:
    """A reduced setting."""

    image: Mapping[str, object]
    """What rows of version 1 change."""
    network: Mapping[str, object]
    """What rows of version 2 change."""
    photographs: Sequence[str]
    sizes: Mapping[int, int]
    """Length of the longer side of a stylised picture: published -> here."""
    timed: int
    """Largest size that is timed."""

    def __call__(self, table: Any) -> Any:
        """Return a table at this size."""
        if not table.rows:  # what `train` and `sweep` start from
            return dataclasses.replace(table, overrides={**table.overrides, **self.network, "data": "generated"})
        rows = [self.measurement(row) if isinstance(row, Measurement) else self.row(row) for row in table.rows]
        over = {**table.over, "method.content": tuple(self.photographs)} if table.over else {}
        left_out = [row.label for row in rows if not row.present]
        note = f"{table.note} Settings of this scale: {'; '.join(self.settings(table))}."
        note += f" Not at this scale: {'; '.join(left_out)}." if left_out else ""
        return dataclasses.replace(table, rows=rows, over=over, note=note)

    def row(self, row: Row) -> Row:
        """Return a row with the method, photographs and sizes of this scale."""
        overrides: dict[str, Any] = dict(row.overrides or {})
        view: dict[str, Any] = dict(row.view or {})
        if overrides["method"] == "train_network":
            names = view["content"]
            view["size"] = self.sizes[view["size"]]
            overrides |= {**self.network, "data": "generated"}
        else:
            names = [overrides["method.content"]] if "method.content" in overrides else self.photographs
            overrides |= self.image
        return dataclasses.replace(row, overrides=overrides, view=view, present=set(names) <= set(self.photographs))

    def measurement(self, row: Measurement) -> Measurement:
        """Return a measurement, at the size of version 1's rows where it names none; left out where that is large."""
        if row.overrides["method"] == "train_network":  # 4K
            return dataclasses.replace(row, present=False)
        size = int(str(row.overrides.get("method.size", self.image["method.size"])))
        return dataclasses.replace(row, overrides={**row.overrides, "method.size": size}, present=size <= self.timed)

    def settings(self, table: Any) -> list[str]:
        """Return what rows change at this scale, in words."""
        rows = [row for row in table.rows if isinstance(row, Row)]
        methods = {dict(row.overrides or {})["method"] for row in rows}
        words = [f"version 1 {describe(self.image)}"] if "optimise_image" in methods else []
        words += [f"version 2 {describe({**self.network, 'data': 'generated'})}"] if "train_network" in methods else []
        views = dict.fromkeys(int(str(row.view["size"])) for row in rows if row.view and "size" in row.view)
        words += [f"pictures of version 2 of {self.sizes[size]} pixels for {size}" for size in views]
        times = [row for row in table.rows if isinstance(row, Measurement)]
        if times:
            own = any("method.size" in row.overrides for row in times)
            words.append(f"timed up to {self.timed} pixels" if own else f"timed at {self.image['method.size']} pixels")
        return words


SMOKE = Reduced(
    image={**UNTRAINED, "method.objective.style_weight": 50.0, "method.size": 64, "epochs": 2, "steps": 5},
    network={
        **UNTRAINED,
        "method.objective.content_weight": 1.0,
        "method.objective.style_weight": 10.0,
        "method.filters": 8,
        "method.size": 64,
        "method.style_size": 64,
        "method.batch": 2,
        "epochs": 2,
        "steps": 5,
    },
    photographs=("mountain",),
    sizes={512: 64, 4032: 256},
    timed=256,
)
SMALL = Reduced(
    image={**UNTRAINED, "method.objective.style_weight": 50.0, "method.size": 192, "epochs": 20, "steps": 5},
    network={
        **UNTRAINED,
        "method.objective.content_weight": 1.0,
        "method.objective.style_weight": 10.0,
        "method.filters": 16,
        "method.size": 128,
        "method.style_size": 256,
        "epochs": 6,
        "steps": 50,
    },
    photographs=("mountain", "astronaut", "coffee"),
    sizes={512: 192, 4032: 1024},
    timed=1024,
)

SCALES = {
    "smoke": Scale(
        about="minutes on two cores: every row, ten steps with untrained backbones; pictures and errors mean nothing",
        apply=SMOKE,
    ),
    "small": Scale(
        about="under an hour on two cores: 192 pixels and 100 evaluations, or 300 batches; untrained backbones "
        "(set method.backbone.weights=imagenet for trained ones)",
        apply=SMALL,
    ),
    "paper": Scale(about="the published setting: pretrained backbones, COCO 2017, GPUs", apply=lambda table: table),
}
