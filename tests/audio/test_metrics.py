"""Scores equal plain loops over every order of ties; the tie rule, chance, clusters and intervals are as stated."""

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from retable.tasks.audio import metrics
from tests.table_results import numbers

CASES = st.integers(1, 5).flatmap(
    lambda items: st.tuples(
        arrays(np.float32, (3, items), elements=st.sampled_from([-0.5, -0.0, 0.0, 0.25, 1.0])),
        arrays(np.bool_, (3, items)),
    )
)


def graded_scores(similarity, relevance):
    """Return `map10_multi` and `map16_multi` of all captions; nothing where none fits any recording."""
    return metrics.means(metrics.multi_text_to_audio(similarity, relevance)) if relevance.any() else {}


def audio_to_text_scores(similarity, query_recording, item_recording):
    """Return the scores of finding captions by their recording, of a whole matrix; it is not transposed."""
    metrics.check_finite(similarity)
    own = query_recording[None, :] == item_recording[:, None]
    return metrics.means(metrics.audio_to_text(metrics.tie_groups(similarity.T, own, metrics.DEPTH), own.sum(axis=1)))


def plain(ranking, relevant, k):
    """Score one list of relevance flags by the definition: AP@k over all relevant ones, R@k by the first."""
    precision = [sum(ranking[: place + 1]) / (place + 1) for place in range(min(k, len(ranking))) if ranking[place]]
    return sum(precision) / relevant, float(any(ranking[:k]))


def orders_of_ties(row, relevance):
    """Yield the relevance flags of every order that sorts a row."""
    for order in permutations(range(len(row))):
        if all(row[a] >= row[b] for a, b in pairwise(order)):
            yield [bool(relevance[item]) for item in order]


def expected(row, relevance, k):
    """Average over every order of ties."""
    found = [plain(flags, relevance.sum(), k) for flags in orders_of_ties(row, relevance)]
    return np.mean(found, axis=0)


@settings(max_examples=60, deadline=None)
@given(CASES, st.integers(1, 6))
def test_several_relevant_items_score_the_mean_over_all_orders_of_ties(case, k):
    similarity, relevance = case
    relevant = relevance.sum(axis=1)
    ties = metrics.tie_groups(similarity, relevance, 6)
    precision, recall = metrics.average_precision(ties, relevant, k), metrics.any_recall(ties, relevant, k)
    for query in range(3):
        if relevant[query]:
            wanted = expected(similarity[query], relevance[query], k)
            np.testing.assert_allclose([precision[query], recall[query]], wanted, atol=1e-12)
        else:
            assert np.isnan(precision[query]) and np.isnan(recall[query])


@settings(max_examples=60, deadline=None)
@given(CASES, st.integers(0, 4), st.integers(1, 6))
def test_one_relevant_item_scores_the_mean_over_all_orders_of_ties(case, column, k):
    similarity, _ = case
    assume(column < similarity.shape[1])
    better, tied = metrics.ranks(similarity, np.full(3, column))
    relevance = np.arange(similarity.shape[1]) == column
    for query in range(3):
        wanted = expected(similarity[query], relevance, k)
        found = metrics.reciprocal_rank(better, tied, k)[query], metrics.recall(better, tied, k)[query]
        np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_without_ties_scores_are_the_usual_ones():
    similarity = np.random.default_rng(0).normal(size=(50, 30)).astype(np.float32)
    own = np.random.default_rng(1).integers(30, size=50)
    rank = np.array([1 + list(np.argsort(-row)).index(item) for row, item in zip(similarity, own, strict=True)])
    items = np.arange(30) * 7 + 3
    assert metrics.retrieval_scores(similarity, items[own], items) == pytest.approx(
        {"map10": np.mean(np.where(rank <= 10, 1 / rank, 0))} | {f"r{k}": np.mean(rank <= k) for k in (1, 5, 10)}
    )


