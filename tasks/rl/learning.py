"""How fast methods learn, and what the critic adds: numbers read off the results, and their drawings.

The score at the end depends on where one stops, and after a short training on little else. The updates until a run
reaches a share of what the dense network ends at do not, once the dense network is done. BCQ and BC act with the same
VAE, so their gap, seed by seed, is what choosing by the critic adds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import rcParams
from matplotlib.figure import Figure as Drawing

from retable.platform.table import Results
from retable.platform.verdicts import mean_of
from retable.tasks.rl.figures import CONTROLS, NAMES, band, dress, final, label

LEVELS = (0.5, 0.9)
"""Shares of the dense network's final return whose reaching is counted."""
METHODS = {
    "snip": {"color": "#c2386b", "marker": "o"},
    "grasp": {"color": "#1d8fa5", "marker": "v"},
    **CONTROLS,
    "random": {**CONTROLS["random"], "marker": "X"},
}
"""What the dense network is compared with, and how it is drawn."""
LINES: Mapping[str, Mapping[str, Any]] = {
    "dense": {"marker": "."},
    label("snip", 0.5): {**METHODS["snip"], "linestyle": ":"},
    label("snip", 0.9): {**METHODS["snip"], "linestyle": "--"},
    **{label(method, 0.95): style for method, style in METHODS.items()},
}
"""Rows whose learning is shown, and how they are drawn."""


def over_updates(results: Results, row: str, **axes: object) -> dict[Any, list[tuple[int, float]]]:
    """Return each seed's checkpoints in order: the updates made, and the return as a share of the behaviour's."""
    found: dict[Any, list[tuple[int, float]]] = {}
    for replicate in results.select(row, **axes):
        share = replicate.metrics.get("behaviour_share")
        if share is not None and replicate.view is not None:
            updates = replicate.view.epoch * replicate.config.updates
            found.setdefault(replicate.axes["seed"], []).append((updates, share))
    return {seed: sorted(checkpoints) for seed, checkpoints in found.items()}


def reached(checkpoints: Sequence[tuple[int, float]], wanted: float) -> float | None:
    """Return the updates after which a score is first at least `wanted`: by a line between two checkpoints.

    None where no checkpoint is. At the first checkpoint it is that one's updates: what was before was not looked at.
    """
    above = next((i for i, (_, score) in enumerate(checkpoints) if score >= wanted), None)
    if not above:
        return None if above is None else float(checkpoints[0][0])
    (before, low), (after, high) = checkpoints[above - 1 : above + 1]
    return before + (after - before) * (wanted - low) / (high - low)


@dataclass(frozen=True)
class Needed:
    """The updates that a run needs."""

    updates: float
    """Of a run that did not get there, those that it made."""
    reached: bool


def updates_needed(results: Results, row: str, level: float, environment: str, policy: str) -> dict[Any, Needed]:
    """Return for each seed the updates until it reaches a level of what dense networks end at, their mean over seeds.

    Empty where there are no runs, no dense ones, or none of these that learned anything.
    """
    at = {"environment": environment, "view_policy": policy}
    dense = final(results, "dense", "behaviour_share", **at)
    if not dense.size or dense.mean() <= 0:
        return {}
    found = {}
    for seed, checkpoints in over_updates(results, row, **at).items():
        updates = reached(checkpoints, level * float(dense.mean()))
        found[seed] = Needed(checkpoints[-1][0], False) if updates is None else Needed(updates, True)
    return found


def in_words(seeds: Iterable[Needed]) -> str:
    """Write the updates needed, seed by seed."""
    return ", ".join(f"{needed.updates:,.0f}" if needed.reached else "not reached" for needed in seeds)


def draw_learning(results: Results) -> Drawing:
    """Draw scores against updates, and beside them the updates needed: a line for each environment and policy."""
    from matplotlib import pyplot

    lines = list(itertools.product(results.axis("environment"), results.axis("view.policy")))
    size = (12.5, 3.7 * len(lines) + 0.7)
    figure, axes = pyplot.subplots(len(lines), 2, figsize=size, squeeze=False, width_ratios=(5, 3))
    for line, (environment, policy) in zip(axes, lines, strict=True):
        for axis, part in zip(line, (draw_curves, draw_needed), strict=True):
            part(axis, results, environment, policy)
            dress(axis, environment)
    names = axes[0, 0].get_legend_handles_labels()
    figure.legend(*names, loc="lower center", ncols=5, fontsize=8.5, frameon=False)
    figure.tight_layout(rect=(0, 0.6 / size[1], 1, 1))
    return figure


