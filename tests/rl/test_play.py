"""`retable rl play FILE`: what a file cannot give is refused in one line."""

import pytest
import torch

from retable.platform import api
from retable.platform.api import TrainedRun
from retable.platform.errors import UserError
from retable.platform.spec.task import find
from retable.platform.store.storage import Storage
from retable.tasks.rl import TASK
from retable.tasks.rl.cli import export, play
from retable.tasks.rl.config import Config
from retable.tasks.rl.export import read_policy, write_policy
from retable.tasks.rl.formats.compact import HEAVIEST, pack
from retable.tasks.rl.model import build, unstack
from tests.rl import toys
from tests.tiny import tiny, trained, transitions

INFO = {"max_action": 1.0, "behaviour_return": 100.0, "simulator": "v5"}
CONFIG = toys.config(environment="InvertedPendulum")


@pytest.fixture
def weights():
    return unstack(build([CONFIG], 4, 1, 1.0), 0)


def played(folder, weights, **options):
    file = folder / "policy.rtsn"
    file.write_bytes(write_policy(CONFIG, INFO, weights, "bc", "float32"))
    play(**({"run": str(file), "storage": "", "policy": None, "episodes": 2, "epoch": 0, "env": None} | options))


def test_a_file_is_played(tmp_path, weights, capsys):
    played(tmp_path, weights, env="invertedpendulum")
    assert "a policy for InvertedPendulum-v5" in capsys.readouterr().out


def test_a_file_is_played_in_the_version_that_it_names(tmp_path, capsys):
    """Pendulum has no v4, in which D4RL's would be played."""
    config = toys.config(environment="Pendulum")
    file = tmp_path / "policy.rtsn"
    weights = unstack(build([config], 3, 1, 1.0), 0)
    file.write_bytes(write_policy(config, INFO | {"simulator": "v1"}, weights, "bc", "float32"))
    play(str(file), storage="", policy=None, episodes=1, epoch=0, env=None)
    assert "a policy for Pendulum-v1" in capsys.readouterr().out


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_policy_that_diverged_is_told_in_one_line(tmp_path, weights, value):
    weights["vae.d1.weight"][0] = value
    with pytest.raises(UserError, match=r"policy\.rtsn: .*actions are not finite; its training has diverged") as caught:
        played(tmp_path, weights)
    assert "\n" not in str(caught.value)


def test_a_policy_that_comes_with_the_task_is_played_by_its_name(capsys):
    play("HalfCheetah-snip-95", storage="unused", policy=None, episodes=1, epoch=0, env="halfcheetah")
    told = capsys.readouterr().out
    assert "HalfCheetah-snip-95: a policy for HalfCheetah-v5" in told and "behaviour_share  " in told


def test_a_file_has_no_epochs(tmp_path, weights):
    with pytest.raises(UserError, match=r"policy\.rtsn: .* leave out --epoch 99"):
        played(tmp_path, weights, epoch=99)


def test_a_file_of_behaviour_cloning_has_no_other_policy(tmp_path, weights):
    with pytest.raises(UserError, match=r"policy\.rtsn: holds policy bc; leave --policy out"):
        played(tmp_path, weights, policy="bcq")


def test_what_is_too_large_to_be_a_policy_is_not_read(tmp_path):
    file = tmp_path / "other.rtsn"
    with file.open("wb") as out:
        out.truncate(20 << 30)  # sparse: it takes no room
    with pytest.raises(UserError, match=r"other.rtsn: 21,475 MB; no policy takes more than 25 MB"):
        play(str(file), storage="", policy=None, episodes=2, epoch=0, env=None)


def test_the_largest_policy_is_not_too_large():
    values = torch.randn(1 << 11, 1 << 11)  # what does not shrink, as many numbers as there may be
    assert len(pack({"w": values})) < HEAVIEST


@pytest.mark.parametrize(
    ("environment", "data", "words"),
    [("Hoper", "recorded", "Hopper-v5"), ("Hoper", "d4rl-expert-v2", "Hopper-v4"), ("CartPole", "mine", "CartPole-v1")],
)
def test_a_wrong_environment_is_refused_when_planned(environment, data, words):
    with pytest.raises(UserError, match=words):
        TASK.check(Config(environment=environment, data=data), TASK.view())


@pytest.mark.parametrize(("algorithm", "policy"), [("bcq", "bcq"), ("bc", "bc")])
def test_a_run_is_played_and_written_by_the_policy_that_it_has(tmp_path, monkeypatch, algorithm, policy):
    """The default scale trains the VAE alone: `retable rl play latest` asked it for BCQ's policy."""
    storage = Storage.open(tmp_path)
    transitions(storage)
    config = tiny("rl", {"algorithm": algorithm})
    run = TrainedRun(find("rl"), trained("rl", config, storage, storage), config)
    monkeypatch.setattr(api, "load", lambda *_, **__: run)
    words = {"storage": "", "epoch": 0}
    play("latest", policy=None, episodes=1, env=config.environment.lower(), **words)
    with pytest.raises(UserError, match=f"--env walker2d: run latest is of {config.environment}"):
        play("latest", policy=None, episodes=1, env="walker2d", **words)
    export("latest", tmp_path / "a.rtsn", policy=None, precision="float32", licence="", **words)
    assert read_policy((tmp_path / "a.rtsn").read_bytes(), "x")[3] == policy