def test_what_says_the_same_of_everything_scores_what_chance_does():
    """With 1045 recordings: R@1 .00096, R@10 .0096, mAP@10 .0028."""
    own = np.repeat(np.arange(1045), 2)
    scores = metrics.retrieval_scores(np.zeros((2090, 1045), np.float32), own, np.arange(1045))
    assert scores == pytest.approx({"map10": 0.0028028, "r1": 1 / 1045, "r5": 5 / 1045, "r10": 10 / 1045}, rel=1e-4)


def test_scores_of_rounded_similarities_lie_between_the_best_and_the_worst_order():
    similarity = np.random.default_rng(2).normal(size=(200, 100)).astype(np.float32)
    similarity[np.arange(200), np.arange(200) // 2] += 2
    rounded, own = similarity.round(0), np.arange(200) // 2
    ends = []
    for sign in (1, -1):
        moved = rounded.copy()
        moved[np.arange(200), own] += sign * 0.1
        ends.append(metrics.retrieval_scores(moved, own, np.arange(100))["map10"])
    shuffled = np.mean(
        [
            metrics.retrieval_scores(rounded + random * 0.1, own, np.arange(100))["map10"]
            for random in np.random.default_rng(3).random((300, 200, 100))
        ]
    )
    found = metrics.retrieval_scores(rounded, own, np.arange(100))["map10"]
    assert ends[1] < found < ends[0]
    assert found == pytest.approx(shuffled, abs=0.005)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.booleans())
def test_scores_do_not_depend_on_the_order_of_items_or_queries(seed, rounded):
    random = np.random.default_rng(seed)
    similarity = random.normal(size=(12, 6)).astype(np.float32)
    similarity = similarity.round(0) if rounded else similarity
    own, items = np.repeat(np.arange(6), 2), np.arange(6)
    rows, columns = random.permutation(12), random.permutation(6)
    for score in (metrics.retrieval_scores, audio_to_text_scores):
        moved = score(similarity[rows][:, columns], own[rows], items[columns])
        assert moved == pytest.approx(score(similarity, own, items))


def test_audio_to_text_takes_the_best_caption_and_divides_by_all_of_them():
    # The first recording's captions come first, third and fourth; the second's only one comes last.
    similarity = np.array([[0.9, 0.8], [0.5, 0.7], [0.3, 0.6], [0.7, 0.1]], np.float32)
    own = np.array([0, 0, 0, 1])
    scores = audio_to_text_scores(similarity, own, np.array([0, 1]))
    first, second = (1 + 2 / 3 + 3 / 4) / 3, 1 / 4
    assert scores == pytest.approx({"a2t_map10": (first + second) / 2, "a2t_r1": 0.5, "a2t_r5": 1.0, "a2t_r10": 1.0})


def test_precision_is_over_all_relevant_items_also_where_they_are_more_than_the_depth():
    similarity = -np.arange(40, dtype=np.float32)[None]
    relevance = np.arange(40)[None] < 20
    assert graded_scores(similarity, relevance) == pytest.approx({"map10_multi": 0.5, "map16_multi": 0.8})


def test_captions_that_fit_no_recording_are_left_out():
    similarity = np.array([[0.9, 0.1], [0.2, 0.4]], np.float32)
    relevance = np.array([[False, True], [False, False]])
    assert graded_scores(similarity, relevance) == {"map10_multi": 0.5, "map16_multi": 0.5}
    assert graded_scores(similarity, np.zeros((2, 2), bool)) == {}


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([1, 2, 4, 5, 23]))
def test_groups_of_parts_merge_to_those_of_the_whole(seed, size):
    random = np.random.default_rng(seed)
    value, relevant = random.integers(-4, 5, (4, 23)).astype(np.float32), random.random((4, 23)) < 0.3
    whole = metrics.tie_groups(value, relevant, 4)
    parts = [
        metrics.tie_groups(value[:, start : start + size], relevant[:, start : start + size], 4)
        for start in range(0, 23, size)
    ]
    for name in ("value", "count", "relevant"):
        np.testing.assert_array_equal(getattr(metrics.merge(parts), name), getattr(whole, name))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_training_that_diverged_has_no_scores(bad):
    similarity = np.array([[0.1, bad]], np.float32)
    with pytest.raises(ValueError, match="diverged"):
        metrics.retrieval_scores(similarity, np.array([0]), np.array([0, 1]))
    with pytest.raises(ValueError, match="diverged"):
        audio_to_text_scores(similarity, np.array([0]), np.array([0, 1]))


