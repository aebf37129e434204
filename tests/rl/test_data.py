"""D4RL's files, the internal form and the batches, against naive loops."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retable.platform.errors import UserError
from retable.platform.storage import Storage
from retable.tasks.rl import data
from retable.tasks.rl.config import Config
from retable.tasks.rl.d4rl import read_d4rl, sha256
from retable.tasks.rl.metrics import D4RL

STATES, ACTIONS = 3, 2
Arrays = dict[str, Any]
Episodes = list[tuple[int, str]]
MIXED: Episodes = [(3, "terminal"), (1, "timeout"), (4, "timeout"), (1, "terminal"), (2, "both"), (3, "none")]


def make_arrays(episodes: Episodes, seed: int = 0) -> Arrays:
    """Random rows; each episode is (length, how it ends), `none` for a last one that the file's end cuts."""
    random = np.random.default_rng(seed)
    rows = sum(length for length, _ in episodes)
    last = np.cumsum([length for length, _ in episodes]) - 1
    terminals, timeouts = np.zeros(rows, bool), np.zeros(rows, bool)
    for row, (_, ending) in zip(last, episodes, strict=True):
        terminals[row], timeouts[row] = ending in ("terminal", "both"), ending in ("timeout", "both")
    return {
        "observations": random.normal(size=(rows, STATES)).astype(np.float32),
        "actions": random.uniform(-1, 1, (rows, ACTIONS)).astype(np.float32),
        "rewards": random.normal(size=rows).astype(np.float32),
        "terminals": terminals,
        "timeouts": timeouts,
        "next_observations": random.normal(size=(rows, STATES)).astype(np.float32),
    }


def write(path: Path, arrays: Mapping[str, Any], variant: str = "v2") -> Path:
    """Write arrays as D4RL does: v0 bare, v1 with infos and (N, 1) float64 columns, v2 with next_observations."""
    arrays = dict(arrays)
    if variant != "v2":
        arrays.pop("next_observations", None)
    if variant == "v1":
        arrays = {key: np.asarray(array, np.float64) for key, array in arrays.items()}
        arrays |= {key: arrays[key][:, None] for key in ("rewards", "terminals", "timeouts")}
        arrays["infos/qpos"] = np.zeros((len(arrays["rewards"]), 2))
        arrays["metadata/algorithm"] = "SAC"
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key, data=array)
    return path


def oracle(arrays: Arrays, successors: bool) -> tuple[dict[str, list[Any]], list[float]]:
    """Split into episodes and find successors row by row."""
    columns: dict[str, list[Any]] = {name: [] for name in data.COLUMNS}
    returns, total, step, episode, kept = [], 0.0, 0, 0, False
    rows = len(arrays["rewards"])
    for i in range(rows):
        terminal, timeout = bool(arrays["terminals"][i]), bool(arrays["timeouts"][i])
        total += float(arrays["rewards"][i])
        following = None
        if successors:
            following = arrays["next_observations"][i]
        elif terminal:
            following = arrays["observations"][i]
        elif not timeout and i + 1 < rows:
            following = arrays["observations"][i + 1]
        if following is not None:
            kept = True
            values = [arrays[key][i] for key in ("observations", "actions", "rewards")]
            values += [following, terminal, timeout, episode, step]
            for name, value in zip(data.COLUMNS, values, strict=True):
                columns[name].append(value)
        step += 1
        if terminal or timeout:
            returns.append(total)
            episode, step, total, kept = episode + kept, 0, 0.0, False
    return columns, returns


def assert_columns(found: Mapping[str, Any], expected: Mapping[str, list[Any]]) -> None:
    assert list(found) == list(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], np.array(values), err_msg=name)
    kinds = [found[name].dtype for name in data.COLUMNS]
    assert kinds == [np.float32] * 4 + [bool] * 2 + [np.int32] * 2


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.open(tmp_path / "storage")


