"""Drawing of figure 1 and the verification."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from retable.platform.spec.arrays import Array
from retable.platform.spec.table import Replicate, Results
from retable.tasks.weather.metrics import MINUTES, cuts, full_hours, scored, thresholds
from retable.tasks.weather.verification import THRESHOLDS, Band, Verification

if TYPE_CHECKING:  # tables name what draws, and a list of them draws nothing
    from matplotlib.figure import Figure as Drawing

COLOURS = ("#f4f1ea", "#2457c5", "#c9c4b8")
"""Dry, rain, no radar."""
REGION = "roxi_0004"
"""The region of the paper's figure, whose year is 2020; where there is none of that year, the last one is drawn."""
STYLES = (
    {"color": "#2457c5", "marker": "o"},
    {"color": "#d9662b", "marker": "s"},
    {"color": "#2a8c4a", "marker": "^"},
    {"color": "#8a4fbf", "marker": "D"},
    {"color": "#8d939c", "marker": "x"},
    {"color": "#b3263e", "marker": "v"},
    {"color": "#1b9aaa", "marker": "P"},
)
"""Of the rows of the verification."""


def draw_forecasts(results: Results) -> Drawing:
    """Draw what happened and what each row forecast, an hour a column, each panel with its share of rainy pixels.

    Without a forecast of the region the drawing is empty.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure as Drawing

    replicates = [rows[0] for rows in results.replicates.values() if rows]
    years = {
        shard.split("/")[1] for member in replicates for shard in member.summaries() if shard.endswith(f"/{REGION}")
    }
    year_region = f"{'2020' if '2020' in years else max(years, default='')}/{REGION}"
    lines = [line for replicate in replicates for line in [panels(replicate, year_region)] if line is not None]
    if not lines:
        return Drawing()
    rows = [("radar", lines[0][1]), *((name, forecast) for name, _, forecast in lines)]
    config: Any = replicates[0].config
    hours = MINUTES * (full_hours(config.forecast) + 1) / 60
    drawing = Drawing(figsize=(1.45 * len(hours) + 1.2, 1.75 * len(rows)), layout="constrained")
    drawing.suptitle(year_region, fontsize=9)
    axes = drawing.subplots(len(rows), len(hours), squeeze=False)
    for axis_row, (name, maps) in zip(axes, rows, strict=True):
        for hour, axis, shown in zip(hours, axis_row, maps, strict=True):
            axis.imshow(shown, cmap=ListedColormap(COLOURS), vmin=0, vmax=2, interpolation="nearest")
            axis.set_xticks([])
            axis.set_yticks([])
            axis.set_title(f"{hour:g} h, {share(shown):.1%}", fontsize=8)
        axis_row[0].set_ylabel(name, fontsize=8)
    return drawing


def share(events: Array) -> float:
    """Return the share of rainy pixels among those with radar."""
    seen = events != 2
    return float((events == 1).sum() / seen.sum()) if seen.any() else 0.0


def panels(replicate: Replicate, shard: str) -> tuple[str, Array, Array] | None:
    """Return a row's name, the events and the forecast of its example, uint8 (hours, S, S), or None without one."""
    view: Any = replicate.view
    summaries, name = replicate.summaries(), f"{view.split}/{shard}"
    if name not in summaries:
        return None
    summary = summaries[name]
    hourly = cuts(thresholds(view, summaries)[name])
    if hourly.ndim:
        hourly = hourly[full_hours(len(hourly)), None, None]
    forecast = (summary["example_steps"] >= hourly).astype(np.uint8)
    forecast[summary["example_events"] == 2] = 2  # where no radar looked, no forecast counts
    label = replicate.label.replace(", ", ",\n").replace(". ", ".\n")
    return label, summary["example_events"], forecast


def draw_verification(results: Results) -> Drawing:
    """Draw the verification of each row that has results; see `draw_scores`."""
    parts = []
    for label, replicates in results.replicates.items():
        members: list[tuple[Any, Any]] = [(replicate.view, replicate.summaries()) for replicate in replicates]
        if members:
            shown = [scored(view, summaries) for view, summaries in members]
            parts.append(Verification(label, shown, [thresholds(view, summaries) for view, summaries in members]))
    return draw_scores(parts)