@pytest.mark.parametrize(
    ("items", "reason"),
    [([1, 2], "not among"), ([1], "not among"), ([], "not among"), ([3, 3], "twice"), ([5, 3, 5], "twice")],
)
def test_every_caption_has_one_recording(items, reason):
    with pytest.raises(ValueError, match=reason):
        metrics.retrieval_scores(np.zeros((1, len(items)), np.float32), np.array([3]), np.array(items, np.int64))


def test_the_interval_covers_the_true_mean_of_clusters_that_agree():
    """Five captions of a recording score alike: the interval must be as wide as that of the recordings alone."""
    random, hits = np.random.default_rng(4), 0
    cluster = np.repeat(np.arange(60), 5)
    for trial in range(60):
        mean, low, high = numbers(metrics.bootstrap(np.repeat(random.normal(size=60), 5), cluster, 200, trial))
        hits += low <= 0 <= high
        assert low < mean < high
    assert 51 <= hits <= 60


def test_the_interval_is_that_of_the_normal_distribution_where_scores_are_many():
    values = np.random.default_rng(5).normal(1, 2, size=3000)
    mean, low, high = numbers(metrics.bootstrap(values, np.arange(3000), 2000, 0))
    error = values.std() / np.sqrt(3000)
    assert mean == pytest.approx(values.mean())
    assert (mean - low, high - mean) == pytest.approx((1.96 * error, 1.96 * error), rel=0.1)


def test_a_difference_of_like_scores_is_surer_than_its_parts():
    random = np.random.default_rng(6)
    cluster = np.repeat(np.arange(100), 5)
    a = random.random(500)
    b = a - 0.05 + random.normal(0, 0.01, 500)
    difference, low, high = numbers(metrics.bootstrap(a - b, cluster))
    assert difference == pytest.approx(np.mean(a - b)) and 0.04 < low < high < 0.06
    assert high - low < 0.2 * np.diff(numbers(metrics.bootstrap(a, cluster))[1:])[0]
    assert numbers(metrics.bootstrap(a - b, cluster)) == numbers(metrics.bootstrap(a - b, cluster))


def test_training_seeds_that_disagree_widen_the_interval():
    random = np.random.default_rng(7)
    a, cluster = random.random((3, 200)), np.arange(200)
    b = a - np.array([[0.2], [0.0], [-0.2]])
    mean, low, high = numbers(metrics.bootstrap(a - b, cluster))
    assert mean == pytest.approx(0) and low < -0.1 and high > 0.1


def test_queries_without_a_score_do_not_count():
    values = np.array([0.2, np.nan, 0.6, np.nan])
    mean, low, high = numbers(metrics.bootstrap(values, np.array([0, 0, 1, 1]), 500))
    assert mean == pytest.approx(0.4) and (low, high) == pytest.approx((0.2, 0.6))
    alike = numbers(metrics.bootstrap(np.array([0.6, 0.6, 0.6, np.nan]), np.arange(4)))  # few samples hold no score
    assert alike == pytest.approx((0.6, 0.6, 0.6))
    alone = numbers(metrics.bootstrap(np.array([0.6, np.nan, np.nan, np.nan]), np.arange(4)))  # three in ten hold none
    assert alone == pytest.approx((0.6, 0.6, 0.6))