@pytest.fixture
def converted(storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    monkeypatch.setattr(data, "PART", 5)
    data.convert(write(tmp_path / "mine.hdf5", make_arrays(MIXED)), storage, "Hopper", "mine")
    return data.folder(storage, "Hopper", "mine")


@pytest.mark.parametrize("variant", ["v0", "v1", "v2"])
def test_reads_all_versions_of_d4rl(tmp_path: Path, variant: str) -> None:
    arrays = make_arrays(MIXED)
    columns, returns = read_d4rl(write(tmp_path / "a.hdf5", arrays, variant))
    expected, expected_returns = oracle(arrays, variant == "v2")
    assert_columns(columns, expected)
    np.testing.assert_allclose(returns, expected_returns, rtol=1e-12)


def test_keeps_the_last_terminal_row_that_qlearning_dataset_drops(tmp_path: Path) -> None:
    arrays = make_arrays([(2, "timeout"), (2, "terminal")])
    columns, _ = read_d4rl(write(tmp_path / "a.hdf5", arrays, "v0"))
    assert columns["terminal"].tolist() == [False, False, True]
    np.testing.assert_array_equal(columns["observation"], arrays["observations"][[0, 2, 3]])
    np.testing.assert_array_equal(columns["next_observation"], arrays["observations"][[1, 3, 3]])
    assert columns["episode"].tolist() == [0, 1, 1] and columns["step"].tolist() == [0, 0, 1]


ending = st.tuples(st.integers(1, 5), st.sampled_from(["terminal", "timeout", "both"]))


@settings(max_examples=40, deadline=None)
@given(
    episodes=st.lists(ending, min_size=1, max_size=6), tail=st.integers(0, 3), variant=st.sampled_from(["v0", "v1", "v2"])
)
def test_converted_columns_are_the_naive_ones(episodes: Episodes, tail: int, variant: str) -> None:
    arrays = make_arrays([*episodes, (tail, "none")] if tail else episodes)
    expected, returns = oracle(arrays, variant == "v2")
    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "PART", 4)
        path, storage = write(Path(scratch) / "a.hdf5", arrays, variant), Storage.open(scratch)
        if not expected["step"]:
            with pytest.raises(UserError, match="no row has a successor"):
                data.convert(path, storage, "Hopper", "mine")
            return
        info, where = data.convert(path, storage, "Hopper", "mine"), data.folder(storage, "Hopper", "mine")
        assert_columns(data.columns(where), expected)
        assert data.check(where) == [] and data.provenance(where) == info
    assert info["behaviour_return"] == pytest.approx(np.mean(returns)) and info["complete_episodes"] == len(returns)
    assert info["transitions"] == len(expected["step"]) and info["episodes"] == len(set(expected["episode"]))
    assert info["parts"] == -(-info["transitions"] // 4)


def set_row(key: str, value: float) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        arrays[key] = arrays[key].astype(np.float64)
        arrays[key][2] = value

    return change


def set_key(key: str, value: Any) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.update({key: value(arrays[key]) if callable(value) else value})


def no_end(arrays: Arrays) -> None:
    arrays.update(terminals=np.zeros(14, bool), timeouts=np.zeros(14, bool))


def no_rows(arrays: Arrays) -> None:
    arrays.update({key: array[:0] for key, array in arrays.items()})


@pytest.mark.parametrize(("change", "key", "what"), [
    *[(lambda a, key=key: a.pop(key), key, "missing") for key in list(make_arrays(MIXED))[:5]],
    (set_key("observations", lambda a: a[:, 0]), "observations", "shape"),
    (set_key("observations", lambda a: a[:, :0]), "observations", "shape"),
    (set_key("observations", np.float32(1)), "observations", "shape"),
    (set_key("rewards", lambda a: np.stack([a, a], 1)), "rewards", "shape"),
    (set_key("actions", lambda a: a[:-1]), "actions", "13 rows"),
    (set_key("terminals", lambda a: a[:-2]), "terminals", "12 rows"),
    (set_key("next_observations", lambda a: a[:, :2]), "next_observations", "shaped"),
    (set_key("actions", "text"), "actions", "numbers"),
    (set_row("observations", np.nan), "observations", "row 2"),
    (set_row("next_observations", np.inf), "next_observations", "row 2"),
    (set_row("rewards", 1e300), "rewards", "row 2"),
    (set_row("terminals", np.nan), "terminals", "row 2"),
    (set_row("actions", 1.002), "actions", "row 2"),
    (no_end, "terminals", "end no episode"),
    (no_rows, "observations", "no rows"),
])  # fmt: skip
def test_refuses_bad_files_in_one_line(tmp_path: Path, change: Callable[[Arrays], None], key: str, what: str) -> None:
    arrays = make_arrays(MIXED)
    change(arrays)
    path = write(tmp_path / "bad.hdf5", arrays)
    with pytest.raises(UserError) as caught:
        read_d4rl(path)
    line = str(caught.value)
    assert "\n" not in line and str(path) in line and f"'{key}'" in line and what in line and "; " in line
    assert data.check(path)[0] == line


def test_check_reports_every_defect_of_a_file(tmp_path: Path) -> None:
    arrays = make_arrays(MIXED)
    for key in ("actions", "rewards"):
        set_row(key, np.nan)(arrays)
    assert len(data.check(write(tmp_path / "bad.hdf5", arrays))) == 2
    assert data.check(write(tmp_path / "good.hdf5", make_arrays(MIXED))) == []


def test_accepts_actions_a_rounding_error_beyond_one(tmp_path: Path) -> None:
    arrays = make_arrays(MIXED)
    set_row("actions", 1.0005)(arrays)
    assert read_d4rl(write(tmp_path / "a.hdf5", arrays))[0]["action"].max() > 1


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-500])


