"""Batches: a function of seed, epoch and step, however they are resumed or shared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import pytest
import torch

from retable.platform.errors import UserError
from retable.platform.spec.task import Source
from retable.platform.store.storage import Storage
from retable.tasks.rl import data
from retable.tasks.rl.config import Config
from tests.rl.d4rl_files import ACTIONS, STATES, Arrays

States = Literal["raw", "standardized"]


def opened(*seeds: int, updates: int = 230, states: States = "raw") -> tuple[data.Transitions, Arrays]:
    """Transitions over read-only columns, as they come from shared memory, whose rows can be told apart."""
    rows = 50
    columns: Arrays = {
        "observation": np.arange(rows * STATES, dtype=np.float32).reshape(rows, STATES),
        "action": np.linspace(-1, 1, rows * ACTIONS, dtype=np.float32).reshape(rows, ACTIONS),
        "reward": np.arange(rows, dtype=np.float32),
        "next_observation": np.arange(rows * STATES, dtype=np.float32).reshape(rows, STATES) + 0.5,
        "terminal": np.arange(rows) % 5 == 0,
        "timeout": np.arange(rows) % 7 == 0,
    }
    for column in columns.values():
        column.setflags(write=False)
    info = {"states": STATES, "actions": ACTIONS, "max_action": 1.0}
    configs = [Config(seed=seed, batch=6, steps=updates, states=states) for seed in seeds]
    return data.Transitions(columns, info, configs), columns


def assert_equal(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> None:
    assert list(one) == list(other)
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=0)


def test_batches_are_whole_rows_of_the_columns() -> None:
    transitions, columns = opened(0, 3, 0)
    batches = list(transitions.batches(0, 0, 0, 1))
    assert len(batches) == transitions.steps == 230
    assert (transitions.states, transitions.actions, transitions.max_action) == (STATES, ACTIONS, 1.0)
    shapes = {"observation": STATES, "action": ACTIONS, "reward": 1, "next_observation": STATES, "not_done": 1}
    seen = set()
    for batch in batches:
        assert {name: tensor.shape for name, tensor in batch.items()} == {k: (3, 6, n) for k, n in shapes.items()}
        assert {tensor.dtype for tensor in batch.values()} == {torch.float32}
        rows = batch["reward"][..., 0].long().numpy()
        for name in ("observation", "action", "next_observation"):
            np.testing.assert_array_equal(batch[name].numpy(), columns[name][rows])
        np.testing.assert_array_equal(batch["not_done"][..., 0].numpy(), rows % 5 != 0)  # a timeout is no terminal
        np.testing.assert_array_equal(rows[0], rows[2])
        seen.update(rows[0].tolist())
    assert seen == set(range(50))
    assert any(len(set(batch["reward"][0, :, 0].tolist())) < 6 for batch in batches), "drawn with replacement"


def test_batches_depend_on_seed_and_epoch_alone() -> None:
    def rewards(transitions: data.Transitions, epoch: int) -> torch.Tensor:
        return torch.stack([batch["reward"] for batch in transitions.batches(epoch, 0, 0, 1)])

    both, alone = opened(5, 2)[0], opened(2)[0]
    torch.testing.assert_close(rewards(both, 1)[:, 1:], rewards(alone, 1), rtol=0, atol=0)
    torch.testing.assert_close(rewards(alone, 1), rewards(opened(2)[0], 1), rtol=0, atol=0)
    different = [rewards(alone, 1), rewards(alone, 2), rewards(both, 1)[:, :1], rewards(alone, 0)]
    assert len({tensor.numpy().tobytes() for tensor in different}) == 4
    blocks = rewards(alone, 0)
    assert not torch.equal(blocks[:100], blocks[100:200])


@pytest.mark.parametrize("start", [0, 1, 99, 100, 217, 229, 230])
def test_resumed_batches_are_the_tail(start: int) -> None:
    transitions, _ = opened(1, 2)
    whole, tail = list(transitions.batches(3, 0, 0, 1)), list(transitions.batches(3, start, 0, 1))
    assert len(tail) == 230 - start
    for one, other in zip(whole[start:], tail, strict=True):
        assert_equal(one, other)


@pytest.mark.parametrize("world", [2, 3, 6])
def test_ranks_joined_are_the_batch_of_one_worker(world: int) -> None:
    transitions, _ = opened(1, 2, updates=5)
    ranks = zip(*[transitions.batches(0, 1, rank, world) for rank in range(world)], strict=True)
    for whole, shares in zip(transitions.batches(0, 1, 0, 1), ranks, strict=True):
        assert_equal(whole, {name: torch.cat([share[name] for share in shares], 1) for name in whole})


def test_members_of_other_batches_cannot_train_together() -> None:
    with pytest.raises(ValueError, match="equal `batch`"):
        data.Transitions({}, {}, [Config(batch=1), Config(batch=2)])


def test_pruning_samples_have_their_own_stream() -> None:
    transitions, columns = opened(4, 9)
    sample = transitions.sample(1, 6)
    assert_equal(sample, transitions.sample(1, 6))
    assert_equal(sample, opened(9)[0].sample(0, 6))
    assert sample["observation"].shape == (6, STATES) and sample["not_done"].shape == (6, 1)
    np.testing.assert_array_equal(sample["action"].numpy(), columns["action"][sample["reward"][:, 0].long()])
    assert not torch.equal(sample["reward"], transitions.sample(0, 6)["reward"])
    assert not any(torch.equal(sample["reward"], batch["reward"][1]) for batch in transitions.batches(0, 0, 0, 1))


@pytest.mark.parametrize("seeds", [(0,), (0, 1), (0, 0)])
def test_shared_columns_never_reach_torch(seeds: tuple[int, ...]) -> None:
    transitions, columns = opened(*seeds)
    before = {name: column.copy() for name, column in columns.items()}
    for batch in [*transitions.batches(0, 220, 0, 1), transitions.sample(0, 50)]:
        for tensor in batch.values():
            tensor.fill_(-7)
    for name, column in columns.items():
        np.testing.assert_array_equal(column, before[name])


def open_as(environment: str, recorded: str, sizes: tuple[int, int]) -> data.Transitions:
    """Open data of an environment that were recorded in a version of it."""
    info = {"simulator": recorded, "states": sizes[0], "actions": sizes[1], "max_action": 1.0}
    config = Config(environment=environment, data="mine", states="raw")
    return data.open_transitions({}, Source(Storage.open("."), info), [config])


@pytest.mark.parametrize(("recorded", "played"), [("v2", "v4"), ("v4", "v4"), ("v5", "v5"), ("unknown", "v5")])
def test_policies_are_played_in_the_simulator_of_the_data(recorded: str, played: str) -> None:
    assert open_as("Hopper", recorded, (11, 3)).states == 11
    assert data.simulator("Hopper", {"simulator": recorded}) == f"Hopper-{played}"


def test_data_of_other_sizes_than_the_simulators_are_refused_before_training() -> None:
    """Ant has 27 observations in v4 and 105 in v5, which the sizes tell where the data do not."""
    assert open_as("Ant", "unknown", (105, 8)).states == 105
    assert open_as("Ant", "v2", (27, 8)).states == 27
    with pytest.raises(UserError, match=r"Ant-v4 has \(27, 8\) observations and actions, data 'mine' \(105, 8\)"):
        open_as("Ant", "v4", (105, 8))
    with pytest.raises(UserError, match="did you mean 'Hopper-v5'"):
        open_as("Hoper", "unknown", (11, 3))
