"""The environment that data are of: bounds of actions, settings, scores, versions; what does not fit is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest

from retable.platform.cli import app
from retable.platform.errors import UserError
from retable.platform.spec.task import Source
from retable.platform.store.storage import Storage
from retable.tasks.rl import TASK, data
from retable.tasks.rl.config import Config, View
from retable.tasks.rl.export import read_policy, write_policy
from retable.tasks.rl.metrics import is_reference
from retable.tasks.rl.model import build, unstack
from retable.tasks.rl.play.evaluate import make, refused_settings, rollout, scale, spaces
from retable.tasks.rl.predict import evaluate, predict
from retable.tasks.rl.recordings.d4rl import published_as
from retable.tasks.rl.recordings.prepare import describe
from retable.tasks.rl.tools.minari import _settings, import_minari, inspect
from tests.rl import toys
from tests.rl.d4rl_files import MIXED, Arrays, make_arrays, write
from tests.rl.tools import test_minari

DEFAULTS = {"env_spec": {"id": "Hopper-v5", "max_episode_steps": 1000, "kwargs": {}}}


def command(*words: str) -> None:
    """Run `retable` with these words, in this process."""
    app.app([*words], standalone_mode=False)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.open(tmp_path / "storage")


def arrays_of(states: int, actions: int, bound: float) -> Arrays:
    """Random rows of other sizes; actions fill [-bound, bound]."""
    random, made = np.random.default_rng(0), make_arrays([(60, "timeout"), (60, "timeout")])
    made["observations"] = random.normal(size=(120, states)).astype(np.float32)
    made["actions"] = random.uniform(-bound, bound, (120, actions)).astype(np.float32)
    del made["next_observations"]
    return made


@pytest.mark.parametrize(("environment", "version", "sizes", "bound"), [
    ("Humanoid", "v5", (348, 17), 0.4), ("Humanoid", "v4", (376, 17), 0.4), ("Pendulum", "v1", (3, 1), 2.0),
    ("Pusher", "v5", (23, 7), 2.0), ("InvertedPendulum", "v5", (4, 1), 3.0),
])  # fmt: skip
def test_actions_are_read_in_the_environment_s_bounds(
    environment: str, version: str, sizes: tuple[int, int], bound: float, storage: Storage, tmp_path: Path
) -> None:
    given = arrays_of(*sizes, bound)
    path = write(tmp_path / "a.hdf5", given)
    info = data.convert(path, storage, environment, "mine", version)
    action = data.read(data.folder(storage, environment, "mine"))["action"]
    kept = np.delete(np.arange(120), [59, 119])
    np.testing.assert_allclose(action, given["actions"][kept] / bound, atol=1e-6)
    name = f"{environment}-{version}"
    space = make(name, 1).single_action_space
    np.testing.assert_allclose(scale(action, space), given["actions"][kept], atol=1e-6)  # what is sent when played
    assert info["remarks"] == [f"actions are scaled to [-1, 1] from the bounds of {name}, [-{bound:g}, {bound:g}]"]
    assert data.inspect(path, environment, version) == ([], info["remarks"])


def test_actions_that_their_recorder_scaled_stay(storage: Storage, tmp_path: Path) -> None:
    given = arrays_of(348, 17, 1.0)
    info = data.convert(write(tmp_path / "a.hdf5", given), storage, "Humanoid", "mine")
    action = data.read(data.folder(storage, "Humanoid", "mine"))["action"]
    np.testing.assert_array_equal(action, np.delete(given["actions"], [59, 119], axis=0))
    assert "taken as scaled" in info["remarks"][0]
    with pytest.raises(UserError, match=r"'actions' leaves \[-0.4, 0.4\], the bounds of Humanoid-v5, first in row 0"):
        data.convert(write(tmp_path / "b.hdf5", arrays_of(348, 17, 30.0)), storage, "Humanoid", "other")


@pytest.mark.parametrize(("options", "what"), [
    ({"environment": "Foo"}, "unknown environment 'Foo-v5'; did you mean"),
    ({"environment": "Hoper"}, "did you mean 'Hopper-v5'"),
    ({"environment": "Hopper", "simulator": "v9"}, "unknown environment 'Hopper-v9'"),
    ({"environment": "CartPole", "simulator": "v1"}, "no bounded continuous actions"),
    ({"environment": "Walker2d"}, r"Walker2d-v5 has \(17, 6\) .*a.hdf5 \(11, 3\); give data of this environment"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_when_converted(
    storage: Storage, tmp_path: Path, options: dict[str, Any], what: str
) -> None:
    path = write(tmp_path / "a.hdf5", make_arrays(MIXED))
    with pytest.raises(UserError, match=what):
        data.convert(path, storage, name="mine", **options)
    assert not storage.exists("data")


def test_a_version_that_does_not_fit_is_refused_with_the_one_that_does(storage: Storage, tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", arrays_of(27, 8, 1.0))
    with pytest.raises(UserError, match=r"Ant-v5 has .*; Ant-v4 fits: convert or import the data with --simulator v4"):
        data.convert(path, storage, "Ant", "mine")
    assert data.convert(path, storage, "Ant", "mine", "v4")["simulator"] == "v4"


def test_a_minari_set_that_names_no_environment_takes_a_version(storage: Storage, tmp_path: Path) -> None:
    source = test_minari.write(tmp_path / "set", test_minari.MIXED, env_spec=None)
    with pytest.raises(UserError, match="unknown environment 'Hopper-v9'"):
        import_minari(source, storage, "Hopper", "mine", "v9")
    assert "unknown environment 'Hopper-v9'" in inspect(source, "Hopper", "v9")[0][0]
    words = ["data", "import", "rl", str(source), "--storage", storage.root, "--env", "hopper", "--name", "mine"]
    command(*words, "--simulator", "v4")
    assert data.provenance(data.folder(storage, "Hopper", "mine"))["simulator"] == "v4"
    with pytest.raises(UserError, match=r"recorded in v5, not in v4; leave --simulator out"):
        import_minari(minari(tmp_path / "other"), storage, version="v4")


def test_data_that_do_not_fit_are_refused_before_ray_starts(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """As sets that were converted before sizes were checked."""
    import retable.platform.execute.run as run

    made = toys.columns(64, 27, 8)
    made |= {"timeout": np.zeros(64, bool), "episode": np.zeros(64, np.int32), "step": np.arange(64, dtype=np.int32)}
    said = {"source": "file", "environment": "Ant", "simulator": "v5", "name": "old", "generated": False, "files": {}}
    data.store(made, np.ones(1), data.folder(storage, "Ant", "old"), said)
    monkeypatch.setattr(run, "ray_cluster", lambda **_: pytest.fail("Ray starts"))
    settings = ["environment=Ant", "data=old", "epochs=1", "steps=1"]
    words = ["train", "rl", "--storage", storage.root, *(word for each in settings for word in ("--set", each))]
    with pytest.raises(UserError, match=r"Ant-v5 has \(105, 8\) .*'old' \(27, 8\); Ant-v4 fits"):
        command(*words)


def test_nothing_is_replaced_unasked(storage: Storage, tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", make_arrays(MIXED))
    first = data.convert(path, storage, "Hopper", "mine")
    other = write(tmp_path / "b.hdf5", make_arrays(MIXED, seed=1))
    with pytest.raises(UserError, match=r"Hopper/mine: a data set is there already; .*--replace"):
        data.convert(other, storage, "Hopper", "mine")
    assert data.provenance(data.folder(storage, "Hopper", "mine")) == first
    assert data.convert(other, storage, "Hopper", "mine", replace=True)["digest"] != first["digest"]
    source = test_minari.write(tmp_path / "set", test_minari.MIXED)
    import_minari(source, storage)
    with pytest.raises(UserError, match="--replace"):
        import_minari(source, storage)
    import_minari(source, storage, replace=True)
    make_again = ["data", "make", "rl", "--env", "hopper", "--policy", "random", "--transitions", "300"]
    make_again += ["--storage", storage.root]
    command(*make_again)
    with pytest.raises(UserError, match="Hopper/recorded: a data set is there already"):
        command(*make_again)


@pytest.mark.parametrize(("name", "kind"), [
    ("ant_expert-v2", "Ant"), ("ant_mixed", "Ant"), ("ant-medium-v2", "Ant"), ("maze2d-umaze-sparse-v1", "mazes"),
    ("Ant_maze_u-maze_noisy_multistart_False_multigoal_False_sparse", "mazes"), ("antmaze-large-play-v2", "mazes"),
    ("pen-demos-v0-bc-combined", "Adroit"), ("relocate-expert-v1", "Adroit"),
    ("kitchen_microwave_kettle_light_slider-v0", "kitchen"),
    ("mini_kitchen_microwave_kettle_light_slider-v0", "kitchen"),
])  # fmt: skip
def test_d4rl_s_other_sets_are_known_by_name(storage: Storage, tmp_path: Path, name: str, kind: str) -> None:
    path = write(tmp_path / f"{name}.hdf5", make_arrays(MIXED))
    with pytest.raises(UserError, match=f"by its name D4RL's {kind}.*not one that can be played here"):
        data.convert(path, storage)
    assert kind in published_as(path) and "not one that can be played here" in published_as(path)


def minari(folder: Path, **changes: Any) -> Path:
    spec = {**DEFAULTS["env_spec"], **changes.pop("env_spec", {})}
    return test_minari.write(folder, test_minari.MIXED, env_spec=json.dumps(spec), **changes)


CONFIG = toys.config(environment="Hopper", data="minari-expert-v0")
WEIGHTS = unstack(build([CONFIG], 11, 3, 1.0), 0)
VIEW = View(policy="bc", episodes=2)


def returns_alone(seeds: range, act: Any, **settings: Any) -> tuple[list[float], list[int]]:
    returns, lengths = [], []
    for seed in seeds:
        environment = gymnasium.make("Hopper-v5", **settings)
        observation, _ = environment.reset(seed=seed)
        total, steps, over = 0.0, 0, False
        while not over:
            observation, reward, terminated, truncated, _ = environment.step(act(observation))
            total, steps, over = total + float(reward), steps + 1, terminated or truncated
        environment.close()
        returns.append(total)
        lengths.append(steps)
    return returns, lengths


@pytest.mark.parametrize("settings", [
    {"max_episode_steps": 7}, {"kwargs": {"forward_reward_weight": 2}},
    {"max_episode_steps": 9, "kwargs": {"healthy_reward": -3, "healthy_z_range": [0.1, 5.0], "render_mode": "human"}},
])  # fmt: skip
def test_a_minari_set_is_played_in_the_environment_that_it_names(
    storage: Storage, tmp_path: Path, settings: dict[str, Any]
) -> None:
    info = import_minari(minari(tmp_path / "set", env_spec=settings), storage)
    kwargs = {key: value for key, value in settings.get("kwargs", {}).items() if key != "render_mode"}
    limit = {key: settings[key] for key in ("max_episode_steps",) if key in settings}
    assert info["settings"] == {**kwargs, **limit} and info["behaviour_score"] is None
    name = data.simulator("Hopper", info)
    found = rollout(lambda o: np.zeros((len(o), 3)), name, 2, 5)
    wanted = returns_alone(range(5, 7), lambda _: np.zeros(3), **kwargs, **limit)
    np.testing.assert_allclose(found["returns"], wanted[0], rtol=1e-12)
    assert found["lengths"].tolist() == wanted[1]
    assert all(key in describe(info) for key in info["settings"])
    source = Source(data.folder(storage, "Hopper", "minari-expert-v0"), info)
    played = predict(CONFIG, VIEW, WEIGHTS, source, "all")
    config, own, weights, _ = read_policy(write_policy(CONFIG, info, WEIGHTS, "bc", "float32"), "x")
    again = predict(config, VIEW, weights, Source(Storage.open("."), own), "all")
    np.testing.assert_array_equal(played["returns"], again["returns"])  # as a file, too


def test_a_limit_of_its_own_says_how_long_episodes_may_be(storage: Storage, tmp_path: Path) -> None:
    info = import_minari(minari(tmp_path / "set", env_spec={"max_episode_steps": 5}), storage)
    assert 'episode 3 has 12 steps: Hopper-v5 {"max_episode_steps": 5} stops at 5' in info["remarks"][0]


def test_a_plain_set_has_no_settings(storage: Storage, tmp_path: Path) -> None:
    wrapped = {"additional_wrappers": [{"name": "RecordEpisodeStatistics", "kwargs": {}}, {"name": "ClipAction"}]}
    info = import_minari(minari(tmp_path / "set", env_spec={**wrapped, "kwargs": {"render_mode": None}}), storage)
    assert "settings" not in info and data.simulator("Hopper", info) == "Hopper-v5"


def test_defaults_that_json_writes_otherwise_are_no_settings(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Environments have NumPy's arrays and nested tuples as defaults; metadata hold them as lists."""
    usual: dict[str, Any] = {"healthy_z_range": np.array([0.7, 3.0]), "healthy_angle_range": (np.float32(-0.5), 0.5)}
    usual["healthy_state_range"] = ((-1, 1), (-2, 2))
    monkeypatch.setattr(gymnasium.registry["Hopper-v5"], "kwargs", usual)
    same = {
        "healthy_z_range": [0.7, 3.0],
        "healthy_angle_range": [-0.5, 0.5],
        "healthy_state_range": [[-1, 1], [-2, 2]],
    }
    assert _settings(tmp_path, {**DEFAULTS["env_spec"], "kwargs": same}) == {}
    other = {**same, "healthy_z_range": [0.7, 3.5]}
    assert _settings(tmp_path, {**DEFAULTS["env_spec"], "kwargs": other}) == {"healthy_z_range": [0.7, 3.5]}


