"""Recordings: repeatable, whole episodes, and true to the simulator."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.tasks.rl import TASK, data
from retable.tasks.rl.config import Config
from retable.tasks.rl.metrics import normalised_score
from retable.tasks.rl.recordings import d4rl, expert
from retable.tasks.rl.recordings.d4rl import read_d4rl
from retable.tasks.rl.recordings.prepare import prepare, published
from retable.tasks.rl.recordings.record import record

ROWS, LANES, SEED = 900, 4, 7


def recorded(where: Path, environment: str = "Hopper", **options: Any) -> tuple[Storage, dict[str, Any]]:
    storage = Storage.open(where)
    options = {"transitions": ROWS, "lanes": LANES, "seed": SEED, "policy": "random", **options}
    info = record(environment, storage, **options)
    return data.folder(storage, environment, "recorded"), info


@pytest.fixture(scope="module")
def hopper(tmp_path_factory: pytest.TempPathFactory) -> tuple[Storage, dict[str, Any]]:
    return recorded(tmp_path_factory.mktemp("random"))


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> expert.Policy:
    """A small policy, committed in a folder of the test's own."""
    monkeypatch.setattr(expert, "POLICIES", tmp_path / "policies")
    random = np.random.default_rng(0)
    network = expert.Policy([(random.normal(0, 0.3, (3, 11)), np.array([0.0, 0.1, 3.0]))])
    network.save("Hopper", {"steps": 1})
    return network


def test_recording_is_valid_and_knows_where_it_is_from(hopper: tuple[Storage, dict[str, Any]]) -> None:
    where, info = hopper
    assert where.list() == ["dataset.json", "hopper_recorded-v5.hdf5", "part-00000.parquet"]
    assert data.check(where) == [] and data.check(Path(where.root) / "hopper_recorded-v5.hdf5") == []
    assert data.provenance(where) == info
    expected = {"source": "recorded", "name": "recorded", "environment": "Hopper", "simulator": "v5", "generated": True,
                "real": False, "states": 11, "actions": 3, "transitions": ROWS, "seed": SEED}  # fmt: skip
    assert {key: info[key] for key in expected} == expected
    assert info["behaviour"] == {"policy": "random"} and {"gymnasium", "mujoco"} < set(info["versions"])


def test_recording_replays_in_the_simulator(hopper: tuple[Storage, dict[str, Any]]) -> None:
    columns = data.read(hopper[0])
    for episode in range(LANES):  # the first episodes begin with the lanes' seeds
        rows = columns["episode"] == episode
        environment = gymnasium.make("Hopper-v5")
        observation, _ = environment.reset(seed=SEED + episode)
        for row in np.flatnonzero(rows):
            np.testing.assert_array_equal(columns["observation"][row], observation.astype(np.float32))
            observation, reward, terminated, _, _ = environment.step(columns["action"][row])
            np.testing.assert_array_equal(columns["next_observation"][row], observation.astype(np.float32))
            assert columns["reward"][row] == np.float32(reward) and columns["terminal"][row] == terminated
        assert columns["terminal"][rows][-1]
        environment.close()


