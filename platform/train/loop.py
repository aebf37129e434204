"""The one training loop: restore, batches, step, validate, checkpoint, report, finish.

It knows no task and no Ray. A trial of Ray Tune runs it as it is, every worker of a Ray Train group runs it with its
own rank, and a notebook can run it with `Worker()`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from retable.platform.config import Config, Parent, Scratch, Weights, init_of, parent
from retable.platform.errors import Unreachable, UserError
from retable.platform.spec.task import Startable
from retable.platform.store.run import RunFolder, weights_path
from retable.platform.store.storage import Record
from retable.platform.store.weights import stored
from retable.platform.train.worker import PEAKS, Meter, Worker, add_usage, seed_everything

if TYPE_CHECKING:
    from retable.platform.spec.task import Data, Learner, State, Task

Score = Callable[[Mapping[str, Tensor], int], Mapping[str, float]]


@dataclass
class Progress:
    """Progress of a training; a part of every checkpoint."""

    epoch: int = 0
    step: int = 0
    """Steps done in this epoch."""
    total: int = 0
    """Steps done in all."""
    count: int = 0
    """Steps that `sums` adds up."""
    sums: dict[str, Tensor] = field(default_factory=dict)
    """Metric -> sum over this epoch's steps, float64, shape (members,)."""
    seconds: float = 0.0
    used: dict[str, float] = field(default_factory=dict)
    """Resources that all attempts used until here (`worker.Meter.read`)."""

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        """Count one step and add its metrics."""
        self.step, self.total, self.count = self.step + 1, self.total + 1, self.count + 1
        for name, value in metrics.items():
            value = value.detach().double()
            self.sums[name] = self.sums[name].to(value.device) + value if name in self.sums else value


SECONDS = 30.0
"""Between checkpoints within an epoch: about what an interruption may cost."""
PAUSE = 1.0
"""Seconds between the checkpoints of epochs that are shorter, and between their lines of the log."""
SHARE = 20
"""Checkpoints take at most one part in so many of the time."""
AGREE = 16
"""Steps after which several workers ask each other whether one is due: each such question waits for all of them."""


@dataclass
class CheckpointClock:
    """Decides when a checkpoint is due: after an epoch, so many steps of one, half a minute (0), or on preemption.

    One that takes long is written less often, and of epochs of milliseconds not each has one. Which steps are followed
    by one changes no number.
    """

    every: int = 0
    saved: float = field(default_factory=time.monotonic)
    cost: float = 0.0

    def due(self, step: int, worker: Worker) -> bool:
        """Return whether a checkpoint is due after this step of the epoch, the same on every rank."""
        if self.every and step % self.every == 0:
            return True
        now = not self.every and time.monotonic() - self.saved >= max(SECONDS, SHARE * self.cost)
        now = now or worker.checkpoint_requested()
        if worker.world == 1:
            return now
        return step % AGREE == 0 and bool(worker.mean(torch.tensor(float(now), device=worker.device)) > 0)

    def due_after_epoch(self, worker: Worker) -> bool:
        """Return whether a checkpoint is due after an epoch; several workers write it each time."""
        if self.every or worker.world > 1 or worker.checkpoint_requested():
            return True
        return time.monotonic() - self.saved >= max(PAUSE, SHARE * self.cost)

    def __enter__(self) -> None:
        """Begin to write a checkpoint."""
        self.saved = time.monotonic()

    def __exit__(self, *_: object) -> None:
        """Record the seconds that it took."""
        self.cost, self.saved = time.monotonic() - self.saved, time.monotonic()


