"""Rollouts against a plain loop over one environment at a time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from retable.platform.errors import UserError
from retable.tasks.rl.play.evaluate import make, rollout, scale


def steer(observations: np.ndarray) -> np.ndarray:
    """A policy that depends on what it sees, and leaves [-1, 1]."""
    return np.tanh(observations[:, :3]) * 1.5


def alone(environment_id: str, seed: int, act: Any, bound: float = 1) -> tuple[float, int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        environment = gymnasium.make(environment_id)
    observation, _ = environment.reset(seed=seed)
    total, steps, over = 0.0, 0, False
    while not over:
        action = bound * np.clip(act(observation[None].astype(np.float32))[0], -1, 1)
        observation, reward, terminated, truncated, _ = environment.step(action.astype(np.float32))
        total, steps, over = total + float(reward), steps + 1, terminated or truncated
    environment.close()
    return total, steps


@pytest.mark.parametrize("environment_id", [pytest.param("Hopper-v4", marks=pytest.mark.slow), "Hopper-v5"])
def test_rollout_is_the_first_episode_of_each_seed(environment_id: str) -> None:
    found = rollout(steer, environment_id, episodes=4, seed=11)
    expected = [alone(environment_id, seed, steer) for seed in range(11, 15)]
    np.testing.assert_allclose(found["returns"], [total for total, _ in expected], rtol=1e-12)
    assert found["lengths"].tolist() == [steps for _, steps in expected]
    assert len(set(found["lengths"].tolist())) > 1, "episodes of unequal length, so that early ends are tested"
    again = rollout(steer, environment_id, episodes=4, seed=11)
    np.testing.assert_array_equal(found["returns"], again["returns"])


def test_actions_are_stretched_to_the_environments_bounds() -> None:
    def act(observations: np.ndarray) -> np.ndarray:
        return observations[:, 1:2]

    found = rollout(act, "Pendulum-v1", episodes=2, seed=5)
    expected = [alone("Pendulum-v1", seed, act, bound=2) for seed in (5, 6)]
    np.testing.assert_allclose(found["returns"], [total for total, _ in expected], rtol=1e-6)
    assert found["lengths"].tolist() == [200, 200]


def test_scale_maps_onto_uneven_bounds_and_is_exact_for_d4rl() -> None:
    space = gymnasium.spaces.Box(np.array([-1, 0], np.float32), np.array([1, 4], np.float32))
    actions = np.array([[0.1, -1], [-3, 0], [0.7, 5]], np.float32)
    np.testing.assert_array_equal(scale(actions, space), np.array([[0.1, 0], [-1, 2], [0.7, 4]], np.float32))


def test_observations_come_as_float32_and_all_lanes_stay() -> None:
    seen = set()

    def act(observations: np.ndarray) -> np.ndarray:
        seen.add((observations.shape, observations.dtype.name))
        return steer(observations)

    rollout(act, "Hopper-v5", episodes=3, seed=0)
    assert seen == {((3, 11), "float32")}


@pytest.fixture
def endless() -> Iterator[str]:
    gymnasium.register("Endless-v0", entry_point="gymnasium.envs.classic_control.pendulum:PendulumEnv")
    yield "Endless-v0"
    gymnasium.registry.pop("Endless-v0")


@pytest.mark.parametrize(("environment_id", "what"), [
    ("Hoper-v5", "did you mean 'Hopper-v5'"), ("Hopper", "did you mean 'Hopper-v"),
    ("Hopper-v9", "did you mean 'Hopper"), ("Hopper v5-v5", "did you mean 'Hopper-v5'"),
    ("Hopper-v5 {x}", "did you mean 'Hopper-v5'"), ("Hopper-v5 2", "did you mean 'Hopper-v5'"),
    ("Hopper-v2", "gymnasium-robotics"), ("CartPole-v1", "no bounded continuous actions"),
    ("Endless-v0", "no limit on an episode's length"), ("Quux", "HalfCheetah-v5, Hopper-v4"),
])  # fmt: skip
def test_refuses_other_environments_in_one_line(endless: str, environment_id: str, what: str) -> None:
    with pytest.raises(UserError) as caught:
        rollout(steer, environment_id, 1, 0)
    assert what in str(caught.value) and repr(environment_id) in str(caught.value) and "\n" not in str(caught.value)


def test_a_policy_that_diverged_is_an_error() -> None:
    with pytest.raises(UserError, match=r"not finite.*earlier epoch"):
        rollout(lambda observations: np.full((len(observations), 3), np.nan), "Hopper-v5", 1, 0)


def test_mujoco_neither_prints_nor_logs_its_remark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    gymnasium.make("HalfCheetah-v5").close()
    assert "settotalmass" in "".join(capfd.readouterr()), "MuJoCo no longer says it: the filter can go"
    (tmp_path / "MUJOCO_LOG.TXT").unlink()
    make("HalfCheetah-v5", 2).close()
    assert "".join(capfd.readouterr()) == "" and list(tmp_path.iterdir()) == []
