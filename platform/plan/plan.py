"""From tables to the smallest set of work: unique trainings in waves, predictions, combinations, measurements.

Compiling a plan reads the storage and starts nothing.
"""

from __future__ import annotations

import inspect
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

from retable.platform.config import Config, Parent, View, describe, differences, init_of, lineage, override, parent
from retable.platform.errors import Unreachable, UserError
from retable.platform.spec.table import (
    Combined,
    Figure,
    Measurement,
    Replicate,
    Row,
    Table,
    expand,
    rows_of_claims,
    stored_key,
)
from retable.platform.spec.task import DEFAULT_SCALE
from retable.platform.store.cache import Snapshot
from retable.platform.store.provenance import device_name
from retable.platform.store.run import RunFolder, check_numbers, listed_shards, sha256, view_key
from retable.platform.store.storage import Storage
from retable.platform.text import cut, grouped

if TYPE_CHECKING:
    from retable.platform.spec.task import Task

Status = Literal[
    "done", "new", "to be continued", "data changed", "weights not kept", "weights not sent", "to be retried",
    "diverged", "parent diverged", "corrupt", "parent corrupt",
]  # fmt: skip
LOST = ("diverged", "parent diverged", "corrupt", "parent corrupt")
"""No number comes of it."""
ENDED = ("done", *LOST)
"""There is nothing to train."""
SHORT = 3600.0
"""Seconds of one core below which a plan is too short to be interrupted."""
FINISHED = ("done", "weights not sent")
"""Its numbers are there. Without weights, the run is trained again only for what has to be made from them."""
READERS = 32
"""Files that are read at once."""


@dataclass(frozen=True)
class Training:
    """One unique training, shared by all cells that need it."""

    task: Task
    config: Config
    folder: RunFolder
    keep: tuple[int, ...]
    """Epochs whose weights views ask for."""
    status: Status
    wave: int
    """0 for runs that start from nothing; a child is one wave behind its parent."""


@dataclass(frozen=True)
class Scoring:
    """One view of one training."""

    task: Task
    config: Config
    folder: RunFolder
    view: View
    done: bool
    """Scored, or never to be: a run that diverged or is corrupt has no scores."""

    @property
    def reads(self) -> Sequence[View]:
        """The views from whose predictions this one is scored."""
        return self.task.reads(self.view)


@dataclass(frozen=True)
class Prediction:
    """A prediction of one view of a training, from which one or more views are scored."""

    task: Task
    config: Config
    folder: RunFolder
    view: View
    joined: bool
    """Whether a combined row needs the predictions themselves, not only their summary."""


@dataclass(frozen=True)
class Timing:
    """One measurement on this kind of device."""

    task: Task
    config: Config
    row: Measurement
    path: str
    """Path of its file for this kind of device."""
    done: bool
    """Whether that is there, and was taken here: one that came in a bundle does not count."""

    @property
    def stem(self) -> str:
        """The same without the device: all that were taken of it begin with this."""
        return self.path.removesuffix(f"{device_slug()}.json")


@dataclass(frozen=True)
class Combining:
    """One replicate of a combined row: the views whose predictions it joins, in the row's order."""

    task: Task
    row: Combined
    axes: Mapping[str, object]
    members: tuple[Scoring, ...]

    @property
    def place(self) -> str:
        """The combination's folder; named by the row, its function and its members, whose names hold the version."""
        names = [f"{member.folder.path}/{view_key(member.view)}" for member in self.members]
        function = self.row.combine
        how = stored_key(function, f"{function.__module__}.{function.__qualname__}")
        key = json.dumps([self.row.label, how, dict(self.row.view), *names])
        return f"combinations/{self.task.name}/{sha256(key.encode())[:16]}"

    @property
    def path(self) -> str:
        """Return the path of its scores."""
        return f"{self.place}/scores.json"

    @property
    def view(self) -> View:
        """The view that scores the joined predictions."""
        return override(self.members[0].view, self.row.view)

    def reads(self, member: Scoring) -> Sequence[View]:
        """Return the views of a member whose predictions are joined, in an order that all members share."""
        return self.task.reads(override(member.view, self.row.view))

    def scores(self, storage: Storage) -> dict[str, Any] | None:
        """Return the combination's file if it was made from exactly these members."""
        if not storage.exists(self.path):
            return None
        record = storage.read_record(self.path, {"inputs": list, "metrics": dict})
        check_numbers(f"{storage}/{self.path}", record["metrics"], "remove it and run again")
        return record if record["inputs"] == self.inputs() else None

    def inputs(self) -> list[str]:
        """Return the digests of each member's weights and data; none of one that is not finished, or diverged."""
        results = [member.folder.outcome() for member in self.members]
        pairs = zip(results, self.members, strict=True)
        finished = [(r, member) for r, member in pairs if r and "diverged" not in r]
        return [f"{r['weights'].get(str(member.view.epoch), '')} {r['data']}" for r, member in finished]


