"""Votes, means and choices against loops over members, and the memory they need."""

from __future__ import annotations

import dataclasses
import tracemalloc
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest

from retable.platform.errors import UserError
from retable.tasks.weather.combine import (
    Member,
    best_by_test,
    best_by_validation,
    majority_vote,
    mean_probability,
)
from retable.tasks.weather.config import View

SHARD = "test/2019/boxi_0015"
ALL = (majority_vote, mean_probability, best_by_test, best_by_validation)


@dataclass
class Made:
    """A member made of a seed when asked, as if read from a disk."""

    label: str = "a member"
    seed: int = 0
    shape: tuple[int, ...] = (2, 3, 6, 6)
    view: View = field(default_factory=View)
    metrics: Mapping[str, float] = field(default_factory=dict)
    loads: int = 0

    def load(self) -> Mapping[str, np.ndarray]:
        self.loads += 1
        return {"probability": np.random.default_rng(self.seed).integers(0, 201, self.shape, dtype=np.uint8)}


def several(number: int, thresholds: tuple[float, ...] = (0.5,)) -> list[Made]:
    return [
        Made(
            label=f"member {k}",
            seed=k,
            view=View(threshold=thresholds[k % len(thresholds)]),
            metrics={"iou/2019/boxi_0015": 0.1 * (k % 3), "validation_iou/2019/boxi_0015": 0.5 - 0.01 * k},
        )
        for k in range(number)
    ]


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 50])
def test_majority_vote_is_a_count_of_votes(number: int) -> None:
    members = several(number, thresholds=(0.5, 0.2, 0.7))
    found = majority_vote(SHARD, members)["probability"]
    assert found.dtype == np.uint8
    loaded = [member.load()["probability"] for member in members]
    for where in np.ndindex(found.shape):
        votes = sum(int(s[where]) >= round(200 * m.view.threshold) for s, m in zip(loaded, members, strict=True))
        assert found[where] == 200 * votes // number
        assert (found[where] >= 100) == (2 * votes >= number)  # the authors': floor(mean + 0.5), a tie is rain


def test_a_tie_is_rain_and_every_number_of_members_keeps_the_majority() -> None:
    for number in (2, 3, 36, 254, 255):
        members = [
            Made(shape=(1, 1, 1, 1), view=View(threshold=0.005 if k < number // 2 else 0.995)) for k in range(number)
        ]
        found = majority_vote(SHARD, members)["probability"].item()
        assert (found >= 100) == (number % 2 == 0)


@pytest.mark.parametrize("number", [1, 2, 3, 7, 50])
def test_mean_probability_is_numpys_rounded_down(number: int) -> None:
    members = several(number)
    found = mean_probability(SHARD, members)["probability"]
    assert found.dtype == np.uint8
    loaded = np.stack([member.load()["probability"] for member in members]).astype(int)
    np.testing.assert_array_equal(found, loaded.sum(axis=0) // number)


def test_the_mean_of_certain_forecasts_stays_certain() -> None:
    class Certain(Made):
        def load(self) -> Mapping[str, np.ndarray]:
            return {"probability": np.full(self.shape, 200, np.uint8)}

    assert (mean_probability(SHARD, [Certain()] * 327)["probability"] == 200).all()
    assert (majority_vote(SHARD, [Certain()] * 255)["probability"] == 200).all()
    for combine, number in ((mean_probability, 328), (majority_vote, 256)):
        with pytest.raises(ValueError, match=str(number)):
            combine(SHARD, [Certain()] * number)


@pytest.mark.parametrize(("combine", "chosen"), [(best_by_test, 2), (best_by_validation, 0)])
def test_the_best_member_forecasts_alone_by_its_own_threshold(combine, chosen: int) -> None:
    members = several(6, thresholds=(0.3, 0.5, 0.65))  # test scores 0, .1, .2, 0, .1, .2: the first of two is taken
    found = combine(SHARD, members)["probability"]
    assert [member.loads for member in members] == [int(k == chosen) for k in range(6)]
    steps, threshold = members[chosen].load()["probability"], (0.3, 0.5, 0.65)[chosen]
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, np.where(steps >= round(200 * threshold), 200, 0))


def test_the_choice_differs_by_shard() -> None:
    first, second = several(2)
    first.metrics = {"iou/2019/a": 0.3, "iou/2020/a": 0.1}
    second.metrics = {"iou/2019/a": 0.2, "iou/2020/a": 0.2}
    best_by_test("test/2019/a", [first, second])
    assert (first.loads, second.loads) == (1, 0)
    best_by_test("test/2020/a", [first, second])
    assert (first.loads, second.loads) == (1, 1)


@pytest.mark.parametrize("combine", [majority_vote, best_by_test, best_by_validation])
@pytest.mark.parametrize("threshold", ["tuned", "tuned_per_region"])
def test_tuned_thresholds_cannot_vote(combine, threshold) -> None:
    members = several(3)
    members[1].view = dataclasses.replace(members[1].view, threshold=threshold)
    with pytest.raises(UserError, match=f"member 1.*'{threshold}'"):
        combine(SHARD, members)
    assert mean_probability(SHARD, members)["probability"].any()


@pytest.mark.parametrize("combine", [best_by_test, best_by_validation])
def test_a_missing_score_is_named(combine) -> None:
    members = several(3)
    members[2].metrics = {"iou": 0.4}
    with pytest.raises(UserError, match=r"member 2.*iou/2019/boxi_0015"):
        combine(SHARD, members)


@pytest.mark.parametrize("combine", [majority_vote, mean_probability])
def test_unlike_members_are_named(combine) -> None:
    members: list[Member] = [*several(2), Made(label="half as long", shape=(2, 1, 6, 6))]
    with pytest.raises(UserError, match="half as long"):
        combine(SHARD, members)


@pytest.mark.parametrize("combine", ALL)
def test_no_members_are_refused(combine) -> None:
    with pytest.raises(ValueError, match="no members"):
        combine(SHARD, [])


@pytest.mark.parametrize("combine", ALL)
def test_memory_is_that_of_a_few_members(combine) -> None:
    members = several(20, thresholds=(0.5, 0.3))
    for member in members:
        member.shape = (12, 32, 84, 84)
    tracemalloc.start()
    combine(SHARD, members)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * np.prod(members[0].shape)
