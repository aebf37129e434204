"""Scores of rain forecasts, from small tables kept of each shard: one split of one region and year.

A prediction is kept as whole steps of 1/200 of probability, so its histogram by step and event holds every score at
every threshold. Names of shards are `split/year/region`; the mappings of one call hold one split.

Arrays, with n sequences of L lead times on S x S pixels of 2 km:
`steps` uint8 (n, L, S, S), 0 to 200; `events` uint8 (n, L, S, S), 0 dry, 1 rain, 2 masked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from retable.platform.spec.arrays import Array
from retable.platform.spec.claims import Estimate, bootstrap_of
from retable.platform.train.seeds import generator
from retable.tasks.weather.config import STEPS, View
from retable.tasks.weather.w4c.preprocess import MASKED

Summaries = Mapping[str, Mapping[str, Array]]
Counts = Mapping[str, Array]
Threshold = float | Array
"""Probability from which on rain is forecast, a multiple of 1/200: one, or one for each lead time (L,)."""

FSS_WIDTHS = (1, 3, 9, 27)
"""Widths of the fractions skill score's neighbourhoods, pixels of 2 km; on a narrower map it is the map's."""
MINUTES = 15
"""From one lead time to the next."""
BINS = 10
"""Of the reliability diagram, equally wide."""
MIDDLES: Array = np.minimum((np.arange(STEPS + 1) + 0.5) / STEPS, 1)
"""Probability that each step stands for: its middle, at most 1."""


def quantise(probability: Array) -> Array:
    """Return probabilities (any shape) in whole steps of 1/200, rounded down, as uint8.

    A value is at or above 0.5 exactly where its step is at or above 100; other multiples of 1/200 have no exact float.

    Raises:
        ValueError: where a value is outside [0, 1] or not a number, as after a training that diverged.

    """
    if not (probability.min(initial=0) >= 0 and probability.max(initial=0) <= 1):
        raise ValueError("probabilities are not numbers in [0, 1]; the training has diverged")
    steps: Array = np.floor(np.asarray(probability, np.float32) * np.float32(STEPS)).astype(np.uint8)
    return steps


def cuts(thresholds: Threshold) -> Array:
    """Return the steps from which on rain is forecast: of one threshold (), or of one for each lead time (L,)."""
    return np.rint(STEPS * np.asarray(thresholds, np.float64)).astype(np.intp)


def rain(steps: Array, threshold: Threshold) -> Array:
    """Return where steps (n, L, S, S) are a forecast of rain: bool, of the same shape."""
    return np.asarray(steps >= np.broadcast_to(cuts(threshold), (steps.shape[1],))[:, None, None])


def full_hours(leads: int) -> Array:
    """Return which of so many lead times of 15 minutes end an hour; the last one where none does."""
    return np.arange(3, leads, 4) if leads > 3 else np.array([leads - 1])


def summarise(steps: Array, events: Array) -> dict[str, Array]:
    """Return the small tables of one shard from which every score follows.

    Returns:
        `histogram` int32 (n, L, 201, 2): unmasked pixels by step and event. `fss_error` and `fss_reference` float64
        (n, len(FSS_WIDTHS)): see `neighbourhoods`. `example_steps` and `example_events` uint8 (leads, S, S): the
        sequence with the most rain, hour by hour (every fourth lead time; the last one where there are fewer).

    Works sequence by sequence: at 32 x 252 x 252 it needs about 100 MB beside its arguments. Raises ValueError where
    shapes differ or values are out of range.

    """
    if steps.shape != events.shape or steps.ndim != 4 or not steps.size:
        raise ValueError(f"steps {steps.shape} and events {events.shape} are not two (n, L, S, S)")
    if steps.max() > STEPS or events.max() > MASKED:
        raise ValueError(f"steps up to {steps.max()} and events up to {events.max()}, not 200 and 2")
    sequences, leads = steps.shape[:2]
    histogram = np.empty((sequences, leads, STEPS + 1, 2), np.int32)
    error, reference = np.empty((2, sequences, len(FSS_WIDTHS)))
    for sequence in range(sequences):
        for lead in range(leads):
            cells = 3 * steps[sequence, lead].astype(np.intp) + events[sequence, lead]
            counts = np.bincount(cells.ravel(), minlength=3 * (STEPS + 1))
            histogram[sequence, lead] = counts.reshape(STEPS + 1, 3)[:, :MASKED]
        error[sequence], reference[sequence] = neighbourhoods(steps[sequence], events[sequence])
    example = int(histogram[..., 1].sum(axis=(1, 2)).argmax())
    return {
        "histogram": histogram,
        "fss_error": error,
        "fss_reference": reference,
        "example_steps": steps[example, full_hours(leads)],
        "example_events": events[example, full_hours(leads)],
    }


def neighbourhoods(steps: Array, events: Array) -> tuple[Array, Array]:
    """Return the fractions skill score's two sums over pixels and lead times, for each width: (len(FSS_WIDTHS),).

    They are sum((F - O)^2) and sum(F^2 + O^2), F and O means over a square neighbourhood of probability and event;
    FSS = 1 - error / reference. Outside the region, and where there is no radar, both count as 0. A neighbourhood is
    at most as wide as the region.

    Source: Roberts and Lean 2008, equations 2 to 7, with the forecast's probability in place of its 0/1 field; for
    probabilities of 0 and 1 it is their score. So no threshold is needed.
    """
    from scipy import ndimage

    seen = events < MASKED
    forecast = np.where(seen, steps, 0).astype(np.float64) / STEPS
    observed = (events == 1).astype(np.float64)
    error, reference = np.empty((2, len(FSS_WIDTHS)))
    for column, width in enumerate(FSS_WIDTHS):
        size = (1, *(min(width, side) for side in steps.shape[1:]))
        means = [ndimage.uniform_filter(field, size, mode="constant") for field in (forecast, observed)]
        reference[column] = sum(np.vdot(mean, mean) for mean in means)
        error[column] = reference[column] - 2 * np.vdot(*means)
    return error.clip(min=0), reference


def confusion(histogram: Array, threshold: Threshold) -> Array:
    """Return hits, false alarms, misses and correct negatives (tp, fp, fn, tn): int64 (..., 4).

    Args:
        histogram: pixels by step and event (..., 201, 2); (..., L, 201, 2) for a threshold of each lead time.
        threshold: from where on rain is forecast.

    """
    rain = np.arange(STEPS + 1) >= cuts(threshold)[..., None]  # (201,) or (L, 201)
    wet = np.einsum("...se,...s->...e", histogram, rain, dtype=np.int64, casting="unsafe")
    dry = histogram.sum(axis=-2, dtype=np.int64) - wet
    return np.stack([wet[..., 1], wet[..., 0], dry[..., 1], dry[..., 0]], axis=-1)


def ratio(part: Array, total: Array, undefined: float) -> Array:
    """Divide, with a value of choice where the divisor is 0."""
    return np.divide(part, total, out=np.full(np.shape(part), undefined, np.float64), where=np.asarray(total) > 0)


def iou(counts: Array) -> Array:
    """Return intersection over union, the critical success index, of tp, fp, fn (..., 3 or more): float64 (...).

    0 where neither forecast nor radar has rain, as in the competition's code; others leave that undefined.
    """
    hits = counts[..., 0]
    return ratio(hits, hits + counts[..., 1] + counts[..., 2], 0.0)


def iou_by_threshold(steps: Array) -> Array:
    """Return the IoU at each of `THRESHOLDS` of pixels by step, dry and rainy (..., 201, 2): (..., 199)."""
    above = steps[..., ::-1, :].cumsum(axis=-2)[..., ::-1, :]  # at or above a step
    hits, either = above[..., 1], above[..., 0] + above[..., :1, 1]
    return ratio(hits, either, 0.0)[..., 1:STEPS]


def best_threshold(histograms: Sequence[Array]) -> float:
    """Return the threshold, of 0.005, 0.010, ... 0.995, with the best IoU over all pixels of some histograms.

    Args:
        histograms: pixels by step and event, each (..., 201, 2).

    The lowest of equally good ones: where there was no rain at all, that is 0.005.

    """
    return (1 + int(np.argmax(iou_by_threshold(pooled(histograms))))) / STEPS


def pooled(histograms: Sequence[Array]) -> Array:
    """Return the sum over all but the last two axes of histograms (..., 201, 2): int64 (201, 2)."""
    return np.asarray(sum(table.reshape(-1, STEPS + 1, 2).sum(axis=0, dtype=np.int64) for table in histograms))


def best_thresholds(histograms: Sequence[Array]) -> Array:
    """Return the best threshold of each lead time, float64 (L,), of histograms (n, L, 201, 2); see `best_threshold`."""
    leads = zip(*(np.moveaxis(table, 1, 0) for table in histograms), strict=True)
    return np.array([best_threshold(list(lead)) for lead in leads])


def scored(view: View, summaries: Summaries) -> dict[str, Mapping[str, Array]]:
    """Return the summaries of the shards of a view's split."""
    return {shard: summary for shard, summary in summaries.items() if shard.startswith(f"{view.split}/")}


