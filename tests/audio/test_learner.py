"""Training: pairs are learnt by heart, and chunks and workers change nothing."""

import math
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import distributed

from retable.platform.config import Parent, differences, override
from retable.platform.errors import UserError
from retable.platform.spec.task import Source, alone
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from retable.platform.train.loop import parent_weights, train
from retable.platform.train.worker import Worker
from retable.tasks.audio.config import PAPER, Cnn14, Config, MeanMel, Passt
from retable.tasks.audio.data import Batch
from retable.tasks.audio.learner import (
    RetrievalLearner,
    cost,
    embed_validation,
    learning_rate,
    spread,
    validate,
)
from tests.audio.test_model import CAPTIONS, MEAN, SMALL, of

WAIT = 120
PLAIN = {
    "text__dropout": 0.0,
    "precision": "float32",
    "temperature": 0.1,
    "batch": 8,
    "learning_rate": 1e-3,
    "epochs": 2,
    "warmup": 0.5,
}
WORDS = ["dog", "rain", "bird", "car", "door", "bell", "frog", "wind"]


class Sounds:
    """Tones with captions; some recordings come twice in a batch, and lengths differ."""

    steps = 3
    source = Source(Storage.open("/nowhere/data/audio/tones"), {})

    def __init__(self, batch=8):
        self.batch = batch

    def captions(self):
        return CAPTIONS + [f"a {word} is heard" for word in WORDS]

    def of(self, recordings, captions=True):
        time = torch.arange(20_000) / 32_000
        lengths = torch.tensor([9_000 + 1_100 * (n % 9) for n in recordings])
        audio = torch.stack([0.1 * torch.sin(2 * math.pi * 200 * 1.5**n * time) for n in recordings])
        audio = torch.where(torch.arange(20_000) < lengths[:, None], audio, 0.0)
        said = tuple(f"A {WORDS[n]} is heard" for n in recordings) if captions else ()
        return Batch(audio, lengths, said, torch.tensor(recordings), "waveform")

    def batches(self, epoch, start, rank, world):
        share = self.batch // world
        for step in range(start, self.steps):
            drawn = np.random.default_rng([epoch, step]).integers(8, size=self.batch).tolist()
            yield self.of(drawn[rank * share : (rank + 1) * share])

    def validation(self, rank, world):
        for row in range(rank, 8, world):
            yield self.of([row], captions=False)

    def queries(self, split):
        assert split == "validation"
        return [(text.format(WORDS[n]), n) for n in range(8) for text in ("a {} is heard", "the {}")]


def taught(run=None, **changes):
    return RetrievalLearner([of(**{**PLAIN, **changes})], Sounds(), run or Worker())


