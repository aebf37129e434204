"""What becomes of a claim: estimates with intervals, and the verdicts that rest on them.

Every task judges with these few functions: a mean over training seeds and a ratio of such means (Student, Fieller), an
interval of two sources of noise, and the joining of several verdicts to one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Status = Literal["holds", "does not hold", "not separable", "not tested at this scale", "not judged"]
UNTESTED: Status = "not tested at this scale"
NOT_JUDGED: Status = "not judged"
"""The user left out what the claim is about."""
STATUSES: tuple[Status, ...] = ("does not hold", UNTESTED, "not separable", "holds")
"""What decides when verdicts are joined: the first of these that any of them has."""
LEAST = 3
"""Fewer training seeds (or photographs) say nothing of the spread."""


@dataclass(frozen=True)
class Verdict:
    """What became of a claim, and the numbers that it rests on."""

    status: Status
    because: str


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval, and what it is of."""

    value: float
    low: float
    high: float
    about: str = ""
    form: str = "+.2f"
    """How the three numbers are printed."""

    def __str__(self) -> str:
        """Write it as one reads it, `+0.12 [+0.05, +0.19] mAP@10, 3 seeds`."""
        value, low, high = (format(number, self.form) for number in (self.value, self.low, self.high))
        return f"{value} [{low}, {high}] {self.about}".strip()

    def status(self, low: float = 0.0, high: float = math.inf) -> Status:
        """Say whether the true number lies between two others: all of the interval does, none of it, or some."""
        if low < self.low and self.high < high:
            return "holds"
        return "does not hold" if self.high < low or high < self.low else "not separable"

    def verdict(self, low: float = 0.0, high: float = math.inf) -> Verdict:
        """Return the verdict that the true number lies between two others: above 0, unless said otherwise."""
        return Verdict(self.status(low, high), str(self))


def judge(found: Estimate | Verdict, low: float = 0.0, high: float = math.inf) -> Verdict:
    """Return the verdict on an estimate, or the one that stands in its place where there could be none."""
    return found if isinstance(found, Verdict) else found.verdict(low, high)


def untested(because: str) -> Verdict:
    """Return the verdict that a claim could not be tested."""
    return Verdict(UNTESTED, because)


def too_few(count: int, noun: str = "seed", least: int = LEAST) -> Verdict | None:
    """Return the verdict on so many seeds (or another noun), where they are too few for any other."""
    if not count:
        return untested("rows are missing")
    return untested(f"{plural(count, noun)}; at least {least} are needed") if count < least else None


def plural(number: int, noun: str) -> str:
    """Return a number and its noun."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def and_more(words: Sequence[str], most: int, separator: str = ", ") -> str:
    """Join the first words, and say how many there are beyond `most`."""
    return separator.join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def join(verdicts: Mapping[str, Verdict] | Sequence[Verdict]) -> Verdict:
    """Join verdicts, named ones or not: a sentence holds if every part of it does, and does not if one does not.

    Equal reasons are given once. Nothing to join is not tested.
    """
    if isinstance(verdicts, Mapping):
        verdicts = [Verdict(verdict.status, f"{name}: {verdict.because}") for name, verdict in verdicts.items()]
    reasons, statuses = [verdict.because for verdict in verdicts], {verdict.status for verdict in verdicts}
    status = next((status for status in STATUSES if status in statuses), UNTESTED)
    return Verdict(status, "; ".join(dict.fromkeys(reasons)) or "rows are missing")


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
    values = [np.asarray(group, np.float64) for group in groups]
    parts = [(group.var(ddof=1) / group.size, group.size - 1) for group in values if group.size > 1]
    mean, variance = float(np.mean([group.mean() for group in values])), sum(part for part, _ in parts)
    if not variance > 0:
        return mean, 0.0
    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)
    return mean, _student(level, freedom) * math.sqrt(variance) / len(values)


def mean_of(groups: Sequence[npt.ArrayLike], about: str = "", form: str = "+.2f", level: float = 0.95) -> Estimate:
    """Return a mean over training seeds with Student's interval (`seed_mean`)."""
    mean, margin = seed_mean(groups, level)
    return Estimate(mean, mean - margin, mean + margin, about, form)


def ratio_of(above: npt.ArrayLike, below: npt.ArrayLike, about: str = "", form: str = ".2f") -> Estimate:
    """Return the ratio of two means over the same seeds, with Fieller's 95 % interval.

    The interval holds every ratio r for which the mean of `above - r * below` cannot be told from 0 by Student's test;
    it is endless where the mean below cannot be told from 0.

    Args:
        above: a value of each seed, (seeds,).
        below: the values of the same seeds, (seeds,).
        about: what the ratio is of.
        form: how it is printed.
    """
    pairs = np.stack([np.asarray(above, np.float64), np.asarray(below, np.float64)])
    (top, bottom), count = pairs.mean(axis=1), pairs.shape[1]
    ratio = top / bottom
    covariance = np.cov(pairs) * _student(0.95, count - 1) ** 2 / count
    # (top - r bottom)^2 <= variance of (above - r below): a r^2 - 2 b r + c <= 0
    a, b, c = bottom**2 - covariance[1, 1], top * bottom - covariance[0, 1], top**2 - covariance[0, 0]
    root = b**2 - a * c
    if a <= 0 or root < 0:
        return Estimate(ratio, -math.inf, math.inf, about, form)
    return Estimate(ratio, (b - math.sqrt(root)) / a, (b + math.sqrt(root)) / a, about, form)


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


def _student(level: float, freedom: float) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + level) / 2, freedom))