Shared = Mapping[str, Mapping[str, object]]
"""Task, or `TASK view` -> path -> value."""


@dataclass(repr=False)
class Plan:
    """All the work that some tables need, each piece once."""

    storage: Storage
    tables: Mapping[str, tuple[Task, Table | Figure]]
    """At their scale, with the user's changes."""
    again: Callable[[], Plan] = field(repr=False)
    """Compiles it anew, by what is on the storage then."""
    scale: str = ""
    changes: Mapping[str, object] = field(default_factory=dict)
    rows: Sequence[str] = ()
    """Labels or patterns of the rows that the user chose; none: all."""
    retry: bool = False
    """Whether runs that diverged are to be tried again."""
    train: bool = True
    """Whether to train what is not trained, and measure; if not, only what finished runs give is done."""
    untrained: dict[str, Training] = field(default_factory=dict)
    """By run path: what is left undone, where nothing is trained."""
    measure_on: str = ""
    """Custom resource, or accelerator type, of the nodes that measurements are taken on; empty: this machine."""
    trainings: dict[str, Training] = field(default_factory=dict)
    """By run path."""
    scorings: dict[str, Scoring] = field(default_factory=dict)
    """By run path and view key."""
    predictions: dict[str, Prediction] = field(default_factory=dict)
    """Predictions that are read by the scorings and combinations still to be done; by run path and view key."""
    timings: dict[str, Timing] = field(default_factory=dict)
    """By path of the measurement's file."""
    combinings: list[Combining] = field(default_factory=list)
    replicates: dict[str, dict[str, list[Replicate]]] = field(default_factory=dict)
    """Table -> row label -> replicates, not yet filled."""
    corrupt: dict[str, str] = field(default_factory=dict)
    """Run path -> which of its files is damaged, and the remedy: its numbers are left out."""
    first: dict[str, str] = field(default_factory=dict)
    """Key of a training or scoring -> the first table that wants it: there its cost is counted."""

    @cached_property
    def shared(self) -> Shared:
        """Return the non-default settings that all trainings of a task, and all of its views, share."""
        trained = [
            (training.task.name, differences(training.config, training.task.config()))
            for training in self.trainings.values()
        ]
        items: list[Scoring | Prediction] = [*self.scorings.values(), *self.predictions.values()]
        scored = [(f"{item.task.name} view", differences(item.view, item.task.view())) for item in items]
        return {name: common(many) for name, many in grouped([*trained, *scored]).items()}

    @property
    def missing(self) -> list[Training]:
        """Trainings still to be done, parents before children."""
        todo = [training for training in self.trainings.values() if training.status not in ENDED]
        return sorted(todo, key=lambda training: training.wave)

    def start_order(self, training: Training) -> float:
        """Return the sort key by which trainings begin.

        A long plan may be interrupted: what decides a claim begins first. In a short one the longest chain of trainings
        begins first, so that all workers end at about the same time.
        """
        return self._starts.get(training.folder.path, len(self._starts))

    @cached_property
    def _starts(self) -> Mapping[str, float]:
        """Return run path -> its sort key."""
        if self.cost < SHORT:
            return {path: -seconds for path, seconds in self._chains().items()}
        return self._turns()

    def _chains(self) -> Mapping[str, float]:
        """Return run path -> seconds of the longest chain of missing trainings that begins with this run."""
        longest: dict[str, float] = {}
        for training in self.missing:
            chain = 0.0
            for config in lineage(training.config):
                chain += training.task.cost(config)
                path = RunFolder.of(self.storage, training.task, config).path
                longest[path] = max(chain, longest.get(path, 0.0))
        return longest

    def _turns(self) -> Mapping[str, int]:
        """Return run path -> its turn, of runs that decide a claim: the paper's claims first, a claim's runs together.

        Runs of the rows that a claim reads alternate, replicate by replicate; parents come before their children.
        """
        turns: dict[str, int] = {}
        claimed = [claim for name in self.tables for claim in self._claimed(name)]
        for _, task, rows in sorted(claimed, key=lambda claim: claim[0]):
            for replicate in filter(None, itertools.chain(*itertools.zip_longest(*rows))):
                for config in reversed(lineage(replicate.config)):
                    turns.setdefault(RunFolder.of(self.storage, task, config).path, len(turns))
        return turns

    def _claimed(self, name: str) -> Iterator[tuple[bool, Task, list[list[Replicate]]]]:
        """Yield of each claim of a table whether it is ours, the task, and the replicates of each row that it reads."""
        task, table = self.tables[name]
        members = {row.label: row.of for row in table.rows if isinstance(row, Combined)}
        for claim, labels in zip(table.claims, rows_of_claims(table, task.config(), task.view()), strict=True):
            own = dict.fromkeys(member for label in labels for member in members.get(label, (label,)))
            yield claim.ours, task, [self.replicates[name].get(label, []) for label in own]

    @property
    def unscored(self) -> list[Scoring]:
        """Views still to be predicted and evaluated."""
        return [scoring for scoring in self.scorings.values() if not scoring.done]

    @property
    def uncombined(self) -> list[Combining]:
        """Combinations still to be made, each once, whichever tables need it."""
        unique = {combining.path: combining for combining in self.combinings}
        return [c for c in unique.values() if self.waits(c) or (self.whole(c) and c.scores(self.storage) is None)]

    def whole(self, combining: Combining) -> bool:
        """Return whether all members of a combination are finished, so that it may be made or read."""
        return all(self.trainings[member.folder.path].status in FINISHED for member in combining.members)

    def waits(self, combining: Combining) -> bool:
        """Return whether members of a combination are still to be trained; of one that is lost, nothing can come."""
        states = {self.trainings[member.folder.path].status for member in combining.members}
        return not states & {*LOST} and not states <= {*FINISHED}

    @property
    def unmeasured(self) -> list[Timing]:
        """Measurements still to be taken: on this kind of device, or on a node as `measure_on` says."""
        if not self.train:
            return []
        if not self.measure_on:
            return [timing for timing in self.timings.values() if not timing.done]
        return [timing for timing in self.timings.values() if not self._taken(timing)]

    def _taken(self, timing: Timing) -> bool:
        """Return whether a measurement was taken on a node as `measure_on` says."""
        taken = [read_timing(self.storage, path) for path in timings_at(self.storage, timing.stem)]
        return any(record.get("measured on") == self.measure_on and "bundle" not in record for record in taken)

    @property
    def nothing_to_do(self) -> bool:
        """Whether everything exists."""
        return not (self.missing or self.unscored or self.uncombined or self.unmeasured)

    def data_notes(self) -> list[str]:
        """Return the notes of tasks about the existing datasets of the trainings, each line once.

        Raises:
            UserError: where a data set is damaged.
        """
        from retable.platform.spec.task import Source

        readers = grouped(
            (training.task.dataset.where(training.config), training) for training in self.trainings.values()
        )
        lines: list[str] = []
        for where, several in readers.items():
            if data_digest(self.storage, where) is not None:
                configs = [training.config for training in several]
                lines += several[0].task.dataset.notes(configs, Source.of(self.storage, where))
        return list(dict.fromkeys(lines))

    @property
    def groups(self) -> dict[Hashable, list[Training]]:
        """Missing trainings grouped by what can be trained as one stack."""
        return grouped(
            ((training.task.name, training.wave, training.task.group(training.config)), training)
            for training in self.missing
        )

    def gpu_hours(self, rates: Mapping[str, float]) -> tuple[float, int]:
        """Return the hours of one GPU that the missing trainings take at measured rates, and how many have none.

        Args:
            rates: name -> units a second, of `gpu.json`, which `python -m benchmarks gpu` writes.
        """
        on_gpu = [training for training in self.missing if training.task.needs(training.config, "train").gpus]
        work = [training.task.gpu_work(training.config) for training in on_gpu]
        timed = [units / rates[name] for name, units in filter(None, work) if name in rates]
        return sum(timed) / 3600, len(work) - len(timed)

    @property
    def cost(self) -> float:
        """Seconds of one CPU core that the missing work takes, by the tasks' own rough estimates."""
        training = sum(t.task.cost(t.config) for t in self.missing)
        return training + sum(p.task.view_cost(p.config, p.view) for p in self.predictions.values())


