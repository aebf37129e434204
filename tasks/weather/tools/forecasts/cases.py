"""Single forecasts beside the radar, and how often members agree: which are chosen, and how they are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, ListedColormap
from matplotlib.figure import Figure as Drawing

from retable.platform.spec.arrays import Array
from retable.tasks.weather import metrics
from retable.tasks.weather.figures import COLOURS, GREY
from retable.tasks.weather.metrics import MINUTES
from retable.tasks.weather.w4c.preprocess import MASKED

LEAST_RAIN = 0.005
"""Share of rainy pixels, in the radar, from which on a sequence can be a case: of less, a score is luck."""


@dataclass(frozen=True)
class Forecast:
    """Forecast of a sequence by a run, for a picture."""

    label: str
    probability: Array
    """(leads, S, S), 0 to 1."""
    threshold: Array
    """From where on rain is forecast, of each lead time (leads,)."""


@dataclass(frozen=True)
class Case:
    """One sequence, and what was forecast of it, for a picture."""

    title: str
    events: Array
    """(leads, S, S): 0 dry, 1 rain, 2 masked."""
    forecasts: Sequence[Forecast]
    """Of as many for each case."""


def draw_cases(cases: Sequence[Case]) -> Drawing:
    """Draw what the radar saw, and below it each probability of rain with a line around where rain is forecast."""
    from matplotlib import pyplot

    leads = len(cases[0].events)
    shown = metrics.full_hours(leads).tolist()
    lines = 1 + len(cases[0].forecasts)
    figure, axes = pyplot.subplots(
        lines * len(cases),
        len(shown),
        figsize=(1.35 * len(shown) + 1.6, 1.45 * lines * len(cases)),
        squeeze=False,
        layout="constrained",
    )
    for number, case in enumerate(cases):
        radar, *forecasts = axes[lines * number : lines * (number + 1)]
        for column, lead in enumerate(shown):
            radar[column].imshow(
                case.events[lead], cmap=ListedColormap(COLOURS), vmin=0, vmax=2, interpolation="nearest"
            )
            radar[column].set_title(f"{MINUTES * (lead + 1) / 60:g} h", fontsize=8)
        radar[0].set_ylabel(f"{case.title}\nradar", fontsize=8)
        for row, forecast in zip(forecasts, case.forecasts, strict=True):
            for axis, lead in zip(row, shown, strict=True):
                image = draw_forecast(axis, forecast, case.events[lead], lead)
            row[0].set_ylabel(forecast.label, fontsize=8)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
        axis.grid(visible=False)
    figure.colorbar(image, ax=axes, shrink=0.35, label="probability of rain", location="right")
    return figure


def draw_forecast(axis: Any, forecast: Forecast, events: Array, lead: int) -> Any:
    """Draw the probability at a lead time, grey where there is no radar, and return the image."""
    axis.set_facecolor("#c9c4b8")
    hidden = np.ma.masked_where(events == 2, forecast.probability[lead])
    edge = forecast.probability[lead] >= forecast.threshold[lead] - 1e-6
    if edge.any() and not edge.all():
        axis.contour(edge, levels=[0.5], colors="#b3261e", linewidths=0.9)
    return axis.imshow(hidden, cmap=PROBABLE, vmin=0, vmax=1, interpolation="nearest")


PROBABLE = LinearSegmentedColormap.from_list("rain", ["#f4f1ea", "#9db7ea", "#2457c5", "#122b63"])


def draw_agreement(table: Array) -> Drawing:
    """Draw how often it rained where k of n members forecast rain, and how often k members did; see `agreement`."""
    from matplotlib import pyplot

    members = len(table) - 1
    figure, (axis, beside) = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    share = np.arange(members + 1) / members
    pixels = table.sum(axis=1)
    axis.plot([0, 1], [0, 1], linewidth=1, linestyle="--", color=GREY)
    axis.plot(share, metrics.ratio(table[:, 1], pixels, np.nan), color="#2457c5", marker="o")
    axis.set(
        title="it rained where so many agree", ylabel="it rained", ylim=(0, 1), xlabel="members that forecast rain"
    )
    beside.bar(range(members + 1), pixels / max(pixels.sum(), 1), color="#2457c5")
    beside.set(title="how often so many agree", ylabel="share of pixels", xlabel="members that forecast rain")
    beside.set_yscale("log")
    beside.set_xticks(range(members + 1))
    axis.set_xticks(share, [f"{k} of {members}" for k in range(members + 1)])
    return figure


def cases(counts: Mapping[str, Array]) -> dict[str, tuple[str, int]]:
    """Choose the best, the median and the worst sequence by IoU, of those with rain: name -> shard and number.

    Of two they are the best and the worst, one is the only one.

    Args:
        counts: confusion (n, L, 4) of each shard.
    """
    tables = {shard: table.sum(axis=1) for shard, table in counts.items()}
    rainy = sorted(
        (float(metrics.iou(sums)), shard, number)
        for shard, table in tables.items()
        for number, sums in enumerate(table)
        if sums[0] + sums[2] >= LEAST_RAIN * max(sums.sum(), 1)
    )
    if not rainy:
        return {}
    names = {1: ("only",), 2: ("best", "worst")}.get(len(rainy), ("best", "median", "worst"))
    places = {"only": 0, "best": -1, "median": (len(rainy) - 1) // 2, "worst": 0}
    return {name: rainy[places[name]][1:] for name in names}


def agreement(votes: Array, events: Array, members: int) -> Array:
    """Return pixels by the number of members that forecast rain, dry and rainy: int64 (members + 1, 2).

    What a rank histogram is for an amount, this is for an event: an ensemble is consistent where it rained on k of n
    pixels on which k of n members forecast rain.

    Args:
        votes: members that forecast rain, (n, L, S, S).
        events: 0 dry, 1 rain, 2 masked.
        members: how many there are.
    """
    seen = events < MASKED
    flat = np.bincount(2 * votes[seen].astype(np.intp) + events[seen], minlength=2 * (members + 1))
    return flat.reshape(members + 1, 2)