def validated(summaries: Summaries) -> dict[str, Array]:
    """Return the histograms of the validation shards by place, `year/region`: what anything is tuned on."""
    return {
        shard.partition("/")[2]: summary["histogram"]
        for shard, summary in summaries.items()
        if shard.startswith("validation/")
    }


def thresholds(view: View, summaries: Summaries) -> dict[str, Threshold]:
    """Return the threshold of each shard of the view's split; tuned ones are the best on the validation shards."""
    return thresholds_of(list(scored(view, summaries)), view, validated(summaries))


def thresholds_of(shards: Sequence[str], view: View, histograms: Mapping[str, Array]) -> dict[str, Threshold]:
    """Return the threshold of each of some shards, whose own events need not be known.

    Args:
        shards: names `split/year/region`.
        view: how the threshold is chosen.
        histograms: of the validation shards, by `year/region` (`validated`); needed where it is tuned. A place that has
            none, as those of the transfer challenge, has the best threshold of all of them together.
    """
    if isinstance(view.threshold, float):
        return dict.fromkeys(shards, view.threshold)
    if view.threshold == "tuned":
        return dict.fromkeys(shards, best_threshold(list(histograms.values())))
    best = best_thresholds if view.threshold == "tuned_per_region_and_lead" else best_threshold
    places = {shard: shard.partition("/")[2] for shard in shards}
    return {
        shard: best([histograms[year_region]] if year_region in histograms else list(histograms.values()))
        for shard, year_region in places.items()
    }