def compile_plan(
    tables: Mapping[str, tuple[Task, Table | Figure]],
    storage: Storage,
    scale: str = DEFAULT_SCALE,
    changes: Mapping[str, object] | None = None,
    rows: Sequence[str] = (),
    *,
    retry: bool = False,
    train: bool = True,
) -> Plan:
    """Expand tables (already at their scale, with the changes and rows) and look up what of them exists."""
    again = partial(compile_plan, tables, storage, scale, changes, rows, retry=retry, train=train)
    plan = Plan(storage, tables, again, scale, changes or {}, rows, retry=retry, train=train)
    with storage.snapshot() as taken:
        for name, (task, table) in tables.items():
            _add_table(plan, name, task, table, taken)
            plan.first = dict.fromkeys((*plan.trainings, *plan.scorings), name) | plan.first
        _find_unsent(plan)
        if not train:
            _leave_untrained(plan)
        _add_predictions(plan)
        for combining in plan.uncombined:
            for member in combining.members:
                for view in combining.reads(member):
                    _add_prediction(plan, member, view, joined=True)
    return plan


def _find_unsent(plan: Plan) -> None:
    """Mark the runs that came in a bundle without weights which something that is still to be done needs.

    All views of what is trained again are scored again.
    """
    wanted = [start for training in plan.missing for start in start_of(plan, training)]
    for scoring in plan.unscored:
        wanted += _unpredicted(scoring.folder, scoring.reads, "summary.npz")
    for combining in plan.uncombined:
        for member in combining.members:
            wanted += _unpredicted(member.folder, combining.reads(member), "predictions.npz")
    while wanted:
        path, epoch = wanted.pop()
        training = plan.trainings[path]
        if training.status == "done" and training.folder.lacks(epoch):
            plan.trainings[path] = again = replace(training, status="weights not sent")
            wanted += start_of(plan, again)
    ended = ENDED if plan.train else (*ENDED, *FINISHED)
    for key, scoring in plan.scorings.items():
        if plan.trainings[scoring.folder.path].status not in ended:  # other weights may come of it
            plan.scorings[key] = replace(scoring, done=False)


