"""Verdicts on claims: estimates, their intervals, and how they decide.

Every task judges with these few functions: a mean over training seeds and a ratio of such means (Student, Fieller), an
interval of two sources of noise, rows that are compared replicate by replicate (`paired`), and the joining of several
verdicts to one. `table.claim` writes a claim in one line.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from retable.platform.text import plural

if TYPE_CHECKING:
    from retable.platform.spec.table import AnyRow, Replicate, Results

T = TypeVar("T")
Status = Literal["holds", "does not hold", "not separable", "not tested at this scale", "not judged"]
UNTESTED: Status = "not tested at this scale"
NOT_JUDGED: Status = "not judged"
"""The user left out what the claim is about."""
_STATUSES: tuple[Status, ...] = ("does not hold", UNTESTED, "not separable", "holds")
"""Statuses by precedence: of joined verdicts, the first of these that any of them has decides."""
LEAST = 3
"""Fewer training seeds (or photographs) say nothing of the spread."""
MOST = 100
"""So many seeds at most are named as those that would separate a claim."""
Ends = Callable[[float], tuple[float, float]]
"""Number of seeds, which may be infinite -> the interval that so many would give at the spread that was seen."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a claim, with its numbers."""

    status: Status
    because: str

    def noted(self, text: str) -> Verdict:
        """Return the verdict with a text behind its reason."""
        return Verdict(self.status, self.because + text)


@dataclass(frozen=True)
class Estimate:
    """A number with its interval and a description."""

    value: float
    low: float
    high: float
    about: str = ""
    form: str = "+.2f"
    """Format specification of the three numbers."""
    level: float = 0.95
    """How often such an interval holds the true number."""
    ends: Ends | None = field(default=None, compare=False, repr=False)
    """Interval that more seeds would give; None where it is not one over seeds."""
    noun: str = "seeds"
    """Name of the things that `ends` counts, in the plural."""

    def __str__(self) -> str:
        """Write it as one reads it, `+0.12 [+0.05, +0.19] mAP@10, 3 seeds`; a level other than 95 % is named."""
        return self._text(self.form)

    def _text(self, form: str) -> str:
        value, low, high = (format(number, form) for number in (self.value, self.low, self.high))
        level = "" if self.level == 0.95 else f" at {100 * self.level:g} %" + "," * bool(self.about)
        return f"{value} [{low}, {high}]{level} {self.about}".strip()

    def verdict(self, low: float = 0.0, high: float = math.inf) -> Verdict:
        """Return the verdict that the true number lies between two bounds (default: above 0).

        That holds where all of the interval does, and does not where none of it does.

        It prints the interval that it judges by, with as many digits as show why; where that separates nothing, also
        how many seeds would.
        """
        status = _status((self.low, self.high), low, high)
        forms = (_finer(self.form, digits) for digits in range(16))
        agree = (form for form in forms if _status(self._printed(form), low, high) == status)
        more = self.more(low, high) if status == "not separable" else ""
        return Verdict(status, self._text(next(agree, ".17g")) + (f" ({more})" if more else ""))

    def _printed(self, form: str) -> tuple[float, float]:
        low, high = (format(number, form).replace(",", "") for number in (self.low, self.high))
        return (float(low[:-1]) / 100, float(high[:-1]) / 100) if low.endswith("%") else (float(low), float(high))

    def more(self, low: float = 0.0, high: float = math.inf) -> str:
        """Return how many seeds would separate the number from its bounds at the spread that was seen, in words."""
        if self.ends is None:
            return ""
        limit = self.ends(math.inf)
        if _status(limit, low, high) == "not separable":
            return f"no number of {self.noun} would separate it: the test set is too small" * (limit[0] < limit[1])
        number = seeds_needed(self.ends, low, high)
        return f"at this spread {number or f'more than {MOST}'} {self.noun} would separate it"


def _status(interval: tuple[float, float], low: float, high: float) -> Status:
    if low < interval[0] and interval[1] < high:
        return "holds"
    return "does not hold" if interval[1] < low or high < interval[0] else "not separable"


def _finer(form: str, more: int) -> str:
    return re.sub(r"\.(\d+)", lambda digits: f".{int(digits[1]) + more}", form)


def seeds_needed(ends: Ends, low: float = 0.0, high: float = math.inf) -> int | None:
    """Return the smallest number of seeds whose interval lies on one side of its bounds, or None beyond `MOST`."""
    counts = range(2, MOST + 1)
    index = bisect_left(counts, True, key=lambda count: _status(ends(count), low, high) != "not separable")
    return counts[index] if index < len(counts) else None


def judge(result: Estimate | Verdict, low: float = 0.0, high: float = math.inf, about: str = "") -> Verdict:
    """Return the verdict on an estimate, after a text that says what it is of; a verdict in its place as it is."""
    if isinstance(result, Verdict):
        return result
    verdict = result.verdict(low, high)
    return Verdict(verdict.status, f"{about} {verdict.because}") if about else verdict


def paired(
    results: Results,
    rows: Sequence[AnyRow],
    value: Callable[[Replicate], T],
    estimate: Callable[..., Estimate | Verdict],
) -> Estimate | Verdict:
    """Return an estimate that compares rows replicate by replicate; a verdict where they share too few.

    Args:
        results: of the table.
        rows: whose replicates of equal axes (`Results.lines`) are compared.
        value: what is read of a replicate.
        estimate: takes the values of each row, in equal order: one list for each row.
    """
    lines = results.lines(*rows)
    return too_few(len(lines)) or estimate(
        *([value(replicate) for replicate in row] for row in zip(*lines, strict=True))
    )