def isotonic(histograms: Sequence[Array]) -> Array:
    """Return how often it rained at each step, made to rise with the step: float64 (201,).

    Args:
        histograms: pixels by step and event of a validation set, each (..., 201, 2).

    The steps that no pixel had lie between their neighbours. A forecast of each step is so the share of pixels on
    which it rained there: calibrated probabilities, with the order of all forecasts kept, and with it every IoU at a
    threshold that was tuned. Nothing was forecast at all: the steps' own middles.

    Source: Zadrozny and Elkan 2002 (pool adjacent violators, by SciPy).
    """
    from scipy.optimize import isotonic_regression

    table = pooled(histograms)
    pixels = table.sum(axis=-1)
    seen = np.flatnonzero(pixels)
    if not len(seen):
        return MIDDLES
    regression = isotonic_regression(table[seen, 1] / pixels[seen], weights=pixels[seen].astype(np.float64))
    risen: Array = np.interp(np.arange(STEPS + 1), seen, regression.x)
    return risen


def probabilities_of(view: View, summaries: Summaries) -> Array:
    """Return what each step of probability stands for under a view: its middle, or what `isotonic` makes of it."""
    return isotonic(list(validated(summaries).values())) if view.calibration == "isotonic" else MIDDLES


def sequence_counts(summaries: Summaries, thresholds: Mapping[str, Threshold]) -> dict[str, Array]:
    """Return tp, fp, fn of every sequence, int64 (n, 3), for each shard: what `paired_difference` compares."""
    return {
        shard: confusion(summary["histogram"], thresholds[shard]).sum(axis=1)[:, :3]
        for shard, summary in summaries.items()
    }


