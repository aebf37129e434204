"""Stacks of runs: every member ends where it would alone, and its noise and batches are those that it would see."""

import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from retable.platform.config import override
from retable.platform.execute.scoring import predict_one
from retable.platform.spec.task import find
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from retable.platform.train.loop import train
from retable.platform.train.seeds import sequence
from retable.platform.train.worker import Worker
from retable.tasks.rl.config import Snip, View
from retable.tasks.rl.data import Transitions
from retable.tasks.rl.learner import OfflineLearner
from retable.tasks.rl.losses import PRUNING_NOISE, TRAINING_NOISE, draw_noise, latents, noise_keys, normals
from tests.rl import toys
from tests.rl.toys import Toy, columns, config, learner

torch.set_num_threads(1)
TASK = find("rl")
SMALL = {"actor": [16, 12], "critic": [16, 12], "vae": [18, 18], "batch": 8, "steps": 50, "epochs": 2}
MEMBERS = [
    {"prune": "snip", "prune.sparsity": 0.5},
    {"prune": "snip", "prune.sparsity": 0.95, "seed": 1},
    {"prune": "grasp", "prune.sparsity": 0.9, "seed": 1},
    {"prune": "random", "prune.sparsity": 0.8, "seed": 2},
    {"prune": "dense"},
]
INFO = {"states": 17, "actions": 6, "max_action": 1.0, "digest": "digest", "simulator": "v5"}


def configs(**changes):
    return [override(TASK.config(), SMALL | member | changes) for member in MEMBERS]


def transitions(members):
    """Make 300 transitions of HalfCheetah's sizes."""
    return Transitions(columns(300, 17, 6), INFO, members)