def test_a_mix_of_three_takes_three_transitions(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot record 2 transitions of 3 behaviours; give each one or more"):
        record("Hopper", Storage.open(tmp_path), 2, mix=("expert", "imperfect", "random"))


@pytest.mark.parametrize(
    ("environment", "name", "remedy"),
    [
        ("Hopper", "d4rl-expert-v2", "fetch rl hopper-expert-v2`"),
        ("Walker2d", "d4rl-medium-replay-v0", "fetch rl walker-mixed`"),
        ("Hopper", "minari-expert-v0", "fetch rl minari-hopper-expert`"),
        ("Hopper", "minari-own-v0", "import rl FOLDER --name minari-own-v0`"),
        ("Hopper", "expert-v2", "convert rl FILE --env Hopper --name expert-v2`"),
    ],
)
def test_a_missing_data_set_says_what_makes_it(tmp_path: Path, environment: str, name: str, remedy: str) -> None:
    with pytest.raises(UserError, match=f"is missing: run `retable data {remedy}, or use --set data=recorded"):
        prepare(Config(environment=environment, data=name), Storage.open(tmp_path))
    assert not remedy.startswith("fetch") or remedy.split()[-1].strip("`") in published()


@pytest.mark.parametrize("last", [True, False])
def test_the_return_is_of_whole_episodes_whichever_are_skipped(
    hopper: tuple[Storage, dict[str, Any]], tmp_path: Path, last: bool
) -> None:
    where, info = hopper
    file = Path(where.root) / "hopper_recorded-v5.hdf5"
    skip = info["episodes"] - 1 if last else 0
    made = data.convert(file, Storage.open(tmp_path), name="mine", skip=[skip])
    assert made["episodes"] == info["episodes"] - 1 and made["cut"] is not last
    columns = data.read(hopper[0])
    returns = np.bincount(columns["episode"], columns["reward"])[:-1]
    kept = returns if last else returns[1:]
    assert made["complete_episodes"] == len(kept)
    assert made["behaviour_return"] == pytest.approx(kept.mean())


def test_episodes_are_whole_and_the_last_is_cut(hopper: tuple[Storage, dict[str, Any]]) -> None:
    where, info = hopper
    columns = data.read(where)
    ends = columns["terminal"] | columns["timeout"]
    inside = ~ends[:-1]
    np.testing.assert_array_equal(columns["next_observation"][:-1][inside], columns["observation"][1:][inside])
    np.testing.assert_array_equal(np.flatnonzero(ends)[:-1] + 1, np.flatnonzero(columns["step"] == 0)[1:])
    # Random Hoppers fall: the only timeout is the cut, whose return does not count.
    assert columns["timeout"].tolist() == [False] * (ROWS - 1) + [True] and info["cut"] is True
    assert info["complete_episodes"] == info["episodes"] - 1 > 3 * LANES
    returns = [columns["reward"][columns["episode"] == k].astype(float).sum() for k in range(info["complete_episodes"])]
    assert info["behaviour_return"] == pytest.approx(np.mean(returns))
    score = normalised_score("Hopper", returns)
    assert score is not None and info["behaviour_score"] == pytest.approx(score.mean())


def test_hdf5_is_laid_out_as_d4rls_and_converts_to_the_same(
    hopper: tuple[Storage, dict[str, Any]], tmp_path: Path
) -> None:
    where, info = hopper
    path = Path(where.root) / "hopper_recorded-v5.hdf5"
    with h5py.File(path) as file:
        shapes = {key: (file[key].shape, file[key].dtype.kind) for key in file if key != "metadata"}
        assert file["metadata/algorithm"][()] == b"uniform actions"
    assert shapes == {"observations": ((ROWS, 11), "f"), "actions": ((ROWS, 3), "f"), "rewards": ((ROWS,), "f"),
                      "terminals": ((ROWS,), "b"), "timeouts": ((ROWS,), "b"),
                      "next_observations": ((ROWS, 11), "f")}  # fmt: skip
    columns = read_d4rl(path).columns
    for name, column in data.read(where).items():
        np.testing.assert_array_equal(column, columns[name])
    copy = data.convert(path, Storage.open(tmp_path), name="copy")
    same = ("environment", "simulator", "generated", "digest", "behaviour_return", "complete_episodes", "transitions")
    assert {key: copy[key] for key in same} == {key: info[key] for key in same} and copy["source"] == "file"


def test_recording_depends_on_its_seed_alone(hopper: tuple[Storage, dict[str, Any]], tmp_path: Path) -> None:
    where, info = hopper
    again, same = recorded(tmp_path / "again")
    assert same == info and [again.read(name) for name in again.list()] == [where.read(name) for name in where.list()]
    assert recorded(tmp_path / "other", seed=SEED + 1)[1]["digest"] != info["digest"]


@pytest.mark.parametrize(
    "rows", [364, 388, *(pytest.param(rows, marks=pytest.mark.slow) for rows in (300, 372, 380, 700))]
)
def test_shorter_recordings_are_the_beginning(
    hopper: tuple[Storage, dict[str, Any]], tmp_path: Path, rows: int
) -> None:
    """Whatever the lanes have played when the rows are enough: an episode that still runs keeps its place."""
    shorter = data.read(recorded(tmp_path, transitions=rows)[0])
    for name, column in data.read(hopper[0]).items():
        same = slice(rows - 1) if name == "timeout" else slice(rows)
        np.testing.assert_array_equal(shorter[name][same], column[same])


def test_noise_is_added_to_the_committed_policy(policy: expert.Policy, tmp_path: Path) -> None:
    where, info = recorded(tmp_path, policy="expert", noise=0.05)
    columns = data.read(where)
    difference = columns["action"] - policy(columns["observation"])
    inner = (np.abs(columns["action"]) < 1)[:, :2]
    assert difference[:, :2][inner].std() == pytest.approx(0.05, rel=0.1)
    assert abs(difference[:, :2][inner].mean()) < 0.01
    assert np.abs(columns["action"]).max() == 1, "the third action is near 1, so noise must be clipped there"
    assert info["behaviour"]["noise"] == 0.05 and info["behaviour"]["trained"] == {"steps": 1}
    exact = data.read(recorded(tmp_path / "exact", transitions=300, policy="expert", noise=0)[0])
    np.testing.assert_allclose(exact["action"], policy(exact["observation"]), atol=1e-6)


def mixed(where: Path, mix: list[str], **options: Any) -> tuple[Storage, dict[str, Any]]:
    info = record(
        "Hopper", Storage.open(where), mix=mix, **{"transitions": ROWS, "lanes": LANES, "seed": SEED, **options}
    )
    return data.folder(Storage.open(where), "Hopper", "mixed"), info


def test_a_mixed_set_is_its_parts_one_after_the_other(policy: expert.Policy, tmp_path: Path) -> None:
    where, info = mixed(tmp_path, ["expert", "imperfect", "random"])
    assert data.check(where) == [] and info["name"] == "mixed" and info["cut"] is False
    parts, columns = info["behaviour"]["parts"], data.read(where)
    assert [(part["name"], part["noise"], part["random"]) for part in parts] == [
        ("expert", 0.05, 0.0), ("imperfect", 0.3, 0.3), ("random", 0.0, 1.0)]  # fmt: skip
    assert sum(part["transitions"] for part in parts) == info["transitions"] and info["behaviour"]["trained"]
    ends = np.cumsum([part["transitions"] for part in parts])
    returns, inner, off = [], [], np.abs(columns["action"] - policy(columns["observation"]))[:, :2].max(axis=1)
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        rows = slice(start, end)
        assert (columns["terminal"] | columns["timeout"])[end - 1] and ROWS / 3 - 100 < end - start <= ROWS / 3
        numbers = np.unique(columns["episode"][rows])
        returns.append(np.mean([columns["reward"][columns["episode"] == k].astype(float).sum() for k in numbers]))
        inner.append(np.mean(off[rows] > 0.5))
    assert [part["return"] for part in parts] == pytest.approx(returns)
    assert info["behaviour_return"] == pytest.approx(np.average(returns, weights=np.diff([0, *ends])))
    # Actions far from the policy's: never, three in ten that are random (and rarely noise), most of the time.
    assert inner[0] == 0 and 0.1 < inner[1] < 0.4 < inner[2]


def test_a_mixed_file_that_is_converted_has_the_same_behaviour(policy: expert.Policy, tmp_path: Path) -> None:
    where, info = mixed(tmp_path, ["expert", "imperfect", "random"])
    path, storage = Path(where.root) / next(iter(info["files"])), Storage.open(tmp_path)
    again = data.convert(path, storage, name="copy")
    assert again["digest"] == info["digest"] and again["behaviour_return"] == info["behaviour_return"]
    with h5py.File(path, "r+") as file:
        header = json.loads(file.attrs["retable"])
        header["behaviour"]["parts"] = [{"return": "much"}]
        file.attrs["retable"] = json.dumps(header)
    assert data.convert(path, storage, name="changed")["behaviour_return"] > 0


@pytest.mark.parametrize(
    ("seed", "mix"),
    [(100, []), (100 - LANES + 1, []), (100 - 2 * LANES + 1, ["expert", "random"]), (0, ["random"] * 99)],
)
def test_no_episode_begins_where_tables_begin_to_play(tmp_path: Path, seed: int, mix: list[str]) -> None:
    with pytest.raises(UserError, match=f"seed {seed}: .* those that tables play begin; choose one (up to|from) [0-9]"):
        record("Hopper", Storage.open(tmp_path), transitions=ROWS, lanes=LANES, seed=seed, mix=mix)


def test_parts_of_a_mixed_set_start_otherwise(policy: expert.Policy, tmp_path: Path) -> None:
    columns = data.read(mixed(tmp_path, ["expert", "expert"])[0])
    starts = columns["observation"][columns["step"] == 0]
    assert len(np.unique(starts, axis=0)) == len(starts)


def test_a_mixed_set_is_not_the_recorded_one_and_is_made_when_it_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no behaviour 'expart' to mix; did you mean 'expert'"):
        mixed(tmp_path, ["expart"])
    with pytest.raises(UserError, match="no whole episode"):
        record("HalfCheetah", Storage.open(tmp_path), transitions=2000, mix=["random", "random", "random"], lanes=1)
    prepared: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sys.modules["retable.tasks.rl.recordings.prepare"], "make_recording", lambda *_, **own: prepared.append(own)
        )
        for name in ("recorded", "mixed"):
            TASK.dataset.prepare(Config(environment="Hopper", data=name), Storage.open(tmp_path))
    assert [options["mix"] for options in prepared] == [(), ("expert", "imperfect", "random")]