def untested(because: str) -> Verdict:
    """Return the verdict that a claim could not be tested."""
    return Verdict(UNTESTED, because)


def decided(holds: bool, because: str) -> Verdict:
    """Return the verdict on what is not estimated: it holds, or does not."""
    return Verdict("holds" if holds else "does not hold", because)


def too_few(count: int, noun: str = "seed", least: int = LEAST) -> Verdict | None:
    """Return the verdict on so many seeds (or another noun), where they are too few for any other."""
    if not count:
        return untested("rows are missing")
    return untested(f"{plural(count, noun)}; at least {least} are needed") if count < least else None


def join(verdicts: Mapping[str, Verdict] | Sequence[Verdict]) -> Verdict:
    """Join verdicts, named ones or not: a sentence holds if every part of it does, and does not if one does not.

    Equal reasons are given once. Nothing to join is not tested.
    """
    if isinstance(verdicts, Mapping):
        verdicts = [Verdict(verdict.status, f"{name}: {verdict.because}") for name, verdict in verdicts.items()]
    reasons, statuses = [verdict.because for verdict in verdicts], {verdict.status for verdict in verdicts}
    status = next((status for status in _STATUSES if status in statuses), UNTESTED)
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
    return float(np.mean([group.mean() for group in values])), _half_width(values, level)


def mean_of(
    groups: Sequence[npt.ArrayLike], about: str = "", form: str = "+.2f", level: float = 0.95, noun: str = ""
) -> Estimate:
    """Return a mean over training seeds with Student's interval (`seed_mean`)."""
    values = [np.asarray(group, np.float64) for group in groups]
    mean, _ = seed_mean(values, level)

    def ends(count: float | None = None) -> tuple[float, float]:
        margin = _half_width(values, level, count)
        return mean - margin, mean + margin

    noun = noun or ("seeds" if len(values) == 1 else "seeds in each group")
    return Estimate(mean, *ends(), about, form, level, ends, noun)


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
    (top, bottom), covariance = pairs.mean(axis=1), np.cov(pairs)

    def ends(count: float) -> tuple[float, float]:
        noise = covariance * _student(0.95, count - 1) ** 2 / count
        # (top - r bottom)^2 <= variance of (above - r below): a r^2 - 2 b r + c <= 0
        a, b, c = bottom**2 - noise[1, 1], top * bottom - noise[0, 1], top**2 - noise[0, 0]
        root = math.sqrt(max(b**2 - a * c, 0.0))  # where a > 0, below 0 by rounding alone
        return ((b - root) / a, (b + root) / a) if a > 0 else (-math.inf, math.inf)

    return Estimate(top / bottom, *ends(pairs.shape[1]), about, form, ends=ends)


def joint_of(
    by_seed: npt.ArrayLike, low: float, high: float, about: str = "", form: str = "+.2f", level: float = 0.95
) -> Estimate:
    """Return a mean over training seeds with an interval that also includes the noise of a test set (`widen`).

    Args:
        by_seed: a value of each seed, (seeds,).
        low: the lower end of the mean's interval, the training seeds held fixed; more seeds do not change it.
        high: the upper end.
        about: what the mean is of.
        form: how it is printed.
        level: how often such an interval holds the true mean.
    """
    values = np.asarray(by_seed, np.float64)
    mean, _ = seed_mean([values])

    def ends(count: float | None = None) -> tuple[float, float]:
        return widen(mean, low, high, _half_width([values], level, count))

    return Estimate(mean, *ends(), about, form, level, ends)


def bootstrap_of(by_seed: npt.ArrayLike, resampled: npt.ArrayLike, level: float = 0.95) -> Estimate:
    """Return a mean over training seeds with the percentile interval of a bootstrap, widened by the seeds' noise.

    Args:
        by_seed: a value of each seed, (seeds,).
        resampled: the mean over seeds of each sample of the test set, (samples,). How a sample is drawn is the task's.
        level: of the interval.

    Source: Efron and Tibshirani 1993, section 13.3.
    """
    low, high = np.percentile(np.asarray(resampled, np.float64), [50 * (1 - level), 50 * (1 + level)])
    return joint_of(by_seed, float(low), float(high), level=level)


def widen(mean: float, low: float, high: float, margin: float) -> tuple[float, float]:
    """Return the ends of an interval that includes two sources of noise, of a test set and of training.

    Independent errors add as squares do.

    Args:
        mean: what the interval is of.
        low: the lower end, the training seeds held fixed.
        high: the upper end.
        margin: of the training seeds (`seed_mean`).
    """
    return mean - math.hypot(max(mean - low, 0.0), margin), mean + math.hypot(max(high - mean, 0.0), margin)


def _half_width(groups: Sequence[npt.NDArray[np.float64]], level: float, count: float | None = None) -> float:
    """Return half the width of `seed_mean`'s interval; with `count`, if each group had so many seeds."""
    parts = [(group.var(ddof=1), count or group.size) for group in groups if group.size > 1]
    variance = sum(spread / size for spread, size in parts)
    if not variance > 0:
        return 0.0
    freedom = variance**2 / sum((spread / size) ** 2 / (size - 1) for spread, size in parts)
    return _student(level, freedom) * math.sqrt(variance) / len(groups)


def _student(level: float, freedom: float) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + level) / 2, freedom))