def link(path: Path, target: Any) -> None:
    with h5py.File(path, "r+") as file:
        del file["rewards"]
        file["rewards"] = target


def other_file(path: Path) -> str:
    return str(write(path.with_name("other.hdf5"), make_arrays(MIXED)))


def virtual(path: Path) -> None:
    layout = h5py.VirtualLayout(shape=(14,), dtype="f4")
    layout[:] = h5py.VirtualSource(other_file(path), "rewards", shape=(14,))
    with h5py.File(path, "r+") as file:
        del file["rewards"]
        file.create_virtual_dataset("rewards", layout)


def external(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["rewards"]
        file.create_dataset("rewards", (14,), "f4", external=[(other_file(path), 0, 56)])


@pytest.mark.parametrize(("damage", "what"), [
    (Path.unlink, "no such file"),
    (truncate, "truncated"),
    (lambda path: path.write_bytes(b""), "not a readable HDF5 file"),
    (lambda path: path.write_text("observation,action\n"), "not a readable HDF5 file"),
    (lambda path: link(path, h5py.ExternalLink(other_file(path), "rewards")), "link to elsewhere"),
    (lambda path: link(path, h5py.SoftLink("/actions")), "link to elsewhere"),
    (virtual, "in another file"),
    (external, "in another file"),
])  # fmt: skip
def test_refuses_broken_foreign_and_linked_files(tmp_path: Path, damage: Callable[[Path], Any], what: str) -> None:
    path = write(tmp_path / "a.hdf5", make_arrays(MIXED))
    damage(path)
    with pytest.raises(UserError, match=what) as caught:
        read_d4rl(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    assert data.check(path) == [str(caught.value)]


def test_only_a_published_file_becomes_d4rl(tmp_path: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "hopper_expert-v2.hdf5", make_arrays(MIXED))
    with pytest.raises(UserError, match="the contents differ"):
        data.convert(path, storage)
    assert "download it again" in data.check(path)[0]
    (published,) = [file for file in D4RL["files"].values() if file["url"].endswith("/" + path.name)]
    monkeypatch.setitem(D4RL["files"], sha256(path), published)
    info = data.convert(path, storage)
    assert (info["source"], info["environment"], info["name"]) == ("d4rl", "Hopper", "d4rl-expert-v2")
    assert info["files"] == {path.name: sha256(path)} and info["generated"] is False
    assert data.check(path) == data.check(data.folder(storage, "Hopper", "d4rl-expert-v2")) == []
    for wrong in ({"environment": "Walker2d"}, {"name": "d4rl-medium-v2"}):
        with pytest.raises(UserError, match="this is D4RL's"):
            data.convert(path, storage, **wrong)


@pytest.mark.parametrize(("environment", "name", "what"), [
    (None, "mine", "give its environment"), ("Hopper", None, "and a name"), ("Hopper", "d4rl-expert-v2", "kept for"),
    ("Hopper", "recorded", "kept for"), ("Hopper", "../x", "cannot name"), ("a/b", "mine", "cannot name"),
])  # fmt: skip
def test_other_files_need_a_name_of_their_own(
    tmp_path: Path, storage: Storage, environment: str | None, name: str | None, what: str
) -> None:
    with pytest.raises(UserError, match=what):
        data.convert(write(tmp_path / "a.hdf5", make_arrays(MIXED)), storage, environment, name)
    assert not storage.exists("data")


def test_lists_d4rl_files_once_each() -> None:
    files = list(D4RL["files"].values())
    assert len({(file["environment"], file["name"]) for file in files}) == len({file["url"] for file in files}) == 51
    expert = {file["environment"]: file["bytes"] for file in files if file["name"] == "d4rl-expert-v2"}
    assert expert == {"HalfCheetah": 237_464_597, "Hopper": 152_427_435, "Walker2d": 230_567_195}
    assert {name.rsplit("-", 1)[1] for name in {file["name"] for file in files}} == {"v0", "v1", "v2"}


def test_digest_is_of_the_parts_and_repeatable(converted: Storage, tmp_path: Path) -> None:
    parts = [name for name in converted.list() if name.endswith(".parquet")]
    joined = b"".join(converted.read(name) for name in parts)
    info = data.provenance(converted)
    assert info["parts"] == len(parts) == 3 and info["digest"] == hashlib.sha256(joined).hexdigest()
    again = data.convert(tmp_path / "mine.hdf5", Storage.open(tmp_path / "other"), "Hopper", "mine")
    assert again == info


def test_a_half_written_set_is_not_seen(converted: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Storage.write

    def failing(self: Storage, path: str, content: bytes | str) -> None:
        if path == "part-00001.parquet":
            raise UserError("the disk is full")
        plain(self, path, content)

    monkeypatch.setattr(Storage, "write", failing)
    with pytest.raises(UserError, match="disk is full"):
        data.convert(tmp_path / "mine.hdf5", Storage.open(tmp_path / "storage"), "Hopper", "mine")
    assert converted.list() == ["part-00000.parquet"]
    with pytest.raises(UserError, match=r"no finished data set here \(no dataset.json\)"):
        data.columns(converted)
    assert len(data.check(converted)) == 1


def change_part(where: Storage, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change the second part and make the digest fit."""
    path = Path(where.root) / "part-00001.parquet"
    pq.write_table(change(pq.read_table(path)), path)
    info = where.read_json("dataset.json")
    parts = b"".join(where.read(name) for name in where.list() if name.endswith(".parquet"))
    where.write_json("dataset.json", {**info, "digest": hashlib.sha256(parts).hexdigest()})


def replaced(name: str, change: Callable[[Any], Any]) -> Callable[[pa.Table], pa.Table]:
    def apply(table: pa.Table) -> pa.Table:
        field = table.schema.field(name)
        values = pa.array(change(table[name].to_pylist()), field.type)
        return table.set_column(table.schema.names.index(name), field, values)

    return apply


@pytest.mark.parametrize(("change", "what"), [
    (lambda table: table.slice(1), "13 rows, dataset.json says 14"),
    (lambda table: table.drop_columns(["reward"]), "no column 'reward' of float"),
    (lambda table: table.set_column(2, "reward", table["reward"].cast("double")), "no column 'reward' of float"),
    (replaced("reward", lambda values: [np.nan, *values[1:]]), "column 'reward' has NaN"),
    (replaced("observation", lambda values: [None, *values[1:]]), "empty values in column 'observation'"),
    (replaced("action", lambda values: [[2.0, 0.0], *values[1:]]), "column 'action' leaves"),
    (replaced("episode", lambda values: [value + 1 for value in values]), "column 'episode'"),
    (replaced("step", lambda values: [*values[:2], 7, *values[3:]]), "column 'step'"),
    (replaced("timeout", lambda values: [True for _ in values]), "an episode goes on after its end"),
])  # fmt: skip
def test_check_finds_defects_of_parts(converted: Storage, change: Callable[[pa.Table], pa.Table], what: str) -> None:
    change_part(converted, change)
    lines = data.check(converted)
    assert any(what in line for line in lines), lines
    assert all(converted.root in line and "\n" not in line for line in lines)
    assert not any("digest" in line for line in lines)
    assert data.check(Path(converted.root)) == lines


def test_check_finds_foreign_parts_and_provenance(converted: Storage) -> None:
    info = converted.read_json("dataset.json")
    converted.write_json("dataset.json", {**info, "digest": "0"})
    assert ["digest" in line for line in data.check(converted)] == [True]
    for key in data.PROVENANCE:
        converted.write_json("dataset.json", {name: value for name, value in info.items() if name != key})
        assert [f"'{key}'" in line for line in data.check(converted)] == [True]
    converted.write("dataset.json", "[]")
    assert ["'source'" in line for line in data.check(converted)] == [True]
    converted.write_json("dataset.json", info)
    converted.write("part-00002.parquet", b"PAR1")
    assert ["part-00002.parquet cannot be read" in line for line in data.check(converted)] == [True]
    converted.remove("part-00002.parquet")
    assert ["part-00002.parquet is missing" in line for line in data.check(converted)] == [True]


def opened(*seeds: int, batch: int = 6, updates: int = 230) -> tuple[data.Transitions, Arrays]:
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
    configs = [Config(seed=seed, batch=batch, updates=updates) for seed in seeds]
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


def test_a_batch_that_cannot_be_shared_is_refused_at_once() -> None:
    with pytest.raises(UserError, match="batch 6 cannot be shared by 4 workers"):
        opened(0)[0].batches(0, 0, 0, 4)
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


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]))
        ours = not ray.is_initialized()
        if ours:
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield
        if ours:
            ray.shutdown()


# Ray warns of its own defaults when it makes its first DataContext.
@pytest.mark.filterwarnings("ignore:`use_\\w+` is deprecated:DeprecationWarning")
@pytest.mark.usefixtures("ray_cluster")
def test_ray_reads_the_columns_in_order(converted: Storage) -> None:
    import ray

    before = ray.data.DataContext.get_current().execution_options.preserve_order
    dataset = data.read(converted)
    tables = ray.get(dataset.to_arrow_refs())
    found = data.arrays(pa.concat_tables(tables).combine_chunks())
    expected = data.columns(converted)
    assert_columns(found, {name: list(column) for name, column in expected.items()})
    assert ray.data.DataContext.get_current().execution_options.preserve_order == before
    converted.remove("dataset.json")
    with pytest.raises(UserError, match="no finished data set"):
        data.read(converted)


def test_provenance_is_plain_json(converted: Storage) -> None:
    info = json.loads((Path(converted.root) / "dataset.json").read_text())
    assert info["simulator"] == "unknown" and info["source"] == "file" and info["max_action"] == 1.0
    assert set(info["versions"]) == {"h5py", "numpy", "pyarrow"} and list(info["files"]) == ["mine.hdf5"]
    assert info["behaviour_score"] == pytest.approx(100 * (info["behaviour_return"] + 20.272305) / 3254.572305)