def scores(
    summaries: Summaries, thresholds: Mapping[str, Threshold], batch: int, probabilities: Array = MIDDLES
) -> dict[str, float]:
    """Return all scores of one split.

    Args:
        summaries: shard -> what `summarise` returned, in the order of `iou_batched`.
        thresholds: shard -> from where on rain is forecast there.
        batch: how many sequences `iou_batched` pools.
        probabilities: what each step stands for, (201,), in the scores of probabilities but the FSS.

    Returns:
        `iou`: the leaderboard's, a plain mean over shards of the IoU of all their pixels; `iou/{year}`,
        `iou/{year}/{region}`, and `iou/lead/{minutes}` (three digits), the mean over shards of one lead time's IoU.
        `pod`, `far`, `precision`, `bias`: means over the shards where they are defined. `fss/{width}px`: means over
        shards; see `neighbourhoods`. Of all pixels together: `brier`, `reliability/{bin}` (how often it rained in
        each tenth of probability), `reliability_error` (expected calibration error), `rain_ratio/predicted` and
        `rain_ratio/observed`. `iou_batched`; see there. `threshold`: mean over shards and lead times, and
        `threshold/{year}/{region}` where they differ. A score that is defined nowhere is left out.

    """
    counts = {shard: confusion(summary["histogram"], thresholds[shard]) for shard, summary in summaries.items()}
    result = overlap(counts) | detection(counts)
    for column, width in enumerate(fss_widths(summaries)):
        parts = [[s[f"fss_{part}"][..., column].sum() for part in ("error", "reference")] for s in summaries.values()]
        skills = fss(np.array(parts))
        add_mean(result, f"fss/{width}px", skills[~np.isnan(skills)].tolist())
    histogram = sum(summary["histogram"].sum(axis=(0, 1), dtype=np.int64) for summary in summaries.values())
    result |= calibration(np.asarray(histogram), probabilities)
    result["iou_batched"] = iou_batched(counts.values(), batch)
    means = {shard: float(np.mean(thresholds[shard])) for shard in summaries}
    add_mean(result, "threshold", list(means.values()))
    if len(set(means.values())) > 1:
        result |= {f"threshold/{shard.partition('/')[2]}": mean for shard, mean in means.items()}
    return result


def fss(sums: Array) -> Array:
    """Return the fractions skill score of sums of error and reference (..., 2): (...); NaN where not defined."""
    return 1 - ratio(sums[..., 0], sums[..., 1], np.nan)


def fss_widths(summaries: Summaries) -> list[int]:
    """Return the widths of the neighbourhoods that were used, pixels: none is wider than the map."""
    side = next(iter(summaries.values()))["example_events"].shape[-1]
    return [min(width, side) for width in FSS_WIDTHS]


def add_mean(scores: dict[str, float], name: str, values: Sequence[float]) -> None:
    """Add the mean of some values, if there are any."""
    if values:
        scores[name] = float(np.mean(values))


def overlap(counts: Counts) -> dict[str, float]:
    """Return IoU over all, by year, by year and region and by lead time of shards' confusion (n, L, 4)."""
    pooled = {shard: float(iou(table.sum(axis=(0, 1)))) for shard, table in counts.items()}
    scores: dict[str, float] = {}
    add_mean(scores, "iou", list(pooled.values()))
    for year in dict.fromkeys(shard.split("/")[1] for shard in pooled):
        add_mean(scores, f"iou/{year}", [value for shard, value in pooled.items() if shard.split("/")[1] == year])
    scores |= {f"iou/{shard.partition('/')[2]}": value for shard, value in pooled.items()}
    leads = np.mean([iou(table.sum(axis=0)) for table in counts.values()], axis=0)
    return scores | {f"iou/lead/{MINUTES * lead:03d}": float(value) for lead, value in enumerate(leads, start=1)}


def contingency(counts: Array) -> Array:
    """Return IoU, POD, FAR and bias of tp, fp, fn, tn (..., 4): (..., 4). All but IoU are NaN where not defined."""
    hits, false_alarms, misses = (counts[..., part] for part in range(3))
    return np.stack(
        [
            iou(counts),
            ratio(hits, hits + misses, np.nan),
            ratio(false_alarms, hits + false_alarms, np.nan),
            ratio(hits + false_alarms, hits + misses, np.nan),
        ],
        axis=-1,
    )


