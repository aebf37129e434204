"""Intervals against SciPy's, and against how often they hold the truth."""

import numpy as np
import pytest
from scipy import stats

from retable.platform.verdicts import (
    UNTESTED,
    Estimate,
    Verdict,
    and_more,
    join,
    judge,
    mean_of,
    ratio_of,
    seed_mean,
    too_few,
    widen,
)


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
    assert (found.low, found.high) == (-np.inf, np.inf) and found.status(0.9) == "not separable"


def test_equal_seeds_have_a_ratio_without_width():
    assert ratio_of([0.5, 0.55, 0.45], [1.0, 1.1, 0.9]).status(0.49, 0.51) == "holds"
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
    assert found.status() == above_0 and found.status(-0.2, 0.2) == about_0
    assert judge(found) == Verdict(above_0, str(found)) and judge(Verdict("holds", "x")) == Verdict("holds", "x")
    assert str(found).endswith(f"[{low:+.1f}, {high:+.1f}] points")


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
