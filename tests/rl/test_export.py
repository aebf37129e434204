"""A policy's file plays as its run does; one that is no policy is refused in one line."""

from importlib import import_module

import numpy as np
import pytest
import torch

from retable.platform.api import TrainedRun
from retable.platform.errors import UserError
from retable.platform.models.zoo import zoo
from retable.platform.spec.task import Source, find
from retable.platform.store.storage import Storage
from retable.tasks.rl.config import Bc, View
from retable.tasks.rl.export import read_export, read_policy, write_export, write_policy
from retable.tasks.rl.formats.compact import deployable, pack, read_about, unpack
from retable.tasks.rl.model import build, generator, unstack
from retable.tasks.rl.play.evaluate import check_sizes, rollout
from retable.tasks.rl.predict import predict
from tests.rl import toys
from tests.tiny import tiny, trained, transitions

INFO = {"states": 4, "actions": 1, "max_action": 1.0, "behaviour_return": 100.0, "simulator": "v5"}
CONFIG = toys.config(environment="InvertedPendulum")
WEIGHTS = unstack(build([CONFIG], 4, 1, 1.0), 0)


def play(config, info, weights, view):
    return predict(config, view, weights, Source(Storage.open("."), info), "all")["returns"]


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("policy", ["bcq", "bc"])
def test_a_file_plays_as_its_run(policy, precision):
    data = write_policy(CONFIG, INFO, WEIGHTS, policy, precision)
    config, info, weights, own = read_policy(data, "x")
    assert (own, info) == (policy, INFO)
    view = View(policy=policy, episodes=3, samples=5)
    wanted = play(CONFIG, INFO, WEIGHTS, View(policy=policy, episodes=3, samples=5, precision=precision))
    assert np.array_equal(play(config, info, weights, view), wanted)


def test_a_file_of_all_weights_holds_every_bit_and_plays_both_policies():
    _, _, weights, own = read_policy(write_policy(CONFIG, INFO, WEIGHTS, "all", "float32"), "x")
    assert own == "bcq" and all(torch.equal(weights[name], value) for name, value in WEIGHTS.items())


@pytest.mark.parametrize("value", [0.0, -5.0])
def test_a_behaviour_that_earned_nothing_comes_back(value):
    info = {**INFO, "behaviour_return": value}
    assert read_policy(write_policy(CONFIG, info, WEIGHTS, "bc", "float32"), "x")[1] == info


def test_a_run_of_the_vae_alone_has_no_bcq_policy():
    config = toys.config(algorithm=Bc())
    with pytest.raises(UserError, match="algorithm=bcq"):
        write_policy(config, INFO, unstack(build([config], 4, 1, 1.0), 0), "bcq", "float32")


GOOD = write_policy(CONFIG, INFO, WEIGHTS, "bcq", "float32")
ABOUT = read_about(GOOD, "x")
BROKEN = {
    "entry 'environment' is no name": ({**ABOUT, "environment": "Hopper\x1b[2J"}, {}),
    "entry 'simulator' is no name": ({**ABOUT, "simulator": "v5\nall is well"}, {}),
    "impossible tensor": (ABOUT, {"\x1b[2J\nall is well": torch.zeros(2)}),
    "'environment'": ({**ABOUT, "environment": 3}, {}),
    "'max_action'": ({**ABOUT, "max_action": 1e999}, {}),
    "'perturbation'": ({key: value for key, value in ABOUT.items() if key != "perturbation"}, {}),
    "wrong policy": ({**ABOUT, "policy": "sac"}, {}),
    "layer vae.d2 does not fit": (ABOUT, {"vae.d2.weight": torch.zeros(16, 19)}),
    "layer vae.d3 is missing": (ABOUT, {"vae.d3.bias": None}),
    "critic does not fit": (ABOUT, {"critic.l3.weight": torch.zeros(2, 10), "critic.l3.bias": torch.zeros(2)}),
    "no observations": (ABOUT, {"vae.d1.weight": torch.zeros(18, 2)}),
    "more is missing, or too many": (ABOUT, {"more": torch.zeros(2)}),
    "layer actor.l1 is missing or empty": (ABOUT, {"actor.l1.weight": torch.zeros(16)}),
}


@pytest.mark.parametrize("reason", BROKEN)
def test_what_is_no_policy_is_refused_in_one_line(reason):
    about, changes = BROKEN[reason]
    weights = {n: v for n, v in (deployable(WEIGHTS, "bcq") | changes).items() if v is not None}
    with pytest.raises(UserError, match=f"^evil: .*{reason}.*retable rl export`$") as caught:
        read_policy(pack(weights, about=about), "evil")
    assert str(caught.value).isprintable()


def test_wide_layers_that_do_not_fit_are_refused_before_they_are_built():
    changes = {"actor.l1.weight": torch.zeros(1 << 19, 5), "actor.l1.bias": torch.zeros(1 << 19)}
    with pytest.raises(UserError, match=r"layer actor\.l2 does not fit"):
        read_policy(pack(deployable(WEIGHTS, "bcq") | changes, about=ABOUT), "evil")