def detection(counts: Counts) -> dict[str, float]:
    """Return means over shards of the probability of detection, false alarm ratio, precision and frequency bias."""
    totals = np.stack([table.sum(axis=(0, 1)) for table in counts.values()])
    _, pod, far, bias = np.moveaxis(contingency(totals), -1, 0)
    hits, false_alarms, misses, _ = totals.T
    precision = ratio(hits, hits + false_alarms, np.nan)
    scores: dict[str, float] = {}
    for name, values in {"pod": pod, "far": far, "precision": precision, "bias": bias}.items():
        add_mean(scores, name, values[~np.isnan(values)].tolist())
    forecast, rain, pixels = (hits + false_alarms).sum(), (hits + misses).sum(), totals.sum()
    if pixels:
        scores |= {"rain_ratio/predicted": float(forecast / pixels), "rain_ratio/observed": float(rain / pixels)}
    return scores


def tenths(probabilities: Array = MIDDLES) -> Array:
    """Return in which of the reliability diagram's bins each step's probability lies, int (201,)."""
    return np.minimum((probabilities * BINS + 1e-9).astype(np.intp), BINS - 1)


def calibration(histogram: Array, probabilities: Array = MIDDLES) -> dict[str, float]:
    """Return Brier score and reliability of pixels by step and event (201, 2); nothing where there are no pixels.

    `probabilities` (201,) is what the steps stand for: as a rule their middles, so a certain "dry" counts as 0.0025.
    """
    pixels = histogram.sum()
    if not pixels:
        return {}
    brier = (histogram[:, 0] * probabilities**2 + histogram[:, 1] * (1 - probabilities) ** 2).sum() / pixels
    bins = tenths(probabilities)
    number, rain, forecast = (
        np.bincount(bins, weights, BINS)
        for weights in (histogram.sum(axis=1), histogram[:, 1], histogram.sum(axis=1) * probabilities)
    )
    scores = {f"reliability/{k}": float(rain[k] / number[k]) for k in range(BINS) if number[k]}
    return scores | {"brier": float(brier), "reliability_error": float(np.abs(forecast - rain).sum() / pixels)}


def iou_batched(counts: Iterable[Array], batch: int) -> float:
    """Return the mean IoU of batches of consecutive sequences, weighted by their size.

    It is what the competition's code shows while validating: it depends on the batch size and mixes regions.

    Args:
        counts: confusion (n, L, 4) of each shard, one after another.
        batch: how many sequences are pooled; the last batch may have fewer.

    """
    sequences = np.concatenate([table.sum(axis=1) for table in counts])
    starts = np.arange(0, len(sequences), batch)
    sizes = np.diff(starts, append=len(sequences))
    return float(np.average(iou(np.add.reduceat(sequences, starts)), weights=sizes))


def paired_difference(a: Sequence[Counts], b: Sequence[Counts], draws: int = 2000, seed: int = 0) -> Estimate:
    """Return by how much the headline IoU of `a` exceeds that of `b`, with a 95 % paired bootstrap interval.

    Args:
        a: `sequence_counts` of a forecast; or several, one for each training seed.
        b: the same of another forecast of the same sequences; k-th seed beside k-th seed.
        draws: how often to resample.
        seed: seed of the resampling; equal seeds give equal intervals.

    Each draw takes sequences with replacement within each shard, the same for both forecasts and all training seeds;
    the interval is widened by Student's of the training seeds. With one seed it says nothing of training's noise.
    Sequences hours apart are taken as independent.

    Source: Efron and Tibshirani 1993, section 13.3 (percentile interval).
    Raises ValueError where forecasts differ in seeds, shards or sequences.

    """
    difference, drawn = [], []
    for original, resampled in drawn_anew(side_by_side(a, b), draws, seed):
        difference.append(np.subtract(*np.moveaxis(iou(original), -1, 0)))
        drawn.append(np.subtract(*np.moveaxis(iou(resampled), -1, 0)))
    return bootstrap_of(np.mean(difference, axis=0), np.mean(drawn, axis=0).mean(axis=1))