def _unpredicted(folder: RunFolder, views: Sequence[View], name: str) -> list[tuple[str, int]]:
    """Return a run that came in a bundle, with the epoch of each view of which the bundle lacks a file of a shard."""
    unpredicted: list[tuple[str, int]] = []
    for view in views if folder.bundle() else ():
        artifacts = folder.artifacts(view, str((folder.outcome() or {})["weights"].get(str(view.epoch), "")))
        shards = listed_shards(artifacts)
        if shards is None or not all(artifacts.exists(f"{shard}/{name}") for shard in shards):
            unpredicted.append((folder.path, view.epoch))
    return unpredicted


def start_of(plan: Plan, training: Training) -> list[tuple[str, int]]:
    """Return the run and epoch whose weights a training starts from; empty for other trainings."""
    init, ancestor = init_of(training.config), parent(training.config)
    if not isinstance(init, Parent) or ancestor is None:
        return []
    return [(RunFolder.of(plan.storage, training.task, ancestor).path, init.checkpoint or ancestor.epochs)]


def _leave_untrained(plan: Plan) -> None:
    """Remove the trainings still to be done from a plan, with everything that depends on them."""
    plan.untrained = {path: training for path, training in plan.trainings.items() if training.status not in ENDED}
    plan.trainings = {path: training for path, training in plan.trainings.items() if path not in plan.untrained}
    finished = {
        path for path, training in plan.untrained.items() if training.status in FINISHED
    } | plan.trainings.keys()
    scored = {key: scoring for key, scoring in plan.scorings.items() if scoring.folder.path in finished}
    plan.scorings = {
        key: scoring for key, scoring in scored.items() if scoring.done or scoring.folder.path in plan.trainings
    }
    plan.combinings = [c for c in plan.combinings if all(m.folder.path in plan.trainings for m in c.members)]