def gradients(learner, batch):
    learner.step(batch)
    return {name: p.grad.clone() for name, p in learner.model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize(
    "base",
    [{**SMALL, "audio.width": 64, "text.width": 32}, pytest.param(MEAN, marks=pytest.mark.slow)],
    ids=["passt", "mean mel"],
)
def test_eight_pairs_are_learnt_by_heart(base):
    data = Sounds()
    learner = RetrievalLearner([of(base, **{**PLAIN, "epochs": 40, "learning_rate": 3e-3})], data, Worker())
    batch = data.of(list(range(8)))
    losses = [float(learner.step(batch)["loss"]) for _ in range(80)]
    assert losses[0] > 1.5 and losses[-1] < 0.5
    (found,) = validate(learner, data)
    assert found["validation_map10"] > 0.5


def test_every_weight_is_trained():
    found = gradients(taught(audio__patchout_time=1), next(Sounds().batches(0, 0, 0, 1)))
    assert [name for name, value in found.items() if not value.abs().max() > 0] == []


@pytest.mark.parametrize("chunk", [1, 3, 4])
def test_chunks_give_the_gradients_of_the_whole_batch(chunk):
    batch = next(Sounds().batches(0, 0, 0, 1))
    assert len(set(batch.recording.tolist())) < 8
    whole, cached = gradients(taught(), batch), gradients(taught(chunk=chunk), batch)
    for name, value in whole.items():
        torch.testing.assert_close(cached[name], value, rtol=1e-3, atol=3e-5 * float(value.abs().max()) + 1e-8)


@pytest.mark.parametrize("changes", [{"audio": "cnn14"}, {"compile": True}])
def test_chunks_are_refused_where_they_would_not_be_of_the_whole_batch(changes):
    with pytest.raises(UserError, match="chunk"):
        override(Config(), {"chunk": 4, **changes})


def test_chunks_meet_the_same_dropout_both_times():
    """With dropout the cached vectors must be those that are embedded again: else the proxy's gradient is another."""
    learner = taught(chunk=4, text__dropout=0.5, audio__patchout_time=1, frequency_mask=40)
    seen = {}
    embed = learner._embed

    def spy(chunk, seed, model):
        vectors = embed(chunk, seed, model)
        seen.setdefault(seed, []).append(torch.cat(vectors).detach())
        return vectors

    learner._embed = spy
    learner.model.train()
    learner.step(next(Sounds().batches(0, 0, 0, 1)))
    assert len(seen) == 2 and all(torch.equal(*twice) for twice in seen.values())


def test_sixteen_bit_is_close_to_thirty_two():
    batch = next(Sounds().batches(0, 0, 0, 1))
    exact, *rough = (
        float(taught(precision=p, temperature=0.2).step(batch)["loss"]) for p in ("float32", "bfloat16", "float16")
    )
    assert rough == pytest.approx([exact, exact], rel=0.05) and exact not in rough


def test_the_learning_rate_rises_and_falls_as_the_paper_says():
    config = Config(epochs=15)
    assert learning_rate(config, 0.5) == pytest.approx(1e-5) and learning_rate(config, 1.0) == pytest.approx(2e-5)
    assert learning_rate(config, 8.0) == pytest.approx((2e-5 + 1e-7) / 2) and learning_rate(config, 15.0) == 1e-7
    assert learning_rate(config, 4.5) == pytest.approx(1e-7 + (2e-5 - 1e-7) * (1 + math.cos(math.pi / 4)) / 2)
    rates = [learning_rate(config, epochs / 10) for epochs in range(151)]
    assert rates == sorted(rates[:11]) + sorted(rates[11:], reverse=True)
    assert learning_rate(Config(epochs=5, warmup=0.0), 0.0) == 2e-5
    learner = taught()
    learner.step(next(Sounds().batches(0, 0, 0, 1)))
    (parameters,) = learner.optimizer.param_groups
    assert parameters["lr"] == pytest.approx(1e-3 * (1 / 3) / 0.5)
    assert (parameters["betas"], parameters["weight_decay"]) == ((0.9, 0.999), 0.0)


def test_validation_scores_equal_loops():
    learner, data = taught(temperature=0.3), Sounds()
    (found,) = validate(learner, data)
    audio = torch.cat([learner.embed_audio(batch) for batch in data.validation(0, 1)])
    queries = data.queries("validation")
    text = learner.embed_text([caption for caption, _ in queries])
    near = (text @ audio.T).numpy()  # in float32, as near ties are ranked so
    precision = [1 / (1 + sum(near[q] > near[q, n])) for q, (_, n) in enumerate(queries)]
    audio, text = audio.double().numpy(), text.double().numpy()
    assert found["validation_map10"] == pytest.approx(np.mean(precision), abs=1e-6)
    losses = []
    for turn in (0, 1):  # eight recordings fill a batch: the first captions of all, then the second ones
        score = np.exp(text[turn::2] @ audio.T / 0.3)
        both = np.log(np.diag(score) / score.sum(0)) + np.log(np.diag(score) / score.sum(1))
        losses.append(-both.mean() / 2)
    assert found["validation_loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_more_workers_than_validation_captions():
    """Those that have no recording or caption of their own embed none."""
    learner, data = taught(), Sounds()
    captions, items = [caption for caption, _ in data.queries("validation")], torch.arange(8)
    whole = embed_validation(learner, data, captions, items)
    shares = []
    for rank in range(20):
        learner.worker = SimpleNamespace(rank=rank, world=20, device="cpu", mean=lambda tensor: tensor / 20)
        shares.append(embed_validation(learner, data, captions, items))
    for one, parts in zip(whole, zip(*shares, strict=True), strict=True):
        torch.testing.assert_close(torch.stack(parts).sum(0), one, rtol=0, atol=1e-5)
    assert not shares[16][1].any() and not shares[16][0].any()


def test_patience_without_validation_captions_is_refused():
    data = Sounds()
    data.queries = lambda split: []
    config = of(**PLAIN, patience=2, data="mine")
    with pytest.raises(UserError, match=r"^patience: mine has no validation captions; set patience=0"):
        RetrievalLearner([config], data, Worker())
    assert validate(RetrievalLearner([of(**PLAIN)], data, Worker()), data) == [{}]


def test_a_diverged_model_is_worse_than_any():
    learner = taught()
    with torch.no_grad():
        learner.model.audio_projection.bias.fill_(math.nan)
    (found,) = validate(learner, Sounds())
    assert math.isnan(found["validation_map10"]) and math.isnan(found["validation_loss"])


def test_validation_turns_through_the_captions():
    assert spread([5, 5, 2, 5, 2, 9]) == [0, 2, 5, 1, 4, 3]


def test_fine_tuning_starts_from_its_parent():
    parent = taught(seed=4)
    parent.step(next(Sounds().batches(0, 0, 0, 1)))
    child = taught(seed=5)
    child.load_weights([parent.model.state_dict()])
    for name, value in parent.model.state_dict().items():
        assert torch.equal(child.model.state_dict()[name], value), name
    with pytest.raises(UserError, match=r"^init: weights: "):
        RetrievalLearner([of(MEAN, **PLAIN)], Sounds(), Worker()).load_weights([parent.model.state_dict()])


TASK = SimpleNamespace(
    name="audio",
    version=1,
    learner=RetrievalLearner,
    validate=validate,
    early_stop=lambda config: ("validation_map10", config.patience) if config.patience else None,
)


def run(where, config):
    """Train to the end, and keep both epochs' weights."""
    folder = RunFolder.of(Storage.open(where), TASK, config)
    folder.begin(config, 1, {})
    train(TASK, [config], Sounds(), [folder], "tones", Worker(), [(1, 2)])
    return folder


@pytest.mark.parametrize(("patience", "checkpoint", "epoch"), [(0, 0, 2), (2, 0, 1), (0, 1, 1)])
def test_the_parents_last_epoch_is_its_best_where_it_has_patience(tmp_path, monkeypatch, patience, checkpoint, epoch):
    curve = iter([0.5, 0.1])
    monkeypatch.setattr(TASK, "validate", lambda learner, data: [{"validation_map10": next(curve)}])
    before = of(**PLAIN, patience=patience)
    assert before.epochs == 2
    folder = run(tmp_path, before)
    init = Parent(overrides=tuple(differences(before, Config()).items()), checkpoint=checkpoint)
    found = parent_weights(TASK, replace(before, patience=0, init=init), folder)
    monkeypatch.setattr(TASK, "validate", validate)
    epochs = run(tmp_path / "each", of(**PLAIN))  # keeps both
    assert len(folder.history()) == 2, "it never ends early"
    same = {e: all(torch.equal(value, found[name]) for name, value in epochs.weights(e).items()) for e in (1, 2)}
    assert same == {epoch: True, 3 - epoch: False}


def worker(rank, where):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{where}/meet", timedelta(seconds=WAIT), rank=rank, world_size=2)
    try:
        found = gradients(taught(Worker(rank=rank, world=2)), next(Sounds().batches(0, 0, rank, 2)))
        cached = gradients(taught(Worker(rank=rank, world=2), chunk=3), next(Sounds().batches(0, 0, rank, 2)))
        torch.save([found, cached], f"{where}/gradients-{rank}.pt")
    finally:
        distributed.destroy_process_group()


@pytest.mark.slow
def test_two_workers_have_the_gradients_of_one(tmp_path):
    other = torch.multiprocessing.get_context("spawn").Process(target=worker, args=(1, str(tmp_path)))
    other.start()
    try:
        worker(0, str(tmp_path))
        other.join(timeout=WAIT)
        assert other.exitcode == 0
    finally:
        other.kill()
    expected = gradients(taught(), next(Sounds().batches(0, 0, 0, 1)))
    for rank in (0, 1):
        for found in torch.load(tmp_path / f"gradients-{rank}.pt", weights_only=True):
            for name, value in expected.items():
                tolerance = 1e-5 * float(value.abs().max()) + 1e-8
                torch.testing.assert_close(found[name], value, rtol=1e-3, atol=tolerance)


def test_cost_follows_epochs_and_size():
    base = Config(data="generated-small", audio=Passt(weights="random", width=64, depth=3, heads=4))
    assert cost(of()) > 10 and alone(of()) != alone(of(seed=1))
    half = Config(data="generated-small", audio=base.audio, epochs=5)
    assert (cost(base) - 10) / (cost(half) - 10) == pytest.approx(3)
    wide = Config(data="generated-small", audio=Passt(weights="random", width=128, depth=3, heads=4))
    linear = Config(data="generated-small", audio=MeanMel())
    assert cost(linear) < cost(base) < cost(wide)
    assert cost(Config(audio=Cnn14())) > 10 and PAPER["precision"] == "float16"