def train(
    task: Task,
    configs: Sequence[Config],
    data: Data,
    folders: Sequence[RunFolder],
    digest: str,
    worker: Worker,
    keep: Sequence[Sequence[int]],
    checkpoint_every: int = 0,
    score: Score | None = None,
) -> None:
    """Train or resume the stack and write each member's `result.json`.

    Args:
        task: what is trained.
        configs: one config for each member of the stack; usually one.
        data: what `task.dataset.open` returned for these configs.
        folders: where each member's files go.
        digest: of the data; a finished run counts for these data only.
        worker: this process's place among the workers, and whom to report to.
        keep: for each member, the epochs (from 1) whose weights views will ask for; the last is always kept (with
            early stopping: the best, under the last one's number).
        checkpoint_every: steps between checkpoints within an epoch; 0: about half a minute.
        score: for sweeps of one member: (weights, epoch) -> metrics that join the report of each epoch.

    Raises:
        UserError: before the first step, where the data give no batch, or one that the workers cannot share.
    """
    check_batch(task, data, worker.world)
    learner = task.learner(configs, data, worker)
    _start_from_parents(learner, task, configs, folders)
    progress, histories = restore(learner, folders, keep, digest, worker)
    rule, clock = task.early_stop(configs[0]), CheckpointClock(checkpoint_every)
    stack = _Stack(folders, histories, keep, digest, worker, progress, rule, score, clock)
    epochs, ended = configs[0].epochs, False
    while progress.epoch < epochs and not ended:
        stack.run_steps(learner, data, configs[0].seed)
        ended = stack.end_epoch(learner, task.validate(learner, data), epochs)


@dataclass
class _Stack:
    """The runs that are trained together: where they stand, and what rank 0 writes of them."""

    folders: Sequence[RunFolder]
    histories: Sequence[list[Record]]
    """Each member's log; the same on every rank, as all must agree on when to stop."""
    keep: Sequence[Sequence[int]]
    digest: str
    worker: Worker
    progress: Progress
    rule: tuple[str, int] | None
    """Of early stopping."""
    score: Score | None
    clock: CheckpointClock

    def __post_init__(self) -> None:
        self.meter, self.used = Meter(self.worker.device, self.worker.world), self.progress.used
        self.logged, self.behind = time.monotonic(), False

    def run_steps(self, learner: Learner, data: Data, seed: int) -> None:
        """Do the steps that are left of an epoch, and write the checkpoints that fall due."""
        progress, worker = self.progress, self.worker
        start = time.perf_counter() - progress.seconds
        for batch in data.batches(progress.epoch, progress.step, worker.rank, worker.world):
            seed_everything(seed, progress.total, worker.rank)
            metrics = learner.step(batch)
            if not progress.sums:
                check_metrics(metrics, len(self.folders))
            progress.add(metrics)
            if progress.step < data.steps and self.clock.due(progress.step, worker):
                progress.seconds = time.perf_counter() - start
                # Rank 0 saves for all.
                progress.sums = {name: worker.mean(total) for name, total in progress.sums.items()}
                with self.clock:
                    if worker.rank == 0:
                        self._begin_write()
                        if self.behind:
                            self._write_logs()
                        save_checkpoints(learner.state_dict(), progress, self.folders, self.digest)
                worker.checkpoint_written()
        progress.seconds = time.perf_counter() - start

    def end_epoch(self, learner: Learner, validation: Sequence[Mapping[str, float]], epochs: int) -> bool:
        """Log an epoch and write what is kept of it; return whether the training has ended."""
        check_each("`validate`", validation, len(self.folders))
        rows = summarise(self.progress, self.worker, validation)
        for history, row in zip(self.histories, rows, strict=True):
            history.append(row)
        ended = self.progress.epoch == epochs or all(over(self.rule, history) for history in self.histories)
        # A run that may end early keeps weights of earlier epochs only as its two newest checkpoints know of them.
        saved = ended or self.rule is not None or self.clock.due_after_epoch(self.worker)
        if self.worker.rank == 0:
            self._begin_write()
            self._write_epoch(learner.state_dict(), epochs, ended, saved)
        if saved:
            self.worker.checkpoint_written()
        self.worker.report({name: value for name, value in rows[0].items() if isinstance(value, (int, float))})
        return ended

    def _begin_write(self) -> None:
        """Check that the runs are still this attempt's, and note what they took until here."""
        self.worker.check_owner()
        self.progress.used = add_usage(self.used, self.meter.read())

    def _write_epoch(self, states: Sequence[State], epochs: int, ended: bool, saved: bool) -> None:
        """Write weights, logs, and the results or a checkpoint."""
        check_each("the learner's `state_dict`", states, len(self.folders), "weights")
        for folder, state, history, kept in zip(self.folders, states, self.histories, self.keep, strict=True):
            _keep_weights(folder, state["weights"], history, kept, epochs, self.rule)
            if self.score is not None:
                final = _best_weights(folder, history) if self.rule and ended else state["weights"]
                history[-1] |= self.score(final, self.progress.epoch)
        self.behind = True
        if saved or time.monotonic() - self.logged >= PAUSE:  # of epochs of milliseconds, not each time: it is whole
            self._write_logs(ended, saved)
        if ended:
            pairs = zip(self.histories, states, strict=True)  # in a stack, one that diverged went on with the others
            ends = [_diverged(history) or broken(state["weights"]) for history, state in pairs]
            finish(self.folders, self.histories, self.keep, self.digest, epochs, ends, self.progress.used)
        elif saved:
            with self.clock:
                save_checkpoints(states, self.progress, self.folders, self.digest)
            _remove_beaten(self.folders, self.histories)

    def _write_logs(self, ended: bool = False, saved: bool = False) -> None:
        for folder, history in zip(self.folders, self.histories, strict=True):
            folder.write_history(history, ended, saved)
        self.logged, self.behind = time.monotonic(), False


