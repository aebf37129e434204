"""Episodes of served policies: as `retable rl play` plays them, drawn as MuJoCo has them, stopped when nobody waits."""

import asyncio
import json
import sys
import threading
import time

import numpy as np
import pytest

from retable.platform.spec.task import Source
from retable.serve.deployments import episodes
from retable.serve.ingress.limits import Limits
from retable.serve.ingress.replies import Problem, Reply
from retable.serve.launch import models
from retable.tasks.rl.config import View
from retable.tasks.rl.predict import predict
from tests.serve import toys, web
from tests.serve.test_parts import ask, problem


def never():
    return False


@pytest.mark.parametrize("kind", ["bcq", "bc"])
def test_an_episode_is_the_one_that_is_scored(kind):
    policy = toys.policy(0, kind)
    told = episodes.play(policy, 3, 1000, never)
    view = View(policy=kind, episodes=1, seed=3)
    scored = predict(policy.config, view, policy.weights, Source(None, policy.info), "all")
    assert told["return"] == pytest.approx(scored["returns"][0]) and told["steps"] == scored["lengths"][0]
    assert told["end"] == "fell" and sum(told["rewards"]) == pytest.approx(told["return"])
    assert episodes.play(policy, 3, 1000, never) == told != episodes.play(policy, 4, 1000, never)
    short = episodes.play(policy, 3, 2, never)
    assert short["end"] == "steps" and short["rewards"] == told["rewards"][:2]


@pytest.mark.parametrize(
    ("environment", "plane"), [("HalfCheetah-v5", "xz"), ("Swimmer-v5", "xy"), ("Hopper-v5", "xz")]
)
def test_bodies_are_where_mujoco_has_them(environment, plane):
    import gymnasium
    import mujoco

    made = gymnasium.make(environment)
    made.reset(seed=0)
    for _ in range(5):
        made.step(made.action_space.sample())
    model, data = made.unwrapped.model, made.unwrapped.data
    film = episodes.Film(made.unwrapped)
    film.see(0)
    told = film.as_json()
    depth = {"xz": 2, "xy": 1}[told["plane"]]
    assert told["plane"] == plane and len(told["frames"][0]) == 4 * len(told["bodies"])
    assert told["every"] * told["seconds_per_step"] == pytest.approx(0.04, abs=0.011)
    for place, geom in enumerate(film.places):
        ends = np.array(told["frames"][0][4 * place : 4 * place + 4]).reshape(2, 2) / 1000
        half = model.geom_size[geom, 1] if model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_CAPSULE else 0
        turned, middle = data.geom_xmat[geom].reshape(3, 3), data.geom_xpos[geom]
        wanted = [middle + turned @ [0, 0, sign * half] for sign in (-1, 1)]
        assert np.abs(ends - np.array(wanted)[:, [0, depth]]).max() <= 5.1e-4
        assert told["bodies"][place]["radius"] == round(1000 * model.geom_size[geom, 0])
    made.close()


def test_a_policy_is_counted():
    policy = toys.policy()
    held = [w for name, w in policy.weights.items() if w.dim() == 2 and w.any()]  # what the policy does not need is 0
    assert episodes.weight(policy) == {
        "weights": sum(int(w.count_nonzero()) for w in held),
        "weights_of": sum(w.numel() for w in held),
    }


def test_an_episode_ends_when_nobody_waits_for_it(monkeypatch):
    began, ended = threading.Event(), threading.Event()

    def play(policy, seed, steps, stopped):
        began.set()
        while not stopped():
            time.sleep(0.005)
        ended.set()
        raise episodes.Stopped

    monkeypatch.setattr(episodes, "play", play)

    async def cancelled():
        stage = episodes.Stage()
        asked = asyncio.create_task(stage.play(None, 0, 1))
        await asyncio.to_thread(began.wait, 5)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert await asyncio.to_thread(ended.wait, 5) and stage.waiting == 0

    async def too_long_or_too_many():
        stage = episodes.Stage(Limits(episode_seconds=0.05, episodes=2))
        return await asyncio.gather(*(stage.play(None, 0, 1) for _ in range(3)), return_exceptions=True)

    asyncio.run(cancelled())
    found = asyncio.run(too_long_or_too_many())
    assert [(each.status, each.detail.split(";")[0]) for each in found] == [
        (503, "not played within 0.05 s"), (503, "not played within 0.05 s"), (503, "other episodes are being played"),
    ]  # fmt: skip


def test_without_a_simulator_there_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(Problem) as caught:
        asyncio.run(episodes.Stage().play(toys.policy(), 0, 1))
    assert (caught.value.status, caught.value.detail) == (501, "no simulator here: the server has no gymnasium[mujoco]")


async def echo(task, method, *arguments):
    return Reply(json.dumps([task, method, *arguments]).encode(), "application/json")


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("Hopper/episode?steps=0", (422, "steps: got '0'")),
        ("Hopper/episode?steps=1001", (422, "steps: got '1001'")),
        ("Hopper/episode?seed=-1", (422, "seed: got '-1'")),
        ("Hoper/episode", (404, "no policy of the environment 'Hoper' is served; did you mean 'Hopper'?")),
        ("Hopper/episode?model=snap", (404, "no model 'snap' of Hopper; did you mean 'snip'?")),
    ],
)
def test_what_cannot_be_played_is_refused(path, wanted):
    made = web.application([models.Model(task="rl", name="Hopper", variant="snip", sha256="a" * 64)], echo)
    status, detail = problem(ask(made, "POST", f"/v1/rl/{path}"))
    assert status == wanted[0] and wanted[1] in detail


def test_an_episode_is_asked_of_the_chosen_policy():
    made = web.application([models.Model(task="rl", name="Hopper", variant="snip", sha256="a" * 64)], echo)
    status, headers, body = ask(made, "POST", "/v1/rl/hopper/episode?model=snip&seed=4&steps=50")
    assert (status, json.loads(body)) == (200, ["rl", "episode", "a" * 64, 4, 50])
    assert headers["x-retable-model"] == "rl/Hopper/snip"
