"""How figure 1 is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure as Drawing

from retable.platform.table import Replicate, Results
from retable.tasks.weather.metrics import cut

Array = npt.NDArray[Any]

COLOURS = ListedColormap(["#f4f1ea", "#2457c5", "#c9c4b8"])
"""Dry, rain, no radar."""
PLACE = "2020/roxi_0004"
"""The region and year of the paper's figure."""


def draw_forecasts(results: Results) -> Drawing:
    """Draw what happened and what each row forecast, an hour a column, each panel with its share of rainy pixels."""
    replicates = [rows[0] for rows in results.replicates.values() if rows]
    lines = [line for replicate in replicates for line in [panels(replicate)] if line is not None]
    if not lines:
        drawing = Drawing(figsize=(8, 1.5))
        drawing.text(0.5, 0.5, f"no test sequences of {PLACE}", ha="center", va="center")
        return drawing
    rows = [("radar", lines[0][1]), *((name, forecast) for name, _, forecast in lines)]
    hours = len(rows[0][1])
    drawing = Drawing(figsize=(1.45 * hours + 1.2, 1.75 * len(rows)), layout="constrained")
    axes = drawing.subplots(len(rows), hours, squeeze=False)
    for axis_row, (name, maps) in zip(axes, rows, strict=True):
        for hour, (axis, each) in enumerate(zip(axis_row, maps, strict=True)):
            axis.imshow(each, cmap=COLOURS, vmin=0, vmax=2, interpolation="nearest")
            axis.set_xticks([])
            axis.set_yticks([])
            axis.set_title(f"{hour + 1} h, {share(each):.1%}", fontsize=8)
        axis_row[0].set_ylabel(name, fontsize=8)
    return drawing


def share(events: Array) -> float:
    """Return the share of rainy pixels among those with radar."""
    seen = events != 2
    return float((events == 1).sum() / seen.sum()) if seen.any() else 0.0


def panels(replicate: Replicate) -> tuple[str, Array, Array] | None:
    """Return a row's name, the events and the forecast of its example, uint8 (hours, S, S), or None without one."""
    view: Any = replicate.view
    shard = f"{view.split}/{PLACE}"
    summary = replicate.summaries().get(shard)
    if summary is None:
        return None
    forecast = (summary["example_steps"] >= cut(view.threshold)).astype(np.uint8)
    forecast[summary["example_events"] == 2] = 2  # where no radar looked, no forecast counts
    name = replicate.label.replace(", ", ",\n").replace(". ", ".\n")
    return name, summary["example_events"], forecast