def check_batch(task: Task, data: Data, workers: int) -> None:
    """Refuse data that give no batch, and a batch that workers cannot share equally.

    Raises:
        UserError: naming the remedy.
    """
    if data.steps < 1:
        raise UserError(f"{task.name}: the data hold less than one batch; lower the batch, or get more data")
    if data.batch % workers:
        remedy = f"set a batch that is a multiple of {workers}, or other --workers"
        raise UserError(f"{task.name}: a batch of {data.batch} cannot be shared by {workers} workers; {remedy}")


def over(rule: tuple[str, int] | None, history: Sequence[Record]) -> bool:
    """Return whether a run ends early: it diverged, or too many epochs went by without a better one."""
    if "diverged" in history[-1]:
        return True
    return rule is not None and history[-1]["epoch"] - _best_epoch(rule[0], history) >= rule[1]


def _diverged(history: Sequence[Record]) -> str:
    """Return how a run diverged first; empty where it did not."""
    return next((str(row["diverged"]) for row in history if "diverged" in row), "")


def _best_epoch(metric: str, history: Sequence[Record]) -> int:
    """Return the first epoch with the highest value of a metric; one that is no number is worse than any."""
    return int(max(history, key=lambda row: (not math.isnan(row[metric]), row[metric], -row["epoch"]))["epoch"])


def _keep_weights(
    folder: RunFolder,
    weights: Mapping[str, Tensor],
    history: Sequence[Record],
    kept: Sequence[int],
    epochs: int,
    rule: tuple[str, int] | None,
) -> None:
    """Save an epoch's weights where a view names it, and those of the best epoch so far where a run may end early."""
    row = history[-1]
    names = []
    last = row["epoch"] == epochs
    if (last and rule is None) or (not last and row["epoch"] in kept):  # with a rule, the last means the best
        names.append("weights")
    if rule is not None and _best_epoch(rule[0], history) == row["epoch"]:
        names.append("best")
    if names:
        row |= dict.fromkeys(names, folder.save_weights(row["epoch"], weights))


def _best_row(history: Sequence[Record]) -> Record | None:
    """Return the line of the best epoch of a run that may end early, else None."""
    return next((row for row in reversed(history) if "best" in row), None)


def _best_weights(folder: RunFolder, history: Sequence[Record]) -> Mapping[str, Tensor]:
    """Return the weights of the best epoch so far."""
    from safetensors.torch import load

    row = _best_row(history)
    assert row is not None
    return load(folder.folder.read(weights_path(row["epoch"])))


def _remove_beaten(folders: Sequence[RunFolder], histories: Sequence[Sequence[Record]]) -> None:
    """Remove the weights of epochs that are no longer the best, once both checkpoints know of a better one."""
    for folder, history in zip(folders, histories, strict=True):
        beaten = [row for row in history if "best" in row][:-2]
        if beaten and "best" in history[-1] and "weights" not in beaten[-1]:
            folder.folder.remove(weights_path(beaten[-1]["epoch"]))


