"""Verification of forecasts, with intervals: by lead time, place, scale, threshold and probability.

It follows from the summaries that scoring keeps (`metrics.summarise`). Intervals are 95 %
percentile intervals over sequences, drawn with replacement within each shard (Efron and Tibshirani 1993, section 13.3),
of the mean over training seeds: sequences hours apart are taken as independent, training's own noise is not in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from retable.platform.spec.arrays import Array
from retable.tasks.weather import metrics
from retable.tasks.weather.config import STEPS
from retable.tasks.weather.metrics import BINS, MIDDLES, Summaries, Threshold, contingency

SCORES = ("IoU", "POD", "FAR", "bias")
"""Scores that `metrics.contingency` returns: CSI, probability of detection, false alarm ratio, frequency bias."""
THRESHOLDS = np.arange(1, STEPS) / STEPS
"""At which `Verification.by_threshold` has the IoU."""
DRAWS = 500
"""How often the sequences are drawn anew."""


@dataclass(frozen=True)
class Band:
    """Values of any shape and their 95 % intervals; NaN where a score is not defined."""

    value: Array
    low: Array
    high: Array

    def __getitem__(self, where: Any) -> Band:
        """Return some of the values with their intervals."""
        return Band(self.value[where], self.low[where], self.high[where])


def known_mean(values: Array, axis: int) -> Array:
    """Return the mean along an axis of the values that are numbers; NaN where none is."""
    defined = ~np.isnan(values)
    return metrics.ratio(np.where(defined, values, 0).sum(axis), defined.sum(axis), np.nan)


def banded(
    tables: Mapping[str, Array],
    score: Callable[[Array], Array],
    pooled: bool = False,
    draws: int = DRAWS,
    seed: int = 0,
) -> Band:
    """Return scores of sums over sequences, a mean over shards and training seeds, with their intervals.

    Where every shard has one sequence there is nothing to draw anew, and no interval: its ends are NaN.

    Args:
        tables: shard -> what is summed, (training seeds, sequences, ...).
        score: sums (..., as in the tables) -> scores (..., any); NaN where not defined.
        pooled: sum over shards too, and score once.
        draws: how often to resample.
        seed: of the resampling; forecasts of the same sequences are drawn alike.
    """
    original, drawn = zip(*metrics.drawn_anew(tables, draws, seed), strict=True)

    def read(parts: Sequence[Array]) -> Array:
        sums = [np.sum(parts, axis=0)] if pooled else parts
        return known_mean(np.stack([known_mean(score(part), 1) for part in sums]), 0)

    value, samples = read([part[None] for part in original])[0], read(drawn)
    single = all(table.shape[1] < 2 for table in tables.values())
    undefined = np.isnan(samples).all(axis=0) | single
    low, high = np.nanpercentile(np.where(undefined, 0, samples), [2.5, 97.5], axis=0)
    return Band(value, np.where(undefined, np.nan, low), np.where(undefined, np.nan, high))


def frequencies(bins: Array) -> Array:
    """Return how often it rained in bins of pixels, dry and rainy (..., bins, 2): (..., bins)."""
    return metrics.ratio(bins[..., 1], bins.sum(axis=-1), np.nan)


def shares(bins: Array) -> Array:
    """Return the shares of all pixels that bins of pixels, dry and rainy (..., bins, 2), hold: (..., bins)."""
    return metrics.ratio(bins.sum(axis=-1), bins.sum(axis=(-2, -1))[..., None], np.nan)


def brier(bins: Array) -> Array:
    """Return Brier score, reliability, resolution, uncertainty and skill of pixels by step (..., 201, 2): (..., 5).

    brier = reliability - resolution + uncertainty; skill = 1 - brier / uncertainty, against always forecasting how
    often it rained in these very sequences.

    Source: Murphy 1973, equation 12, with a bin for each step of 1/200.
    """
    pixels, rain = bins.sum(axis=(-2, -1)), bins[..., 1].sum(axis=-1)
    number, base = bins.sum(axis=-1), metrics.ratio(rain, pixels, np.nan)[..., None]
    rate = metrics.ratio(bins[..., 1], number, 0.0)
    reliability = metrics.ratio((number * (MIDDLES - rate) ** 2).sum(axis=-1), pixels, np.nan)
    resolution = metrics.ratio((number * (rate - base) ** 2).sum(axis=-1), pixels, np.nan)
    uncertainty = (base * (1 - base))[..., 0]
    score = reliability - resolution + uncertainty
    skill = 1 - np.divide(score, uncertainty, out=np.full_like(score, np.nan), where=uncertainty > 0)
    return np.stack([score, reliability, resolution, uncertainty, skill], axis=-1)


@dataclass(frozen=True)
class Verification:
    """A forecast's scores on one split, by one run or by several that differ in the training seed alone."""

    label: str
    members: Sequence[Summaries]
    """Of each training seed: shard -> what `metrics.summarise` returned."""
    thresholds: Sequence[Mapping[str, Threshold]]
    """Of each training seed: shard -> from where on rain is forecast."""

    def stacked(self, read: Callable[[Mapping[str, Array], Threshold], Array]) -> dict[str, Array]:
        """Return, for each shard, (training seeds, sequences, ...) of what is read of a summary."""
        return {
            shard: np.stack(
                [
                    read(member[shard], chosen[shard])
                    for member, chosen in zip(self.members, self.thresholds, strict=True)
                ]
            )
            for shard in self.thresholds[0]
        }

    @cached_property
    def counts(self) -> dict[str, Array]:
        """Confusion, (training seeds, sequences, L, 4), of each shard."""
        return self.stacked(lambda summary, threshold: metrics.confusion(summary["histogram"], threshold))

    @cached_property
    def steps(self) -> dict[str, Array]:
        """Pixels by step and event over all lead times, (training seeds, sequences, 201, 2), of each shard."""
        return self.stacked(lambda summary, _: summary["histogram"].sum(axis=1, dtype=np.int64))

    def total(self) -> Band:
        """Return `SCORES` over all lead times: (4,)."""
        return banded({shard: table.sum(axis=2) for shard, table in self.counts.items()}, contingency)

    def by_lead(self) -> Band:
        """Return `SCORES` of each lead time: (L, 4)."""
        return banded(self.counts, contingency)

    def by_place(self) -> dict[str, Band]:
        """Return `SCORES` of each year and region: name -> (4,)."""
        totals = {shard: table.sum(axis=2) for shard, table in self.counts.items()}
        return {" ".join(shard.split("/")[1:]): banded({shard: table}, contingency) for shard, table in totals.items()}

    @property
    def widths(self) -> list[int]:
        """Widths of the neighbourhoods of the fractions skill score, pixels; none is wider than the map."""
        return metrics.fss_widths(self.members[0])

    def by_width(self) -> Band:
        """Return the fractions skill score at each of `widths`: (4,)."""

        def sums(summary: Mapping[str, Array], _: Threshold) -> Array:
            """Return both sums of each sequence; summaries of older versions hold them for each lead time."""
            both = np.stack([summary["fss_error"], summary["fss_reference"]], axis=-1)
            total: Array = both.reshape(len(both), -1, *both.shape[-2:]).sum(axis=1)
            return total

        return banded(self.stacked(sums), metrics.fss)

    def by_threshold(self) -> Band:
        """Return the IoU at each of `THRESHOLDS`, one for all places: (199,)."""
        return banded(self.steps, metrics.iou_by_threshold)

    def reliability(self) -> tuple[Band, Array, Band]:
        """Return how often it rained in each tenth of probability, the forecasts' mean there, and their share: (10,).

        All pixels of all shards together, as a diagram of Brier's (Murphy and Winkler 1977).
        """
        tables = {shard: in_bins(table) for shard, table in self.steps.items()}
        band = banded(tables, frequencies, pooled=True)
        pixels = sum(table.sum(axis=(0, 1, 3)) for table in self.steps.values())
        number = np.bincount(metrics.tenths(), pixels, BINS)
        forecast = np.bincount(metrics.tenths(), pixels * MIDDLES, BINS)
        return band, metrics.ratio(forecast, number, np.nan), banded(tables, shares, pooled=True)

    def brier(self) -> Band:
        """Return what `brier` says of all pixels together: (5,)."""
        return banded(self.steps, brier, pooled=True)

    def all_rain(self) -> Array:
        """Return the IoU of forecasting rain always, at each lead time: (L,), the trivial floor."""
        shares = [
            metrics.ratio(table[..., 0] + table[..., 2], table.sum(axis=-1), 0.0)
            for table in (counts[0].sum(axis=0) for counts in self.counts.values())
        ]
        floor: Array = np.mean(shares, axis=0)
        return floor


def in_bins(steps: Array) -> Array:
    """Sum pixels by step (..., 201, 2) over each tenth of probability: (..., 10, 2)."""
    starts = np.searchsorted(metrics.tenths(), np.arange(BINS))
    return np.add.reduceat(steps, starts, axis=-2)
