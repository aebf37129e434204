"""Standardized states: the same numbers in masks, batches, rollouts, files and stacks, from one set of statistics."""

import numpy as np
import pytest
import torch

from retable.platform.api import TrainedRun
from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.spec.task import find
from retable.platform.store.storage import Storage
from retable.tasks.rl.config import Bc, Snip
from retable.tasks.rl.data import Transitions
from retable.tasks.rl.export import read_export, read_policy, write_export, write_policy
from retable.tasks.rl.formats.compact import deployable, pack, read_about
from retable.tasks.rl.learner import OfflineLearner
from retable.tasks.rl.play.acting import acting
from retable.tasks.rl.play.states import Standard, networks_of
from retable.tasks.rl.predict import predict
from tests.rl import toys
from tests.tiny import tiny, trained, transitions

torch.set_num_threads(1)
INFO = {"states": 4, "actions": 2, "max_action": 1.0, "behaviour_return": 100.0, "simulator": "v5"}
SCALES = np.array([0.1, 1, 30, 0], np.float32)
"""Of the made-up states: an entry that never changes is among them."""


def rows(scales=SCALES, shift=5.0):
    """Make columns whose states have these deviations, around another mean each."""
    made = toys.columns(400, 4, 2)
    for name in ("observation", "next_observation"):
        made[name] = made[name] * scales + shift * np.arange(4, dtype=np.float32)
    return made


def config(**changes):
    return toys.config(**{"states": "standardized", "steps": 20, **changes})


def test_batches_and_samples_are_standardized_by_the_training_data():
    made = rows()
    plain, standardized = (Transitions(made, INFO, [config(states=states)]) for states in ("raw", "standardized"))
    mean, deviation = made["observation"].mean(0, dtype=np.float64), made["observation"].astype(np.float64).std(0)
    batches = zip(plain.batches(0, 0, 0, 1), standardized.batches(0, 0, 0, 1), strict=True)
    pairs = [*batches, (plain.sample(0, 50), standardized.sample(0, 50))]
    assert len(pairs) == 21 and plain.standard is None
    for raw, ours in pairs:
        for name in ("action", "reward", "not_done"):
            assert torch.equal(raw[name], ours[name])
        for name in ("observation", "next_observation"):
            wanted = (raw[name].double().numpy() - mean) / (deviation + 1e-3)
            np.testing.assert_allclose(ours[name].numpy(), wanted, rtol=1e-4, atol=1e-4)
    assert (ours["observation"][:, 3] == 0).all(), "an entry that never changes is 0, not NaN"


def test_members_of_other_states_cannot_train_together():
    with pytest.raises(ValueError, match="`states`"):
        Transitions(rows(), INFO, [config(), config(states="raw")])


def test_training_sees_nothing_but_standardized_states():
    """Masks, updates and what comes of them are those of a raw run on data that were standardized beforehand."""
    made = rows()
    standard = Standard.of(made["observation"])
    before = {
        name: standard(torch.from_numpy(column)).numpy() if "observation" in name else column
        for name, column in made.items()
    }
    states = []
    for data, kind in ((made, "standardized"), (before, "raw")):
        configs = [config(states=kind, prune=Snip(sparsity=0.5, batch=20))]
        opened = Transitions(data, INFO, configs)
        learner = OfflineLearner(configs, opened, toys.Worker())
        for batch in opened.batches(0, 0, 0, 1):
            learner.step(batch)
        states.append(learner.state_dict()[0])
    ours, raw = states
    assert networks_of(ours["weights"]).keys() == raw["weights"].keys() and len(ours["weights"]) > len(raw["weights"])
    for part in ("masks", "targets"):
        assert all(torch.equal(ours[part][name], value) for name, value in raw[part].items())
    assert all(torch.equal(ours["weights"][name], value) for name, value in raw["weights"].items())


@pytest.mark.parametrize("prune", [None, Snip(sparsity=0.95, batch=20)])
@pytest.mark.parametrize("policy", ["bcq", "bc"])
def test_a_policy_is_asked_with_states_as_the_simulator_gives_them(policy, prune):
    made = config(**({"prune": prune, "vae": (60, 60)} if prune else {}))
    opened = Transitions(rows(), INFO, [made])
    weights = OfflineLearner([made], opened, toys.Worker()).state_dict()[0]["weights"]
    inner = acting(config(states="raw", vae=made.vae), INFO, networks_of(weights), policy)
    observations, noise = torch.from_numpy(rows()["observation"][:5]), torch.randn(5, 4)
    wanted = inner((observations - weights["states.mean"]) / weights["states.deviation"], noise)
    assert torch.equal(acting(made, INFO, weights, policy)(observations, noise), wanted)
    for wrong, held in ((made, networks_of(weights)), (override(made, {"states": "raw"}), weights)):
        with pytest.raises(ValueError, match="states"):
            acting(wrong, INFO, held, policy)


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
@pytest.mark.parametrize("policy", ["bcq", "bc", "all"])
def test_a_file_holds_its_statistics_in_every_bit(policy, precision):
    made = config(environment="InvertedPendulum")
    weights = OfflineLearner([made], Transitions(rows(shift=1 / 3), INFO, [made]), toys.Worker()).state_dict()[0]
    data = write_policy(made, INFO, weights["weights"], policy, precision)
    read, _, held, _ = read_policy(data, "x")
    assert read.states == "standardized"
    for name in ("states.mean", "states.deviation"):
        assert torch.equal(held[name], weights["weights"][name])
    assert read_export(data, "x").act(torch.zeros(3, 4), torch.zeros(3, 4)).shape == (3, 2)


