"""The sizes at which the tables are run, and what each does to rows, replicates and data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retable.platform.config import describe
from retable.platform.spec.table import AnyTable, Measurement, Row
from retable.platform.spec.task import Scale
from retable.tasks.style.files.assets import LARGE
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
    passes: int
    """Photographs that version 2 is timed over."""

    def row(self, row: Row | Measurement) -> Row | Measurement | str:
        """Return a row at this size, or why it is left out."""
        return self.measurement(row) if isinstance(row, Measurement) else self.picture(row)

    def picture(self, row: Row) -> Row | str:
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
        if not set(names) <= {*self.photographs, LARGE}:
            return "with other photographs"
        return dataclasses.replace(row, overrides=overrides, view=view)

    def measurement(self, row: Measurement) -> Measurement | str:
        """Return a measurement, at the size of version 1's rows where it names none; left out where that is large."""
        size = int(str(row.overrides.get("method.size", self.image["method.size"])))
        if row.overrides["method"] == "train_network" or size > self.timed:
            return f"larger than {self.timed} pixels"
        overrides = {**row.overrides, "method.size": size, "data": "generated"}
        arguments = {name: self.passes if name == "photographs" else value for name, value in row.arguments.items()}
        return dataclasses.replace(row, arguments=arguments, overrides=overrides)

    def note(self, table: AnyTable) -> str:
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
        if any("photographs" in row.arguments for row in times):
            words.append(f"version 2 timed over {self.passes} photographs for 100")
        return f"Settings of this scale: {'; '.join(words)}."


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
    sizes={512: 64, 3082: 256},
    timed=256,
    passes=3,
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
    sizes={512: 192, 3082: 3082},
    timed=1024,
    passes=10,
)


def scale(about: str, minutes: int, size: Reduced) -> Scale:
    """Return a scale; a training that is of no table starts from version 2's rows."""
    over = {"method.content": size.photographs}
    start = {**size.network, "data": "generated"}
    return Scale(about=about, minutes=minutes, start=start, row=size.row, over=over, note=size.note)


SCALES = {
    "smoke": scale("every row, ten steps with untrained backbones; pictures and errors mean nothing", 3, SMOKE),
    "small": scale(
        "192 pixels and 100 evaluations, or 300 batches; untrained backbones "
        "(set method.backbone.weights=imagenet for trained ones)",
        40,
        SMALL,
    ),
    "paper": Scale(about="the published setting: pretrained backbones, COCO 2017, GPUs"),
}
