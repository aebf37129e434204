"""Where episodes end: recordings whose true ends are known, with marks lost and resets recorded in every way."""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.tasks.rl import data
from retable.tasks.rl.recordings import episodes
from retable.tasks.rl.recordings.record import record
from retable.tasks.rl.tools.minari import import_minari
from tests.rl.d4rl_files import Arrays, write
from tests.rl.tools.test_minari import check as check_minari

Rows = Mapping[str, Any]
STEPS, EPISODES = 250, 4
KEYS = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")


def frozen(rows: list[Any]) -> Rows:
    """Return the columns of rows; no test can change them for the next."""
    arrays = {key: np.array(column) for key, column in zip(KEYS, zip(*rows, strict=True), strict=True)}
    arrays = {key: a.astype(np.float32) if a.dtype.kind == "f" else a for key, a in arrays.items()}
    for array in arrays.values():
        array.setflags(write=False)
    return MappingProxyType(arrays)


@cache
def simulate(environment: str = "HalfCheetah-v5", episodes: int = EPISODES, steps: int = STEPS) -> Rows:
    """Play random actions, one episode after the other; every row has its true successor."""
    played = gymnasium.make(environment, max_episode_steps=steps)
    played.action_space.seed(0)
    rows: list[tuple[Any, ...]] = []
    for episode in range(episodes):
        observation, _ = played.reset(seed=episode)
        over = False
        while not over:
            action = played.action_space.sample()
            following, reward, terminated, truncated, _ = played.step(action)
            rows.append((observation, action, reward, terminated, truncated, following))
            observation, over = following, terminated or truncated
    played.close()
    return frozen(rows)


@pytest.fixture(scope="module")
def cheetah() -> Rows:
    return simulate()


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.open(tmp_path / "storage")


def returns_of(arrays: Rows) -> list[float]:
    """Undiscounted returns by the true ends."""
    ends = np.flatnonzero(arrays["terminals"] | arrays["timeouts"])
    return [float(part.astype(float).sum()) for part in np.split(arrays["rewards"], ends[:-1] + 1)]


def without(arrays: Rows, *episodes: int) -> Arrays:
    """Lose the marks of some episodes."""
    lost = {**arrays, "timeouts": arrays["timeouts"].copy()}
    lost["timeouts"][[STEPS * episode + STEPS - 1 for episode in episodes]] = False
    return lost


def refused(path: Path, storage: Storage, environment: str, what: str) -> None:
    """`check` names a defect, by row; `convert` refuses it with the remedy and leaves nothing."""
    (line,) = data.check(path)
    assert what in line and "--mend ends" in line and "\n" not in line and str(path) in line
    with pytest.raises(UserError) as caught:
        data.convert(path, storage, environment, "mine")
    assert str(caught.value) == line and not storage.exists("data")


def test_sound_files_are_fine(cheetah: Rows, storage: Storage, tmp_path: Path) -> None:
    for variant in ("v0", "v2"):
        path = write(tmp_path / f"{variant}.hdf5", cheetah, variant)
        assert data.check(path) == []
        info = data.convert(path, storage, "HalfCheetah", variant)
        assert not info.keys() & {"mended", "remarks", "skipped"}
        assert data.check(data.folder(storage, "HalfCheetah", variant)) == []