@pytest.mark.parametrize(("spec", "what"), [
    ({"additional_wrappers": [{"name": "NormalizeObservation", "kwargs": {}}]}, "wrapper 'NormalizeObservation'"),
    ({"additional_wrappers": ["\x1b[2J"]}, r"wrapper '\\x1b\[2J'"),
    ({"additional_wrappers": 3}, "wrapper '3'"),
    ({"kwargs": {"xml_file": "/etc/passwd"}}, "'xml_file' = '/etc/passwd', which only numbers may be"),
    ({"kwargs": {"nonsense": 3}}, "cannot be built here"), ({"kwargs": [3]}, "no arguments but"),
    ({"max_episode_steps": "many"}, "only numbers may be"), ({"id": "Hopper-v77"}, "unknown environment"),
])  # fmt: skip
def test_what_cannot_be_played_is_refused_when_imported(
    storage: Storage, tmp_path: Path, spec: dict[str, Any], what: str
) -> None:
    with pytest.raises(UserError, match=what) as caught:
        import_minari(minari(tmp_path / "set", env_spec=spec), storage)
    assert "\n" not in str(caught.value) and str(caught.value).isprintable() and not storage.exists("data")


def test_a_minari_set_s_own_reference_scores_are_used(storage: Storage, tmp_path: Path) -> None:
    info = import_minari(minari(tmp_path / "set", ref_min_score=10.0, ref_max_score=30.0), storage)
    assert info["behaviour_score"] == pytest.approx(100 * (info["behaviour_return"] - 10) / 20)
    played = {"returns": np.array([20.0, 40.0]), "lengths": np.array([5, 7])}
    assert evaluate(CONFIG, VIEW, {"all": played}, Source(storage, info))["score"] == pytest.approx(100)
    _, own, _, _ = read_policy(write_policy(CONFIG, info, WEIGHTS, "bc", "float32"), "x")
    assert evaluate(CONFIG, VIEW, {"all": played}, Source(storage, own))["score"] == pytest.approx(100)
    for bad in ({"ref_min_score": 30.0, "ref_max_score": 10.0}, {"ref_min_score": None, "ref_max_score": 3.0}):
        plain = import_minari(minari(tmp_path / str(bad), **bad), storage, name="plain", replace=True)
        assert "reference" not in plain


