"""Scores that claims compare, by row, environment and seed, where the dense network has learned enough."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retable.platform.spec.arrays import Array
from retable.platform.spec.claims import LEAST, Verdict, ratio_of, too_few, untested
from retable.platform.spec.table import Results, Row
from retable.platform.text import grouped, plural
from retable.tasks.rl.tables import DENSE

LEARNED = 0.9
"""A dense network below this share of the behaviour's return has not learned enough to test the paper's findings."""
COMPARABLE = 0.5
"""Our own claims compare methods after shorter trainings too, from this share on."""
KEEPS = 0.9
"""A pruned network keeps performance at this share of the dense network's return; the paper names no number."""


def by_environment(results: Results, rows: Sequence[Row], metric: str, **axes: object) -> dict[str, Array]:
    """Return a metric of several rows after the last evaluated epoch, for each environment where all rows have it.

    Returns:
        environment ("" where the table has but one) -> values (rows, seeds), those of one seed in a column; seeds that
        a row lacks are left out.
    """
    epochs = results.axis("view.epoch")
    axes = {**axes, **({"view_epoch": max(epochs)} if epochs else {})}
    runs = [
        {
            (str(replicate.axes.get("environment", "")), replicate.axes["seed"]): replicate.metrics[metric]
            for replicate in results.select(row, **axes)
            if replicate.metrics.get(metric) is not None
        }
        for row in rows
    ]
    shared = [run for run in runs[0] if all(run in others for others in runs)]
    groups = grouped((run[0], [others[run] for others in runs]) for run in shared)
    return {environment: np.array(columns, float).T for environment, columns in groups.items()}


def learned(
    results: Results, environment: str, policy: str, least: float = LEARNED, dense: Row = DENSE
) -> Verdict | None:
    """Return why scores cannot be compared yet, or None where they can: the dense network has to have learned first."""
    share, played = (
        by_environment(results, [dense], metric, view_policy=policy).get(environment, np.empty((1, 0)))[0]
        for metric in ("behaviour_share", "return")
    )
    if not share.size:
        return untested("the behaviour's return is not above 0" if played.size else "no runs")
    if share.mean() < least:
        reached = f"the dense network reaches {share.mean():.0%} of the behaviour's return, not {least:.0%}"
        return too_few(share.size) or untested(f"{reached}: not trained enough, {updates(results)}")
    return too_few(share.size)


def updates(results: Results) -> str:
    """Return how long the runs were trained: a short training is no test of what the paper found after a long one."""
    counts = {r.config.epochs * r.config.steps for rows in results.replicates.values() for r in rows}
    return f"after {max(counts):,} updates (the paper: 1,000,000)"


def kept_return(
    results: Results, sparse: Row, dense: Row, environment: str, policy: str, least: float = LEARNED
) -> Verdict:
    """Compare a pruned network's return with the dense one's: the ratio of their means over the same seeds."""
    if unready := learned(results, environment, policy, least, dense):
        return unready
    pairs = by_environment(results, (sparse, dense), "behaviour_share", view_policy=policy).get(environment)
    if pairs is None or pairs.shape[1] < LEAST:
        return untested("runs are missing")
    about = f"of the dense return, {plural(pairs.shape[1], 'seed')}, {updates(results)}"
    return ratio_of(pairs[0], pairs[1], about, ".0%").verdict(KEEPS).noted(f"; keeps means {KEEPS:.0%}")