def test_an_environment_of_other_sizes_is_refused():
    check_sizes("InvertedPendulum-v5", 4, 1, "the policy")
    with pytest.raises(UserError, match=r"Hopper-v5 has \(11, 3\) .* the policy \(4, 1\)"):
        check_sizes("Hopper-v5", 4, 1, "the policy")


def test_a_file_that_is_read_is_the_one_that_was_written():
    assert unpack(GOOD, "x").keys() == deployable(WEIGHTS, "bcq").keys()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run, trained for a few steps."""
    storage = Storage.open(tmp_path_factory.mktemp("rl"))
    transitions(storage)
    config = tiny("rl", {"prune": "snip"})
    return TrainedRun(find("rl"), trained("rl", config, storage, storage), config)


@pytest.mark.parametrize("policy", ["bcq", "bc"])
def test_an_exported_run_acts_bit_for_bit_as_its_rollouts(run, policy, monkeypatch):
    """What a server answers to the states of an episode is what `predict` played in them."""
    played = []

    def watched(act, *arguments):
        def recorded(states):
            played.append((states.copy(), act(states)))
            return played[-1][1]

        return rollout(recorded, *arguments)

    monkeypatch.setattr(import_module("retable.tasks.rl.predict"), "rollout", watched)
    view = View(policy=policy, episodes=3, samples=5, epoch=2)
    predict(run.config, view, run.weights(2), run.source, "all")
    opened = read_export(write_export(run, policy=policy), "x")
    drawn = generator(view.seed, "rl.noise.acting")
    assert len(played) > 3 and opened.environment == "InvertedPendulum-v5"
    for states, actions in played:
        noise = torch.randn(15 if policy == "bcq" else 3, 2, generator=drawn)
        assert np.array_equal(opened.act(torch.from_numpy(states), noise).numpy(), actions)
    first = torch.randn(15 if policy == "bcq" else 3, 2, generator=generator(7, "rl.noise.acting"))
    assert torch.equal(opened.noise(3, 5, 7), first)


def test_an_exported_run_says_where_it_is_from(run):
    said = read_export(write_export(run, 1, licence="ours"), "x").about
    assert (said["task"], said["fingerprint"], said["epoch"]) == ("rl", run.fingerprint, 1)
    assert (said["policy"], said["precision"], said["licence"]) == ("bcq", "float32", "ours")
    assert said["config"]["prune"] == "snip" and said["data"] == "tiny" and said["data_digest"] == run.result["data"]
    assert write_export(run, 1, licence="ours") == write_export(run, 1, licence="ours")


def test_a_file_without_a_run_is_read_too():
    opened = read_export(GOOD, "x")
    assert opened.about["environment"] == "InvertedPendulum" and "fingerprint" not in opened.about


def test_damaged_foreign_and_large_files_are_one_line(run):
    data = write_export(run)
    for broken in (data[:-3], data[:10], b"", b"PK\x03\x04" + data, data + b"\0", data[:-1] + bytes([data[-1] ^ 1])):
        with pytest.raises(UserError, match=r"^evil: .*retable rl export`$") as caught:
            read_export(broken, "evil")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "least"), [("dense", 0.95), ("snip-95", 0.95), ("grasp-95", 0.95), ("random-95", 0.5)]
)
def test_the_zoo_has_policies_that_say_how_they_play(name, least):
    opened = read_export(zoo("rl")[f"HalfCheetah-{name}"].read_bytes(), name)
    said, kept = opened.about, [w != 0 for key, w in opened.weights.items() if key.startswith("vae.d") and w.dim() == 2]
    assert said["command"].startswith("retable reproduce rl/figure1") and said["scale"] == "small"
    assert said["score"]["metric"] == "return" and said["score"]["behaviour_share"] > least and said["licence"]
    assert opened.config.states == "standardized" and said["states"].keys() == {"mean", "deviation"}
    share = sum(int(mask.sum()) for mask in kept) / sum(mask.numel() for mask in kept)
    # SNIP and GraSP keep nearly all that is left of a VAE in its decoder, which is half of it.
    assert share == pytest.approx({"dense": 1, "random-95": 0.05}.get(name, 0.1), abs=0.01)
    actions = opened.act(torch.zeros(4, 17), opened.noise(4, 10, 0))
    assert actions.shape == (4, 6) and actions.abs().max() <= 1


@pytest.mark.parametrize("name", ["snip-95", pytest.param("grasp-95", marks=pytest.mark.slow)])
def test_a_pruned_policy_of_the_zoo_plays_as_well_as_the_behaviour(name):
    config, info, weights, policy = read_policy(zoo("rl")[f"HalfCheetah-{name}"].read_bytes(), name)
    played = predict(config, View(policy=policy, episodes=2), weights, Source(Storage.open("."), info), "all")
    assert played["returns"].mean() > 0.9 * info["behaviour_return"]