_LACKING = {
    "new": "not trained",
    "to be continued": "not trained to the end",
    "data changed": "trained on other data",
    "weights not kept": "trained, but an epoch's weights were not kept",
    "weights not sent": "to be scored, but the weights did not come with the bundle",
    "to be retried": "diverged",
}
"""Status -> why a row is left out where nothing is trained."""


def left_out(plan: Plan, name: str) -> dict[str, list[str]]:
    """Return the rows of a table that lack runs, or are not measured, where nothing is trained, by the reason."""
    task, table = plan.tables[name]
    if plan.train:
        return {}
    reasons: dict[str, list[str]] = {}
    for row in table.rows:
        replicates = plan.replicates[name].get(row.label, [])
        if isinstance(row, Measurement):
            lacking = ["not measured" for replicate in replicates if timing_read(plan, task, row, replicate) is None]
        else:
            lacking = [why for replicate in replicates if (why := _why_left(plan, task, replicate))]
        if lacking:
            part = f"{len(lacking)} of {len(replicates)} runs " if len(lacking) < len(replicates) else ""
            reasons.setdefault(part + lacking[0], []).append(row.label)
    without = {label for labels in reasons.values() for label in labels}
    joined = [row.label for row in table.rows if isinstance(row, Combined) and without & {*row.of} and not row.absent]
    return reasons | ({"of rows that are left out": joined} if joined else {})


def _why_left(plan: Plan, task: Task, replicate: Replicate) -> str:
    """Return why a replicate has no number where nothing is trained; empty if it has."""
    training = plan.untrained.get(RunFolder.of(plan.storage, task, replicate.config).path)
    if training is None:
        return ""
    sent = training.status in FINISHED
    if sent and (replicate.view is None or _scoring_key(plan, task, replicate) in plan.scorings):
        return ""
    return _LACKING[training.status]


def _add_table(plan: Plan, name: str, task: Task, table: Table | Figure, taken: Snapshot) -> None:
    rows = plan.replicates[name] = {}
    present = [row for row in table.rows if not isinstance(row, Combined) and not row.absent]
    for present_row in present:
        try:
            rows[present_row.label] = expand(table, present_row, task.config(), task.view())
        except UserError as error:
            raise UserError(f"{name}: {error}") from error
    trained = [replicate for row in present if isinstance(row, Row) for replicate in rows[row.label]]
    configs = {id(replicate.config): replicate.config for replicate in trained}  # replicates share theirs
    named = {key: RunFolder.of(plan.storage, task, config) for key, config in configs.items()}
    folders = [named[id(replicate.config)] for replicate in trained]
    read_ahead(folders, [replicate.view for replicate in trained], taken)
    for replicate, folder in zip(trained, folders, strict=True):
        _add(plan, task, replicate.config, replicate.view, folder)
    for present_row in present:
        if isinstance(present_row, Measurement):
            for replicate in rows[present_row.label]:
                _add_timing(plan, task, present_row, replicate)
    for row in table.rows:
        if isinstance(row, Combined) and not row.absent:
            plan.combinings += combinings(plan, name, row)


def read_ahead(folders: Sequence[RunFolder], views: Sequence[View | None], taken: Snapshot) -> None:
    """Read the results and scores that the index does not know, many at once: a bucket's time is waiting."""
    wanted: dict[str, tuple[RunFolder, list[View]]] = {}
    for folder, view in zip(folders, views, strict=True):
        files = ["result.json", *([f"views/{view_key(view)}/scores.json"] if view else [])]
        if not all(taken.is_indexed(f"{folder.path}/{file}") for file in files):
            wanted.setdefault(folder.path, (folder, []))[1].extend([view] if view else [])

    def read(folder: RunFolder, views: Sequence[View]) -> None:
        with intact():
            folder.outcome()
        for view in views:
            with intact():
                folder.scored(view, "")

    with ThreadPoolExecutor(READERS) as readers:
        calls = [partial(copy_context().run, read, *arguments) for arguments in wanted.values()]  # with our snapshot
        pending = [readers.submit(call) for call in calls]
        for future in pending:
            future.result()