def drawn_anew(tables: Mapping[str, Array], draws: int, seed: int) -> Iterator[tuple[Array, Array]]:
    """Yield, shard by shard, sums over the sequences, and sums over sequences drawn anew.

    Args:
        tables: what is summed of each sequence, (training seeds, sequences, ...) for each shard.
        draws: how often to resample.
        seed: of the resampling; equal seeds draw alike.

    Yields:
        float64 (training seeds, ...) and (draws, training seeds, ...).

    As many are drawn, with replacement, as there are. The regions of a split and year are drawn alike where they have
    as many sequences: in the competition's data, local hold-outs and imports those are of the same hours, so that one
    weather is in all.

    Audio's bootstrap draws one by one, which takes other numbers from the same generator: with one way of drawing for
    both, the published intervals of one of them would change.
    """
    random, drawn = generator(seed, "weather.bootstrap"), dict[tuple[str, int], Array]()
    for shard, table in tables.items():
        numbers, count = table.astype(np.float64), table.shape[1]
        alike = shard.rpartition("/")[0], count
        if alike not in drawn:
            drawn[alike] = random.multinomial(count, np.full(count, 1 / count), size=draws).astype(np.float64)
        yield numbers.sum(axis=1), np.tensordot(drawn[alike], numbers, axes=(1, 1))


def side_by_side(a: Sequence[Counts], b: Sequence[Counts]) -> dict[str, Array]:
    """Return two forecasts' tables (sequences, k) as one for each shard: (training seeds, sequences, 2, k).

    Raises:
        ValueError: where the forecasts differ in seeds, shards or sequences.
    """
    pairs = list(zip(a, b, strict=True))
    shards = list(pairs[0][0])
    if any(set(side) != set(shards) for pair in pairs for side in pair):
        raise ValueError("the forecasts are not of the same shards")
    return {shard: np.stack([np.stack([side[shard] for side in pair], axis=1) for pair in pairs]) for shard in shards}


def squared_errors(summaries: Summaries, probabilities: Array = MIDDLES) -> dict[str, Array]:
    """Return the sum of squared errors and the pixels of every sequence, float64 (n, 2), for each shard.

    `probabilities` (201,) is what the steps stand for (`isotonic`). The Brier score of all is the one over the other.
    """
    sums = {}
    for shard, summary in summaries.items():
        table = summary["histogram"].sum(axis=1, dtype=np.int64)
        errors = table[..., 0] @ probabilities**2 + table[..., 1] @ (1 - probabilities) ** 2
        sums[shard] = np.stack([errors, table.sum(axis=(1, 2))], axis=-1)
    return sums


def paired_brier(a: Sequence[Counts], b: Sequence[Counts], draws: int = 2000, seed: int = 0) -> Estimate:
    """Return by how much the Brier score of `a` exceeds that of `b`, with its interval: below 0, `a` is better.

    Args:
        a: `squared_errors` of a forecast, of each training seed.
        b: the same of another forecast of the same sequences.
        draws: how often to resample.
        seed: of the resampling.

    Drawn as `paired_difference` does; the pixels of all shards count together, as in `calibration`.
    """
    sums = (np.sum(parts, axis=0) for parts in zip(*drawn_anew(side_by_side(a, b), draws, seed), strict=True))
    difference, resampled = (np.subtract(*np.moveaxis(pair[..., 0] / pair[..., 1], -1, 0)) for pair in sums)
    return bootstrap_of(difference, resampled.mean(axis=1))


def difference_mask(train_frequency: Array, validation_frequency: Array) -> Array:
    """Return the factor of each pixel's probability, 1 / (1 + f_train - f_validation): float32 (S, S).

    Args:
        train_frequency: share of frames with rain in training, (S, S); not a number where there never was radar.
        validation_frequency: the same in validation.

    It makes a model less certain where it rained more in training than in validation. It may exceed 1: limit the
    product to 1. The authors' notebook takes pixels without radar for rain; here their factor is 1. The divisor is
    at least 1/200.

    Source: section 2.1 (in words); the formula is that of the authors' notebook.
    """
    gap = np.nan_to_num(np.asarray(train_frequency, np.float64) - validation_frequency, nan=0.0)
    return (1 / np.maximum(1 + gap, 1 / STEPS)).astype(np.float32)
