"""How the figures are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Drawing

from retable.platform.table import Results

COLOURS = {"bcq": "#2457c5", "bc": "#d9662b"}
NAMES = {
    "bcq": "BCQ",
    "bc": "BC",
    "snip": "SNIP",
    "grasp": "GraSP",
    "random": "random",
    "magnitude": "magnitude",
    "erk": "ERK",
    "small_dense": "small dense",
}
LAYERS = {
    "actor": ("l1", "l2", "l3"),
    "critic": ("l1", "l2", "l3", "l4", "l5", "l6"),
    "vae": ("e1", "e2", "mean", "log_std", "d1", "d2", "d3"),
}
NETWORKS = {"actor": "Actor", "critic": "Critic", "vae": "VAE"}


def label(method: str, sparsity: float) -> str:
    """Return a row's label, `SNIP 95 %`."""
    return f"{NAMES[method]} {100 * sparsity:.0f} %"


def final(results: Results, row: str, metric: str, **axes: Any) -> np.ndarray[Any, Any]:
    """Return a metric after the last evaluated epoch, one value for each seed."""
    epochs = results.axis("view.epoch")
    return results.values(row, metric, **axes, view_epoch=max(epochs)) if epochs else np.array([])


def best(results: Results, row: str, metric: str, **axes: Any) -> np.ndarray[Any, Any]:
    """Return each seed's best value over the evaluated epochs: a choice that looks at the test score."""
    seeds = [results.values(row, metric, **axes, seed=seed) for seed in results.axis("seed")]
    return np.array([values.max() for values in seeds if values.size])


def metric_of(results: Results) -> tuple[str, str]:
    """Return the metric that every result has, and its name: the return where there is no reference for a score."""
    everywhere = all("score" in replicate.metrics for rows in results.replicates.values() for replicate in rows)
    return ("score", "normalised score") if everywhere else ("return", "return")


def band(axis: Any, x: Sequence[float], seeds: Sequence[np.ndarray[Any, Any]], colour: str, **style: Any) -> None:
    """Draw mean and lowest-to-highest band over seeds where there are values."""
    points = [(position, values) for position, values in zip(x, seeds, strict=True) if values.size]
    if not points:
        return
    where = [position for position, _ in points]
    axis.plot(where, [values.mean() for _, values in points], color=colour, **style)
    low, high = ([getattr(values, side)() for _, values in points] for side in ("min", "max"))
    axis.fill_between(where, low, high, color=colour, alpha=0.15, linewidth=0)


def draw_scores(results: Results, method: str, sparsities: Sequence[float]) -> Drawing:
    """Draw, for each environment, the score against sparsity above and over training below."""
    from matplotlib import pyplot

    environments = results.axis("environment")
    lines = 2 if len(results.axis("view.epoch")) > 1 else 1
    if len(environments) == 1:  # side by side
        figure, axes = pyplot.subplots(1, lines, figsize=(5.5 * lines, 3.8), squeeze=False)
        axes = axes.T
    else:
        size = (4.6 * len(environments) + 1, 3.5 * lines)
        figure, axes = pyplot.subplots(lines, len(environments), figsize=size, squeeze=False)
    metric, name = metric_of(results)
    for column, environment in enumerate(environments):
        against_sparsity(axes[0, column], results, environment, metric, method, sparsities)
        axes[0, column].set(title=environment, xlabel="sparsity, %")
        if lines == 2:
            over_training(axes[1, column], results, environment, metric, method)
            axes[1, column].set_xlabel("epoch")
            axes[1, column].xaxis.get_major_locator().set_params(integer=True)
    for row in axes:
        row[0].set_ylabel(name)
        row[0].legend(fontsize=8, loc="best")
    figure.tight_layout()
    return figure