def check_metrics(metrics: Mapping[str, Tensor], members: int) -> None:
    """Refuse what a learner's `step` returns where it is no metric of each member.

    Raises:
        UserError: naming it.
    """
    shapes = {name: tuple(getattr(value, "shape", ())) for name, value in metrics.items()}
    for name, shape in shapes.items():
        if shape != (members,):
            wanted = f"a number for each run, shape ({members},)"
            raise UserError(f"the learner's `step` returned {name!r} of shape {shape}; a metric is {wanted}")


def check_each(what: str, values: Sequence[Mapping[str, object]], members: int, key: str = "") -> None:
    """Refuse what a task's function returns where it is not a mapping for each member, with a key that must be there.

    Raises:
        UserError: naming the function.
    """
    if isinstance(values, Mapping) or len(values) != members or not all(isinstance(value, Mapping) for value in values):
        raise UserError(f"{what} returned no list of {members} mappings, one for each run")
    if key and not all(key in value for value in values):
        raise UserError(f"{what} returned no {key!r} in each mapping")


def summarise(progress: Progress, worker: Worker, validation: Sequence[Mapping[str, float]]) -> list[Record]:
    """Close an epoch: return each member's line of the log, and set the sums back.

    A line says `diverged` where a metric of the steps is not finite.
    """
    means = {name: worker.mean(total / progress.count).tolist() for name, total in progress.sums.items()}
    progress.epoch, progress.step, progress.count, progress.sums = progress.epoch + 1, 0, 0, {}
    common = {"epoch": progress.epoch, "step": progress.total, "seconds": progress.seconds, "time": time.time()}
    rows: list[dict[str, object]] = []
    for member, cheap in enumerate(validation):
        own = {name: values[member] for name, values in means.items()}
        bad = {name: value for name, value in own.items() if not math.isfinite(value)}
        why = {"diverged": f"{next(iter(bad))} is {next(iter(bad.values()))} in epoch {progress.epoch}"} if bad else {}
        rows.append({**common, **own, **cheap, **why})
    return rows


def broken(weights: Mapping[str, Tensor]) -> str:
    """Return which weights are not finite, in words; empty if all are finite."""
    return next((f"{name} is not finite" for name, tensor in weights.items() if not tensor.isfinite().all()), "")


def restore(
    learner: Learner, folders: Sequence[RunFolder], keep: Sequence[Sequence[int]], digest: str, worker: Worker
) -> tuple[Progress, list[list[Any]]]:
    """Load the newest checkpoint that every member has; return where the training stands, and its log so far.

    Where it is damaged, the one before is used, and a note says so. A checkpoint of other data, or behind an epoch that
    the log lacks or whose weights are wanted but were not kept, is of no use: the training starts anew.

    Raises:
        UserError: where all checkpoints are damaged.
    """
    states = _newest_states(folders, worker)
    if not states:
        return Progress(), [[] for _ in folders]
    progress = Progress(**states[0].pop("progress"))
    digests = {state.pop("data", None) for state in states}
    sums = [state.pop("sums") for state in states]
    progress.sums = {name: torch.stack([member[name] for member in sums]) for name in sums[0]}
    histories = [folder.history()[: progress.epoch] for folder in folders]
    for history, kept in zip(histories, keep, strict=True):
        complete = [row["epoch"] for row in history] == list(range(1, progress.epoch + 1))
        lost = any("weights" not in row for row in history if row["epoch"] in kept)
        if digests != {digest} or lost or not complete:
            return Progress(), [[] for _ in folders]
    learner.load_state_dict(states)
    return progress, histories


def _newest_states(folders: Sequence[RunFolder], worker: Worker) -> list[State]:
    """Return each member's state of the newest common checkpoint that is whole; none where there is no checkpoint.

    Raises:
        UserError: where all are damaged.
    """
    steps = sorted(set.intersection(*(set(folder.checkpoints()) for folder in folders)))
    damage = None
    while steps:
        try:
            states = [folder.load_checkpoint(steps[-1]) for folder in folders]
        except Unreachable:
            raise
        except UserError as error:
            damage = damage or error
            steps.pop()
            continue
        if damage and worker.rank == 0:
            worker.note(f"{damage}; went on from the checkpoint of step {steps[-1]}")
        return states
    if damage:
        raise damage
    return []