def test_an_environment_without_v5_is_planned_in_its_newest(storage: Storage) -> None:
    TASK.check(Config(environment="Pendulum", data="mine"), TASK.view())


def test_the_command_tells_how_data_were_read(
    storage: Storage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.hdf5", arrays_of(348, 17, 0.4))
    words = ["rl", str(path), "--env", "humanoid", "--name", "mine", "--storage", storage.root]
    command("data", "convert", *words, "--skip", "1")
    out = " ".join(capsys.readouterr().out.split())
    assert "remark: actions are scaled to [-1, 1] from the bounds of Humanoid-v5" in out and "episodes 1" in out
    for wrong, what in ((["--skip", "x"], "'x' is no number"), (["--mend", "all"], "'all' is not one of 'ends'")):
        with pytest.raises(Exception, match=what):  # typer's of its own click
            command("data", "convert", *words, *wrong)


@pytest.mark.parametrize(("environment", "version", "sizes", "bound"), [
    ("Humanoid", "v5", (348, 17), 0.4), ("Pusher", "v5", (23, 7), 2.0),
])  # fmt: skip
def test_minari_s_actions_without_bounds_of_their_own_are_in_the_environment_s(
    environment: str, version: str, sizes: tuple[int, int], bound: float, storage: Storage, tmp_path: Path
) -> None:
    """They were taken to be in [-1, 1]: a policy played with 0.4 of its actions."""
    given, name = arrays_of(*sizes, bound), f"{environment}-{version}"
    source = minari_of(tmp_path / "set", given, name)
    info = import_minari(source, storage, name="mine")
    action = data.read(data.folder(storage, environment, "mine"))["action"]
    np.testing.assert_allclose(action, given["actions"] / bound, atol=1e-6)
    assert info["remarks"] == [f"actions are scaled to [-1, 1] from the bounds of {name}, [-{bound:g}, {bound:g}]"]
    wide = minari_of(tmp_path / "wide", arrays_of(*sizes, 30.0), name)
    with pytest.raises(UserError, match=f"actions leave the bounds of {name} in 'episode_0/actions', first in row 0"):
        import_minari(wide, storage, name="wide")


def minari_of(folder: Path, arrays: Arrays, name: str) -> Path:
    """Write two episodes of 60 rows without `action_space`."""
    (folder / "data").mkdir(parents=True)
    with h5py.File(folder / "data/main_data.hdf5", "w") as file:
        for number, rows in enumerate((slice(0, 60), slice(60, 120))):
            group = file.create_group(f"episode_{number}")
            last = arrays["observations"][rows][-1:]
            group["observations"] = np.concatenate([arrays["observations"][rows], last + 1])
            group["actions"], group["rewards"] = arrays["actions"][rows], arrays["rewards"][rows]
            group["terminations"], group["truncations"] = np.zeros(60, bool), np.arange(60) == 59
    spec = {"id": name, "max_episode_steps": gymnasium.spec(name).max_episode_steps, "kwargs": {}}
    said = {"dataset_id": "own/set-v0", "env_spec": json.dumps(spec)}
    (folder / "data/metadata.json").write_text(json.dumps(said))
    return folder


def own_recording(path: Path, **said: Any) -> Path:
    """Write a file that says of itself what a recording of ours says."""
    write(path, arrays_of(17, 6, 1.0))
    with h5py.File(path, "r+") as file:
        file.attrs["retable"] = json.dumps({"environment": "HalfCheetah", "simulator": "v5", **said})
    return path


def test_a_recording_of_ours_is_of_no_other_environment(storage: Storage, tmp_path: Path) -> None:
    """Walker2d has as many observations and actions."""
    path = own_recording(tmp_path / "a.hdf5")
    what = "recorded in HalfCheetah, not in 'Walker2d'; leave --env out"
    with pytest.raises(UserError, match=what):
        data.convert(path, storage, "Walker2d", "mine")
    ((line,), _) = data.inspect(path, "Walker2d")
    assert what in line and not storage.exists("data")
    assert data.inspect(path, "HalfCheetah")[0] == data.inspect(path)[0] == []
    assert data.convert(path, storage, "HalfCheetah", "mine")["environment"] == "HalfCheetah"


@pytest.mark.parametrize("said", [{"simulator": [1]}, {"environment": ["x"]}, {"environment": 3, "simulator": {}}])
def test_what_a_foreign_file_says_of_itself_is_taken_as_text_alone(
    storage: Storage, tmp_path: Path, said: dict[str, Any]
) -> None:
    path = own_recording(tmp_path / "a.hdf5", **said)
    assert data.inspect(path, "HalfCheetah")[0] == []
    assert data.convert(path, storage, "HalfCheetah", "mine")["environment"] == "HalfCheetah"


def test_what_is_nested_deep_is_no_recording_of_ours(storage: Storage, tmp_path: Path) -> None:
    path = own_recording(tmp_path / "a.hdf5")
    with h5py.File(path, "r+") as file:
        file.attrs["retable"] = "[" * 50_000
    assert data.inspect(path, "HalfCheetah")[0] == []
    assert data.convert(path, storage, "HalfCheetah", "mine")["generated"] is False


@pytest.mark.parametrize(
    ("environment", "version"), [("Half Cheetah", "v5"), ("HalfCheetah", "v5 2"), ("HalfCheetah", "v5 ")]
)
def test_a_blank_in_a_name_or_a_version_is_a_line(environment: str, version: str, tmp_path: Path) -> None:
    """What follows the blank was read as JSON: a traceback."""
    path = write(tmp_path / "a.hdf5", arrays_of(17, 6, 1.0))
    ((line,), _) = data.inspect(path, environment, version)
    assert f"unknown environment '{environment}-{version}'" in line and "\n" not in line
    ((line,), _) = inspect(test_minari.write(tmp_path / "set", MIXED, env_spec=None), environment, version)
    assert f"unknown environment '{environment}-{version}'" in line and "\n" not in line


def test_a_file_of_no_known_environment_is_checked_for_what_can_be(tmp_path: Path) -> None:
    """Humanoid's actions of 0.4, and episodes beyond Hopper's limit, passed without a word."""
    small = write(tmp_path / "small.hdf5", arrays_of(348, 17, 0.4))
    defects, (remark,) = data.inspect(small)
    assert defects == [] and "no environment is known" in remark and "--env" in remark
    (line,), _ = data.inspect(write(tmp_path / "wide.hdf5", arrays_of(3, 1, 2.0)))
    assert line.endswith("leaves [-1, 1], first in row 0; name the environment by --env, or scale them")
    silent = minari(tmp_path / "set")
    said = json.loads((silent / "data/metadata.json").read_text())
    (silent / "data/metadata.json").write_text(json.dumps({**said, "env_spec": None}))
    assert "no environment is known" in inspect(silent)[1][0] and inspect(silent, "Hopper")[1] == []


@pytest.mark.parametrize(("environment", "sizes", "limit", "what"), [
    ("HalfCheetah", (17, 6), 60, "HalfCheetah-v5 never terminates, but 2 rows are terminal, first row 59"),
    ("Pusher", (23, 7), 60, "Pusher-v5 never terminates, but 2 rows"),
    ("Walker2d", (17, 6), 1000, "2 rows at the limit of Walker2d-v5, 1,000 steps, are terminal, first row 999"),
])  # fmt: skip
def test_time_outs_that_are_marked_as_terminal_are_remarked(
    tmp_path: Path, environment: str, sizes: tuple[int, int], limit: int, what: str
) -> None:
    """As of a recorder that stores `done`: targets lose what comes after."""
    random, rows = np.random.default_rng(0), 2 * limit
    made = {
        "observations": random.normal(size=(rows, sizes[0])).astype(np.float32),
        "actions": random.uniform(-1, 1, (rows, sizes[1])).astype(np.float32),
        "rewards": np.zeros(rows, np.float32),
        "terminals": np.arange(1, rows + 1) % limit == 0,
        "timeouts": np.zeros(rows, bool),
    }
    _, remarks = data.inspect(write(tmp_path / "a.hdf5", made), environment)
    assert any(what in remark and "timeouts" in remark for remark in remarks)
    early = {**made, "terminals": np.isin(np.arange(rows), [limit // 2, rows - 1 - limit // 3])}
    _, remarks = data.inspect(write(tmp_path / "b.hdf5", early), environment)
    assert any("terminal" in remark for remark in remarks) == (environment != "Walker2d")


def test_arguments_as_the_environment_has_them_anyway_are_no_settings(storage: Storage, tmp_path: Path) -> None:
    """A recorder that writes every argument names the model's file and the whole range of angles."""
    own = {"xml_file": "hopper.xml", "forward_reward_weight": 1.0, "terminate_when_unhealthy": True}
    own["healthy_state_range"] = [-100.0, 100.0]
    info = import_minari(minari(tmp_path / "set", env_spec={"kwargs": own}), storage)
    assert "settings" not in info and info["behaviour_score"] is not None


@pytest.mark.parametrize(
    "settings",
    [{"frame_skip": 10**9}, {"frame_skip": 0}, {"frame_skip": [5]}, {"max_episode_steps": 10**12}, {"frame_skip": -1}],
)
def test_a_foreign_file_cannot_ask_for_hours(settings):
    assert "which is beyond 1 to" in refused_settings(settings)
    for key in ("frame_skip", "max_episode_steps"):
        assert "which is no whole number" in refused_settings({key: 2.5})
    assert not refused_settings({"frame_skip": 5, "max_episode_steps": 1000.0, "healthy_z_range": [0.8, 2.0]})


def test_a_foreign_file_has_numbers_alone():
    """NaN would be every reward; the default of Hopper's own height has no upper end."""
    assert refused_settings({"forward_reward_weight": math.nan}).endswith("= nan, which only numbers may be")
    assert refused_settings({"healthy_z_range": [0.7, math.nan]})
    assert not refused_settings({"healthy_z_range": [0.8, math.inf]})


@pytest.mark.parametrize(
    "scores", [[10**400, 10**401], [-(10**400), 0], [0, math.inf], [math.nan, 1], [2, 2], [0, "1"]]
)
def test_reference_scores_are_finite_and_in_order(scores):
    assert is_reference([20.0, 3234]) and not is_reference(scores)


def test_whole_numbers_with_a_point_are_played():
    """As writers of JSON in other languages write them."""
    three = 'Pendulum-v1 {"max_episode_steps": 3.0}'
    played = rollout(lambda states: np.zeros((len(states), 1), np.float32), three, 1, 0)
    assert played["lengths"].tolist() == [3] == [spaces(three).steps]


def test_settings_nested_deep_are_a_line():
    refused = refused_settings(json.loads('{"a": ' + "[" * 600 + "]" * 600 + "}"))
    assert refused.startswith("'a' = [[[") and refused.endswith("]]], which only numbers may be") and len(refused) < 80


@pytest.mark.parametrize("settings", ['{"xml_file": 1}', '{"frame_skip": [1]}'])
def test_what_a_constructor_raises_is_a_line(settings):
    with pytest.raises(UserError, match=r"Hopper-v5 .*' cannot be built here: ") as caught:
        make(f"Hopper-v5 {settings}", 1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "settings", [{"healthy_z_range": 1}, {"healthy_z_range": [1.0]}, {"reset_noise_scale": [1, 2]}]
)
def test_settings_with_which_no_step_is_possible_are_refused_when_planned(
    storage: Storage, tmp_path: Path, settings: dict[str, Any]
) -> None:
    with pytest.raises(UserError, match=r"Hopper-v5 .*' cannot be (built here|stepped): "):
        import_minari(minari(tmp_path / "set", env_spec={"kwargs": settings}), storage)