def _add_predictions(plan: Plan) -> None:
    for scoring in plan.unscored:
        for view in scoring.reads:
            _add_prediction(plan, scoring, view, joined=False)


def _add_prediction(plan: Plan, scoring: Scoring, view: View, joined: bool) -> None:
    key = f"{scoring.folder.path}/{view_key(view)}"
    if joined or key not in plan.predictions:
        plan.predictions[key] = Prediction(scoring.task, scoring.config, scoring.folder, view, joined)


def combinings(plan: Plan, name: str, row: Combined) -> list[Combining]:
    """Return the replicates of a combined row: one for each point of the axes that all its members have."""
    task, _ = plan.tables[name]
    members = [plan.replicates[name].get(label, []) for label in row.of]
    combined = []
    for first in members[0]:
        same = [next((replicate for replicate in rows if replicate.axes == first.axes), None) for rows in members]
        if all(replicate is not None and replicate.view is not None for replicate in same):
            scorings = (
                plan.scorings[_scoring_key(plan, task, replicate)] for replicate in same if replicate is not None
            )
            combined.append(Combining(task, row, first.axes, tuple(scorings)))
    return combined


def _scoring_key(plan: Plan, task: Task, replicate: Replicate) -> str:
    """Return the key of a replicate's view among a plan's scorings."""
    return f"{RunFolder.of(plan.storage, task, replicate.config).path}/{view_key(replicate.view)}"


def compile_configs(
    task: Task,
    configs: Sequence[Config],
    storage: Storage,
    views: Sequence[View | None] = (),
    keep: Sequence[int] = (),
    retry: bool = False,
    scale: str = "",
    changes: Mapping[str, object] | None = None,
) -> Plan:
    """Plan trainings of no table, as `train` and `sweep` run them.

    Args:
        task: of all of them.
        configs: what is trained.
        storage: where it is kept.
        views: how each config's run is scored, where there are any; their epochs are resolved.
        keep: epochs whose weights are kept of each.
        retry: whether runs that diverged are to be tried again.
        scale: what the configs started from, if anything.
        changes: what was changed of it by hand.
    """
    again = partial(compile_configs, task, configs, storage, views, keep, retry, scale, changes)
    plan = Plan(storage, {}, again, scale, changes or {}, retry=retry)
    with storage.snapshot():
        for config, view in itertools.zip_longest(configs, views):
            wave = _add(plan, task, config, view)
            for epoch in keep:
                _keep(plan, task, config, epoch, wave)
        _find_unsent(plan)
        _add_predictions(plan)
    return plan


def _add(plan: Plan, task: Task, config: Config, view: View | None, folder: RunFolder | None = None) -> int:
    """Add a training, its ancestors and its view; return its wave. `folder` is the run's, where it is known."""
    init, ancestor = init_of(config), parent(config)
    wave = 0
    if isinstance(init, Parent) and ancestor is not None:
        epoch = init.checkpoint or ancestor.epochs
        wave = 1 + _add(plan, task, ancestor, None)
        _keep(plan, task, ancestor, epoch, wave - 1)
    epoch = config.epochs if view is None else view.epoch
    training = _keep(plan, task, config, epoch, wave, folder)
    if view is not None:
        task.check(config, view)
        done = training.status in LOST
        if training.status == "done":
            kept = (training.folder.outcome() or {"weights": {}})["weights"].get(str(epoch), "")
            with intact(plan, training.folder):
                done = True  # where the scores are damaged they are never taken
                done = training.folder.scored(view, kept)
        key = f"{training.folder.path}/{view_key(view)}"
        plan.scorings[key] = Scoring(task, config, training.folder, view, done)
    return wave


def _keep(plan: Plan, task: Task, config: Config, epoch: int, wave: int, folder: RunFolder | None = None) -> Training:
    """Record that an epoch's weights of a run are needed."""
    folder = folder or RunFolder.of(plan.storage, task, config)
    planned = plan.trainings.get(folder.path)
    if planned is not None and epoch in planned.keep:
        return planned
    keep = tuple(sorted({epoch, config.epochs, *task.keep(config), *(planned.keep if planned else ())}))
    digest = data_digest(plan.storage, task.dataset.where(config))
    state: Status = "corrupt"
    with intact(plan, folder):
        state = status(folder, keep, digest)
    ancestor = parent(config)
    if ancestor is not None and state not in ENDED:
        before = plan.trainings[RunFolder.of(plan.storage, task, ancestor).path].status
        if before in LOST:
            state = "parent diverged" if before.endswith("diverged") else "parent corrupt"
    if state == "diverged" and plan.retry:
        state = "to be retried"
    training = Training(task, config, folder, keep, state, wave)
    plan.trainings[folder.path] = training
    return training


