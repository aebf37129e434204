"""Readings of results for figures and claims: names of rows, scores by seed, sizes of files, updates needed.

The score at the end depends on where one stops, and after a short training on little else. The updates until a run
reaches a share of what the dense network ends at do not, once the dense network is done. BCQ and BC act with the same
VAE, so their gap, seed by seed, is what choosing by the critic adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retable.platform.spec.arrays import Array
from retable.platform.spec.table import AnyRow, Results

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
CONTROLS = ("random", "magnitude", "erk", "small_dense")
"""Controls that the methods are compared with at equal sparsity."""
METHODS = ("snip", "grasp", *CONTROLS)
NETWORKS = {"actor": "Actor", "critic": "Critic", "vae": "VAE"}
FORMATS = {
    "sparse": "COO int64 (the paper's)",
    "csr_int64": "CSR int64",
    "csr_int32": "CSR int32",
    "coo_int16": "COO int16",
    "bitmask": "bit mask",
    "compact": "ours, exact",
    "compact_float16": "ours, float16",
    "compact_int8": "ours, int8",
}
"""Formats of files: their names."""
DENSE_RAW = "dense, raw states"
"""Label of the dense network's row on raw states."""
LEVELS = (0.5, 0.9)
"""Shares of the dense network's final return whose reaching is counted."""


def label(method: str, sparsity: float, states: str = "standardized") -> str:
    """Return a row's label, `SNIP 95 %` or `SNIP 95 %, raw states`."""
    return f"{NAMES[method]} {100 * sparsity:.0f} %{'' if states == 'standardized' else f', {states} states'}"


def final(results: Results, row: AnyRow | str, metric: str, **axes: Any) -> Array:
    """Return a metric after the last evaluated epoch, one value for each seed."""
    epochs = results.axis("view.epoch")
    return results.values(row, metric, **axes, view_epoch=max(epochs)) if epochs else np.array([])


def best(results: Results, row: str, metric: str, **axes: Any) -> Array:
    """Return each seed's best value over the evaluated epochs: a choice that looks at the test score."""
    seeds = [results.values(row, metric, **axes, seed=seed) for seed in results.axis("seed")]
    return np.array([values.max() for values in seeds if values.size])


def metric_of(results: Results) -> tuple[str, str]:
    """Return the metric that every result has, and its name: the return where there is no reference for a score."""
    everywhere = all("score" in replicate.metrics for rows in results.replicates.values() for replicate in rows)
    return ("score", "normalised score") if everywhere else ("return", "return")


def over_updates(results: Results, row: str, **axes: object) -> dict[Any, list[tuple[int, float]]]:
    """Return each seed's checkpoints in order: the updates made, and the return as a share of the behaviour's."""
    by_seed: dict[Any, list[tuple[int, float]]] = {}
    for replicate in results.select(row, **axes):
        share = replicate.metrics.get("behaviour_share")
        if share is not None and replicate.view is not None:
            updates = replicate.view.epoch * replicate.config.steps
            by_seed.setdefault(replicate.axes["seed"], []).append((updates, share))
    return {seed: sorted(checkpoints) for seed, checkpoints in by_seed.items()}


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
    at_once: bool = False
    """Whether it is there at its first evaluation, so that it may need fewer."""


def updates_needed(results: Results, row: str, level: float, environment: str, policy: str) -> dict[Any, Needed]:
    """Return for each seed the updates until it reaches a level of what dense networks end at, their mean over seeds.

    Empty where there are no runs, no dense ones, or none of these that learned anything.
    """
    at = {"environment": environment, "view_policy": policy}
    dense = final(results, "dense", "behaviour_share", **at)
    if not dense.size or dense.mean() <= 0:
        return {}
    needed = {}
    for seed, checkpoints in over_updates(results, row, **at).items():
        updates = reached(checkpoints, level * float(dense.mean()))
        first, last = checkpoints[0][0], checkpoints[-1][0]
        needed[seed] = Needed(last, False) if updates is None else Needed(updates, True, at_once=updates == first)
    return needed


def in_words(seeds: Iterable[Needed]) -> str:
    """Write the updates needed, seed by seed."""
    return ", ".join(
        f"{'≤ ' * needed.at_once}{needed.updates:,.0f}" if needed.reached else "not reached" for needed in seeds
    )


def policy_gaps(results: Results, row: str, environment: str, data: str) -> Array:
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


def file_sizes(
    results: Results, network: str, form: str, sparsities: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Return the sparsities that were run with SNIP, the dense network as 0, and the mean bytes of a file there."""
    rows = {0.0: "dense", **{sparsity: label("snip", sparsity) for sparsity in sparsities}}
    bytes_of = {s: results.values(row, f"bytes/{network}/{form}") for s, row in rows.items()}
    sizes = {sparsity: float(values.mean()) for sparsity, values in bytes_of.items() if values.size}
    return list(sizes), list(sizes.values())


def break_even(sparsities: Sequence[float], sizes: Sequence[float], dense: float) -> float | None:
    """Return the sparsity from which on files are smaller than `dense` bytes, between the measured ones by a line.

    None where they never are. Sizes are linear in sparsity for all formats that do not compress.
    """
    below = next((i for i, size in enumerate(sizes) if size < dense), None)
    if not below:
        return None if below is None else sparsities[0]
    return float(np.interp(-dense, [-sizes[below - 1], -sizes[below]], sparsities[below - 1 : below + 1]))