def test_a_recording_of_full_length_episodes_has_real_timeouts(tmp_path: Path) -> None:
    where, info = recorded(tmp_path, "HalfCheetah", transitions=2000, lanes=2)
    assert np.flatnonzero(data.read(where)["timeout"]).tolist() == [999, 1999]
    assert info["cut"] is False and info["complete_episodes"] == 2


def test_progress_runs_up_to_the_end(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    recorded(tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert len(seen) > 1 and seen == sorted(seen) and seen[-1] == (ROWS, ROWS)


@pytest.mark.parametrize(("environment", "options", "what"), [
    ("Hoper", {}, "did you mean 'Hopper-v5'"), ("../x", {}, "cannot name"),
    *[("Hopper", wrong, "cannot record") for wrong in ({"transitions": 0}, {"lanes": 0}, {"noise": -1.0})],
    *[("Hopper", {"noise": wrong}, f"with noise {wrong}") for wrong in (math.nan, math.inf)],
    ("HalfCheetah", {"transitions": 50}, "hold no whole episode"),
    ("Walker2d", {"policy": "expert"}, "no committed policy for 'Walker2d' (there is: Hopper)"),
])  # fmt: skip
@pytest.mark.usefixtures("policy")
def test_refuses_what_cannot_be_recorded(tmp_path: Path, environment: str, options: dict[str, Any], what: str) -> None:
    with pytest.raises(UserError) as caught:
        recorded(tmp_path / "storage", environment, **options)
    assert what in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "storage").exists()


def test_a_mixture_without_some_episodes_has_no_returns_of_its_parts() -> None:
    returns, lengths = np.array([3000.0, 10.0, 20.0]), np.array([1000, 10, 30])
    parts = [{"return": 3000.0, "transitions": 50}, {"return": 15.0, "transitions": 50}]
    info: dict[str, Any] = {"behaviour": {"parts": parts}}
    assert data._behaviour_return(returns, lengths, info) == pytest.approx(1507.5)
    info |= {"skipped": [0]}
    assert data._behaviour_return(returns[1:], lengths[1:], info) == pytest.approx((10 * 10 + 20 * 30) / 40)


@pytest.mark.parametrize(
    "part",
    [
        {"return": math.nan},
        {"return": 10**400},
        {"transitions": math.inf},
        {"transitions": 0},
        {"name": 3},
        {"name": None},
    ],
)
def test_a_mixture_that_somebody_changed_is_none(part: dict[str, Any]) -> None:
    sound = {"name": "expert", "return": 3000.0, "transitions": 5}
    behaviour = {"policy": "mixed", "parts": [sound]}
    assert d4rl._mixed({"behaviour": behaviour}) == {"behaviour": behaviour}
    assert d4rl._mixed({"behaviour": {**behaviour, "parts": [sound, sound | part]}}) == {}
    assert d4rl._mixed({"behaviour": {**behaviour, "policy": ["mixed"]}}) == {}
