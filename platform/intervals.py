"""How sure a mean over a few training seeds is."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def seed_mean(groups: Sequence[npt.ArrayLike], level: float = 0.95) -> tuple[float, float]:
    """Return a mean over training seeds, and half the width of Student's interval of it.

    A bootstrap of three seeds knows no more than their range: it tells a difference in a quarter of all comparisons of
    equals.

    Args:
        groups: a value of each seed, (seeds,). Of several groups, such as environments, it is the mean of their means,
            each with its own spread (Welch and Satterthwaite's degrees of freedom). A group of one seed counts as one
            without spread: the interval then says nothing of training's noise.
        level: how often the interval holds the true mean, where seeds scatter normally.
    """
    from scipy.stats import t

    values = [np.asarray(group, np.float64) for group in groups]
    parts = [(group.var(ddof=1) / group.size, group.size - 1) for group in values if group.size > 1]
    mean, variance = float(np.mean([group.mean() for group in values])), sum(part for part, _ in parts)
    if not variance > 0:
        return mean, 0.0
    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)
    return mean, float(t.ppf((1 + level) / 2, freedom) * math.sqrt(variance) / len(values))


def widen(mean: float, low: float, high: float, margin: float) -> tuple[float, float]:
    """Return the ends of an interval that heeds two sources of noise, of a test set and of training.

    Independent errors add as squares do.

    Args:
        mean: what the interval is of.
        low: the lower end, the training seeds held fixed.
        high: the upper end.
        margin: of the training seeds (`seed_mean`).
    """
    return mean - math.hypot(max(mean - low, 0.0), margin), mean + math.hypot(max(high - mean, 0.0), margin)
