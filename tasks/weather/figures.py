"""How figure 1 and the verification are drawn."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure as Drawing

from retable.platform.table import Replicate, Results
from retable.tasks.weather.metrics import BINS, cut

Array = npt.NDArray[Any]

COLOURS = ListedColormap(["#f4f1ea", "#2457c5", "#c9c4b8"])
"""Dry, rain, no radar."""
PLACE = "2020/roxi_0004"
"""The region and year of the paper's figure."""
STYLES = (
    {"color": "#2457c5", "marker": "o"},
    {"color": "#d9662b", "marker": "s"},
    {"color": "#2a8c4a", "marker": "^"},
    {"color": "#8a4fbf", "marker": "D"},
    {"color": "#8d939c", "marker": "x"},
)
"""Of the rows of the verification."""


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


def draw_verification(results: Results) -> Drawing:
    """Draw how good forecasts are by lead time, by region and year, at coarser scales, and how reliable they are.

    Lines are means over seeds, bands go from the lowest to the highest. FSS is the fractions skill score (Roberts and
    Lean 2008); the last panel is the reliability diagram of Brier: how often it rained where so much was forecast.
    """
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7.6))
    metrics = sorted({name for each in results.replicates.values() for part in each for name in part.metrics})
    leads = [name for name in metrics if name.startswith("iou/lead/")]
    regions = [name for name in metrics if name.startswith("iou/") and name.count("/") == 2 and name not in leads]
    widths = sorted((name for name in metrics if name.startswith("fss/")), key=lambda name: int(name[4:-2]))
    tenths = [f"reliability/{part}" for part in range(BINS)]
    middles = [(part + 0.5) / BINS for part in range(BINS)]
    names = [" ".join(name.split("/")[1:]) for name in regions]
    lines(axes[0, 0], results, leads, [int(name[-3:]) / 60 for name in leads])
    axes[0, 0].set(title="by lead time", xlabel="hours from the start", ylabel="IoU")
    lines(axes[0, 1], results, regions, range(len(regions)), linestyle="none")
    axes[0, 1].set(title="by year and region", ylabel="IoU")
    axes[0, 1].set_xticks(range(len(regions)), names, fontsize=7, rotation=90)
    lines(axes[1, 0], results, widths, range(len(widths)))
    axes[1, 0].set(title="at coarser scales", xlabel="neighbourhood", ylabel="FSS")
    axes[1, 0].set_xticks(range(len(widths)), [f"{name[4:-2]} km" for name in widths])
    axes[1, 1].plot([0, 1], [0, 1], linewidth=1, linestyle="--", color="#8d939c")
    lines(axes[1, 1], results, tenths, middles)
    axes[1, 1].set(title="reliability", xlabel="forecast probability of rain", ylabel="it rained", xlim=(0, 1))
    for axis in axes.flat:
        axis.set_ylim(0, None)
        axis.grid(linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="lower center", ncols=2, fontsize=9, frameon=False)
    figure.tight_layout(rect=(0, 0.03 + 0.025 * -(-len(results.replicates) // 2), 1, 1))
    return figure


def lines(axis: Any, results: Results, metrics: Sequence[str], x: Sequence[float], **style: Any) -> None:
    """Draw some metrics of each row: mean over seeds, a band from the lowest to the highest; gaps stay gaps."""
    for (label, replicates), own in zip(results.replicates.items(), itertools.cycle(STYLES), strict=False):
        look: dict[str, Any] = {"markersize": 3.5, "linewidth": 1.4, "label": label, **own, **style}
        values = np.array([[each.metrics.get(name, np.nan) for name in metrics] for each in replicates])
        there = ~np.isnan(values).all(0) if values.size else np.zeros(0, bool)
        if there.any():
            where, seen = np.asarray(x, float)[there], values[:, there]
            axis.plot(where, np.nanmean(seen, 0), **look)
            if style:
                axis.vlines(where, np.nanmin(seen, 0), np.nanmax(seen, 0), color=own["color"], linewidth=1)
            else:
                band = (np.nanmin(seen, 0), np.nanmax(seen, 0))
                axis.fill_between(where, *band, color=own["color"], alpha=0.15, linewidth=0)
