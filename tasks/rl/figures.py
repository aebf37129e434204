"""Drawing of the figures."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from retable.platform.spec.arrays import Array
from retable.platform.spec.claims import mean_of
from retable.platform.spec.table import Results
from retable.tasks.rl.learning.readings import (
    CONTROLS,
    DENSE_RAW,
    FORMATS,
    LEVELS,
    NAMES,
    NETWORKS,
    best,
    break_even,
    file_sizes,
    final,
    in_words,
    label,
    metric_of,
    over_updates,
    policy_gaps,
    updates_needed,
)

if TYPE_CHECKING:  # tables name what draws, and a list of them draws nothing
    from matplotlib.figure import Figure as Drawing

PRUNERS = ("snip", "grasp")
COLOURS = {"bcq": "#2457c5", "bc": "#d9662b"}
STYLES = {
    "snip": {"color": "#c2386b", "marker": "o"},
    "grasp": {"color": "#1d8fa5", "marker": "v"},
    "random": {"color": "#5b6472", "marker": "X"},
    "magnitude": {"color": "#8a4fbf", "marker": "s"},
    "erk": {"color": "#2a8c4a", "marker": "^"},
    "small_dense": {"color": "#b08900", "marker": "D"},
}
"""Line style of each method."""
LINES: Mapping[str, Mapping[str, Any]] = {
    "dense": {"marker": "."},
    label("snip", 0.5): {**STYLES["snip"], "linestyle": ":"},
    label("snip", 0.9): {**STYLES["snip"], "linestyle": "--"},
    **{label(method, 0.95): style for method, style in STYLES.items()},
    DENSE_RAW: {"marker": ".", "linestyle": "-.", "fillstyle": "none"},
    **{label(method, 0.95, "raw"): {**STYLES[method], "linestyle": "-.", "fillstyle": "none"} for method in PRUNERS},
}
"""Rows whose learning is shown, and how they are drawn."""
LAYERS = {
    "actor": ("l1", "l2", "l3"),
    "critic": ("l1", "l2", "l3", "l4", "l5", "l6"),
    "vae": ("e1", "e2", "mean", "log_std", "d1", "d2", "d3"),
}
FORMAT_STYLES: Mapping[str, Mapping[str, Any]] = {
    "sparse": {"color": "#2a8c4a", "marker": "o"},
    "csr_int64": {"color": "#7a6fb0", "marker": "s"},
    "csr_int32": {"color": "#4f8fc0", "marker": "^"},
    "coo_int16": {"color": "#8a5a3c", "marker": "v", "linestyle": ":"},
    "bitmask": {"color": "#8d939c", "marker": "D"},
    "compact": {"color": "#d9662b", "marker": "o", "linewidth": 2},
    "compact_float16": {"color": "#d9662b", "linestyle": "--"},
    "compact_int8": {"color": "#d9662b", "linestyle": ":"},
}
"""Line style of each format in figure 4."""


def themed(part: Literal["text.color", "axes.facecolor"] = "text.color") -> Any:
    """Return a color of the style that is drawn in: of text, unless another part is named."""
    from matplotlib import rcParams

    return rcParams[part]


def band(
    axis: Any,
    x: Sequence[float],
    seeds: Sequence[Array],
    colour: str,
    shade: float = 0.15,
    **style: Any,
) -> None:
    """Draw mean and lowest-to-highest band over seeds where there are values."""
    points = [(position, values) for position, values in zip(x, seeds, strict=True) if values.size]
    if not points:
        return
    where = [position for position, _ in points]
    axis.plot(where, [values.mean() for _, values in points], color=colour, **style)
    low, high = ([getattr(values, side)() for _, values in points] for side in ("min", "max"))
    axis.fill_between(where, low, high, color=colour, alpha=shade, linewidth=0)


def dress(axis: Any, environment: str) -> None:
    """Apply the common style to a panel, and add its environment to the title."""
    axis.set_title(f"{environment}: {axis.get_title()}", fontsize=10)
    axis.grid(linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)


def draw_scores(results: Results, method: str, sparsities: Sequence[float]) -> Drawing:
    """Draw each environment's scores: against sparsity, beside the controls for each policy, and over training."""
    from matplotlib import pyplot

    environments, (metric, name) = results.axis("environment"), metric_of(results)
    parts = [partial(against_sparsity, method=method, sparsities=sparsities)]
    for policy in results.axis("view.policy"):
        parts.append(partial(beside_controls, method=method, sparsities=sparsities, policy=policy))
    if len(results.axis("view.epoch")) > 1:
        parts.append(partial(over_training, method=method))
    # A line of panels for each environment; a single one is folded in two.
    lines, columns = (len(environments), len(parts)) if len(environments) > 1 else (-(-len(parts) // 2), 2)
    share: Literal["row", "all"] = "row" if len(environments) > 1 else "all"
    size = (4.7 * columns, 3.5 * lines)
    figure, axes = pyplot.subplots(lines, columns, figsize=size, squeeze=False, sharey=share)
    panels = [(part, environment) for environment in environments for part in parts]
    for axis, (part, environment) in zip(axes.flat, panels, strict=False):
        part(axis, results, environment, metric)
        dress(axis, environment)
        if axis.has_data():
            axis.legend(fontsize=7.5, frameon=False)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for line in axes:
        line[0].set_ylabel(name)
    figure.tight_layout()
    return figure


def against_sparsity(
    axis: Any, results: Results, environment: str, metric: str, method: str, sparsities: Sequence[float]
) -> None:
    """Draw final and best scores of both policies against sparsity, the dense network at 0."""
    rows = {0.0: "dense", **{100 * sparsity: label(method, sparsity) for sparsity in sparsities}}
    for policy, colour in COLOURS.items():
        at = {"environment": environment, "view_policy": policy}
        seeds = [final(results, row, metric, **at) for row in rows.values()]
        band(axis, list(rows), seeds, colour, marker="o", markersize=3.5, label=f"{NAMES[policy]}, final")
        tops = {x: best(results, row, metric, **at) for x, row in rows.items()}
        bests = {x: values.mean() for x, values in tops.items() if values.size}
        if bests and len(results.axis("view.epoch")) > 1:
            axis.plot(list(bests), list(bests.values()), color=colour, linestyle=":", label=f"{NAMES[policy]}, best")
    axis.set(title=NAMES[method], xlabel="sparsity, %")


def beside_controls(
    axis: Any, results: Results, environment: str, metric: str, method: str, sparsities: Sequence[float], policy: str
) -> None:
    """Draw one policy's final scores from 90 % on, over the logarithm of the weights kept, with controls and raw rows.

    Whiskers, like the band, go from the lowest to the highest seed.
    """
    at = {"environment": environment, "view_policy": policy}
    high = [sparsity for sparsity in sparsities if sparsity >= 0.9]
    kept = [100 * (1 - sparsity) for sparsity in high]
    seeds = [final(results, label(method, sparsity), metric, **at) for sparsity in high]
    band(axis, kept, seeds, COLOURS[policy], marker="o", markersize=4, linewidth=2, label=NAMES[method])
    raw = {**STYLES[method], "linestyle": "-.", "fillstyle": "none"}
    others = [*((control, "standardized", STYLES[control]) for control in CONTROLS), (method, "raw", raw)]
    for other, states, style in others:
        rows = {x: label(other, s, states) for x, s in zip(kept, high, strict=True)}  # some sparsities are no rows
        runs = {x: final(results, row, metric, **at) for x, row in rows.items() if row in results.replicates}
        spans = {x: (v.mean(), v.mean() - v.min(), v.max() - v.mean()) for x, v in runs.items() if v.size}
        if spans:
            means, *whiskers = zip(*spans.values(), strict=True)
            thin = {"linewidth": 1, "elinewidth": 0.7, "markersize": 4.5}
            name = NAMES[other] + (", raw states" if states == "raw" else "")
            axis.errorbar(list(spans), means, yerr=whiskers, label=name, **thin, **style)
    for row, dashes in (("dense", "--"), (DENSE_RAW, ":")):
        dense = final(results, row, metric, **at)
        if dense.size:
            axis.axhline(dense.mean(), color=COLOURS[policy], linewidth=1, linestyle=dashes, label=row)
    axis.set_xscale("log")
    axis.set_xticks(kept, [f"{100 * sparsity:.0f}" for sparsity in high])
    axis.set_xticks([], minor=True)
    axis.set_xlim(1.1 * max(kept), min(kept) / 1.1)
    axis.set(title=f"{NAMES[policy]} beside controls", xlabel="sparsity, %")


def over_training(axis: Any, results: Results, environment: str, metric: str, method: str) -> None:
    """Draw scores over the evaluated epochs: dense and the sparsest network of the paper."""
    epochs = sorted(results.axis("view.epoch"))
    for policy, colour in COLOURS.items():
        for row, style in (("dense", "-"), (label(method, 0.95), "--")):
            at = {"environment": environment, "view_policy": policy}
            seeds = [results.values(row, metric, **at, view_epoch=epoch) for epoch in epochs]
            band(axis, epochs, seeds, colour, linestyle=style, marker=".", label=f"{NAMES[policy]}, {row}")
    axis.set(title="over training", xlabel="epoch")
    axis.xaxis.get_major_locator().set_params(integer=True)


def draw_layers(results: Results) -> Drawing:
    """Draw the weights each layer keeps, dense and pruned, on a logarithmic axis; a line of panels an environment."""
    from matplotlib import pyplot

    environments = results.axis("environment")
    rows = [row for row in ("dense", label("snip", 0.95), label("grasp", 0.95)) if row in results]
    size = (14, 3.6 * len(environments))
    shape = (len(environments), 3)
    figure, axes = pyplot.subplots(*shape, figsize=size, width_ratios=(3, 6, 7), squeeze=False, sharey=True)
    panels = itertools.product(environments, NETWORKS.items())
    for axis, (environment, (network, title)) in zip(axes.flat, panels, strict=True):
        layers = LAYERS[network]
        for position, row in enumerate(rows):
            values = [results.values(row, f"kept/{network}/{layer}", environment=environment) for layer in layers]
            x = np.arange(len(layers)) + 0.27 * (position - (len(rows) - 1) / 2)
            colour = ("#aab2c0", "#2457c5", "#d9662b")[position]
            style = {"color": colour, "ecolor": themed(), "label": row}
            axis.bar(
                x,
                [v.mean() if v.size else np.nan for v in values],
                0.27,
                yerr=[v.std(ddof=1) if v.size > 1 else 0.0 for v in values],
                **style,
            )
        axis.set_yscale("log")
        axis.set_xticks(range(len(layers)), layers)
        axis.set_title(f"{title}, {environment}")
    for line in axes:
        line[0].set_ylabel("weights kept")
    axes[0, 0].legend(fontsize=8)
    figure.tight_layout()
    return figure


def draw_memory(results: Results, sparsities: Sequence[float]) -> Drawing:
    """Draw file sizes against sparsity in every format, with the sparsity at which each undercuts the dense file."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(14, 4.6))
    for axis, (network, title) in zip(axes, NETWORKS.items(), strict=True):
        files = results.values("dense", f"bytes/{network}/dense")
        dense = float(files.mean()) if files.size else np.nan  # then no format is smaller
        if files.size:
            axis.axhline(dense / 1e6, color=themed(), linewidth=1.2, label="dense file")
        evens: dict[str, tuple[float, float]] = {}  # two formats with one break-even are named once
        for form, style in FORMAT_STYLES.items():
            x, sizes = file_sizes(results, network, form, sparsities)
            axis.plot(
                [100 * s for s in x], [size / 1e6 for size in sizes], markersize=3.5, label=FORMATS[form], **style
            )
            if even := break_even(x, sizes, dense):  # ours are smaller from the start
                axis.plot(100 * even, dense / 1e6, "o", markersize=7, fillstyle="none", color=style["color"])
                evens.setdefault(f"{100 * even:.0f} %", (100 * even, dense / 1e6))
        for text, point in evens.items():
            box = {"boxstyle": "square,pad=0.05", "facecolor": themed("axes.facecolor"), "edgecolor": "none"}
            axis.annotate(text, point, (4, 5), textcoords="offset points", fontsize=8, bbox=box)
        axis.set(title=title, xlabel="sparsity, %", yscale="log", xlim=(-6, 99))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.grid(axis="y", which="both", linewidth=0.6)
    axes[0].set_ylabel("file, MB")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=5, fontsize=9, frameon=False)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    return figure


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
        scores = [np.array([100 * s for pairs in seeds for u, s in pairs if u == point]) for point in points]
        colour = style.get("color", themed())
        thin = {key: value for key, value in style.items() if key != "color"}
        band(axis, points, scores, colour, shade=0.06, markersize=4, linewidth=1.4, label=row, **thin)
    dense = final(results, "dense", "behaviour_share", **at)
    for level in LEVELS if dense.size else ():
        axis.axhline(100 * level * dense.mean(), color=themed(), linewidth=0.8, linestyle=(0, (1, 2)))
    axis.set(title=NAMES[policy], xlabel="updates", ylabel="return, % of the behaviour's")
    axis.xaxis.set_major_formatter("{x:,.0f}")


def draw_needed(axis: Any, results: Results, environment: str, policy: str) -> None:
    """Draw the updates that each seed of each row needs, hollow to the lower level, with the numbers beside them."""
    rows = [row for row in LINES if updates_needed(results, row, LEVELS[-1], environment, policy)]
    for position, row in enumerate(rows):
        words = []
        for level, filled in zip(LEVELS, ("none", "full"), strict=True):
            seeds = updates_needed(results, row, level, environment, policy).values()
            reached = [needed.updates for needed in seeds if needed.reached]
            style = {"color": themed(), **LINES[row], "linestyle": "none", "fillstyle": filled}
            axis.plot(reached, [position] * len(reached), **style)
            words.append(f"{100 * level:.0f} %: {in_words(seeds)}")
        where = {"transform": axis.get_yaxis_transform(), "va": "center", "fontsize": 6.5}
        axis.text(1.02, position, "\n".join(words), **where)
    axis.set_yticks(range(len(rows)), rows)
    axis.set(title=f"{NAMES[policy]}, updates until 50 % (hollow) and 90 % of dense", xlabel="updates")
    axis.set(xlim=(0, None), ylim=(max(len(rows), 1) - 0.5, -0.5))
    axis.xaxis.set_major_formatter("{x:,.0f}")


def draw_critic(results: Results) -> Drawing:
    """Draw BCQ minus BC for each row and data set: its seeds, their mean with Student's interval, and the numbers."""
    from matplotlib import pyplot

    environments, sets = results.axis("environment"), results.axis("data")
    bars = [(row, data) for data in sets for row in results.replicates if row in results]
    size = (1.2 + 1.7 * len(bars), 4 * len(environments))
    figure, axes = pyplot.subplots(len(environments), 1, figsize=size, squeeze=False)
    for axis, environment in zip(axes.flat, environments, strict=True):
        for position, (row, data) in enumerate(bars):
            gaps = 100 * policy_gaps(results, row, environment, data)
            if len(gaps):
                mark_gaps(axis, position, gaps, STYLES["snip"]["color"] if row != "dense" else themed())
        axis.axhline(0, color=themed(), linewidth=0.8)
        axis.set_xticks(range(len(bars)), [f"{row}\n{data.removeprefix('d4rl-')}" for row, data in bars])
        axis.set(title="BCQ minus BC", xlim=(-0.5, len(bars) - 0.2), ylabel="of the behaviour's return, %")
        dress(axis, environment)
    figure.tight_layout()
    return figure


def mark_gaps(axis: Any, position: int, gaps: Array, colour: str) -> None:
    """Draw the gaps of one row's seeds, and beside them their mean, its interval and these numbers."""
    estimate = mean_of([gaps], form="+.0f")
    axis.plot([position] * len(gaps), gaps, "o", color=colour, markersize=4, fillstyle="none")
    reach = [[estimate.value - estimate.low], [estimate.high - estimate.value]]
    axis.errorbar([position + 0.12], [estimate.value], yerr=reach, fmt="D", color=colour, markersize=5, capsize=3)
    axis.annotate(
        str(estimate), (position + 0.12, estimate.value), (7, 0), textcoords="offset points", fontsize=7.5, va="center"
    )
