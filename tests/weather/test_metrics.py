"""Scores against loops over pixels, closed forms and the spread that an interval must cover."""

from __future__ import annotations

import math
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retable.tasks.weather.config import View
from retable.tasks.weather.metrics import (
    FSS_WIDTHS,
    best_threshold,
    confusion,
    difference_mask,
    iou,
    isotonic,
    paired_brier,
    paired_difference,
    quantise,
    rain,
    scores,
    sequence_counts,
    squared_errors,
    summarise,
    tenths,
    thresholds,
)
from tests.table_results import numbers

SHARDS = ("test/2019/boxi_0015", "test/2019/roxi_0004", "test/2020/boxi_0015")


def field(seed: int, n: int = 3, leads: int = 5, size: int = 12, rain: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    events = (random.random((n, leads, size, size)) < rain).astype(np.uint8)
    steps = np.clip(random.integers(0, 201, events.shape) // 2 + 90 * events, 0, 200).astype(np.uint8)
    events[random.random(events.shape) < 0.1] = 2
    return steps, events


def three(seed: int = 0) -> tuple[dict, dict]:
    fields = {shard: field(seed + k, rain=0.1 * (k + 1)) for k, shard in enumerate(SHARDS)}
    return fields, {shard: summarise(*each) for shard, each in fields.items()}


def loop_counts(steps: np.ndarray, events: np.ndarray, threshold: float) -> tuple[int, int, int, int]:
    tp = fp = fn = tn = 0
    for step, event in zip(steps.ravel().tolist(), events.ravel().tolist(), strict=True):
        if event == 2:
            continue
        rain = step / 200 >= threshold - 1e-9
        tp += rain and event == 1
        fp += rain and event == 0
        fn += not rain and event == 1
        tn += not rain and event == 0
    return tp, fp, fn, tn


def loop_iou(tp: int, fp: int, fn: int, tn: int = 0) -> float:
    return tp / (tp + fp + fn) if tp + fp + fn else 0.0


def test_quantise_rounds_down_and_keeps_thresholds() -> None:
    shown = quantise(np.array([0, 0.00499, 0.005, 0.49999, 0.5, 0.7, 0.99999, 1], np.float32))
    assert shown.dtype == np.uint8
    assert shown.tolist() == [0, 0, 1, 99, 100, 140, 199, 200]
    inside = (np.arange(200, dtype=np.float32) + np.float32(0.01)) / np.float32(200)
    assert quantise(inside).tolist() == list(range(200))
    halves = np.random.default_rng(0).random(10_000, np.float32) * np.float32(1e-6) + np.float32(0.5 - 5e-7)
    np.testing.assert_array_equal(quantise(halves) >= 100, halves >= 0.5)


@pytest.mark.parametrize("wrong", [-0.01, 1.01, math.nan, math.inf])
def test_quantise_refuses_what_is_no_probability(wrong: float) -> None:
    with pytest.raises(ValueError, match="diverged"):
        quantise(np.array([0.5, wrong], np.float32))


def test_histogram_is_what_a_loop_counts() -> None:
    steps, events = field(1, n=2, leads=3, size=6)
    expected = np.zeros((2, 3, 201, 2), int)
    for where in np.ndindex(steps.shape):
        if events[where] < 2:
            expected[where[0], where[1], steps[where], events[where]] += 1
    found = summarise(steps, events)["histogram"]
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("size", [6, 12, 30])
def test_fss_sums_are_what_a_loop_over_neighbourhoods_gives(size: int) -> None:
    steps, events = field(2, n=1, leads=2, size=size)
    found = summarise(steps, events)
    forecast = np.where(events == 2, 0, steps)[0] / 200
    observed = (events == 1)[0].astype(float)
    for column, width in enumerate(FSS_WIDTHS):
        width = min(width, size)
        error = reference = 0.0
        for lead, i, j in np.ndindex(forecast.shape):
            rows = slice(max(i - width // 2, 0), i - width // 2 + width)
            columns = slice(max(j - width // 2, 0), j - width // 2 + width)
            f, o = (x[lead, rows, columns].sum() / width**2 for x in (forecast, observed))
            error, reference = error + (f - o) ** 2, reference + f**2 + o**2
        assert found["fss_error"][0, column] == pytest.approx(error, rel=1e-9)
        assert found["fss_reference"][0, column] == pytest.approx(reference, rel=1e-9)


def test_fss_is_one_when_perfect_and_zero_for_forecasts_out_of_reach() -> None:
    events = np.zeros((1, 1, 36, 36), np.uint8)
    events[..., 4, 4] = 1
    perfect = summarise(200 * events, events)
    np.testing.assert_allclose(perfect["fss_error"], 0, atol=1e-12)
    for distance, reached in ((1, [False, True, True, True]), (6, [False, False, True, True]), (30, [False] * 4)):
        shifted = summarise(200 * np.roll(events, distance, axis=3), events)
        fss = 1 - shifted["fss_error"] / shifted["fss_reference"]
        assert (fss[0] > 1e-9).tolist() == reached
        # Two equal squares of width w overlap in w - distance columns; no border is near for the first distances.
        if distance == 1:
            np.testing.assert_allclose(fss[0, :3], [0, 2 / 3, 8 / 9], atol=1e-12)


def test_example_is_the_wettest_sequence_hour_by_hour() -> None:
    steps, events = field(3, n=3, leads=9)
    events[1][events[1] == 0] = 1
    found = summarise(steps, events)
    np.testing.assert_array_equal(found["example_events"], events[1, [3, 7]])
    np.testing.assert_array_equal(found["example_steps"], steps[1, [3, 7]])
    short = summarise(steps[:, :3], events[:, :3])
    np.testing.assert_array_equal(short["example_steps"], steps[1, [2]])


def test_summarise_refuses_other_arrays() -> None:
    steps, events = field(4)
    for wrong in ((steps[:1], events), (steps[0], events[0]), (steps + 100, events), (steps, events + 1)):
        with pytest.raises(ValueError, match="steps"):
            summarise(*wrong)


def test_summarise_works_sequence_by_sequence() -> None:
    steps, events = field(5, n=24, leads=8, size=60)
    sequence = steps[0].size * 8
    tracemalloc.start()
    kept = summarise(steps, events)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < sum(table.nbytes for table in kept.values()) + 8 * sequence < 24 * sequence


@pytest.mark.parametrize("threshold", [0.005, 0.2, 0.5, 0.65, 0.7, 0.995])
def test_confusion_and_iou_are_a_loops(threshold: float) -> None:
    steps, events = field(6, n=2, leads=2)
    counts = confusion(summarise(steps, events)["histogram"], threshold)
    assert counts.dtype == np.int64
    np.testing.assert_array_equal(rain(steps, threshold), steps / 200 >= threshold - 1e-9)
    np.testing.assert_array_equal(rain(steps, np.array([threshold, 1.0]))[:, 1], steps[:, 1] == 200)
    for where in np.ndindex(2, 2):
        expected = loop_counts(steps[where], events[where], threshold)
        assert tuple(counts[where]) == expected
        assert iou(counts)[where] == loop_iou(*expected)


def test_iou_of_an_empty_union_is_zero() -> None:
    assert iou(np.array([[0, 0, 0, 9], [1, 2, 1, 0]])).tolist() == [0.0, 0.25]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 198))
def test_lower_thresholds_detect_more(seed: int, step: int) -> None:
    histogram = np.random.default_rng(seed).integers(0, 5, (201, 2))
    low, high = confusion(histogram, step / 200), confusion(histogram, (step + 1) / 200)
    assert low[0] >= high[0] and low[1] >= high[1] and low[2] <= high[2] and low[3] <= high[3]
    assert low.sum() == high.sum() == histogram.sum()


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(6)), st.integers(0, 1000))
def test_the_order_of_sequences_changes_nothing(order: list[int], seed: int) -> None:
    steps, events = field(seed, n=6, leads=2, size=6)
    shard, thresholds = SHARDS[0], {SHARDS[0]: 0.5}
    one = scores({shard: summarise(steps, events)}, thresholds, 100)
    other = scores({shard: summarise(steps[order], events[order])}, thresholds, 100)
    assert one == pytest.approx(other, rel=1e-12)


def test_best_threshold_is_what_a_search_finds() -> None:
    fields, summaries = three(10)
    steps, events = (np.concatenate([pair[k].ravel() for pair in fields.values()]) for k in (0, 1))
    tried = [loop_iou(*loop_counts(steps, events, k / 200)) for k in range(1, 200)]
    assert best_threshold([s["histogram"] for s in summaries.values()]) == (1 + tried.index(max(tried))) / 200
    assert max(tried) > tried[99]


def test_best_threshold_of_ties_is_the_lowest() -> None:
    histogram = np.zeros((201, 2), int)
    assert best_threshold([histogram]) == 0.005
    histogram[40, 0] = 5
    assert best_threshold([histogram]) == 0.005  # no rain at all
    histogram[80, 1] = 5
    assert best_threshold([histogram]) == best_threshold([histogram, histogram]) == 41 / 200


def searched(steps: np.ndarray, events: np.ndarray) -> float:
    wet, seen = events == 1, events < 2
    rainy = [seen & (steps >= step) for step in range(1, 200)]
    return (1 + int(np.argmax([(wet & each).sum() / (wet | each).sum() for each in rainy]))) / 200


def test_tuned_thresholds_are_what_a_search_in_their_place_and_lead_time_finds() -> None:
    fields, summaries = three(10)
    asked = {SHARDS[1]: None, "test/2021/roxi_0008": None}  # a place without validation has those of all together
    told = {shard.replace("test", "validation"): summary for shard, summary in summaries.items()} | asked
    every = [np.concatenate([pair[k] for pair in fields.values()]) for k in (0, 1)]
    places = [fields[SHARDS[1]], every]
    for how, expected in {
        "tuned": [searched(*every)] * 2,
        "tuned_per_region": [searched(*place) for place in places],
        "tuned_per_region_and_lead": [
            [searched(*(x[:, lead] for x in place)) for lead in range(5)] for place in places
        ],
        0.4: [0.4, 0.4],
    }.items():
        found = thresholds(View(threshold=how), told)
        assert {shard: np.asarray(each).tolist() for shard, each in found.items()} == dict(
            zip(asked, expected, strict=True)
        )


def test_scores_are_those_of_loops() -> None:
    fields, summaries = three(20)
    thresholds = dict(zip(SHARDS, (0.5, 0.3, 0.6), strict=True))
    found = scores(summaries, thresholds, 4)
    counts = {shard: loop_counts(*fields[shard], thresholds[shard]) for shard in SHARDS}
    each = [loop_iou(*counts[shard]) for shard in SHARDS]
    assert found["iou"] == pytest.approx(np.mean(each))
    assert found["iou/2019"] == pytest.approx(np.mean(each[:2]))
    assert found["iou/2020"] == found["iou/2020/boxi_0015"] == pytest.approx(each[2])
    assert found["iou/2019/roxi_0004"] == pytest.approx(each[1])
    assert found["pod"] == pytest.approx(np.mean([tp / (tp + fn) for tp, fp, fn, tn in counts.values()]))
    assert found["far"] == pytest.approx(np.mean([fp / (tp + fp) for tp, fp, fn, tn in counts.values()]))
    assert found["precision"] == pytest.approx(1 - found["far"])
    assert found["bias"] == pytest.approx(np.mean([(tp + fp) / (tp + fn) for tp, fp, fn, tn in counts.values()]))
    pixels = sum(map(sum, counts.values()))
    assert found["rain_ratio/predicted"] == pytest.approx(sum(c[0] + c[1] for c in counts.values()) / pixels)
    assert found["rain_ratio/observed"] == pytest.approx(sum(c[0] + c[2] for c in counts.values()) / pixels)
    for lead in range(5):
        parts = [[a[:, lead] for a in fields[shard]] for shard in SHARDS]
        expected = [loop_iou(*loop_counts(*p, thresholds[s])) for p, s in zip(parts, SHARDS, strict=True)]
        assert found[f"iou/lead/{15 * (lead + 1):03d}"] == pytest.approx(np.mean(expected))
    assert found["threshold"] == pytest.approx(1.4 / 3)
    assert found["threshold/2019/roxi_0004"] == 0.3
    two = scores(summaries, {**thresholds, SHARDS[2]: 0.5}, 4)
    assert [two[f"threshold/{shard[5:]}"] for shard in SHARDS] == [0.5, 0.3, 0.5]
    same = scores(summaries, dict.fromkeys(SHARDS, 0.5), 4)
    assert [name for name in same if name.startswith("threshold")] == ["threshold"]


def test_fss_is_the_mean_over_shards_and_leaves_out_dry_ones() -> None:
    _, summaries = three(30)
    thresholds = dict.fromkeys(SHARDS, 0.5)
    found = scores(summaries, thresholds, 4)
    expected = [1 - s["fss_error"][..., 2].sum() / s["fss_reference"][..., 2].sum() for s in summaries.values()]
    assert found["fss/9px"] == pytest.approx(np.mean(expected))
    assert [name for name in found if name.startswith("fss")] == ["fss/1px", "fss/3px", "fss/9px", "fss/12px"]
    wide = scores({"test/2019/wide": summarise(*field(3, size=36))}, {"test/2019/wide": 0.5}, 4)
    assert [name for name in wide if name.startswith("fss")] == ["fss/1px", "fss/3px", "fss/9px", "fss/27px"]
    dry = np.zeros((1, 5, 12, 12), np.uint8)
    with_dry = scores({**summaries, "test/2020/dry": summarise(dry, dry)}, {**thresholds, "test/2020/dry": 0.5}, 4)
    for name in ("fss/9px", "pod", "far", "bias"):
        assert with_dry[name] == pytest.approx(found[name])
    assert with_dry["iou"] == pytest.approx(found["iou"] * 3 / 4)


def test_brier_and_reliability_are_those_of_loops() -> None:
    fields, summaries = three(40)
    found = scores(summaries, dict.fromkeys(SHARDS, 0.5), 4)
    steps, events = (np.concatenate([pair[k].ravel() for pair in fields.values()]) for k in (0, 1))
    steps, events = steps[events < 2], events[events < 2]
    forecast = [min((int(step) + 0.5) / 200, 1) for step in steps]
    assert found["brier"] == pytest.approx(np.mean([(p - e) ** 2 for p, e in zip(forecast, events, strict=True)]))
    error = 0.0
    for k in range(10):
        inside = [i for i, step in enumerate(steps) if min(int(step) // 20, 9) == k]
        assert found[f"reliability/{k}"] == pytest.approx(np.mean(events[inside]))
        error += abs(sum(forecast[i] - events[i] for i in inside)) / len(steps)
    assert found["reliability_error"] == pytest.approx(error)
    assert tenths(np.arange(11) / 10).tolist() == [*range(10), 9]


def test_a_calibrated_forecast_is_reliable_and_a_certain_one_has_empty_bins() -> None:
    random = np.random.default_rng(0)
    steps = random.integers(0, 200, (2, 4, 60, 60)).astype(np.uint8)
    events = (random.random(steps.shape) < (steps + 0.5) / 200).astype(np.uint8)
    found = scores({SHARDS[0]: summarise(steps, events)}, {SHARDS[0]: 0.5}, 1)
    assert found["reliability_error"] < 0.02
    assert found["brier"] == pytest.approx(1 / 6, abs=0.005)  # the mean of p (1 - p) for even p
    certain = scores({SHARDS[0]: summarise(200 * events, events)}, {SHARDS[0]: 0.5}, 1)
    assert [name for name in certain if name.startswith("reliability/")] == ["reliability/0", "reliability/9"]
    assert certain["iou"] == 1 and certain["brier"] < 1e-5


def test_undefined_scores_are_left_out() -> None:
    dry, masked = np.zeros((2, 1, 1, 12, 12), np.uint8)
    found = scores({SHARDS[0]: summarise(dry, dry)}, {SHARDS[0]: 0.5}, 1)
    assert found["iou"] == 0 and found["rain_ratio/observed"] == 0
    assert not {"pod", "far", "precision", "bias", "fss/1px"} & set(found)
    unseen = scores({SHARDS[0]: summarise(dry, masked + 2)}, {SHARDS[0]: 0.5}, 1)
    assert unseen["iou"] == unseen["iou_batched"] == 0
    assert not {"brier", "rain_ratio/observed"} & set(unseen)


@pytest.mark.parametrize("batch", [1, 4, 9, 100])
def test_batched_iou_pools_batches_across_shards(batch: int) -> None:
    fields, summaries = three(50)
    found = scores(summaries, dict.fromkeys(SHARDS, 0.5), batch)["iou_batched"]
    steps, events = (np.concatenate([pair[k] for pair in fields.values()]) for k in (0, 1))
    total = 0.0
    for start in range(0, 9, batch):
        part = slice(start, start + batch)
        total += len(steps[part]) * loop_iou(*loop_counts(steps[part], events[part], 0.5))
    assert found == pytest.approx(total / 9)


def test_sequence_counts_are_a_loops() -> None:
    fields, summaries = three(60)
    found = sequence_counts(summaries, {shard: 0.4 for shard in SHARDS})
    for shard, (steps, events) in fields.items():
        assert [tuple(row) for row in found[shard]] == [
            loop_counts(*pair, 0.4)[:3] for pair in zip(steps, events, strict=True)
        ]


def counts_with_noise(seed: int, better: float, n: int = 60) -> tuple[dict, dict]:
    random, a, b = np.random.default_rng(seed), {}, {}
    for shard in SHARDS:
        rain = random.gamma(2, 500, n)  # sequences differ much; both forecasts feel that
        for side, skill in ((a, 0.5 + better), (b, 0.5)):
            hits = rain * np.clip(skill + 0.03 * random.normal(size=n), 0, 1)
            side[shard] = np.stack([hits, rain - hits, rain - hits], axis=-1).astype(int)
    return a, b


def test_paired_difference_is_the_headlines() -> None:
    _, first = three(70)
    _, second = three(80)
    thresholds = dict.fromkeys(SHARDS, 0.5)
    a, b = sequence_counts(first, thresholds), sequence_counts(second, thresholds)
    difference, low, high = numbers(paired_difference([a], [b], draws=200))
    assert difference == pytest.approx(scores(first, thresholds, 1)["iou"] - scores(second, thresholds, 1)["iou"])
    assert low < difference < high
    assert numbers(paired_difference([b], [a], draws=200)) == pytest.approx((-difference, -high, -low))
    assert numbers(paired_difference([a], [b], draws=200)) != numbers(paired_difference([a], [b], draws=200, seed=1))
    assert numbers(paired_difference([a], [a])) == (0, 0, 0)


def test_paired_difference_is_a_naive_bootstrap_and_students_interval_of_the_seeds() -> None:
    a, b = zip(*(counts_with_noise(seed, 0.01, n=20) for seed in range(3)), strict=True)
    random, drawn = np.random.default_rng(5), []

    def gap(k: int, rows: dict[str, np.ndarray]) -> float:
        return float(np.mean([iou(a[k][s][rows[s]].sum(axis=0)) - iou(b[k][s][rows[s]].sum(axis=0)) for s in SHARDS]))

    for _ in range(1500):
        rows = {shard: random.integers(0, 20, 20) for shard in SHARDS}
        drawn.append(np.mean([gap(k, rows) for k in range(3)]))
    seeds = np.array([gap(k, {shard: np.arange(20) for shard in SHARDS}) for k in range(3)])
    margin = 4.302653 * seeds.std(ddof=1) / np.sqrt(3)
    low, high = np.percentile(drawn, [2.5, 97.5])
    low, high = (
        seeds.mean() - np.hypot(seeds.mean() - low, margin),
        seeds.mean() + np.hypot(high - seeds.mean(), margin),
    )
    difference, found_low, found_high = numbers(paired_difference(a, b, draws=4000))
    assert difference == pytest.approx(seeds.mean())
    assert (found_low, found_high) == pytest.approx((low, high), abs=0.1 * (high - low))


def test_paired_brier_is_the_difference_of_the_scores_and_a_naive_bootstrap() -> None:
    found = [
        {shard: summarise(*field(seed + k, n=12, rain=0.1 * (k + 1))) for k, shard in enumerate(SHARDS)}
        for seed in (70, 80, 90)
    ]
    risen = [isotonic([each["histogram"] for each in one.values()]) for one in found]
    a = [squared_errors(one, probabilities) for one, probabilities in zip(found, risen, strict=True)]
    b = [squared_errors(one) for one in found]
    half = dict.fromkeys(SHARDS, 0.5)
    gaps = [
        scores(one, half, 1, probabilities)["brier"] - scores(one, half, 1)["brier"]
        for one, probabilities in zip(found, risen, strict=True)
    ]
    assert max(gaps) < 0  # on its own data calibration is better
    random, drawn = np.random.default_rng(5), []
    for _ in range(1500):
        rows = {shard: random.integers(0, 12, 12) for shard in SHARDS}
        sides = [
            [sum(side[s][rows[s]].sum(axis=0) for s in SHARDS) for side in pair] for pair in zip(a, b, strict=True)
        ]
        drawn.append(np.mean([ours[0] / ours[1] - plain[0] / plain[1] for ours, plain in sides]))
    margin = 4.302653 * np.std(gaps, ddof=1) / np.sqrt(3)
    low, high = np.percentile(drawn, [2.5, 97.5])
    mean = float(np.mean(gaps))
    wanted = mean - np.hypot(mean - low, margin), mean + np.hypot(high - mean, margin)
    difference, *ends = numbers(paired_brier(a, b, draws=4000))
    assert difference == pytest.approx(mean)
    assert ends == pytest.approx(wanted, abs=0.1 * (wanted[1] - wanted[0]))


def test_one_weather_in_all_regions_is_drawn_once() -> None:
    """Regions of one map at the same hours say the same seven times; drawn each by itself they seem to say more."""
    one, _ = counts_with_noise(0, 0.04, n=60)
    same = next(iter(one.values()))
    worse = same - np.array([1, -1, -1]) * (np.arange(60)[:, None] % 5)
    alone = numbers(paired_difference([{"test/2019/a": same}], [{"test/2019/a": worse}]))
    places = [f"test/2019/{region}" for region in "abcdefg"]
    seven = numbers(paired_difference([dict.fromkeys(places, same)], [dict.fromkeys(places, worse)]))
    assert seven == pytest.approx(alone)
    years = [f"test/{year}/a" for year in range(2013, 2020)]
    apart = numbers(paired_difference([dict.fromkeys(years, same)], [dict.fromkeys(years, worse)]))
    assert apart[2] - apart[1] < 0.5 * (alone[2] - alone[1])


def test_pairing_narrows_the_interval() -> None:
    random, a, b = np.random.default_rng(0), {}, {}
    for shard in SHARDS:
        rain, skill = random.gamma(2, 500, 60), random.random(60)  # some sequences are easy, for both forecasts
        for side, share in ((a, skill), (b, 0.95 * skill)):
            side[shard] = np.stack([rain * share, rain * (1 - share), rain * (1 - share)], axis=-1).astype(int)
    _, low, high = numbers(paired_difference([a], [b]))
    _, wide_low, wide_high = numbers(
        paired_difference([a], [{shard: random.permutation(table) for shard, table in b.items()}])
    )
    assert wide_low < 0 < low < high < wide_high
    assert wide_high - wide_low > 5 * (high - low)


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    truth = 0.54 / 1.46 - 1 / 3  # hits h of rain r, with r - h false alarms and misses: h / (2 r - h)
    pairs = [counts_with_noise(seed, 0.04) for seed in range(100)]
    intervals = [numbers(paired_difference([a], [b], draws=400))[1:] for a, b in pairs]
    assert 88 <= sum(low <= truth <= high for low, high in intervals) <= 100


def test_paired_difference_refuses_unlike_forecasts() -> None:
    a, b = counts_with_noise(0, 0.0)
    with pytest.raises(ValueError, match="shards"):
        paired_difference([a], [{shard: b[shard] for shard in SHARDS[:2]}])
    for other, said in (([b, b], "is longer"), ([{shard: table[:9] for shard, table in b.items()}], "shape")):
        with pytest.raises(ValueError, match=said):
            paired_difference([a], other)


def test_paired_difference_is_fast() -> None:
    a, b = counts_with_noise(0, 0.0)
    many = [{f"test/{year}/{k}": c[SHARDS[0]] for year in (2019, 2020) for k in range(7)} for c in (a, b)]
    start = time.process_time()
    paired_difference([many[0]] * 3, [many[1]] * 3)
    assert time.process_time() - start < 2


def test_difference_mask_is_the_papers() -> None:
    # Frequencies of roxi_0007 in 2020 (section 2.1): it rains more in validation, so the model gets more certain.
    alpha = difference_mask(np.full((2, 2), 2.53e-2), np.full((2, 2), 4.79e-2))
    assert alpha.dtype == np.float32
    np.testing.assert_allclose(alpha, 1 / (1 - 0.0226), rtol=1e-6)
    assert difference_mask(np.array([[0.5]]), np.array([[0.25]])).item() == pytest.approx(0.8)
    edges = difference_mask(np.array([[np.nan, 0.1, 0.0]]), np.array([[0.1, np.nan, 1.0]]))
    np.testing.assert_allclose(edges, [[1, 1, 200]])
