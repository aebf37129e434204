"""The internal form: converted against a naive loop, checked, and read with and without Ray."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retable.platform.errors import UserError
from retable.platform.store.run import file_digest
from retable.platform.store.storage import Storage
from retable.tasks.rl import data
from retable.tasks.rl.cli import check
from retable.tasks.rl.metrics import D4RL
from retable.tasks.rl.recordings.d4rl import published_as
from tests.rl.d4rl_files import MIXED, Episodes, assert_columns, make_arrays, oracle, write


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.open(tmp_path / "storage")


@pytest.fixture
def converted(storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    monkeypatch.setattr(data, "PART", 5)
    data.convert(write(tmp_path / "mine.hdf5", make_arrays(MIXED)), storage, "Hopper", "mine")
    return data.folder(storage, "Hopper", "mine")


ending = st.tuples(st.integers(1, 5), st.sampled_from(["terminal", "timeout", "both"]))


@settings(max_examples=20, deadline=None)
@given(
    episodes=st.lists(ending, min_size=1, max_size=6),
    tail=st.integers(0, 3),
    variant=st.sampled_from(["v0", "v1", "v2"]),
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
        assert_columns(data.read(where), expected)
        assert data.check(where) == [] and data.provenance(where) == info
    assert info["behaviour_return"] == pytest.approx(np.mean(returns)) and info["complete_episodes"] == len(returns)
    assert info["transitions"] == len(expected["step"]) and info["episodes"] == len(set(expected["episode"]))
    assert info["parts"] == -(-info["transitions"] // 4)


@pytest.mark.parametrize("option", [{"env": "Nonsense"}, {"simulator": "v99"}])
def test_an_environment_is_asked_of_files_alone(converted: Storage, option: dict[str, str]) -> None:
    for path in (None, str(converted)):
        with pytest.raises(UserError, match=rf"--{next(iter(option))}: only a .hdf5 file or a Minari folder takes it"):
            check(path, **option)


def test_the_command_checks_a_folder_and_passes_over_stray_files(
    converted: Storage, storage: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    check(converted.root, storage=storage.root)
    storage.write("data/rl/.DS_Store", b"")
    storage.write("data/rl/Hopper/.DS_Store", b"")
    storage.write("data/rl/notes.txt", b"")
    check(storage=storage.root)
    assert converted.root in capsys.readouterr().out.replace("\n", "")


def test_only_a_published_file_becomes_d4rl(tmp_path: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "hopper_expert-v2.hdf5", make_arrays(MIXED))
    with pytest.raises(UserError, match="the contents differ"):
        data.convert(path, storage)
    assert "download it again" in data.check(path)[0]
    (published,) = [file for file in D4RL["files"].values() if file["url"].endswith("/" + path.name)]
    assert published_as(path) == "not one of D4RL's files"
    monkeypatch.setitem(D4RL["files"], file_digest(path), published)
    assert published_as(path) == "D4RL's Hopper expert-v2"
    info = data.convert(path, storage)
    assert (info["source"], info["environment"], info["name"]) == ("d4rl", "Hopper", "d4rl-expert-v2")
    assert info["files"] == {path.name: file_digest(path)} and info["generated"] is False
    assert data.check(path) == data.check(data.folder(storage, "Hopper", "d4rl-expert-v2")) == []
    for wrong in ({"environment": "Walker2d"}, {"name": "d4rl-medium-v2"}):
        with pytest.raises(UserError, match="this is D4RL's"):
            data.convert(path, storage, **wrong)


@pytest.mark.parametrize(("environment", "name", "what"), [
    (None, "mine", "give its environment"), ("Hopper", None, "and a name"), ("Hopper", "d4rl-expert-v2", "kept for"),
    ("Hopper", "recorded", "kept for"), ("Hopper", "mixed", "kept for"),
    ("Hopper", "../x", "cannot name"), ("a/b", "mine", "cannot name"),
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
        data.convert(tmp_path / "mine.hdf5", Storage.open(tmp_path / "storage"), "Hopper", "mine", replace=True)
    assert converted.list() == ["part-00000.parquet"]
    with pytest.raises(UserError, match=r"no finished data set here \(no dataset.json\)"):
        data.read(converted)
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
    (replaced("action", lambda values: [[2.0, 0.0, 0.0], *values[1:]]), "column 'action' leaves"),
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
    assert ["a list, not an object" in line for line in data.check(converted)] == [True]
    converted.write_json("dataset.json", info)
    converted.write("part-00002.parquet", b"PAR1")
    assert ["part-00002.parquet cannot be read" in line for line in data.check(converted)] == [True]
    converted.remove("part-00002.parquet")
    assert ["part-00002.parquet is missing" in line for line in data.check(converted)] == [True]


def test_an_unfinished_set_is_not_read(converted: Storage) -> None:
    converted.remove("dataset.json")
    with pytest.raises(UserError, match="no finished data set"):
        data.read(converted)


def test_provenance_is_plain_json(converted: Storage) -> None:
    info = json.loads((Path(converted.root) / "dataset.json").read_text())
    assert info["simulator"] == "unknown" and info["source"] == "file" and info["max_action"] == 1.0
    assert set(info["versions"]) == {"h5py", "numpy", "pyarrow"} and list(info["files"]) == ["mine.hdf5"]
    assert info["behaviour_score"] == pytest.approx(100 * (info["behaviour_return"] + 20.272305) / 3254.572305)


def test_a_file_that_does_not_say_its_simulator_can_be_told_it(storage: Storage, tmp_path: Path) -> None:
    path = write(tmp_path / "mine.hdf5", make_arrays(MIXED))
    info = data.convert(path, storage, "Hopper", "mine", "v4")
    assert info["simulator"] == "v4" and data.simulator("Hopper", info) == "Hopper-v4"
    with h5py.File(path, "a") as file:
        file.attrs["retable"] = json.dumps({"environment": "Hopper", "simulator": "v5"})
    assert data.convert(path, storage, "Hopper", "mine", "v5", replace=True)["simulator"] == "v5"
    with pytest.raises(UserError, match=r"mine.hdf5: recorded in v5, not in v4; leave --simulator out"):
        data.convert(path, storage, "Hopper", "mine", "v4")


def test_overwritten_bytes_are_refused_wherever_they_are_read(converted: Storage) -> None:
    path = Path(converted.root) / "part-00001.parquet"
    sound = path.read_bytes()
    expected = data.read(converted)
    for place in range(4, len(sound), len(sound) // 20):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 0x40]) + sound[place + 1 :])
        with pytest.raises(UserError, match=r"digest\); make or convert the data set again") as caught:
            data.read(converted)
        assert converted.root in str(caught.value) and "\n" not in str(caught.value)
    path.write_bytes(sound)
    assert all(np.array_equal(column, expected[name]) for name, column in data.read(converted).items())