@contextmanager
def intact(plan: Plan | None = None, folder: RunFolder | None = None) -> Iterator[None]:
    """Leave the block where a file of a run is damaged, and note that in the plan of tables that has the run.

    Raises:
        UserError: where the storage does not answer, or the plan is of no table: what was asked for is then that run.
    """
    try:
        yield
    except Unreachable:
        raise
    except UserError as error:
        if plan is not None and folder is not None:
            if not plan.tables:
                raise
            plan.corrupt.setdefault(folder.path, str(error))


def corrupt_in(plan: Plan, name: str) -> tuple[str, ...]:
    """Return what is damaged of the runs of a table, and of those that they start from, a line each."""
    task, _ = plan.tables[name]
    configs = [run.config for rows in plan.replicates[name].values() for run in rows] if plan.corrupt else []
    paths = {RunFolder.of(plan.storage, task, run).path for config in configs for run in lineage(config)}
    return tuple(line for path, line in plan.corrupt.items() if path in paths)


def data_digest(storage: Storage, where: str) -> str | None:
    """Return the digest of a data set, or None where it is not there (yet)."""
    path = f"data/{where}/dataset.json"

    def read() -> str | None:
        try:
            return str(storage.read_record(path, {"digest": str})["digest"])
        except FileNotFoundError:
            return None

    return storage.memoize(path, "digest", read)


def status(folder: RunFolder, keep: Sequence[int], digest: str | None, weights: bool = False) -> Status:
    """Return what remains to be done about a run.

    Args:
        folder: the run's.
        keep: the epochs whose weights are wanted.
        digest: of the data that are here; None where there are none.
        weights: whether a run that came in a bundle without those weights is to be trained again.
    """
    result = folder.outcome()
    if result is None:
        return "to be continued" if folder.checkpoints() else "new"
    if digest is not None and result["data"] != digest:
        return "data changed"
    if "diverged" in result:
        return "diverged"
    if any(str(epoch) not in result["weights"] for epoch in keep):
        return "weights not kept"
    return "weights not sent" if weights and any(folder.lacks(epoch) for epoch in keep) else "done"


