"""Intervals against SciPy's, and against how often they hold the truth."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from retable.platform.spec.claims import (
    MOST,
    UNTESTED,
    Estimate,
    Verdict,
    bootstrap_of,
    join,
    joint_of,
    judge,
    mean_of,
    paired,
    ratio_of,
    seed_mean,
    seeds_needed,
    too_few,
    widen,
)
from retable.platform.spec.table import Measurement, Replicate, Results, Row, claim
from retable.platform.text import and_more


@pytest.mark.parametrize("level", [0.9, 0.95, 0.9875])
def test_one_group_has_the_interval_of_scipys_paired_t_test(level):
    a, b = np.random.default_rng(0).normal(size=(2, 4))
    low, high = stats.ttest_rel(a, b).confidence_interval(level)
    mean, margin = seed_mean([a - b], level)
    assert (mean - margin, mean + margin) == pytest.approx((low, high))


def test_two_groups_have_half_the_interval_of_welchs_test_of_a_sum():
    random = np.random.default_rng(1)
    a, b = random.normal(1, 1, 5), random.normal(2, 4, 3)
    low, high = stats.ttest_ind(a, -b, equal_var=False).confidence_interval(0.95)
    mean, margin = seed_mean([a, b])
    assert (mean - margin, mean + margin) == pytest.approx((low / 2, high / 2))


@pytest.mark.parametrize("environments", [1, 3])
def test_three_seeds_tell_equals_apart_in_a_twentieth_of_all_comparisons(environments):
    """A percentile bootstrap does so in a quarter of them."""
    random, found = np.random.default_rng(2), 0
    for _ in range(1000):
        mean, margin = seed_mean(random.normal(size=(environments, 3)))
        found += abs(mean) > margin
    assert 20 <= found <= 75


def test_groups_count_alike_whatever_their_size_and_constants_have_no_spread():
    assert seed_mean([[1.0, 1.0, 1.0, 1.0], [3.0, 3.0]]) == (2.0, 0.0)
    assert seed_mean([[5.0]]) == (5.0, 0.0)


def test_an_interval_is_widened_as_independent_errors_add():
    assert widen(1.0, 0.7, 1.6, 0.4) == pytest.approx((0.5, 1 + np.hypot(0.6, 0.4)))
    assert widen(1.0, 0.7, 1.6, 0.0) == pytest.approx((0.7, 1.6))
    assert widen(1.0, 1.1, 1.2, 0.0) == pytest.approx((1.0, 1.2))  # a mean beside its own percentiles


def test_fiellers_interval_holds_the_ratios_that_students_test_cannot_refuse():
    above, below = np.array([0.61, 0.72, 0.55, 0.66]), np.array([0.9, 1.05, 0.98, 0.87])
    found = ratio_of(above, below)
    assert found.value == pytest.approx(above.mean() / below.mean())
    for ratio in (found.low, found.high):
        assert stats.ttest_1samp(above - ratio * below, 0.0).pvalue == pytest.approx(0.05)
    assert stats.ttest_1samp(above - found.value * below, 0.0).pvalue == pytest.approx(1.0)


def test_the_ratio_of_a_mean_that_cannot_be_told_from_0_is_endless():
    """Seeds of -69 % to 103 % were printed beside a bracket that belonged to another number."""
    found = ratio_of([0.4, 0.9, 0.2], [0.5, -0.6, 0.7])
    assert (found.low, found.high) == (-np.inf, np.inf) and found.verdict(0.9).status == "not separable"


def test_equal_seeds_have_a_ratio_without_width():
    assert ratio_of([0.5, 0.55, 0.45], [1.0, 1.1, 0.9]).verdict(0.49, 0.51).status == "holds"
    found = ratio_of([0.5, 0.5], [1.0, 1.0])
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))


@pytest.mark.parametrize("ratio", [0.3, 0.9, 1.4])
def test_fiellers_interval_holds_the_true_ratio_in_nineteen_of_twenty_trials(ratio):
    random, held = np.random.default_rng(3), 0
    for _ in range(1000):
        below = random.normal(1.0, 0.1, 4)
        found = ratio_of(ratio * below + random.normal(0.0, 0.1, 4), below)
        held += found.low <= ratio <= found.high
    assert 925 <= held <= 970


@pytest.mark.parametrize(
    ("low", "high", "above_0", "about_0"),
    [
        (0.1, 0.5, "holds", "not separable"),
        (-0.5, -0.3, "does not hold", "does not hold"),
        (-0.1, 0.5, "not separable", "not separable"),
        (-0.1, 0.1, "not separable", "holds"),
    ],
)
def test_a_status_is_where_the_interval_lies(low, high, above_0, about_0):
    found = Estimate((low + high) / 2, low, high, "points", "+.1f")
    assert found.verdict().status == above_0 and found.verdict(-0.2, 0.2).status == about_0
    assert judge(found) == Verdict(above_0, str(found)) and judge(Verdict("holds", "x")) == Verdict("holds", "x")
    assert str(found).endswith(f"[{low:+.1f}, {high:+.1f}] points")


def printed(because):
    """Read the interval that a verdict prints."""
    found = re.search(r"\[([^,\]]+?), ([^\]]+?)\]", re.sub(r"(?<=\d),(?=\d{3}\b)", "", because))
    return [float(end.removesuffix("%")) / (100 if end.endswith("%") else 1) for end in found.groups()]


ENDS = st.floats(-10, 10) | st.floats(-1e-3, 1e-3) | st.just(np.inf)


@given(ENDS, ENDS, st.sampled_from([(0.0, np.inf), (-np.inf, 0.0), (0.9, np.inf), (-0.01, 0.01)]),
       st.sampled_from(["+.2f", ".0%", "+,.0f", ".3g", "+.1f"]), st.sampled_from([0.95, 0.9875]))  # fmt: skip
def test_a_status_and_the_interval_that_is_printed_agree(one, other, bounds, form, level):
    """`holds` beside [+0.00, +0.03] and `not separable` beside [-125 %, -38 %] say nothing of why."""
    low, high = sorted((one, other))
    verdict = Estimate(0.0, low, high, "IoU", form, level).verdict(*bounds)
    shown = printed(verdict.because)
    inside = bounds[0] < shown[0] and shown[1] < bounds[1]
    outside = shown[1] < bounds[0] or bounds[1] < shown[0]
    assert verdict.status == ("holds" if inside else "does not hold" if outside else "not separable")
    assert ("at 98.75 %, IoU" in verdict.because) == (level == 0.9875)


def brute(test):
    """Return the first number of seeds for which a test is passed."""
    return next((count for count in range(2, MOST + 1) if test(count)), None)


@pytest.mark.parametrize("level", [0.95, 0.9875])
@pytest.mark.parametrize("spread", [0.3, 0.8, 2.0, 12.0])
def test_the_seeds_that_a_mean_needs_are_those_of_scipys_interval(spread, level):
    values = 1 + spread * np.array([-1.0, 1.1, -0.2, 0.1])
    found, deviation = mean_of([values], level=level), values.std(ddof=1)
    wanted = brute(lambda n: stats.t.interval(level, n - 1, values.mean(), deviation / np.sqrt(n))[0] > 0)
    assert seeds_needed(found.ends) == wanted
    verdict = found.verdict()
    if verdict.status == "not separable":
        assert wanted is None or wanted > 4
        assert f"(at this spread {wanted or 'more than 100'} seeds would separate it)" in verdict.because
    else:
        assert wanted <= 4 and "would" not in verdict.because


def test_several_groups_need_the_seeds_of_welchs_interval_each():
    a, b = np.array([1.0, 3.0, -1.5]), np.array([2.0, -1.0, 0.5, 1.2])
    variances, centre = (a.var(ddof=1), b.var(ddof=1)), (a.mean() + b.mean()) / 2

    def separates(n):
        parts = np.array(variances) / n
        freedom = parts.sum() ** 2 / (parts**2 / (n - 1)).sum()
        return centre > stats.t.ppf(0.975, freedom) * np.sqrt(parts.sum()) / 2

    words = f"{brute(separates)} seeds in each group would separate it"
    assert brute(separates) > 4 and words in mean_of([a, b]).verdict().because


@pytest.mark.parametrize("bound", [0.3, 0.72, 0.9])
def test_the_seeds_that_a_ratio_needs_are_those_of_students_test_of_its_bound(bound):
    above, below = np.array([0.61, 0.9, 0.35, 0.66]), np.array([0.9, 1.05, 0.98, 0.87])

    def refused(values, n):
        return abs(values.mean()) > stats.t.ppf(0.975, n - 1) * values.std(ddof=1) / np.sqrt(n)

    wanted = brute(lambda n: refused(above - bound * below, n) and refused(below, n))
    assert seeds_needed(ratio_of(above, below).ends, bound) == wanted


def test_no_number_of_seeds_makes_up_for_a_small_test_set():
    seeds = np.array([0.02, 0.05, 0.02])
    found = joint_of(seeds, 0.01, 0.05)
    margin = stats.t.ppf(0.975, 2) * stats.sem(seeds)
    assert (found.low, found.high) == pytest.approx(widen(0.03, 0.01, 0.05, margin))
    assert found.low < 0

    def separates(n):
        return 0.03 > np.hypot(0.02, stats.t.ppf(0.975, n - 1) * seeds.std(ddof=1) / np.sqrt(n))

    assert f"{brute(separates)} seeds would" in found.verdict().because
    words = "(no number of seeds would separate it: the test set is too small)"
    assert joint_of(seeds, -0.01, 0.07).verdict().because.endswith(words)
    assert joint_of(np.zeros(3), 0.0, 0.0).verdict() == Verdict("not separable", "+0.00 [+0.00, +0.00]")


def test_a_sentence_holds_if_every_part_does_and_fails_by_one():
    good, bad, open_, none = (
        Verdict(status, status) for status in ("holds", "does not hold", "not separable", UNTESTED)
    )
    assert join([good, good]).status == "holds" and join([good, open_]).status == "not separable"
    assert join([open_, none]).status == UNTESTED and join([none, bad, good]).status == "does not hold"
    assert join({"a": good, "b": bad}).because == "a: holds; b: does not hold"
    assert join([good, good]).because == "holds" and join([]).status == join({}).status == UNTESTED


def test_too_few_seeds_are_said_to_be():
    assert too_few(3) is None and too_few(0).because == "rows are missing"
    assert too_few(1).because == "1 seed; at least 3 are needed"
    assert too_few(2, "photograph", 5) == Verdict(UNTESTED, "2 photographs; at least 5 are needed")


def test_a_mean_is_an_estimate_with_students_interval():
    found = mean_of([[1.0, 2.0, 4.0]], "points")
    mean, margin = seed_mean([[1.0, 2.0, 4.0]])
    assert (found.value, found.low, found.high, found.about) == (mean, mean - margin, mean + margin, "points")


def test_long_lists_end_in_how_many_there_are():
    assert and_more(["a", "b"], 2) == "a, b" and and_more([], 2) == ""
    assert and_more(["a", "b", "c", "d"], 2, "; ") == "a; b and 2 more"


def results(**rows):
    """Results of rows: label -> the number of each seed."""
    made = {
        label: [Replicate(label, {"seed": seed}, None, None, metrics={"m": value}) for seed, value in seeds.items()]
        for label, seeds in rows.items()
    }
    return Results(made)


A, B = Row(label="a"), Row(label="b")


def gap(better, worse):
    return mean_of([np.subtract(better, worse)], f"{better} against {worse}")


def value(replicate):
    return replicate.metrics["m"]


def test_rows_are_compared_seed_by_seed_whatever_their_order():
    found = paired(results(a={0: 5.0, 1: 6.0, 2: 8.0, 3: 9.0}, b={2: 3.0, 0: 1.0, 1: 2.0}), [A, B], value, gap)
    assert found.about == "[5.0, 6.0, 8.0] against [1.0, 2.0, 3.0]"
    low, high = stats.ttest_rel([5, 6, 8], [1, 2, 3]).confidence_interval()
    assert (found.low, found.high) == pytest.approx((low, high))


def test_two_shared_seeds_or_none_give_the_verdict_and_no_estimate():
    few = results(a={0: 1.0, 1: 1.0, 2: 1.0}, b={1: 0.0, 2: 0.0, 3: 0.0})
    assert paired(few, [A, B], value, gap).because == "2 seeds; at least 3 are needed"
    assert paired(results(a={0: 1.0}, b={}), [A, B], value, gap) == Verdict(UNTESTED, "rows are missing")


def test_a_verdict_says_what_it_is_of_unless_it_stands_in_for_an_estimate():
    assert judge(Estimate(2.0, 1.0, 3.0), about="b over a:") == Verdict("holds", "b over a: +2.00 [+1.00, +3.00]")
    assert judge(Verdict(UNTESTED, "no runs"), about="b over a:") == Verdict(UNTESTED, "no runs")


def test_a_claim_is_tested_only_once_its_gate_finds_nothing_against_it():
    asked = []

    def check(found, one, other, *, least):
        asked.append((one, other, least))
        return Verdict("holds", "yes")

    def gate(found, rows):
        return None if all(row in found for row in rows) else Verdict(UNTESTED, "not run")

    sentence = claim("A beats B.", check, A, B, gate=gate, least=2, ours=True)
    assert (sentence.text, sentence.ours) == ("A beats B.", True)
    assert sentence.check(results(a={0: 1.0}, b={})) == Verdict(UNTESTED, "not run") and not asked
    assert sentence.check(results(a={0: 1.0}, b={0: 1.0})).status == "holds" and asked == [(A, B, 2)]
    assert claim("A beats B.", check, A, B, least=1).check(results(a={}, b={})).status == "holds"


def test_a_benchmark_row_has_its_metrics_and_one_that_was_not_run_none():
    row = Measurement(label="a", measure=dict)
    assert results(a={0: 3.0}).measured(row) == {"m": 3.0} and results(a={}).measured(row) is None
    with pytest.raises(KeyError):
        results(b={}).measured(row)


def test_a_bootstraps_interval_is_its_percentiles_widened_by_the_seeds():
    samples = np.arange(1001) / 1000
    assert bootstrap_of([0.5], samples) == joint_of([0.5], 0.025, 0.975)
    seeds = [0.4, 0.5, 0.6]
    low, high = widen(0.5, 0.025, 0.975, stats.t.ppf(0.975, 2) * stats.sem(seeds))
    found = bootstrap_of(seeds, samples)
    assert (found.value, found.low, found.high) == pytest.approx((0.5, low, high))
