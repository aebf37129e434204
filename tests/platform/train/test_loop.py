"""The loop: interrupted equals uninterrupted bit for bit, at every point; nothing counts before it is whole."""

import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from retable.platform.config import Parent, Weights, override
from retable.platform.errors import UserError
from retable.platform.spec.task import Source, find
from retable.platform.store.run import RunFolder, sha256
from retable.platform.store.storage import Storage
from retable.platform.train import loop
from retable.platform.train.loop import train
from retable.platform.train.worker import Worker, seed_everything
from retable.tasks.line.config import Config

LINE = find("line")
SMALL = Config(batch=16)  # 4 steps an epoch, 3 epochs


class Stop(Exception):
    """An interruption."""


@pytest.fixture(autouse=True)
def saved_after_each_epoch(monkeypatch):
    """Epochs of milliseconds have checkpoints too."""
    monkeypatch.setattr(loop.CheckpointClock, "due_after_epoch", lambda *_: True)


def stopping(task, step):
    """The task, whose learners stop in the middle of a step, counted over all calls from 1."""
    count = itertools.count(1)

    class Stopping(task.learner):
        def step(self, batch):
            if next(count) == step:
                raise Stop
            return super().step(batch)

    return replace(task, learner=Stopping)


def points(storage, configs):
    if not storage.exists("data/line/points"):
        LINE.dataset.prepare(configs[0], storage)
    arrays = LINE.dataset.read(storage / "data/line/points")
    return LINE.dataset.open(arrays, Source.of(storage, "line/points"), configs)


def fit(storage, config=SMALL, task=LINE, keep=(), every=0, digest="64 points", report=None, score=None, **worker):
    folder = RunFolder.of(storage, task, config)
    worker = Worker(**worker, **({"report": report} if report else {}))
    train(task, [config], points(storage, [config]), [folder], digest, worker, [keep], every, score)
    return folder