def test_a_file_from_before_takes_raw_states():
    made = config(states="raw")
    weights = OfflineLearner([made], Transitions(rows(), INFO, [made]), toys.Worker()).state_dict()[0]["weights"]
    data = write_policy(made, INFO, weights, "bc", "float32")
    assert "states" not in read_about(data, "x") and read_policy(data, "x")[0].states == "raw"


GOOD = {"mean": [0.0] * 4, "deviation": [1.0] * 4}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("raw", "nothing that is known"),
        ({"mean": [0.0] * 4}, "nothing that is known"),
        ({**GOOD, "more": []}, "nothing that is known"),
        ({**GOOD, "mean": [0.0] * 3}, "other than 4 numbers"),
        ({**GOOD, "mean": [[0.0]] * 4}, "no numbers"),
        ({**GOOD, "mean": [True] * 4}, "no numbers"),
        ({**GOOD, "mean": "0000"}, "no numbers"),
        ({**GOOD, "deviation": [1.0, 1.0, 1.0, 0.0]}, "impossible"),
        ({**GOOD, "deviation": [1.0, 1.0, 1.0, -1.0]}, "impossible"),
        ({**GOOD, "mean": [0.0, 0.0, 0.0, 1e999]}, "impossible"),
    ],
)
def test_statistics_that_are_none_are_refused_in_one_line(said, reason):
    made = config(environment="InvertedPendulum", states="raw")
    weights = OfflineLearner([made], Transitions(rows(), INFO, [made]), toys.Worker()).state_dict()[0]["weights"]
    about = read_about(write_policy(made, INFO, weights, "bc", "float32"), "x")
    with pytest.raises(UserError, match=f"^evil: .*{reason}.*retable rl export`$") as caught:
        read_policy(pack(deployable(weights, "bc"), about={**about, "states": said}), "evil")
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    made = Storage.open(tmp_path_factory.mktemp("rl"))
    transitions(made)
    return made


@pytest.mark.parametrize("algorithm", ["bcq", "bc"])
def test_a_run_its_weights_and_its_file_play_alike(storage, algorithm):
    """The default is standardized: what plays after training is what `play`, the server and the zoo play."""
    made = tiny("rl", {"prune": "snip", "algorithm": algorithm})
    assert made.states == "standardized"
    run = TrainedRun(find("rl"), trained("rl", made, storage, storage), made)
    wanted = Standard.of(toys.columns(64, 4, 1)["observation"])
    weights = run.weights(made.epochs)
    assert torch.equal(weights["states.mean"], wanted.mean) and torch.equal(
        weights["states.deviation"], wanted.deviation
    )
    view = override(find("rl").view(), {"policy": algorithm, "episodes": 2, "samples": 5})
    opened = read_export(write_export(run, policy=algorithm), "x")
    scores = [
        predict(one, view, held, run.source, "all")["returns"]
        for one, held in ((made, weights), (opened.config, opened.weights))
    ]
    assert np.array_equal(*scores)
    moved = predict(made, override(view, {"precision": "float16"}), weights, run.source, "all")["moved"]
    assert 0 < moved.mean() < 1e-2


def test_bc_is_its_own_run_with_the_numbers_of_the_vae_beside_bcq():
    """So the BC half of a figure may be trained by itself: same weights bit for bit, masks and all."""
    ends = []
    for changes in ({}, {"algorithm": Bc()}):
        made = [config(prune=Snip(sparsity=0.8, batch=20), vae=(40, 40), **changes)]
        opened = Transitions(rows(), INFO, made)
        learner = OfflineLearner(made, opened, toys.Worker())
        for batch in opened.batches(0, 0, 0, 1):
            learner.step(batch)
        ends.append(learner.state_dict()[0])
    beside, alone = ends
    assert any(name.startswith("critic") for name in beside["weights"])
    assert {name.split(".")[0] for name in alone["weights"]} == {"vae", "states"}
    for part in ("weights", "masks"):
        assert alone[part] and all(torch.equal(beside[part][name], value) for name, value in alone[part].items())