def against_sparsity(
    axis: Any, results: Results, environment: str, metric: str, method: str, sparsities: Sequence[float]
) -> None:
    """Draw final and best scores against sparsity, the dense network at 0, and random masks as points."""
    points = [0.0, *sparsities, 0.99]
    rows = ["dense", *(label(method, sparsity) for sparsity in points[1:])]
    x = [100 * sparsity for sparsity in points]
    for policy, colour in COLOURS.items():
        at = {"environment": environment, "view_policy": policy}
        seeds = [final(results, row, metric, **at) for row in rows]
        band(axis, x, seeds, colour, marker="o", markersize=4, label=f"{NAMES[policy]}, final")
        tops = [best(results, row, metric, **at) for row in rows]
        found = [(position, values.mean()) for position, values in zip(x, tops, strict=True) if values.size]
        if len(results.axis("view.epoch")) > 1:
            axis.plot(*zip(*found, strict=True), color=colour, linestyle=":", label=f"{NAMES[policy]}, best")
        control = [(100 * s, final(results, label("random", s), metric, **at)) for s in (0.95, 0.99)]
        for position, values in control:
            if values.size:
                axis.plot(position, values.mean(), color=colour, marker="x", linestyle="", markersize=7)
    axis.plot([], [], color="gray", marker="x", linestyle="", label="random mask, final")


def over_training(axis: Any, results: Results, environment: str, metric: str, method: str) -> None:
    """Draw scores over the evaluated epochs: dense and the sparsest network of the paper."""
    epochs = sorted(results.axis("view.epoch"))
    for policy, colour in COLOURS.items():
        for row, style in (("dense", "-"), (label(method, 0.95), "--")):
            at = {"environment": environment, "view_policy": policy}
            seeds = [results.values(row, metric, **at, view_epoch=epoch) for epoch in epochs]
            band(axis, epochs, seeds, colour, linestyle=style, marker=".", label=f"{NAMES[policy]}, {row}")


def draw_layers(results: Results) -> Drawing:
    """Draw the weights each layer keeps, dense and pruned, on a logarithmic axis."""
    from matplotlib import pyplot

    environment = results.axis("environment")[0]
    rows = [row for row in ("dense", label("snip", 0.95), label("grasp", 0.95)) if row in results]
    figure, axes = pyplot.subplots(1, 3, figsize=(14, 4), width_ratios=(3, 6, 7))
    for axis, (network, title) in zip(axes, NETWORKS.items(), strict=True):
        layers = LAYERS[network]
        for position, row in enumerate(rows):
            values = [results.values(row, f"kept/{network}/{layer}", environment=environment) for layer in layers]
            x = np.arange(len(layers)) + 0.27 * (position - (len(rows) - 1) / 2)
            colour = ("#aab2c0", "#2457c5", "#d9662b")[position]
            axis.bar(x, [v.mean() for v in values], 0.27, yerr=[v.std() for v in values], color=colour, label=row)
        axis.set_yscale("log")
        axis.set_xticks(range(len(layers)), layers)
        axis.set_title(f"{title}, {environment}")
    axes[0].set_ylabel("weights kept")
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    return figure


def draw_memory(results: Results, sparsities: Sequence[float]) -> Drawing:
    """Draw the saved file's size against sparsity beside the dense file's."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(13, 3.8))
    rows = {0.0: "dense", **{sparsity: label("snip", sparsity) for sparsity in sparsities}}
    for axis, (network, title) in zip(axes, NETWORKS.items(), strict=True):
        there = {100 * s: results.values(row, f"bytes/{network}/sparse") for s, row in rows.items() if row in results}
        axis.plot(
            list(there), [v.mean() / 1e6 for v in there.values()], color="#2a8c4a", marker="o", label="sparse file"
        )
        dense = results.values("dense", f"bytes/{network}/dense").mean() / 1e6
        axis.axhline(dense, color="#2457c5", label="dense file")
        axis.axvline(80, color="gray", linewidth=0.8, linestyle=":", label="break-even, 80 %")
        axis.set_title(title)
        axis.set_xlabel("sparsity, %")
        axis.set_ylim(bottom=0)
    axes[0].set_ylabel("MB")
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    return figure