def save_checkpoints(
    states: Sequence[Mapping[str, object]], progress: Progress, folders: Sequence[RunFolder], digest: str
) -> None:
    """Write every member's checkpoint, and only then remove all but the one before: a common one is always there."""
    counters = {"epoch": progress.epoch, "step": progress.step, "total": progress.total, "count": progress.count}
    for member, (state, folder) in enumerate(zip(states, folders, strict=True)):
        sums = {name: total[member].cpu() for name, total in progress.sums.items()}
        fields = {**counters, "seconds": progress.seconds, "used": progress.used}
        folder.save_checkpoint(progress.total, {**state, "progress": fields, "sums": sums, "data": digest})
    for folder in folders:
        folder.remove_checkpoints(keep=progress.total)


def finish(
    folders: Sequence[RunFolder],
    histories: Sequence[Sequence[Record]],
    keep: Sequence[Sequence[int]],
    digest: str,
    epochs: int,
    ends: Sequence[str],
    used: Mapping[str, float],
) -> None:
    """Write each member's `result.json`; the rolling checkpoint is then of no more use.

    With early stopping, the last epoch is the best one, with its metrics, and so are those that the run did not reach.
    `ends` says of each member why its numbers mean nothing, empty where they do: it has then diverged. `used` is what
    all members took together; each is said to have taken its share of the seconds.
    """
    share = {name: value if name in PEAKS else value / len(folders) for name, value in used.items()}
    for folder, history, kept, diverged in zip(folders, histories, keep, ends, strict=True):
        unsaid = ("weights", "best", "time", "diverged")
        last = {name: value for name, value in history[-1].items() if name not in unsaid}
        weights = {str(row["epoch"]): row["weights"] for row in history if "weights" in row}
        best = _best_row(history)
        if best is not None:
            data = folder.folder.read(weights_path(best["epoch"]))
            for epoch in sorted({epochs, *(epoch for epoch in kept if epoch > last["epoch"])}):
                folder.folder.write(weights_path(epoch), data)
                weights[str(epoch)] = best["best"]
        seconds = last["seconds"]
        if best is not None:
            last = {name: best.get(name, value) for name, value in last.items()}
        result = {"task": folder.task, "fingerprint": folder.fingerprint, "data": digest, "metrics": last}
        result |= {"diverged": diverged} if diverged else {}
        count = max(1, len(folder.folder.list("attempts")))
        folder.folder.write_json(
            "result.json", {**result, "weights": weights, "seconds": seconds, "used": share, "attempts": count}
        )
        folder.remove_checkpoints()
        for row in history:
            if "best" in row and str(row["epoch"]) not in weights:
                folder.folder.remove(weights_path(row["epoch"]))


def _start_from_parents(learner: Learner, task: Task, configs: Sequence[Config], folders: Sequence[RunFolder]) -> None:
    """Load what `config.init` names into a learner, where the task has such a field.

    Raises:
        UserError: if a weights file is missing or is not the one named.
    """
    if all(isinstance(init_of(config), Scratch) for config in configs):
        return
    if not isinstance(learner, Startable):
        raise TypeError(f"{task.name}: its config has `init`, and its learner no `load_weights`")
    learner.load_weights([parent_weights(task, c, f) for c, f in zip(configs, folders, strict=True)])


def parent_weights(task: Task, config: Config, folder: RunFolder) -> Mapping[str, Tensor]:
    """Return the weights that a config's run starts from: its parent's, or a file's."""
    init, before = init_of(config), parent(config)
    if isinstance(init, Weights):
        return stored(init.sha256, folder.storage, "copy the weights there as a safetensors file")[0]
    assert isinstance(init, Parent) and before is not None
    start = RunFolder.of(folder.storage, task, before)
    if "diverged" in (start.result() or {}):
        raise UserError(f"the run that this one starts from, {start.fingerprint}, diverged")
    return start.weights(init.checkpoint or before.epochs)
