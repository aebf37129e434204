"""Minari's layout, written here with h5py as its package writes it, against a loop over episodes and rows."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retable.platform.errors import UserError
from retable.platform.store.run import file_digest
from retable.platform.store.storage import Storage
from retable.tasks.rl import data
from retable.tasks.rl.metrics import D4RL
from retable.tasks.rl.recordings.prepare import describe
from retable.tasks.rl.tools.minari import import_minari, inspect
from tests.rl.d4rl_files import assert_columns

STATES, ACTIONS = 11, 3
"""Those of Hopper."""
Episodes = list[tuple[int, str]]
MIXED: Episodes = [(3, "terminations"), (1, "truncations"), (2, "none"), (12, "truncations")]


def test_metadata_nested_deep_are_a_line(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/metadata.json").write_text('{"a":' + "[" * 100_000 + "]" * 100_000 + "}")
    assert "not Minari's metadata" in check(tmp_path)[0]


def check(source: Path) -> list[str]:
    """Return a line for the first defect of a data set; an empty list if it is fine."""
    return inspect(source)[0]


def box(low: float, high: float) -> str:
    bounds = {"low": [low] * ACTIONS, "high": [high] * ACTIONS}
    return json.dumps({"type": "Box", "dtype": "float32", "shape": [ACTIONS], **bounds})


def write(folder: Path, episodes: Episodes, low: float = -1, high: float = 1, **changes: Any) -> Path:
    """Write a data set of random episodes, each (length, the flag of its last row); return its folder."""
    random = np.random.default_rng(0)
    (folder / "data").mkdir(parents=True)
    with h5py.File(folder / "data/main_data.hdf5", "a", track_order=True) as file:
        for number, (steps, ending) in enumerate(episodes):
            group = file.create_group(f"episode_{number}")
            group.attrs.update({"id": number, "total_steps": steps, "seed": 123})
            group["observations"] = random.normal(size=(steps + 1, STATES))
            group["actions"] = random.uniform(low, high, (steps, ACTIONS)).astype(np.float32)
            group["rewards"] = random.normal(size=steps)
            for flag in ("terminations", "truncations"):
                group[flag] = (np.arange(steps) == steps - 1) & (flag == ending)
            group.create_group("infos")["x_position"] = random.normal(size=steps + 1)
    metadata = {
        "total_episodes": len(episodes),
        "total_steps": sum(steps for steps, _ in episodes),
        "data_format": "hdf5",
        "dataset_id": "mujoco/hopper/expert-v0",
        "env_spec": json.dumps({"id": "Hopper-v5", "max_episode_steps": 1000, "kwargs": {}}),
        "action_space": box(low, high),
        "minari_version": "0.5.4",
        "requirements": ["mujoco==3.2.3"],
    }
    (folder / "data/metadata.json").write_text(json.dumps({**metadata, **changes}))
    return folder


def naive(folder: Path, scale: float = 1) -> tuple[dict[str, list[Any]], list[float]]:
    """Read a data set row by row; actions are divided by `scale`."""
    columns: dict[str, list[Any]] = {name: [] for name in data.COLUMNS}
    returns = []
    with h5py.File(folder / "data/main_data.hdf5") as file:
        for number in range(len(file)):
            episode, total, ended = file[f"episode_{number}"], 0.0, False
            for step in range(len(episode["rewards"])):
                terminal, timeout = bool(episode["terminations"][step]), bool(episode["truncations"][step])
                row = (
                    np.float32(episode["observations"][step]),
                    np.float32(episode["actions"][step] / scale),
                    np.float32(episode["rewards"][step]),
                    np.float32(episode["observations"][step + 1]),
                    terminal,
                    timeout,
                    number,
                    step,
                )
                for name, value in zip(data.COLUMNS, row, strict=True):
                    columns[name].append(value)
                total, ended = total + float(row[2]), terminal or timeout
            returns += [total] if ended else []
    return columns, returns


ending = st.tuples(st.integers(1, 5), st.sampled_from(["terminations", "truncations", "none"]))


@settings(max_examples=8, deadline=None)
@given(episodes=st.lists(ending, max_size=11), scale=st.sampled_from([1, 2]))
def test_imported_columns_are_the_naive_ones(episodes: Episodes, scale: float) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        episodes = [(2, "terminations"), *episodes]
        source, storage = write(Path(scratch) / "set", episodes, -scale, scale), Storage.open(scratch)
        info, (expected, returns) = import_minari(source, storage), naive(source, scale)
        where = data.folder(storage, "Hopper", "minari-expert-v0")
        assert_columns(data.read(where), expected)
        assert check(source) == [] and data.check(where) == [] and data.provenance(where) == info
        assert info["behaviour_return"] == pytest.approx(np.mean(returns)) and info["complete_episodes"] == len(returns)


def test_actions_within_unequal_bounds_are_mapped_to_one(tmp_path: Path) -> None:
    source, storage = write(tmp_path / "set", MIXED, 0, 4), Storage.open(tmp_path)
    import_minari(source, storage)
    with h5py.File(source / "data/main_data.hdf5") as file:
        given = file["episode_0/actions"][()]
    found = data.read(data.folder(storage, "Hopper", "minari-expert-v0"))["action"][:3]
    np.testing.assert_allclose(found, given / 2 - 1, atol=1e-6)


def test_provenance_says_minari_and_never_d4rl(tmp_path: Path) -> None:
    storage = Storage.open(tmp_path)
    source = write(tmp_path / "set", MIXED, dataset_id="D4RL/hopper/expert-v2")
    info = import_minari(source, storage)
    assert info["source"] == "minari" and info["simulator"] == "v5" and not info["generated"] and info["real"]
    assert info["minari"]["id"] == "D4RL/hopper/expert-v2" and info["minari"]["env_spec"]["id"] == "Hopper-v5"
    assert info["files"] == {"main_data.hdf5": file_digest(source / "data/main_data.hdf5")}
    said = describe(info)
    assert "Minari expert-v2" in said and "in v5" in said and "D4RL" not in said
    assert info["files"]["main_data.hdf5"] not in D4RL["files"]
    for name in ("d4rl-expert-v2", "recorded", "mixed"):
        with pytest.raises(UserError, match="kept for other data"):
            import_minari(source, storage, name=name)


def test_the_environment_is_asked_for_only_where_the_metadata_are_silent(tmp_path: Path) -> None:
    storage = Storage.open(tmp_path)
    silent = write(tmp_path / "silent", MIXED, env_spec=None, dataset_id=None)
    with pytest.raises(UserError, match="--env"):
        import_minari(silent, storage)
    info = import_minari(silent, storage, "Hopper", "mine")
    assert (info["environment"], info["name"], info["simulator"]) == ("Hopper", "mine", "unknown")
    odd = write(tmp_path / "odd", MIXED, env_spec=json.dumps({"id": "\x1b[2JHopper-v5"}))  # a terminal's command
    with pytest.raises(UserError, match="names no environment"):
        import_minari(odd, storage)
    with pytest.raises(UserError, match="recorded in Hopper-v5, not in 'Walker2d'"):
        import_minari(write(tmp_path / "set", MIXED), storage, "Walker2d")


def replace(key: str, change: Any) -> Callable[[Path], None]:
    """Put other contents in the place of a key; None: nothing."""

    def damage(folder: Path) -> None:
        with h5py.File(folder / "data/main_data.hdf5", "r+") as file:
            old = file[key][()] if isinstance(file[key], h5py.Dataset) else None
            del file[key]
            new = change(old) if callable(change) else change
            if new is not None:
                file[key] = new

    return damage


def value(row: int, number: float) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        array = array.astype(np.float64)
        array[row] = number
        return array

    return change


def parts(folder: Path) -> None:
    replace("episode_0/observations", None)(folder)
    with h5py.File(folder / "data/main_data.hdf5", "r+") as file:
        for name in ("goal", "joints"):
            file[f"episode_0/observations/{name}"] = np.zeros((4, 3))


def say(**changes: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "data/metadata.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return damage


def cut_file(folder: Path) -> None:
    path = folder / "data/main_data.hdf5"
    path.write_bytes(path.read_bytes()[:-500])


@pytest.mark.parametrize(("damage", "what"), [
    *[(replace(f"episode_1/{key}", None), f"'episode_1/{key}' is missing")
      for key in ("observations", "actions", "rewards", "terminations", "truncations")],
    (replace("episode_2", None), "3 episodes|'episode_2' is missing"),
    (replace("episode_2", np.zeros(3)), "'episode_2' is no group"),
    (replace("episode_0/observations", lambda a: a[:-1]), "'episode_0/observations' has 3 rows, not 4"),
    (replace("episode_0/rewards", lambda a: a[:-1]), "'episode_0/rewards' has 2 rows, not 3"),
    (replace("episode_0/rewards", lambda a: np.stack([a, a], 1)), "'episode_0/rewards' has shape"),
    (replace("episode_3/actions", lambda a: a[:, :1]), "'episode_3/actions' has 1 numbers a row"),
    (replace("episode_0/actions", lambda a: a[:0]), "'episode_0/actions' has shape"),
    (replace("episode_0/actions", "text"), "no array of numbers"),
    (replace("episode_0/observations", value(3, np.nan)), "'episode_0/observations' has NaN .* row 3"),
    (replace("episode_3/rewards", value(2, 1e300)), "'episode_3/rewards' has NaN .* row 2"),
    (replace("episode_0/terminations", value(2, np.nan)), "'episode_0/terminations' has NaN"),
    (replace("episode_3/actions", value(5, 1.002)), "'episode_3/actions', first in row 5"),
    (replace("episode_0/truncations", value(0, 1)), "'episode_0' goes on after its end"),
    (replace("episode_0/rewards", h5py.ExternalLink("other.hdf5", "rewards")), "link to elsewhere"),
    (replace("episode_0/observations", h5py.SoftLink("/episode_1")), "link to elsewhere"),
    (parts, r"'episode_0/observations' has parts \(goal, joints\)"),
    (say(data_format="arrow"), "kept as 'arrow'"),
    (say(total_steps=19), "18 steps, .* says 19"),
    (say(action_space=json.dumps({"type": "Discrete", "n": 2})), "no Box"),
    (say(action_space=box(-np.inf, 1)), "no Box with finite bounds"),
    (say(action_space=json.dumps({"type": "Box", "low": [-1] * 5, "high": 1})), "does not fit actions of 3"),
    (say(action_space=json.dumps({"type": "Box", "low": [-(10**400)] * 3, "high": 1})), "does not fit actions of 3"),
    (say(env_spec="{"), "not Minari's metadata"),
    (say(env_spec="[3]"), "not Minari's metadata"),
    (cut_file, "not a readable HDF5 file"),
    (lambda folder: (folder / "data/main_data.hdf5").unlink(), "no such file"),
    (lambda folder: (folder / "data/main_data.hdf5").write_text("arrow"), "not a readable HDF5 file"),
    (lambda folder: (folder / "data/metadata.json").unlink(), "no Minari data set"),
    (lambda folder: (folder / "data/metadata.json").write_text("[1]"), "not Minari's metadata"),
])  # fmt: skip
def test_refuses_what_is_broken_in_one_line(tmp_path: Path, damage: Callable[[Path], Any], what: str) -> None:
    source = write(tmp_path / "set", MIXED)
    damage(source)
    with pytest.raises(UserError, match=what) as caught:
        import_minari(source, Storage.open(tmp_path))
    line = str(caught.value)
    assert "\n" not in line and str(source) in line and "; " in line
    assert check(source) == [line]
    assert not (tmp_path / "data").exists()


def test_a_set_in_which_no_episode_ends_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="end no episode"):
        import_minari(write(tmp_path / "none", [(3, "none")]), Storage.open(tmp_path))
    with pytest.raises(UserError, match="no episodes"):
        import_minari(write(tmp_path / "empty", []), Storage.open(tmp_path))
