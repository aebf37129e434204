import numpy as np
import pytest

from retable.platform.errors import UserError
from retable.tasks.audio.tools.search import nearest


def units(rows, dimension, seed):
    vectors = np.random.default_rng(seed).normal(size=(rows, dimension)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def blocks(vectors):
    """Cut unevenly, an empty block among them."""
    return [vectors[:7], vectors[7:7], vectors[7:200], vectors[200:]]


def brute(vectors, queries, count):
    """Sort all scores, stably."""
    scores = queries.astype(np.float64) @ vectors.astype(np.float64).T
    order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(scores, order, 1), order


@pytest.mark.parametrize("kind", ["flat", "sq8", "hnsw", "ivf"])
def test_kinds_against_brute_force(kind, tmp_path):
    vectors, queries = units(1500, 24, 0), units(40, 24, 1)
    index = nearest.build(kind, blocks(vectors), 24)
    effort, recall = nearest.tune(index, blocks(vectors), queries)
    scores, numbers = nearest.nearest(index, blocks(vectors), queries, 10, effort)
    expected, order = brute(vectors, queries, 10)
    truth = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(numbers, order, strict=True)])
    assert recall == pytest.approx(truth, abs=1e-9) and recall >= 0.95
    assert (effort == 0) == (kind in ("flat", "sq8"))
    exact = np.einsum("qkd,qd->qk", vectors[numbers], queries)  # scores are those of the vectors themselves
    np.testing.assert_allclose(scores, exact, atol=1e-6)
    assert (np.diff(scores, axis=1) <= 0).all()
    if kind == "flat":
        assert recall == 1 and (numbers == order).all()
        np.testing.assert_allclose(scores, expected, atol=1e-6)
    size = nearest.write(index, tmp_path / "index.faiss")
    again = nearest.read(tmp_path / "index.faiss", size, 1500, 24)
    assert (nearest.nearest(again, blocks(vectors), queries, 10, effort)[1] == numbers).all()
    with pytest.raises(UserError, match="holds 1500 vectors of 24"):
        nearest.read(tmp_path / "index.faiss", size, 1499, 24)


@pytest.mark.parametrize("count", [1, 3, 200])
def test_exact_with_ties_and_too_few(count):
    vectors = np.repeat(units(30, 6, 2), 4, axis=0)  # every vector four times
    queries = units(5, 6, 3)
    scores, numbers = nearest.exact([vectors[:50], vectors[50:]], queries, count)
    there = min(count, 120)
    rounded = np.repeat(units(30, 6, 2), 1, axis=0)
    best = np.sort(queries @ rounded.T, axis=1)[:, ::-1]
    np.testing.assert_allclose(scores[:, :there], np.repeat(best, 4, axis=1)[:, :there], atol=1e-6)
    assert (numbers[:, there:] == -1).all() and np.isneginf(scores[:, there:]).all()
    for row in numbers[:, :there]:
        assert len(set(row.tolist())) == there


def test_an_untuned_index_says_its_recall():
    """Lists that are not looked into hide what lies in them."""
    vectors, queries = units(4000, 32, 4), units(50, 32, 5)
    index = nearest.build("ivf", [vectors], 32)
    truth = nearest.exact([vectors], queries, 10)
    found = [nearest.recall(index, [vectors], queries, truth, effort) for effort in (1, 8, index.nlist)]
    assert found[0] < found[1] < found[2] and found[2] > 0.97


def test_few_or_no_vectors():
    queries = units(3, 8, 6)
    for kind in ("flat", "sq8", "hnsw", "ivf"):
        index = nearest.build(kind, [units(1, 8, 7)], 8)
        effort, recall = nearest.tune(index, [units(1, 8, 7)], queries)
        assert recall == 1
        _, numbers = nearest.nearest(index, [units(1, 8, 7)], queries, 5, effort)
        assert (numbers[:, 0] == 0).all() and (numbers[:, 1:] == -1).all()


@pytest.mark.parametrize(("rows", "kind"), [(0, "flat"), (200_000, "flat"), (200_001, "ivf"), (2_700_000, "ivf")])
def test_size_chooses(rows, kind):
    assert nearest.choose(rows) == kind


@pytest.mark.parametrize("together", [10, 1000])
@pytest.mark.parametrize("values", [6, 1 << 20])
@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_the_largest_are_those_of_a_stable_sort(count, values, together, monkeypatch):
    """Of few different values, too, so that ties lie across the edge of what is wanted."""
    monkeypatch.setattr(nearest, "TOGETHER", together)
    for seed in range(20):
        lines = np.random.default_rng(seed).integers(0, values, (1 + seed % 4, 40)).astype(np.float32) / 8
        expected = np.argsort(-lines, axis=1, kind="stable")[:, :count]
        found, places = nearest._largest(lines, count)
        assert (places == expected).all() and (found == np.take_along_axis(lines, expected, 1)).all()


def test_many_queries_are_answered_in_parts(monkeypatch):
    """The same as all at once, and no more scores lie in memory than are allowed."""
    vectors, queries = units(300, 16, 8), units(23, 16, 9)
    whole = nearest.exact(blocks(vectors), queries, 5)
    sizes, plain = [], np.empty
    monkeypatch.setattr(nearest, "PRODUCTS", 1500)
    monkeypatch.setattr(np, "empty", lambda shape, *more: sizes.append(shape) or plain(shape, *more))
    scores, numbers = nearest.exact(blocks(vectors), queries, 5)
    assert (numbers == whole[1]).all() and np.allclose(scores, whole[0], atol=1e-6)
    assert sizes == [(5, 300)] * 4 + [(3, 300)]