def outcome(folder):
    """Everything a run ends with, apart from the time it took."""
    result = folder.result()
    result.pop("seconds")
    assert set(result.pop("used")) == {"cpu_seconds", "gpu_seconds", "peak_memory", "peak_gpu_memory"}
    result["metrics"].pop("seconds")
    log = [{name: v for name, v in row.items() if name not in ("seconds", "time")} for row in folder.history()]
    files = {name: sha256(folder.folder.read(f"weights/{name}")) for name in folder.folder.list("weights")}
    return result, log, files


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What an uninterrupted run ends with."""
    return outcome(fit(Storage.open(tmp_path_factory.mktemp("whole")), keep=(2,)))


STEPS = [pytest.param(step, marks=[pytest.mark.slow] * (step not in (1, 4, 5, 7, 12))) for step in range(1, 13)]


@pytest.mark.parametrize("every", [0, 1, 3])
@pytest.mark.parametrize("step", STEPS)
def test_a_run_stopped_in_any_step_ends_as_if_it_had_not_been(storage, whole, step, every):
    with pytest.raises(Stop):
        fit(storage, task=stopping(LINE, step), keep=(2,), every=every)
    folder = RunFolder.of(storage, LINE, SMALL)
    assert folder.result() is None
    done = {0: (step - 1) // 4 * 4, 1: step - 1, 3: max((s for s in range(step) if s % 4 in (0, 3)), default=0)}[every]
    assert folder.checkpoints()[-1:] == ([done] if done else [])
    taken = []
    fit(storage, task=replace(LINE, learner=counting(taken)), keep=(2,), every=every)
    assert len(taken) == 12 - done  # it went on from the checkpoint
    assert outcome(folder) == whole


def counting(taken):
    class Counting(LINE.learner):
        def step(self, batch):
            taken.append(torch.random.initial_seed())
            return super().step(batch)

    return Counting


def test_a_run_stopped_twice_also_ends_the_same(storage, whole):
    for step in (7, 3):
        with pytest.raises(Stop):
            fit(storage, task=stopping(LINE, step), keep=(2,), every=1)
    assert outcome(fit(storage, keep=(2,), every=1)) == whole


WRITES = 24


@pytest.mark.parametrize("stop", range(1, WRITES + 1))
def test_a_run_stopped_in_any_write_ends_as_if_it_had_not_been(storage, whole, monkeypatch, stop):
    points(storage, [SMALL])
    count, write = itertools.count(1), Storage.write

    def limited(self, path, data):
        if next(count) == stop:
            raise Stop
        write(self, path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "write", limited)
        with pytest.raises(Stop):
            fit(storage, keep=(2,), every=2)
    assert RunFolder.of(storage, LINE, SMALL).result() is None
    assert outcome(fit(storage, keep=(2,), every=2)) == whole


def test_those_are_all_the_writes_there_are(storage, monkeypatch):
    points(storage, [SMALL])
    written, write = [], Storage.write
    monkeypatch.setattr(Storage, "write", lambda self, path, data: (written.append(path), write(self, path, data)))
    folder = fit(storage, keep=(2,), every=2)
    assert len(written) == WRITES
    assert written[-1] == "result.json" and written.count("result.json") == 1
    assert not folder.checkpoints()


def test_the_uninterrupted_run_is_what_plain_pytorch_computes(storage, whole):
    table = points(storage, [SMALL]).columns
    torch.manual_seed(0)
    line = torch.nn.Linear(1, 1)
    optimizer = torch.optim.Adam(line.parameters(), 0.1)
    means = []
    for epoch in range(3):
        order, losses = np.random.default_rng([0, epoch]).permutation(64).reshape(4, 16), []
        for step, rows in enumerate(order):
            x, y = (torch.from_numpy(table[name][rows]) for name in ("x", "y"))
            seed_everything(0, 4 * epoch + step, 0)
            loss = (line(x[:, None])[:, 0] - y).square().mean() * (1 + (1e-3 * torch.randn(1))[0])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        means.append(np.mean(losses))
    result, log, files = whole
    assert files["epoch-0003.safetensors"] == sha256(save(line.state_dict()))
    np.testing.assert_allclose([row["loss"] for row in log], means, rtol=1e-12)
    assert [row["slope"] for row in log][-1] == result["metrics"]["slope"] == line.weight.item()
    assert [(row["epoch"], row["step"]) for row in log] == [(1, 4), (2, 8), (3, 12)]


def test_every_step_has_its_own_seed_and_a_resumed_one_the_same(storage, tmp_path):
    once, first, then = [], [], []
    fit(storage, task=replace(LINE, learner=counting(once)))
    other = Storage.open(tmp_path / "other")
    with pytest.raises(Stop):
        fit(other, task=stopping(replace(LINE, learner=counting(first)), 6), every=1)
    fit(other, task=replace(LINE, learner=counting(then)), every=1)
    assert len(set(once)) == len(once) == 12
    assert first + then == once


def test_seeds_differ_by_seed_step_and_rank_and_reach_every_generator():
    def draws(*words):
        import random

        seed_everything(*words)
        return random.random(), float(np.random.rand()), torch.rand(1).item()

    everything = [draws(*words) for words in itertools.product((0, 1), (0, 1, 2**40), (0, 1))]
    for one in zip(*everything, strict=True):
        assert len(set(one)) == 12
    assert draws(1, 2, 3) == draws(1, 2, 3)


def test_the_epochs_that_views_name_are_kept_and_the_last(storage):
    assert fit(storage, keep=(1,)).folder.list("weights") == ["epoch-0001.safetensors", "epoch-0003.safetensors"]
    folder = fit(storage, replace(SMALL, seed=1))
    assert folder.folder.list("weights") == ["epoch-0003.safetensors"]
    assert list(folder.result()["weights"]) == ["3"]


def test_a_run_that_has_passed_an_epoch_whose_weights_are_now_wanted_starts_anew(storage, whole):
    with pytest.raises(Stop):
        fit(storage, task=stopping(LINE, 10))
    taken = []
    folder = fit(storage, task=replace(LINE, learner=counting(taken)), keep=(2,))
    assert len(taken) == 12 and outcome(folder) == whole


def test_a_run_begun_anew_and_stopped_again_loses_no_line_of_its_log(storage, whole, monkeypatch):
    with pytest.raises(Stop):
        fit(storage, task=stopping(LINE, 10))  # two epochs done; neither's weights kept
    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr("retable.platform.train.loop.save_checkpoints", stop_now)
        fit(storage, keep=(1, 2))  # stops behind the first epoch, before it has a checkpoint of its own
    log = outcome(fit(storage, keep=(1, 2)))[1]
    assert [row["epoch"] for row in log] == [1, 2, 3]
    assert [row["loss"] for row in log] == [row["loss"] for row in whole[1]]


def stop_now(*_):
    raise Stop


def test_a_checkpoint_of_other_data_is_of_no_use(storage, whole):
    with pytest.raises(Stop):
        fit(storage, task=stopping(LINE, 10), keep=(2,), digest="other points")
    taken = []
    folder = fit(storage, task=replace(LINE, learner=counting(taken)), keep=(2,))
    assert len(taken) == 12 and outcome(folder) == whole


def test_a_finished_run_has_a_result_and_no_checkpoint(storage):
    folder = fit(storage, every=1)
    result = folder.result()
    assert (result["task"], result["fingerprint"], result["data"]) == ("line", folder.fingerprint, "64 points")
    assert result["metrics"]["epoch"] == 3 and result["seconds"] == result["metrics"]["seconds"] > 0
    assert sorted(folder.folder.list()) == ["metrics.jsonl", "result.json", "tensorboard", "weights"]


def test_the_seconds_of_an_interrupted_epoch_count(storage):
    slow = replace(SMALL, pause=0.05, epochs=1)
    with pytest.raises(Stop):
        fit(storage, slow, task=stopping(LINE, 4), every=3)
    assert fit(storage, slow, every=3).result()["seconds"] >= 4 * 0.05


def test_each_epoch_is_reported_once_with_numbers_only(storage):
    heard = []
    fit(storage, keep=(1, 2, 3), report=heard.append, score=lambda weights, epoch: {"score": epoch + 0.5})
    assert [report["epoch"] for report in heard] == [1, 2, 3]
    assert [report["score"] for report in heard] == [1.5, 2.5, 3.5]
    assert all(isinstance(value, (int, float)) for report in heard for value in report.values())


def test_a_child_starts_from_its_parent_at_the_epoch_named(storage):
    before = fit(storage, keep=(1, 2, 3))
    for checkpoint, epoch in ((0, 3), (1, 1), (2, 2)):
        start = []

        class Watching(LINE.learner):
            def load_weights(self, weights):
                super().load_weights(weights)
                start.append(sha256(save({name: t.clone() for name, t in self.line.state_dict().items()})))  # noqa: B023

        init = Parent(overrides=(("batch", 16),), checkpoint=checkpoint)
        child = fit(storage, replace(SMALL, rate=0.01, init=init), task=replace(LINE, learner=Watching))
        assert start == [before.result()["weights"][str(epoch)]]
        assert child.fingerprint != before.fingerprint


def test_an_interrupted_child_goes_on_from_its_own_checkpoint(storage, tmp_path):
    child = replace(SMALL, rate=0.01, init=Parent(overrides=(("batch", 16),)))
    other = Storage.open(tmp_path / "other")
    for where in (storage, other):
        fit(where)
    wanted = outcome(fit(other, child))
    with pytest.raises(Stop):
        fit(storage, child, task=stopping(LINE, 6), every=1)
    assert outcome(fit(storage, child, every=1)) == wanted


def test_a_child_of_a_run_that_is_not_there_is_refused(storage):
    with pytest.raises(UserError, match="the weights of epoch 3 were not kept; train the run again"):
        fit(storage, replace(SMALL, init=Parent(overrides=(("batch", 16),))))


def test_a_run_starts_from_a_weights_file_named_by_its_digest(storage):
    data = save({"weight": torch.full((1, 1), 2.0), "bias": torch.ones(1)})
    storage.write(f"weights/{sha256(data)}.safetensors", data)
    exact = fit(storage, override(SMALL, {"init": Weights(sha256=sha256(data)), "rate": 0.0, "epochs": 1}))
    assert exact.folder.read("weights/epoch-0001.safetensors") == data
    for digest in (sha256(b"x"), sha256(data)[:-1], ""):
        with pytest.raises(UserError, match=r"/weights/.*safetensors is missing or is another file"):
            fit(storage, replace(SMALL, init=Weights(sha256=digest)))
    storage.write(f"weights/{sha256(data)}.safetensors", data + b" ")
    with pytest.raises(UserError, match="is another file"):
        fit(storage, replace(SMALL, seed=1, init=Weights(sha256=sha256(data))))
    storage.write(f"weights/{sha256(b'pickle')}.safetensors", b"pickle")
    with pytest.raises(UserError, match="is no safetensors file; copy the weights there as a safetensors file"):
        fit(storage, replace(SMALL, init=Weights(sha256=sha256(b"pickle"))))


class Pair:
    """Two members that share nothing: each is moved by its own seed and by the batch."""

    def __init__(self, configs, data, run):
        self.values = torch.tensor([float(config.seed) for config in configs], dtype=torch.float64)

    def step(self, batch):
        self.values = self.values * 1.5 + batch[0].sum() + torch.rand(1, dtype=torch.float64)
        return {"value": self.values.clone()}

    def state_dict(self):
        return [{"weights": {"value": value[None].clone()}} for value in self.values]

    def load_state_dict(self, states):
        self.values = torch.cat([state["weights"]["value"] for state in states])


PAIR = replace(LINE, learner=Pair, validate=lambda learner, data: [{"end": float(v)} for v in learner.values])


def fit_pair(storage, task=PAIR, keep=((), ())):
    configs = [replace(SMALL, seed=seed) for seed in (3, 4)]
    folders = [RunFolder.of(storage, task, config) for config in configs]
    train(task, configs, points(storage, configs), folders, "64 points", Worker(), keep, 1)
    return folders


def test_members_of_a_stack_have_their_own_results(storage):
    first, second = fit_pair(storage, keep=((1,), ()))
    assert list(first.result()["weights"]) == ["1", "3"] and list(second.result()["weights"]) == ["3"]
    ends = [folder.result()["metrics"]["end"] for folder in (first, second)]
    assert ends[1] - ends[0] == pytest.approx(1.5**12)
    assert [folder.weights(3)["value"].item() for folder in (first, second)] == ends
    assert first.history()[0]["value"] != second.history()[0]["value"]


@pytest.fixture(scope="module")
def whole_pair(tmp_path_factory):
    return [outcome(folder) for folder in fit_pair(Storage.open(tmp_path_factory.mktemp("pair")))]


# Of the member files that a stack writes for each checkpoint, the second member's come after the first's.
@pytest.mark.slow
@pytest.mark.parametrize("stop", range(1, 20))
def test_members_go_on_from_the_newest_checkpoint_that_both_have(storage, whole_pair, monkeypatch, stop):
    points(storage, [SMALL])
    count, write = itertools.count(1), Storage.write

    def limited(self, path, data):
        if "checkpoint" in path and next(count) == stop:
            raise Stop
        write(self, path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "write", limited)
        with pytest.raises(Stop):
            fit_pair(storage)
    folders = [RunFolder.of(storage, PAIR, replace(SMALL, seed=seed)) for seed in (3, 4)]
    there = [folder.checkpoints() for folder in folders]
    newest = (stop - 1) // 6  # whole checkpoints: two members, three files each
    assert max(set(there[0]) & set(there[1]), default=0) == newest
    if (stop - 1) % 6 > 2:
        assert max(there[0]) == newest + 1
    taken = []

    class Counting(Pair):
        def step(self, batch):
            taken.append(1)
            return super().step(batch)

    fit_pair(storage, replace(PAIR, learner=Counting))
    assert len(taken) == 12 - newest
    assert [outcome(folder) for folder in folders] == whole_pair


class Averaging(Worker):
    """Rank 0 of two, whose other rank reports nothing but zeros."""

    def mean(self, tensor):
        return tensor / 2


def test_a_checkpoint_within_an_epoch_holds_the_mean_over_ranks(storage):
    folder = RunFolder.of(storage, LINE, SMALL)
    seen = []

    class Peeking(LINE.learner):
        def step(self, batch):
            if folder.checkpoints():
                seen.append(folder.load_checkpoint(folder.checkpoints()[-1])["sums"]["loss"].item())
            metrics = super().step(batch)
            losses.append(metrics["loss"].item())
            return metrics

    losses = []
    task = replace(LINE, learner=Peeking)
    train(task, [replace(SMALL, epochs=1)], points(storage, [SMALL]), [folder], "64 points", Averaging(), [()], 1)
    assert seen[0] == pytest.approx(losses[0] / 2)


class Exploding(LINE.learner):
    """A line whose loss is not finite from the fifth step on."""

    def step(self, batch):
        metrics = super().step(batch)
        self.steps = getattr(self, "steps", 0) + 1
        return {"loss": metrics["loss"] * (torch.nan if self.steps > 4 else 1.0)}


def test_a_run_whose_loss_is_not_finite_has_diverged_and_ends_there(storage):
    """A learning rate of 1e30 ended as done, with weights that are no numbers."""
    folder = fit(storage, task=replace(LINE, learner=Exploding))
    assert folder.result()["diverged"] == "loss is nan in epoch 2"
    assert [row["epoch"] for row in folder.history()] == [1, 2] and "diverged" not in folder.history()[0]
    assert folder.checkpoints() == []
    child = override(SMALL, {"init": "parent", "init.overrides": [["batch", 16]], "rate": 0.5})
    with pytest.raises(UserError, match=f"{folder.fingerprint}, diverged$"):
        fit(storage, config=child)


def test_a_run_whose_weights_are_not_finite_has_diverged(storage):
    class Infinite(LINE.learner):
        def step(self, batch):
            metrics = super().step(batch)
            with torch.no_grad():
                self.line.bias.fill_(torch.inf)
            return {"loss": metrics["loss"] * 0 if metrics["loss"].isfinite().all() else torch.zeros(1)}

    assert fit(storage, task=replace(LINE, learner=Infinite)).result()["diverged"].endswith(" is not finite")


def test_one_member_of_a_stack_diverges_alone(storage):
    """By itself it would have ended in its second epoch: in a stack it goes on, and is finite again."""
    steps = []

    class Half(Pair):
        def step(self, batch):
            metrics = super().step(batch)
            steps.append(1)
            factor = torch.inf if 4 < len(steps) <= 8 else 1.0
            return {name: value * torch.tensor([1.0, factor]) for name, value in metrics.items()}

    first, second = fit_pair(storage, replace(PAIR, learner=Half))
    assert "diverged" not in first.result() and second.result()["diverged"].endswith("in epoch 2")


@pytest.mark.parametrize(("cost", "wait"), [(0.0, loop.SECONDS), (10.0, 200.0)])
def test_a_checkpoint_within_an_epoch_is_due_after_half_a_minute_or_twenty_times_its_cost(monkeypatch, cost, wait):
    now = [100.0]
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    clock = loop.CheckpointClock()
    with clock:
        now[0] += cost
    now[0] += wait - 0.5
    assert not clock.due(1, Worker())
    now[0] += 1
    assert clock.due(1, Worker()) and clock.due(16, Worker(world=1))


@pytest.mark.parametrize(("cost", "wait"), [(0.0, 1.0), (10.0, 200.0)])
def test_after_an_epoch_a_checkpoint_is_due_after_a_second_or_twenty_times_its_cost(monkeypatch, cost, wait):
    monkeypatch.undo()
    now = [100.0]
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    clock, alone, asked = loop.CheckpointClock(), Worker(), Worker(checkpoint_requested=lambda: True)
    with clock:
        now[0] += cost
    now[0] += wait - 0.5
    assert not clock.due_after_epoch(alone)
    assert clock.due_after_epoch(asked) and clock.due_after_epoch(Worker(world=2))
    assert loop.CheckpointClock(every=7).due_after_epoch(alone)
    now[0] += 1
    assert clock.due_after_epoch(alone)


def test_epochs_of_milliseconds_are_not_each_saved_but_the_one_on_notice_is(storage, whole, monkeypatch):
    monkeypatch.undo()
    written = []
    with pytest.raises(Stop):
        fit(storage, task=stopping(LINE, 10), keep=(2,), checkpoint_written=lambda: written.append("epoch"))
    folder = RunFolder.of(storage, LINE, SMALL)
    assert folder.checkpoints() == [] and written == [] and folder.history() == []
    assert not folder.folder.exists("tensorboard")
    requests = iter([False, False, False, True])  # within the first epoch, and at its end
    with pytest.raises(Stop):
        fit(
            storage,
            task=stopping(LINE, 6),
            keep=(2,),
            checkpoint_requested=lambda: next(requests, False),
            checkpoint_written=lambda: written.append(folder.checkpoints()),
        )
    assert written == [[4]]
    assert outcome(fit(storage, keep=(2,))) == whole


def test_a_checkpoint_within_an_epoch_brings_the_log_up_to_it(storage, whole, monkeypatch):
    monkeypatch.undo()
    requests = iter([False] * 4 + [True])  # within the first epoch, at its end, and at the second one's first step
    with pytest.raises(Stop):
        fit(storage, task=stopping(LINE, 6), keep=(2,), checkpoint_requested=lambda: next(requests, False))
    folder = RunFolder.of(storage, LINE, SMALL)
    assert folder.checkpoints() == [5] and [row["epoch"] for row in folder.history()] == [1]
    assert outcome(fit(storage, keep=(2,))) == whole


def test_workers_agree_on_a_checkpoint_at_every_sixteenth_step(monkeypatch):
    asked = []

    class Two(Worker):
        def mean(self, tensor):
            asked.append(tensor.item())
            return (tensor + 1) / 2  # the other one wants it

    clock = loop.CheckpointClock()
    assert [step for step in range(1, 33) if clock.due(step, Two(world=2))] == [16, 32] and asked == [0, 0]


def test_checkpoints_by_the_clock_change_nothing(storage, whole, monkeypatch):
    monkeypatch.setattr(loop, "SECONDS", 0.0)
    monkeypatch.setattr(loop, "SHARE", 0.0)
    with pytest.raises(Stop):
        fit(storage, task=stopping(LINE, 7), keep=(2,))
    assert RunFolder.of(storage, LINE, SMALL).checkpoints() == [5, 6]
    assert outcome(fit(storage, keep=(2,))) == whole


@pytest.mark.parametrize("name", ["state.pt", "model.safetensors", "manifest.json"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_and_a_note_says_so(storage, whole, name):
    with pytest.raises(Stop):
        fit(storage, task=stopping(LINE, 7), keep=(2,), every=1)
    folder, notes, taken = RunFolder.of(storage, LINE, SMALL), [], []
    folder.folder.write(f"checkpoint-00000006/{name}", b"{}")
    fit(storage, task=replace(LINE, learner=counting(taken)), keep=(2,), note=notes.append)
    assert outcome(folder) == whole and len(taken) == 12 - 5
    (note,) = notes
    assert f"checkpoint-00000006/{name}" in note and note.endswith("; went on from the checkpoint of step 5")


def test_where_every_checkpoint_is_damaged_the_run_is_left_as_it_is(storage):
    with pytest.raises(Stop):
        fit(storage, task=stopping(LINE, 7), keep=(2,), every=1)
    folder = RunFolder.of(storage, LINE, SMALL)
    for step in (5, 6):
        folder.folder.write(f"checkpoint-0000000{step}/state.pt", b"")
    with pytest.raises(UserError, match=r"checkpoint-00000006/state.pt is damaged or missing; remove "):
        fit(storage, keep=(2,))
    assert folder.checkpoints() == [5, 6]


def test_a_run_that_is_no_longer_ours_is_not_written_to(storage):
    asked = []

    def confirm():
        asked.append(sorted(path for path in Path(storage.root, "runs").rglob("*") if path.is_file()))
        if len(asked) == 3:
            raise Stop

    with pytest.raises(Stop):
        fit(storage, keep=(2,), every=1, check_owner=confirm)
    assert RunFolder.of(storage, LINE, SMALL).checkpoints() == [1, 2]
    assert sorted(path for path in Path(storage.root, "runs").rglob("*") if path.is_file()) == asked[-1]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (
            {"step": lambda _, batch: {"loss": torch.tensor(0.5)}},
            "`step` returned 'loss' of shape (); a metric is a num",
        ),
        ({"step": lambda _, batch: {"loss": 0.5}}, "`step` returned 'loss' of shape (); a metric is a number for each"),
        ({"state_dict": lambda _: [{"model": {}}]}, "`state_dict` returned no 'weights' in each mapping"),
        ({"state_dict": lambda _: {"weights": {}}}, "`state_dict` returned no list of 1 mappings, one for each run"),
    ],
)
def test_what_a_learner_returns_in_another_form_is_named(storage, broken, said):
    with pytest.raises(UserError, match=re.escape(said)):
        fit(storage, task=replace(LINE, learner=type("Broken", (LINE.learner,), broken)))


def test_what_validate_returns_in_another_form_is_named(storage):
    with pytest.raises(UserError, match="`validate` returned no list of 1 mappings, one for each run"):
        fit(storage, task=replace(LINE, validate=lambda learner, data: {"accuracy": 0.5}))