def test_a_lost_time_out_is_found_by_the_jump_of_the_state(cheetah: Rows, storage: Storage, tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", without(cheetah, 1), "v0")
    refused(path, storage, "HalfCheetah", "an episode ends without a mark in row 499")
    info = data.convert(path, storage, "HalfCheetah", "mine", mending=True)
    assert info["mended"] == ["an episode ends without a mark in row 499"]
    assert info["behaviour_return"] == pytest.approx(np.mean(returns_of(cheetah)), rel=1e-6)
    assert info["complete_episodes"] == EPISODES
    columns = data.read(data.folder(storage, "HalfCheetah", "mine"))
    kept = np.delete(np.arange(EPISODES * STEPS), [249, 499, 749, 999])  # the successors at time-outs are not known
    np.testing.assert_array_equal(columns["observation"], cheetah["observations"][kept])
    np.testing.assert_array_equal(columns["next_observation"], cheetah["next_observations"][kept])
    assert data.check(data.folder(storage, "HalfCheetah", "mine")) == []


def test_lost_time_outs_are_betrayed_by_the_successors(cheetah: Rows, storage: Storage, tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", without(cheetah, 0, 2))
    refused(path, storage, "HalfCheetah", "an episode ends without a mark in row 249, row 749")
    info = data.convert(path, storage, "HalfCheetah", "mine", mending=True)
    assert info["behaviour_return"] == pytest.approx(np.mean(returns_of(cheetah)), rel=1e-6)
    columns = data.read(data.folder(storage, "HalfCheetah", "mine"))
    np.testing.assert_array_equal(columns["next_observation"], cheetah["next_observations"])
    assert np.flatnonzero(columns["timeout"]).tolist() == [249, 499, 749, 999]


@pytest.mark.parametrize("key", ["kept", "absent"])
def test_marks_that_are_all_missing_are_found_by_the_successors(
    cheetah: Rows, storage: Storage, tmp_path: Path, key: str
) -> None:
    """As of a recorder that writes no `timeouts`, in an environment that never terminates."""
    lost = without(cheetah, *range(EPISODES))
    if key == "absent":
        del lost["timeouts"]
    path = write(tmp_path / "a.hdf5", lost)
    refused(path, storage, "HalfCheetah", "an episode ends without a mark in row 249, row 499, row 749;")
    info = data.convert(path, storage, "HalfCheetah", "mine", mending=True)
    assert info["behaviour_return"] == pytest.approx(np.mean(returns_of(cheetah)[:-1]), rel=1e-6)
    columns = data.read(data.folder(storage, "HalfCheetah", "mine"))
    np.testing.assert_array_equal(columns["next_observation"], cheetah["next_observations"])
    (line,) = data.check(write(tmp_path / "v0.hdf5", lost, "v0"))
    assert "end no episode; mark the last row of each episode" in line, "nothing tells where they end"


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Arrays:
    """Four episodes of our expert, up to the environment's limit."""
    storage = Storage.open(tmp_path_factory.mktemp("runner"))
    record("HalfCheetah", storage, transitions=4000, lanes=4)
    (path,) = Path(data.folder(storage, "HalfCheetah", "recorded").root).glob("*.hdf5")
    with h5py.File(path) as file:
        return {key: file[key][()] for key in KEYS}


@pytest.mark.parametrize("kept", [[3999], []])
def test_lost_time_outs_are_found_at_the_environment_s_limit(
    runner: Arrays, storage: Storage, tmp_path: Path, kept: list[int]
) -> None:
    """Too few ends are known to see resets anywhere: an episode of 4,000 steps was trained on, across them."""
    marks = np.isin(np.arange(4000), kept)
    path = write(tmp_path / "a.hdf5", {**runner, "timeouts": marks}, "v0")
    (line,), _ = data.inspect(path, "HalfCheetah")
    assert "an episode ends without a mark in row 999, row 1999, row 2999;" in line
    with pytest.raises(UserError, match="row 999, row 1999, row 2999"):
        data.convert(path, storage, "HalfCheetah", "mine")
    info = data.convert(path, storage, "HalfCheetah", "mine", mending=True)
    whole = returns_of(runner)[: 4 if kept else 3]
    assert info["behaviour_return"] == pytest.approx(np.mean(whole), rel=1e-6)
    columns = data.read(data.folder(storage, "HalfCheetah", "mine"))
    rows = np.delete(np.arange(4000), [999, 1999, 2999, 3999])
    np.testing.assert_array_equal(columns["observation"], runner["observations"][rows])
    np.testing.assert_array_equal(columns["next_observation"], runner["next_observations"][rows])


def test_a_limit_of_their_own_cuts_no_episodes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", simulate(episodes=2, steps=1500), "v0")
    defects, (remark,) = data.inspect(path, "HalfCheetah")
    assert defects == [] and "episode 0 has 1,500 steps, 1 more" in remark


def test_single_unusual_steps_at_the_limit_are_no_ends() -> None:
    """Residuals with heavy tails, in a recording whose episodes are longer than the limit that is known."""
    rng = np.random.default_rng(0)
    jump, unusual = np.zeros(29_999, bool), rng.standard_t(2, 29_999) ** 2
    unusual[1000 * np.arange(1, 4) - 1] = unusual.max()  # 3 of the 29 steps there
    last = np.zeros(30_000, bool)
    last[-1] = True
    rows = SimpleNamespace(limit=1000, last=last)
    assert not episodes._at_limit(rows, jump, unusual).any()
    unusual[999::1000] = unusual.max() + 1
    assert np.flatnonzero(episodes._at_limit(rows, jump, unusual)).tolist() == list(range(999, 29_999, 1000))


def test_successors_that_are_but_the_next_rows_do_not_hide_a_lost_time_out(
    cheetah: Rows, storage: Storage, tmp_path: Path
) -> None:
    shifted = without(cheetah, 1)
    shifted["next_observations"] = np.concatenate([cheetah["observations"][1:], cheetah["next_observations"][-1:]])
    lines = data.check(write(tmp_path / "a.hdf5", shifted))
    assert "without a mark in row 499" in lines[0] and "after the reset in row 249, row 749" in lines[1]
    data.convert(tmp_path / "a.hdf5", storage, "HalfCheetah", "mine", mending=True)
    columns = data.read(data.folder(storage, "HalfCheetah", "mine"))
    kept = np.delete(np.arange(EPISODES * STEPS), [249, 499, 749, 999])  # what is after the last row, nothing tells
    np.testing.assert_array_equal(columns["next_observation"], cheetah["next_observations"][kept])


LANES = [("HalfCheetah", 100), ("Hopper", 1000), pytest.param("Walker2d", 1000, marks=pytest.mark.slow)]
"""Environments, and steps of an episode; Walker2d ends as Hopper does."""


@cache
def record_lane(environment: str, mode: AutoresetMode, rows: int, steps: int) -> tuple[Rows, Rows]:
    """Record a lane of Gymnasium's vector environment as it comes; return that, and what truly happened."""
    lane = SyncVectorEnv([lambda: gymnasium.make(environment, max_episode_steps=steps)], autoreset_mode=mode)
    lane.action_space.seed(0)
    observation, _ = lane.reset(seed=0)
    found, true, over = [], [], False
    for _ in range(rows):
        action = lane.action_space.sample()
        following, reward, terminated, truncated, info = lane.step(action)
        found.append((observation[0], action[0], reward[0], terminated[0], truncated[0], following[0]))
        final = info["final_obs"][0] if "final_obs" in info else following[0]
        if not (over and mode == AutoresetMode.NEXT_STEP):
            true.append((*found[-1][:5], final))
        observation, over = following, bool(terminated[0] or truncated[0])
    lane.close()
    return frozen(found), frozen(true)


@pytest.mark.parametrize(("environment", "steps"), LANES)
def test_same_step_autoreset_is_found(environment: str, steps: int, storage: Storage, tmp_path: Path) -> None:
    found, true = record_lane(f"{environment}-v5", AutoresetMode.SAME_STEP, 500, steps)
    ends = np.flatnonzero(true["terminals"] | true["timeouts"])
    path = write(tmp_path / "a.hdf5", found)
    named = f"the successor is recorded after the reset in row {ends[0]}, row {ends[1]}"
    refused(path, storage, environment, named)
    data.convert(path, storage, environment, "mine", mending=True)
    columns = data.read(data.folder(storage, environment, "mine"))
    unknown = np.setdiff1d(ends, np.flatnonzero(true["terminals"]))
    kept = np.delete(np.arange(500), unknown)
    np.testing.assert_array_equal(columns["observation"], true["observations"][kept])
    going_on = ~true["terminals"][kept]
    np.testing.assert_array_equal(columns["next_observation"][going_on], true["next_observations"][kept][going_on])
    assert data.check(write(tmp_path / "v0.hdf5", found, "v0")) == [], "without successors nothing is wrong"


@pytest.mark.parametrize("variant", ["v0", "v2"])
@pytest.mark.parametrize(("environment", "steps"), LANES)
def test_next_step_autoreset_is_found(
    environment: str, steps: int, variant: str, storage: Storage, tmp_path: Path
) -> None:
    found, true = record_lane(f"{environment}-v5", AutoresetMode.NEXT_STEP, 505, steps)  # the cheetah's last is a reset
    reset = 1 + np.flatnonzero(found["terminals"] | found["timeouts"])
    path = write(tmp_path / "a.hdf5", found, variant)
    refused(path, storage, environment, f"reset is recorded in row {reset[0]}, row {reset[1]}")
    info = data.convert(path, storage, environment, "mine", mending=True)
    columns = data.read(data.folder(storage, environment, "mine"))
    if variant == "v2":
        for key, name in (("observations", "observation"), ("rewards", "reward"), ("next_observations",) * 2):
            column = columns["next_observation" if name == key else name]
            np.testing.assert_array_equal(column, true[key])
    ends = np.flatnonzero(true["terminals"] | true["timeouts"])
    parts = np.split(true["rewards"].astype(float), ends + 1)[: len(ends)]
    assert info["behaviour_return"] == pytest.approx(np.mean([part.sum() for part in parts]), rel=1e-6)


def test_a_trajectory_that_marks_cut_in_pieces_is_fine(tmp_path: Path) -> None:
    """As D4RL's medium-replay and maze2d: a time-out is marked and the environment goes on, as its successor says."""
    one = cut(simulate(episodes=2, steps=1500), 0, 1000)
    one["timeouts"][[199, 239, 777, 999]] = True
    assert data.check(write(tmp_path / "a.hdf5", one)) == []
    assert data.check(write(tmp_path / "b.hdf5", one, "v0")) == []


@pytest.mark.parametrize(("environment", "variant"), [("HalfCheetah", "v2"), ("Hopper", "v0"), ("Hopper", "v2")])
def test_marks_that_stand_a_row_late_are_moved(
    environment: str, variant: str, storage: Storage, tmp_path: Path
) -> None:
    """As where `terminals[t]` says that the state of row t is a last one."""
    true = simulate() if environment == "HalfCheetah" else simulate("Hopper-v5", 60)
    moved = {**true, **{key: np.append(False, true[key][:-1]) for key in ("terminals", "timeouts")}}
    moved["timeouts"][-1] = True
    path = write(tmp_path / "a.hdf5", moved, variant)
    ends = np.flatnonzero(true["terminals"] | true["timeouts"])
    refused(path, storage, environment, f"a row late after row {ends[0]}, row {ends[1]}")
    info = data.convert(path, storage, environment, "mine", mending=True)
    assert info["behaviour_return"] == pytest.approx(np.mean(returns_of(true)), rel=1e-6)
    columns = data.read(data.folder(storage, environment, "mine"))
    kept = slice(None) if variant == "v2" else np.flatnonzero(~true["timeouts"])
    if variant == "v0":
        kept = kept[kept < len(true["rewards"]) - 1]
    np.testing.assert_array_equal(columns["observation"], true["observations"][kept])
    np.testing.assert_array_equal(columns["terminal"][:-1], true["terminals"][kept][:-1])


def test_rows_in_no_order_are_refused_and_cannot_be_mended(cheetah: Rows, storage: Storage, tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(len(cheetah["rewards"]))
    path = write(tmp_path / "a.hdf5", {key: array[order] for key, array in cheetah.items()})
    for mending in (False, True):
        with pytest.raises(UserError, match=r"of the successors are not the next row's .*order of time"):
            data.convert(path, storage, "HalfCheetah", "mine", mending=mending)


def test_episodes_beyond_the_limit_are_remarked(storage: Storage, tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", cut(simulate(episodes=2, steps=1500), 0, 1500))
    defects, remarks = data.inspect(path, "HalfCheetah")
    assert defects == [] and len(remarks) == 1
    assert "episode 0 has 1,500 steps: HalfCheetah-v5 stops at 1,000" in remarks[0]
    assert data.convert(path, storage, "HalfCheetah", "mine")["remarks"] == remarks


def test_a_converted_set_is_checked_too(cheetah: Rows, storage: Storage) -> None:
    """As sets that were converted before ends were checked."""
    rows, target = len(cheetah["rewards"]), data.folder(storage, "HalfCheetah", "old")
    columns = {
        "observation": cheetah["observations"],
        "action": cheetah["actions"],
        "reward": cheetah["rewards"],
        "next_observation": np.concatenate([cheetah["observations"][1:], cheetah["observations"][-1:]]),
        "terminal": np.zeros(rows, bool),
        "timeout": without(cheetah, 1)["timeouts"],
        "episode": np.repeat([0, 1, 2], [STEPS, 2 * STEPS, STEPS]).astype(np.int32),
        "step": np.concatenate([np.arange(size) for size in (STEPS, 2 * STEPS, STEPS)]).astype(np.int32),
    }
    said = {
        "source": "file",
        "name": "old",
        "environment": "HalfCheetah",
        "simulator": "v5",
        "generated": False,
        "files": {},
    }
    data.store(columns, np.ones(2), target, said)
    lines = data.check(target)
    assert "without a mark in row 499" in lines[0] and "after the reset in row 249, row 749" in lines[1]


def write_minari(folder: Path, episodes: list[Arrays]) -> Path:
    (folder / "data").mkdir(parents=True)
    with h5py.File(folder / "data/main_data.hdf5", "w") as file:
        for number, episode in enumerate(episodes):
            group = file.create_group(f"episode_{number}")
            group["observations"] = np.concatenate([episode["observations"], episode["next_observations"][-1:]])
            group["actions"], group["rewards"] = episode["actions"], episode["rewards"]
            group["terminations"], group["truncations"] = episode["terminals"], episode["timeouts"]
    spec = json.dumps({"id": "HalfCheetah-v5", "max_episode_steps": 1000, "kwargs": {}})
    (folder / "data/metadata.json").write_text(json.dumps({"dataset_id": "own/cheetah-v0", "env_spec": spec}))
    return folder


def cut(arrays: Rows, start: int, stop: int) -> Arrays:
    return {key: array[start:stop].copy() for key, array in arrays.items()}


def test_minari_s_episodes_are_checked_likewise(cheetah: Rows, storage: Storage, tmp_path: Path) -> None:
    parts = [cut(cheetah, STEPS * k, STEPS * (k + 1)) for k in range(EPISODES)]
    assert check_minari(write_minari(tmp_path / "sound", parts)) == []
    joined = write_minari(tmp_path / "joined", [cut(without(cheetah, 1), 250, 750), parts[0], parts[3]])
    assert "without a mark in episode_0 row 249" in check_minari(joined)[0]
    info = import_minari(joined, storage, mending=True)
    assert info["behaviour_return"] == pytest.approx(np.mean(returns_of(cheetah)), rel=1e-6)
    late = [cut(cheetah, STEPS * k, STEPS * (k + 1)) for k in range(EPISODES)]
    for one, other in itertools.pairwise(late):
        one["next_observations"][-1] = other["observations"][0]
    lines = check_minari(write_minari(tmp_path / "late", late))
    assert "after the reset in episode_0 row 249, episode_1 row 249, episode_2 row 249" in lines[0]
    idle = [parts[0]]
    for part, before in zip(parts[1:], parts, strict=False):
        row = {**{key: array[-1:] for key, array in before.items()}, "observations": before["next_observations"][-1:]}
        row |= {"rewards": np.zeros(1, np.float32), "timeouts": np.zeros(1, bool)}
        idle.append({key: np.concatenate([row[key], array]) for key, array in part.items()})
    lines = check_minari(write_minari(tmp_path / "idle", idle))
    assert "reset is recorded in episode_1 row 0, episode_2 row 0, episode_3 row 0" in lines[0]
    info = import_minari(tmp_path / "idle", storage, name="idle", mending=True)
    assert info["transitions"] == EPISODES * STEPS and info["episodes"] == EPISODES


def test_a_bad_episode_can_be_left_out(cheetah: Rows, storage: Storage, tmp_path: Path) -> None:
    bad = {**cheetah, "rewards": cheetah["rewards"].copy()}
    bad["rewards"][[260, 800]] = np.nan
    path = write(tmp_path / "a.hdf5", bad)
    with pytest.raises(UserError, match=r"row 260; .* leave them out by --skip 1,3"):
        data.convert(path, storage, "HalfCheetah", "mine")
    info = data.convert(path, storage, "HalfCheetah", "mine", skip=[3, 1])
    assert info["skipped"] == [1, 3] and info["complete_episodes"] == 2
    assert info["behaviour_return"] == pytest.approx(np.mean(np.array(returns_of(cheetah))[[0, 2]]), rel=1e-6)
    bad["rewards"][800] = 0
    lost = write(tmp_path / "lost.hdf5", without(bad, 2))
    with pytest.raises(UserError, match="without a mark in row 749"):  # rows are those of the file
        data.convert(lost, storage, "HalfCheetah", "lost", skip=[1])
    bad["rewards"][800] = np.nan
    for skip, what in (([4], "no episode 4 to skip; they are numbered from 0 to 3"), (range(4), "no episode is left")):
        with pytest.raises(UserError, match=what):
            data.convert(path, storage, "HalfCheetah", "none", skip=skip)
    parts = [cut(bad, STEPS * k, STEPS * (k + 1)) for k in range(EPISODES)]
    source = write_minari(tmp_path / "set", parts)
    with pytest.raises(UserError, match=r"episode_1/rewards' has NaN.*--skip 1"):
        import_minari(source, storage)
    info = import_minari(source, storage, skip=[1, 3])
    assert info["skipped"] == [1, 3] and info["transitions"] == 2 * STEPS


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment", ["Hopper", "Walker2d", "Ant", "Swimmer", "Reacher", "Pusher", "InvertedPendulum"]
)
def test_sound_recordings_of_many_environments_are_fine_and_lost_marks_are_found(
    environment: str, tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = simulate(f"{environment}-v5", episodes=60, steps=100)
        whole = cut(whole, 0, len(whole["rewards"]))
    assert data.inspect(write(tmp_path / "a.hdf5", whole, "v0"), environment)[0] == []
    ends = np.flatnonzero(whole["terminals"] | whole["timeouts"])
    lost = ends[[7, 20, 40]]
    for key in ("terminals", "timeouts"):
        whole[key][lost] = False
    (line,) = data.inspect(write(tmp_path / "b.hdf5", whole, "v0"), environment)[0]
    assert f"in {', '.join(f'row {row}' for row in lost)};" in line


@pytest.mark.parametrize("mending", [False, True])
def test_ends_are_looked_for_once(
    cheetah: Rows, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mending: bool
) -> None:
    """Whether they can be found decides if the file is sound; the same search says what is mended."""
    searches = []
    idle = episodes._idle

    def counted(*given: Any) -> Any:
        searches.append(given)
        return idle(*given)

    monkeypatch.setattr(episodes, "_idle", counted)
    path = write(tmp_path / "a.hdf5", without(cheetah, *range(EPISODES)))
    if mending:
        data.convert(path, storage, "HalfCheetah", "mine", mending=True)
    else:
        assert data.check(path)
    assert len(searches) == 1