def stacks(group: Sequence[Training], size: int) -> Iterator[Sequence[Training]]:
    """Share out a group of trainings to stacks of at most `size` members, as equal as can be.

    A training that stops early is alone: in a stack it would go on with the others.
    """
    size = 1 if any(training.task.early_stop(training.config) for training in group) else size
    for members in _side_by_side(group) if size > 1 else [group]:
        parts = -(-len(members) // size)
        yield from (members[part::parts] for part in range(parts))


def _side_by_side(group: Sequence[Training]) -> Iterator[list[Training]]:
    """Split a group by data set and the step that its members go on from: what is ahead must not start anew.

    A member has two checkpoints where its process died in between; the one that most members have is what counts.
    """
    left = [(training, places(training)) for training in group]
    while left:
        counts = Counter(start for _, counted in left for start in counted)
        start = max(counts, key=lambda counted: (counts[counted], counted))
        yield [training for training, counted in left if start in counted]
        left = [(training, counted) for training, counted in left if start not in counted]


def places(training: Training) -> set[tuple[str, int]]:
    """Return a training's data set with each step that it can go on from; with 0 where it starts anew."""
    folder, where = training.folder, training.task.dataset.where(training.config)
    steps, log = folder.checkpoints(), folder.history()
    kept = [row for row in log if row["epoch"] in training.keep and row["step"] <= max(steps, default=0)]
    useful = all("weights" in row for row in kept)  # as `loop.restore` has it
    return {(where, step) for step in (steps if useful and steps else [0])}


def _add_timing(plan: Plan, task: Task, row: Measurement, replicate: Replicate) -> None:
    path = _timing_path(plan, task, row, replicate)
    done = plan.storage.exists(path) and "bundle" not in read_timing(plan.storage, path)
    plan.timings[path] = Timing(task, replicate.config, row, path, done)


def read_timing(storage: Storage, path: str) -> dict[str, Any]:
    """Return a measurement's file.

    Raises:
        UserError: if it is damaged.
    """
    record = storage.read_record(path, {"metrics": dict})
    check_numbers(f"{storage}/{path}", record["metrics"], "remove it and run again")
    return record


def _timing_path(plan: Plan, task: Task, row: Measurement, replicate: Replicate) -> str:
    """Return the path of a measurement: by its function, arguments, config and this kind of device."""
    run = RunFolder.of(plan.storage, task, replicate.config).fingerprint
    usual = inspect.signature(row.measure).parameters
    told = sorted((name, value) for name, value in row.arguments.items() if value != usual[name].default)
    arguments = "".join(f"-{name}={value}" for name, value in told)
    name = stored_key(row.measure, row.measure.__name__)
    return f"measurements/{task.name}/{name}{arguments}-{run}-{device_slug()}.json"


def device_slug() -> str:
    """Return the name of this kind of device as it stands in the names of files."""
    return re.sub(r"[^A-Za-z0-9]+", "-", device_name()).strip("-")


def timings_at(storage: Storage, stem: str) -> list[str]:
    """Return the paths of a measurement's files, of whichever devices."""
    folder, _, start = stem.rpartition("/")
    return [f"{folder}/{name}" for name in storage.list(folder) if name.startswith(start)]


def timing_read(plan: Plan, task: Task, row: Measurement, replicate: Replicate) -> str | None:
    """Return the path of a measurement that a table shows: this device's, else another's; None where none was taken."""
    own = _timing_path(plan, task, row, replicate)
    if plan.storage.exists(own):
        return own
    others = timings_at(plan.storage, own.removesuffix(f"{device_slug()}.json"))
    return min(others, key=lambda path: "bundle" in read_timing(plan.storage, path), default=None)


def name_of(item: Training | Scoring | Prediction | Timing, shared: Shared | None = None) -> str:
    """Return a name of a work item: task, what distinguishes its config from the defaults and others, first digits.

    Args:
        item: the piece.
        shared: what all of its plan have in common (`Plan.shared`), which is left out.
    """
    words = _words_of(differences(item.config, item.task.config()), (shared or {}).get(item.task.name, {}))
    digits = f"[{item.folder.fingerprint[:8]}]" if not isinstance(item, Timing) else ""
    return " ".join(word for word in (item.task.name, words, digits) if word)


def name_of_timing(item: Timing, shared: Shared | None = None) -> str:
    """Name a measurement likewise, its row's label first."""
    return f"{item.row.label} ({name_of(item, shared)})"


def name_of_view(item: Scoring | Prediction, shared: Shared | None = None) -> str:
    """Name a view of a run likewise."""
    words = _words_of(differences(item.view, item.task.view()), (shared or {}).get(f"{item.task.name} view", {}))
    return f"{name_of(item, shared)} as {words}" if words else name_of(item, shared)


def name_of_combining(combining: Combining) -> str:
    """Name one replicate of a combined row: task, label, axes, and the first digits of its folder."""
    words = [combining.task.name, combining.row.label, describe(combining.axes)]
    return f"{' '.join(word for word in words if word)} [{combining.place.rsplit('/', 1)[-1][:8]}]"


def _words_of(changes: Mapping[str, object], shared: Mapping[str, object]) -> str:
    """Write changes but those that are shared, in at most `_ROOM` columns."""
    shown = {path: value for path, value in changes.items() if path not in shared and path != "init.overrides"}
    words = describe({path.rsplit(".", 1)[-1]: value for path, value in shown.items()})
    return cut(words, _ROOM)


_ROOM = 30
"""Columns of the changes of a config, and of a view: a line of progress has at most 100, as many terminals."""


def common(many: Iterable[Mapping[str, object]]) -> dict[str, object]:
    """Return the entries that all of some mappings have; of a single one none, as nothing is beside it."""
    every = list(many)
    if len(every) < 2:
        return {}
    return {key: v for key, v in every[0].items() if all(key in mapping and mapping[key] == v for mapping in every[1:])}
