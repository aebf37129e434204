"""The sizes at which the tables are run, and what each does to rows, replicates and data."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retable.platform.config import describe
from retable.platform.models.zoo import digest
from retable.platform.spec.table import AnyTable, Measurement, Row
from retable.platform.spec.task import Scale
from retable.tasks.style.files.assets import LARGE
from retable.tasks.style.tables import BACKBONES, FIGURE7, STYLISED1, STYLISED2, UNTRAINED


@dataclass(frozen=True)
class Reduced:
    """A reduced setting."""

    image: Mapping[str, object]
    """Changes to rows of version 1."""
    network: Mapping[str, object]
    """Changes to rows of version 2."""
    photographs: Sequence[str]
    sizes: Mapping[int, int]
    """Length of the longer side of a stylised picture: published -> here."""
    timed: int
    """Largest size that is timed."""
    passes: int
    """Photographs that version 2 is timed over."""
    budget: float = 20.0
    """Seconds that a line of Table I times each system for."""
    labels: Collection[str] | None = None
    """Rows of pictures that there are, and of Table I; None: all."""

    def row(self, row: Row | Measurement) -> Row | Measurement | str:
        """Return a row at this size, or why it is left out."""
        return self.measurement(row) if isinstance(row, Measurement) else self.picture(row)

    def picture(self, row: Row) -> Row | str:
        """Return a row with the method, photographs and sizes of this scale."""
        if self.labels is not None and row.label not in self.labels:
            return "at small"
        overrides: dict[str, Any] = dict(row.overrides or {})
        view: dict[str, Any] = dict(row.view or {})
        if overrides["method"] == "train_network":
            names = view["content"]
            view["size"] = self.sizes[view["size"]]
            overrides |= {**self.network, "data": "generated"}
        else:
            names = [overrides["method.content"]] if "method.content" in overrides else self.photographs
            small = self.image.get("method.backbone.weights") == "small"
            overrides |= {"method.backbone": "vgg19"} if small and overrides["method.backbone"] == "vgg16" else {}
            overrides |= self.image
        if not set(names) <= {*self.photographs, LARGE}:
            return "with other photographs"
        return dataclasses.replace(row, overrides=overrides, view=view)

    def measurement(self, row: Measurement) -> Measurement | str:
        """Return a measurement, at the size of version 1's rows where it names none; left out where that is large."""
        size = int(str(row.overrides.get("method.size", self.image["method.size"])))
        if row.overrides["method"] == "train_network" or size > self.timed:
            return f"larger than {self.timed} pixels"
        if self.labels is not None and "photographs" not in row.arguments:
            return "at small"
        overrides = {**row.overrides, "method.size": size, "data": "generated"}
        arguments = dict(row.arguments)
        if "photographs" in arguments:
            arguments |= {"photographs": self.passes, "budget": self.budget}
        return dataclasses.replace(row, arguments=arguments, overrides=overrides)

    def note(self, table: AnyTable) -> str:
        """Return what rows change at this scale, in words."""
        rows = [row for row in table.rows if isinstance(row, Row)]
        methods = {dict(row.overrides or {})["method"] for row in rows}
        words = [f"version 1 {describe(self.image)}"] if "optimise_image" in methods else []
        words += [f"version 2 {describe({**self.network, 'data': 'generated'})}"] if "train_network" in methods else []
        views = dict.fromkeys(int(str(row.view["size"])) for row in rows if row.view and "size" in row.view)
        words += [
            f"pictures of version 2 of {self.sizes[size]} pixels for {size}" for size in views if size in self.sizes
        ]
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
TRAINED: Mapping[str, object] = {
    "method.backbone.weights": "small",
    "method.objective.content_layers": ["stage3"],
    "method.objective.style_layers": ["stage1", "stage2", "stage3"],
}
"""The small trained backbones that come with the task, which end at stage 3."""
QUICK = Reduced(
    image={**TRAINED, "method.objective.style_weight": 1e7, "method.size": 160, "epochs": 4, "steps": 20},
    network={"method": "zoo_network", "method.digest": digest("style", "great_wave"), "epochs": 1, "steps": 1},
    photographs=("mountain",),
    sizes={512: 160},
    timed=256,
    passes=3,
    budget=4.0,
    labels={
        *(row.label for row in (*STYLISED1, *STYLISED2, *BACKBONES)),
        *(row.label for row in FIGURE7.rows),
    },
)
SMALL = Reduced(
    # Equation (1) sums over positions, equation (3) does not: a larger picture takes a larger weight to look alike.
    image={**TRAINED, "method.objective.style_weight": 5e7, "method.size": 384, "epochs": 30, "steps": 10},
    network={
        "method.backbone": "vgg19",
        "method.backbone.weights": "small",
        "method.objective.convention": "relative",
        "method.objective.content_layers": ["relu2_2"],
        "method.objective.style_layers": ["relu1_1", "relu2_1", "relu3_1"],
        "method.objective.content_weight": 1.0,
        "method.objective.style_weight": 10.0,
        "method.filters": 16,
        "method.size": 128,
        "method.crop": "random",
        "method.style_size": 384,
        "method.calm_start": True,
        "method.lattice_weight": 6000.0,
        "method.schedule": "cosine",
        "epochs": 12,
        "steps": 500,
    },
    photographs=("mountain", "astronaut", "coffee"),
    sizes={512: 384, 3082: 3082},
    timed=1024,
    passes=10,
)


def scale(about: str, minutes: int, size: Reduced, start: Mapping[str, object]) -> Scale:
    """Return a scale; a training that is of no table begins with `start`."""
    over = {"method.content": size.photographs}
    return Scale(
        about=about, minutes=minutes, start={**start, "data": "generated"}, row=size.row, over=over, note=size.note
    )


SCALES = {
    "smoke": scale(
        "every row, ten steps with untrained backbones; pictures and errors mean nothing", 3, SMOKE, SMOKE.network
    ),
    "quick": scale(
        "Table I at 256 pixels; figures 1, 2, 3 and 7 of one photograph with the small backbones and the zoo's network",
        2,
        QUICK,
        {**SMALL.network, "epochs": 1, "steps": 100},
    ),
    "small": scale(
        "384 pixels and 300 evaluations with the small trained backbones, three photographs; a network of 16 filters, "
        "6,000 batches",
        120,
        SMALL,
        SMALL.network,
    ),
    "paper": Scale(about="the published setting: pretrained backbones, COCO 2017, GPUs"),
}
