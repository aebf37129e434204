"""Scores of offline RL: D4RL's normalised score, and what several runs on several environments say together."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

D4RL: dict[str, Any] = json.loads((Path(__file__).parent / "d4rl.json").read_text())
"""D4RL's reference returns (`references`) and its published files by SHA-256 (`files`)."""


def normalised_score(environment: str, returns: npt.ArrayLike) -> Array | None:
    """Return D4RL's normalised score, 100 (R - random) / (expert - random), or None without reference returns.

    Args:
        environment: a name without version, such as `Hopper`.
        returns: undiscounted returns, any shape; the score has the same shape.

    Source: Fu et al. 2020, D4RL, section 5, times 100 as in its tables. The references are those of D4RL's own
    simulator; a score on other data or in another simulator version is not a D4RL score, and reports must say so.

    """
    reference = D4RL["references"].get(environment)
    if reference is None:
        return None
    low, high = reference["ref_min"], reference["ref_max"]
    scores: Array = 100 * (np.asarray(returns, np.float64) - low) / (high - low)
    return scores


def interquartile_mean(scores: npt.ArrayLike) -> float:
    """Return the mean of the middle half of all scores, whatever their shape.

    A quarter of the scores, rounded down, is cut at each end, so fewer than four scores give their plain mean.

    Source: Agarwal et al. 2021, *Deep RL at the Edge of the Statistical Precipice*, section 4.3.
    Raises ValueError without scores.
    """
    ordered = np.sort(np.asarray(scores, np.float64), axis=None)
    if not ordered.size:
        raise ValueError("the interquartile mean of no scores")
    cut = ordered.size // 4
    return float(ordered[cut : ordered.size - cut].mean())


def stratified_bootstrap(
    scores: npt.ArrayLike, statistic: Callable[[Array], float], seed: int, samples: int = 2000
) -> tuple[float, float]:
    """Return the 95 % percentile interval of a statistic, resampling runs within each environment.

    Args:
        scores: one score for each run and environment, shape (runs, environments).
        statistic: a function of resampled scores (runs, environments), such as `interquartile_mean`.
        seed: seed of the resampling; equal seeds give equal intervals.
        samples: how often to resample.

    Source: Agarwal et al. 2021, section 4.1 (as in its package rliable). With one run the interval is one point:
    it then says nothing about seeds. Raises ValueError where `scores` is not a non-empty table.

    """
    table = np.asarray(scores, np.float64)
    if table.ndim != 2 or not table.size:
        raise ValueError(f"scores have shape {table.shape}, not (runs, environments)")
    runs, environments = table.shape
    drawn = np.random.default_rng(seed).integers(runs, size=(samples, runs, environments))
    values = [statistic(table[rows, np.arange(environments)]) for rows in drawn]
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