def draw_curves(axis: Any, results: Results, environment: str, policy: str) -> None:
    """Draw the scores of one policy against updates, and lines at what counts as reached."""
    at = {"environment": environment, "view_policy": policy}
    for row, style in LINES.items():
        seeds = over_updates(results, row, **at).values()
        points = sorted({updates for checkpoints in seeds for updates, _ in checkpoints})
        scores = [np.array([100 * s for found in seeds for u, s in found if u == point]) for point in points]
        colour = style.get("color", rcParams["text.color"])
        thin = {key: value for key, value in style.items() if key != "color"}
        band(axis, points, scores, colour, shade=0.06, markersize=4, linewidth=1.4, label=row, **thin)
    dense = final(results, "dense", "behaviour_share", **at)
    for level in LEVELS if dense.size else ():
        axis.axhline(100 * level * dense.mean(), color=rcParams["text.color"], linewidth=0.8, linestyle=(0, (1, 2)))
    axis.set(title=NAMES[policy], xlabel="updates", ylabel="return, % of the behaviour's")
    axis.xaxis.set_major_formatter("{x:,.0f}")


def draw_needed(axis: Any, results: Results, environment: str, policy: str) -> None:
    """Draw the updates that each seed of each row needs, hollow to the lower level, with the numbers beside them."""
    rows = [row for row in LINES if updates_needed(results, row, LEVELS[-1], environment, policy)]
    for place, row in enumerate(rows):
        words = []
        for level, filled in zip(LEVELS, ("none", "full"), strict=True):
            seeds = updates_needed(results, row, level, environment, policy).values()
            there = [needed.updates for needed in seeds if needed.reached]
            style = {"color": rcParams["text.color"], **LINES[row], "linestyle": "none", "fillstyle": filled}
            axis.plot(there, [place] * len(there), **style)
            words.append(f"{100 * level:.0f} %: {in_words(seeds)}")
        where = {"transform": axis.get_yaxis_transform(), "va": "center", "fontsize": 6.5}
        axis.text(1.02, place, "\n".join(words), **where)
    axis.set_yticks(range(len(rows)), rows)
    axis.set(title=f"{NAMES[policy]}, updates until 50 % (hollow) and 90 % of dense", xlabel="updates")
    axis.set(xlim=(0, None), ylim=(max(len(rows), 1) - 0.5, -0.5))
    axis.xaxis.set_major_formatter("{x:,.0f}")


def policy_gaps(results: Results, row: str, environment: str, data: str) -> np.ndarray[Any, Any]:
    """Return BCQ minus BC as a share of the behaviour's return, one value for each seed that has both."""
    shares = [
        {
            replicate.axes["seed"]: replicate.metrics["behaviour_share"]
            for replicate in results.select(row, environment=environment, data=data, view_policy=policy)
            if "behaviour_share" in replicate.metrics
        }
        for policy in ("bcq", "bc")
    ]
    bcq, bc = shares
    return np.array([bcq[seed] - bc[seed] for seed in bcq if seed in bc])


def draw_critic(results: Results) -> Drawing:
    """Draw BCQ minus BC for each row and data set: its seeds, their mean with Student's interval, and the numbers."""
    from matplotlib import pyplot

    environments, sets = results.axis("environment"), results.axis("data")
    bars = [(row, data) for data in sets for row in results.replicates if row in results]
    size = (1.2 + 1.7 * len(bars), 4 * len(environments))
    figure, axes = pyplot.subplots(len(environments), 1, figsize=size, squeeze=False)
    for axis, environment in zip(axes.flat, environments, strict=True):
        for place, (row, data) in enumerate(bars):
            gaps = 100 * policy_gaps(results, row, environment, data)
            if len(gaps):
                mark_gaps(axis, place, gaps, METHODS["snip"]["color"] if row != "dense" else rcParams["text.color"])
        axis.axhline(0, color=rcParams["text.color"], linewidth=0.8)
        axis.set_xticks(range(len(bars)), [f"{row}\n{data.removeprefix('d4rl-')}" for row, data in bars])
        axis.set(title="BCQ minus BC", xlim=(-0.5, len(bars) - 0.2), ylabel="of the behaviour's return, %")
        dress(axis, environment)
    figure.tight_layout()
    return figure


def mark_gaps(axis: Any, place: int, gaps: np.ndarray[Any, Any], colour: str) -> None:
    """Draw the gaps of one row's seeds, and beside them their mean, its interval and these numbers."""
    found = mean_of([gaps], form="+.0f")
    axis.plot([place] * len(gaps), gaps, "o", color=colour, markersize=4, fillstyle="none")
    reach = [[found.value - found.low], [found.high - found.value]]
    axis.errorbar([place + 0.12], [found.value], yerr=reach, fmt="D", color=colour, markersize=5, capsize=3)
    axis.annotate(
        str(found), (place + 0.12, found.value), (7, 0), textcoords="offset points", fontsize=7.5, va="center"
    )
