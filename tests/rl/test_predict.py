"""How runs are read: scores of made-up returns, and what reports say of data."""

import numpy as np
import pytest
import torch

from retable.platform.spec.task import Source
from retable.platform.store.storage import Storage
from retable.tasks.rl.config import Config, View
from retable.tasks.rl.formats.compact import pack, unpack
from retable.tasks.rl.model import build, generator, unstack
from retable.tasks.rl.predict import evaluate, predict
from retable.tasks.rl.recordings.prepare import describe
from tests.rl import toys
from tests.tiny import transitions


@pytest.mark.parametrize(("behaviour", "share"), [(20.0, 0.75), (0.0, None), (-20.0, None)])
def test_only_a_behaviour_that_earns_something_has_a_share(behaviour, share):
    played = {"returns": np.array([10.0, 20.0]), "lengths": np.array([5, 7])}
    source = Source(Storage.open("."), {"behaviour_return": behaviour})
    found = evaluate(Config(environment="Ant"), View(), {"all": played}, source)
    assert found.get("behaviour_share") == share
    assert (found["return"], found["return_std"], found["length"]) == (15, 5, 6)


@pytest.mark.parametrize(("policy", "words"), [("expert", "by our expert"), ("random", "by random actions")])
def test_reports_say_who_recorded(policy, words):
    info = {"source": "recorded", "name": "recorded", "environment": "Hopper", "simulator": "v5", "transitions": 10}
    info |= {"behaviour": {"policy": policy}, "behaviour_return": 20.0, "behaviour_score": None}
    assert describe(info) == f"Hopper recorded here {words} (10 transitions in v5, behaviour return 20)"


def moved(tmp_path, change=lambda weights: None, **view):
    transitions(Storage.open(str(tmp_path)))
    config = toys.config(environment="InvertedPendulum", data="tiny")
    weights = unstack(build([config], 4, 1, 1.0), 0)
    change(weights)
    source = Source.of(Storage.open(str(tmp_path)), "rl/InvertedPendulum/tiny")
    chosen = View(episodes=1, samples=5, **view)
    played = predict(config, chosen, weights, source, "all")
    return played, evaluate(config, chosen, {"all": played}, source), weights


def test_rounding_is_measured_by_actions_at_the_observations_of_the_data(tmp_path):
    played, found, weights = moved(tmp_path, policy="bc", precision="int8")
    observations = torch.from_numpy(toys.columns(64, 4, 1)["observation"])
    noise = torch.randn(64, 2, generator=generator(View().seed, "rl.noise.comparing")).clamp(-0.25, 0.25)

    def decode(held):  # the decoder, written out; BEAR clamps its latents to 0.25
        hidden = torch.cat((observations, noise), 1)
        for layer in ("d1", "d2"):
            hidden = torch.relu(hidden @ held[f"vae.{layer}.weight"].T + held[f"vae.{layer}.bias"])
        return torch.tanh(hidden @ held["vae.d3.weight"].T + held["vae.d3.bias"])

    wanted = (decode(weights) - decode(unpack(pack(weights, "int8"), "x"))).abs().mean(1)
    assert played["moved"] == pytest.approx(wanted.numpy(), abs=1e-6)
    assert found["action_difference"] == pytest.approx(float(wanted.mean()), abs=1e-7) and wanted.mean() > 1e-5


@pytest.mark.parametrize("policy", ["bcq", "bc"])
def test_the_coarser_the_weights_the_further_actions_move(tmp_path, policy):
    by_precision = {p: moved(tmp_path, policy=policy, precision=p)[1] for p in ("float32", "float16", "int8")}
    assert "action_difference" not in by_precision["float32"]
    assert 0 < by_precision["float16"]["action_difference"] < by_precision["int8"]["action_difference"]


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_weights_that_the_policys_file_does_not_hold_do_not_matter(tmp_path, precision):
    wanted = moved(tmp_path, policy="bc", precision=precision)[1]
    found = moved(tmp_path, lambda weights: weights["critic.l1.bias"].fill_(1e9), policy="bc", precision=precision)[1]
    assert found == wanted