def draw_scores(parts: Sequence[Verification]) -> Drawing:
    """Draw how good forecasts are by lead time, place, scale, threshold and probability, each with its interval.

    Intervals: see `verification`. The dotted line is the IoU of forecasting rain always. FSS is the fractions skill
    score (Roberts and Lean 2008), the reliability diagram that of Brier: how often it rained where so much was
    forecast; the panel beside it, on a logarithmic axis, how often that was.
    """
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(4, 2, figsize=(10, 14.5))
    for part, look in zip(parts, itertools.cycle(STYLES), strict=False):
        style: dict[str, Any] = {"markersize": 3.5, "linewidth": 1.4, "label": part.label, **look}
        draw_leads(axes[0, 0], axes[0, 1], axes[1, 0], part, style)
        places = part.by_place()
        stacked = [np.array([getattr(band, end)[0] for band in places.values()]) for end in ("value", "low", "high")]
        axes[1, 1].errorbar(range(len(places)), stacked[0], gaps(*stacked), **style | {"linestyle": "none"}, capsize=2)
        axes[1, 1].set_xticks(range(len(places)), list(places), fontsize=7, rotation=90)
        curve(axes[2, 0], range(len(part.widths)), part.by_width(), style)
        axes[2, 0].set_xticks(range(len(part.widths)), [str(width) for width in part.widths])
        curve(axes[2, 1], THRESHOLDS, part.by_threshold(), style | {"marker": "none"})
        reliability, forecast, shares = part.reliability()
        curve(axes[3, 0], forecast, reliability, style)
        tenths = np.arange(len(shares.value)) / 10 + 0.05
        axes[3, 1].plot(tenths, np.where(shares.value > 0, shares.value, np.nan), **style)
    finish(axes, bool(parts))
    handles = axes[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="lower center", ncols=2, fontsize=9, frameon=False)
    figure.tight_layout(rect=(0, 0.015 + 0.014 * -(-len(handles[0]) // 2), 1, 1))
    return figure


def finish(axes: Array, any_parts: bool) -> None:
    """Name the panels of `draw_scores`."""
    axes[0, 0].set(title="by lead time", ylabel="IoU")
    axes[0, 1].set(title="detected (line), false alarms (dashed)", ylabel="POD, FAR")
    axes[1, 0].set(title="forecasts of rain for each rain: 1 is unbiased", ylabel="bias")
    axes[1, 1].set(title="by year and region", ylabel="IoU")
    axes[2, 0].set(title="at coarser scales", xlabel="neighbourhood, pixels across", ylabel="FSS")
    axes[2, 1].set(title="by threshold, one for all places", xlabel="rain from this probability on", ylabel="IoU")
    axes[3, 0].set(title="reliability", xlabel="forecast probability of rain", ylabel="it rained", xlim=(0, 1))
    axes[3, 1].set(title="sharpness", xlabel="forecast probability of rain", ylabel="share of forecasts", xlim=(0, 1))
    axes[1, 0].axhline(1, linewidth=1, linestyle="--", color=GREY)
    axes[3, 0].plot([0, 1], [0, 1], linewidth=1, linestyle="--", color=GREY)
    for axis in (axes[0, 0], axes[0, 1], axes[1, 0]):
        axis.set_xlabel("hours from the start")
    for axis in axes.flat:
        if axis in (axes[1, 0], axes[3, 1]) and any_parts:  # a bias is a ratio
            axis.set_yscale("log")
        else:
            axis.set_ylim(0, 1.05 * axis.get_ylim()[1])  # else the frame cuts the highest marks in two
        axis.grid(linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)


GREY = "#8d939c"


def draw_leads(overlap: Any, detection: Any, bias: Any, part: Verification, look: Mapping[str, Any]) -> None:
    """Draw one forecast's scores by lead time into three panels."""
    band = part.by_lead()
    hours = MINUTES / 60 * np.arange(1, len(band.value) + 1)
    floor = {"color": look["color"], "linewidth": 1, "linestyle": ":"}
    for axis, column, style in ((overlap, 0, "-"), (detection, 1, "-"), (detection, 2, "--"), (bias, 3, "-")):
        curve(axis, hours, band[:, column], {**look, "linestyle": style})
    overlap.plot(hours, part.all_rain(), **floor)


def gaps(value: Array, low: Array, high: Array) -> Array:
    """Return how far an interval's ends lie from its value, below and above, at least 0."""
    return np.stack([value - low, high - value]).clip(min=0)


def curve(axis: Any, x: Sequence[float] | Array, band: Band, look: Mapping[str, Any]) -> None:
    """Draw values with their interval as a band; what is not defined is a gap."""
    axis.plot(x, band.value, **look)
    axis.fill_between(x, band.low, band.high, color=look["color"], alpha=0.15, linewidth=0)
