"""Scores against published values, SciPy and the spread they must cover."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import trim_mean

from retable.tasks.rl.metrics import interquartile_mean, normalised_score, stratified_bootstrap


def test_normalised_score_is_d4rls() -> None:
    assert normalised_score("Hopper", 3000) == pytest.approx(92.80089738, abs=1e-8)
    references = {"HalfCheetah": (-280.178953, 12135.0), "Walker2d": (1.629008, 4592.3), "Hopper": (-20.272305, 3234.3)}
    for environment, returns in references.items():
        np.testing.assert_allclose(normalised_score(environment, [returns]), [[0, 100]], atol=1e-12)
    assert normalised_score("Swimmer", [1.0]) is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_interquartile_mean_is_scipys_trimmed_mean(scores: list[float]) -> None:
    assert interquartile_mean(scores) == pytest.approx(trim_mean(scores, 0.25), rel=1e-9, abs=1e-6)


def test_interquartile_mean_is_over_all_scores() -> None:
    table = np.array([[0.0, 1.0], [2.0, 1000.0]])
    assert interquartile_mean(table) == trim_mean(table, 0.25, axis=None) == 1.5
    with pytest.raises(ValueError, match="no scores"):
        interquartile_mean([])


def mean(scores: np.ndarray) -> float:
    return float(scores.mean())


def test_bootstrap_is_deterministic_and_stratified() -> None:
    scores = np.random.default_rng(0).normal(size=(5, 3))
    assert stratified_bootstrap(scores, interquartile_mean, 1) == stratified_bootstrap(scores, interquartile_mean, 1)
    assert stratified_bootstrap(scores, interquartile_mean, 1) != stratified_bootstrap(scores, interquartile_mean, 2)
    # Environments far apart, runs equal: resampling within environments leaves nothing to vary.
    low, high = stratified_bootstrap(np.tile([0.0, 1e3, 1e6], (5, 1)), mean, 0)
    assert low == high == pytest.approx(1001000 / 3)


def test_bootstrap_gives_the_statistic_whole_tables() -> None:
    shapes = set()

    def statistic(scores: np.ndarray) -> float:
        shapes.add(scores.shape)
        return 0.0

    stratified_bootstrap(np.zeros((4, 2)), statistic, 0, samples=3)
    assert shapes == {(4, 2)}


def test_bootstrap_interval_has_the_width_of_the_mean_and_covers_it() -> None:
    random, covered = np.random.default_rng(3), 0
    scores = random.normal(size=(50, 4))
    low, high = stratified_bootstrap(scores, mean, 0)
    spread = np.sqrt((scores.var(axis=0) / 50).sum()) / 4
    assert high - low == pytest.approx(2 * 1.96 * spread, rel=0.1)
    for _ in range(60):
        low, high = stratified_bootstrap(random.normal(size=(20, 2)), mean, 0, samples=200)
        covered += low <= 0 <= high
    assert 50 <= covered < 60


def test_bootstrap_refuses_what_is_no_table() -> None:
    for scores in (np.zeros(3), np.zeros((0, 2))):
        with pytest.raises(ValueError, match="not \\(runs, environments\\)"):
            stratified_bootstrap(scores, mean, 0)