def fit(where, members, change=lambda batch: batch, checkpoint_every=0):
    """Train members as one stack; `change` sees every batch."""
    storage = Storage.open(where)
    storage.write_json(f"data/{TASK.dataset.where(members[0])}/dataset.json", INFO)
    data = transitions(members)
    batches = data.batches
    data.batches = lambda *place: map(change, batches(*place))
    folders = [RunFolder.of(storage, TASK, member) for member in members]
    train(TASK, members, data, folders, "digest", Worker(), [(2,)] * len(members), checkpoint_every)
    return folders


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Five members after 100 updates as one stack."""
    return fit(tmp_path_factory.mktemp("whole"), configs())


def files(folder):
    timeless = [{k: v for k, v in row.items() if k not in ("seconds", "time")} for row in folder.history()]
    return folder.result()["weights"], timeless


@pytest.mark.slow
def test_a_member_ends_where_it_would_alone(tmp_path, whole):
    for member, stacked in zip(configs(), whole, strict=True):
        (alone,) = fit(tmp_path, [member])
        weights, own = stacked.weights(2), alone.weights(2)
        assert weights.keys() == own.keys()
        for name, value in weights.items():
            torch.testing.assert_close(value, own[name], rtol=1e-4, atol=1e-4)
            assert torch.equal(value == 0, own[name] == 0), name
        for row, wanted in zip(stacked.history(), alone.history(), strict=True):
            for metric in ("vae_loss", "critic_loss", "actor_loss", "q"):
                assert row[metric] == pytest.approx(wanted[metric], rel=1e-4, abs=1e-4)
    assert len({str(folder.result()["weights"]) for folder in whole}) == len(MEMBERS)


def test_a_member_that_diverges_fails_alone_and_in_one_line(tmp_path, whole):
    count = iter(range(1000))

    def poisoned(batch):
        if next(count) == 30:
            batch["reward"][2], batch["action"][2] = math.nan, math.inf
        return batch

    folders = fit(tmp_path, configs(), poisoned)
    for member, (folder, healthy) in enumerate(zip(folders, whole, strict=True)):
        assert (files(folder) == files(healthy)) == (member != 2)
    sick = folders[2]
    assert math.isnan(sick.result()["metrics"]["critic_loss"]) and sick.weights(2)["vae.d3.weight"].isnan().any()
    view = View(policy="bc", episodes=1, epoch=2)
    good, bad = (configs()[member] for member in (4, 2))
    assert predict_one("rl", good, view, folders[4], False) is None
    line = predict_one("rl", bad, view, sick, False)
    assert "its training has diverged" in line and "\n" not in line


@pytest.mark.slow
@pytest.mark.parametrize("stop", [20, 77])
def test_an_interrupted_stack_ends_in_the_same_bits(tmp_path, whole, stop):
    count = iter(range(1000))

    def interrupted(batch):
        if next(count) == stop:
            raise KeyboardInterrupt
        return batch

    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, configs(), interrupted, 15)
    taken = []
    folders = fit(tmp_path, configs(), lambda batch: taken.append(1) or batch, 15)
    assert len(taken) == 100 - {20: 15, 77: 65}[stop]
    assert [files(folder) for folder in folders] == [files(folder) for folder in whole]


def splitmix(key, count):
    """Yield SplitMix64's words as its authors write it, with Python's own integers."""
    mask = (1 << 64) - 1
    for _ in range(count):
        yield scrambled(key)
        key = (key + 0x9E3779B97F4A7C15) & mask


def scrambled(word):
    mask = (1 << 64) - 1
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & mask
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & mask
    return word ^ (word >> 31)


@pytest.mark.parametrize(("seed", "number"), [(0, 0), (3, 1), (105, 999_999)])
def test_noise_is_splitmix_through_box_and_muller(seed, number):
    key = int(sequence(seed, TRAINING_NOISE).generate_state(1, np.uint64)[0])
    stream = scrambled((key + number * 0x9E3779B97F4A7C15) & ((1 << 64) - 1))
    got = normals(noise_keys([seed], TRAINING_NOISE), number, torch.arange(300))[0]
    for word, pair in zip(splitmix(stream, 300), got.tolist(), strict=True):
        radius = math.sqrt(-2 * math.log(((word >> 40) + 1) / 2**24))
        angle = 2 * math.pi * (word & 0xFFFFFF) / 2**24
        assert pair == pytest.approx([radius * math.cos(angle), radius * math.sin(angle)], abs=2e-5)


def test_noise_is_normal_and_independent_of_everything_else():
    draws = [draw_noise([seed], stream, number, 20_000, 4, 0).vae[0] for seed, stream, number in KEYS]
    for drawn in draws:
        assert kstest(drawn.flatten().numpy(), "norm").pvalue > 1e-4
    # Sizes show dependence without correlation. Their tails are light enough for 5.5 standard errors to be rare.
    columns = torch.cat([*draws, *(drawn.abs() for drawn in draws)], 1)
    columns = torch.cat([columns, columns.roll(1, 0)], 1)  # and with the row before
    correlation = torch.corrcoef(columns.T)
    assert (correlation - torch.eye(len(correlation))).abs().max() < 5.5 / math.sqrt(20_000)
    large = normals(noise_keys([0], TRAINING_NOISE), 7, torch.arange(500_000)).flatten()
    assert large.mean().abs() < 5e-3 and large.std() == pytest.approx(1, abs=5e-3) and 4.3 < large.abs().max() < 5.8
    assert large.pow(4).mean() == pytest.approx(3, abs=0.05)


KEYS = [*((seed, TRAINING_NOISE, number) for seed, number in ((0, 0), (1, 0), (0, 1), (0, 2))), (0, PRUNING_NOISE, 0)]


def test_a_members_noise_is_its_own_whoever_draws_it():
    """In a stack, alone, shared out among workers, with the count in a tensor, or without targets: the same bits."""
    keys = noise_keys([5, 6, 7], TRAINING_NOISE)
    stacked = latents(keys, torch.tensor(9), 12, 6, 10)
    for member, seed in enumerate((5, 6, 7)):
        for part, alone in zip(stacked, draw_noise([seed], TRAINING_NOISE, 9, 12, 6, 10), strict=True):
            assert torch.equal(part[member], alone[0])
    thirds = [latents(keys, 9, 12, 6, 10, slice(i, i + 4)) for i in (0, 4, 8)]
    for part, pieces in zip(stacked, zip(*thirds, strict=True), strict=True):
        assert torch.equal(part, torch.cat(pieces, 1))
    assert torch.equal(latents(keys, 9, 12, 6, 0).vae, stacked.vae)
    parts = torch.cat([part.flatten() for part in stacked])
    inner = parts[parts.abs() < 0.5]
    assert len(inner.unique()) > 0.99 * len(inner), "numbers are used twice"


def test_batches_gathered_on_a_device_are_the_same():
    members = configs(steps=130)
    plain, placed = transitions(members), transitions(members)
    placed.place(torch.device("cpu"))
    for rank, world in ((0, 1), (1, 2)):
        pairs = zip(plain.batches(1, 95, rank, world), placed.batches(1, 95, rank, world), strict=True)
        same = [
            one.keys() == other.keys() and all(map(torch.equal, one.values(), other.values())) for one, other in pairs
        ]
        assert same == [True] * 35
    assert all(torch.equal(value, placed.sample(1, 8)[name]) for name, value in plain.sample(1, 8).items())


def test_an_update_never_waits_for_the_device(monkeypatch):
    """On the device `meta`, which holds no values, whatever would read one raises, as would a tensor left behind."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # it knows no such device
    members = [config(seed=0, prune=Snip(sparsity=0.5, batch=10)), config(seed=1)]
    toy = Toy([0, 1])
    ours = OfflineLearner(members, toy, toys.Worker(device="meta"))
    for step in range(2):
        metrics = ours.step(toy.batch(step))
    assert set(metrics) == {"vae_loss", "critic_loss", "actor_loss", "q"}
    assert {(value.device.type, value.shape) for value in metrics.values()} == {("meta", (2,))}
    with pytest.raises(RuntimeError):
        metrics["q"].sum().item()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_an_update_replayed_on_a_gpu_is_that_of_the_cpu():
    members = [config(seed=0, prune=Snip(sparsity=0.5, batch=10)), config(seed=1)]
    here, toy = learner(members)
    Toy.place = lambda self, device: None
    there, _ = learner(members, toys.Worker(device="cuda"))
    for step in range(20):
        metrics = here.step(toy.batch(step)), there.step(toy.batch(step))
        for name, value in metrics[0].items():
            torch.testing.assert_close(value, metrics[1][name].cpu(), rtol=1e-3, atol=1e-3)
    for one, other in zip(here.state_dict(), there.state_dict(), strict=True):
        for name, value in one["weights"].items():
            torch.testing.assert_close(value, other["weights"][name], rtol=1e-3, atol=1e-3)
    assert there._replay._calls == 20 and there._replay._inputs, "nothing was captured"
