"""The ensemble is the mean of cosines, member by member."""

from dataclasses import dataclass

import numpy as np
import pytest

from retable.platform.errors import UserError
from retable.tasks.audio.combine import mean_similarity
from retable.tasks.audio.metrics import retrieval_scores


@dataclass
class Member:
    similarity: np.ndarray
    label: str = "one"

    def load(self):
        return {"similarity": self.similarity}


def test_each_member_counts_alike():
    parts = np.random.default_rng(0).normal(size=(8, 5, 7)).astype(np.float32)
    joined = mean_similarity("test/00000", [Member(part) for part in parts])
    assert joined["similarity"].dtype == np.float32
    np.testing.assert_allclose(joined["similarity"], parts.mean(axis=0, dtype=np.float64), rtol=1e-6)


def test_a_member_alone_is_itself_and_members_are_left_as_they_were():
    part = np.random.default_rng(1).normal(size=(5, 7)).astype(np.float32)
    kept = part.copy()
    np.testing.assert_array_equal(mean_similarity("test/00000", [Member(part)])["similarity"], part)
    mean_similarity("test/00000", [Member(part), Member(part)])
    np.testing.assert_array_equal(part, kept)


def test_members_whose_errors_differ_are_better_together():
    random = np.random.default_rng(2)
    truth = np.eye(100, dtype=np.float32)
    members = [Member(truth + random.normal(0, 0.5, truth.shape).astype(np.float32)) for _ in range(4)]
    items = np.arange(100)

    def score(some):
        return retrieval_scores(mean_similarity("test/00000", some)["similarity"], items, items)["map10"]

    assert score(members) > max(score([member]) for member in members) + 0.1


def test_members_of_other_recordings_are_refused():
    members = [Member(np.zeros((2, 3), np.float32)), Member(np.zeros((2, 4), np.float32), "other")]
    with pytest.raises(UserError, match=r"row 'other': similarities \(2, 4\), the others \(2, 3\)"):
        mean_similarity("test/00000", members)
    with pytest.raises(ValueError, match="no members"):
        mean_similarity("test/00000", [])
