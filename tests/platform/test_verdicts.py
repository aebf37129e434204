"""Intervals against SciPy's, and against how often they hold the truth."""

import numpy as np
import pytest
from scipy import stats

from retable.platform.verdicts import seed_mean, widen


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
