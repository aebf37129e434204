"""What a notebook calls, and what the command line calls: one path for both."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from retable.platform import provenance
from retable.platform.after import After
from retable.platform.board import errors
from retable.platform.cluster import check_nodes, interruptible, ray_cluster
from retable.platform.config import exact_changes, fingerprint, override, set_line
from retable.platform.errors import UserError
from retable.platform.flow import train_all
from retable.platform.launch import Launch, Resources
from retable.platform.plan import Plan, Training, compile_configs, compile_plan
from retable.platform.runs import RunFolder
from retable.platform.space import Space
from retable.platform.stages import measure_all, predict_and_score
from retable.platform.storage import Storage
from retable.platform.table import Figure, Table, resolve
from retable.platform.task import Source, Task, config_at, find, find_table, names, table_at

if TYPE_CHECKING:
    from torch import Tensor

    from retable.platform.filled import FilledTable
    from retable.platform.sweep_result import SweepResult

STORAGE = os.environ.get("RETABLE_STORAGE", "results")


def plan(
    *tables: str,
    scale: str = "smoke",
    set: Mapping[str, object] | None = None,
    storage: str = STORAGE,
    retry_diverged: bool = False,
) -> Plan:
    """Compile tables (such as `rl/table1`; a task's name stands for all of its tables) into the work they need.

    Reads the storage and starts nothing.

    Raises:
        UserError: on an unknown table, scale or field.
    """
    chosen: dict[str, tuple[Task, Table | Figure]] = {}
    for name in expand_names(tables):
        task, table = find_table(name)
        chosen[name] = (task, table_at(task, table, scale, set or {}))
    return compile_plan(chosen, Storage.open(storage), scale, set or {}, retry_diverged)


def expand_names(tables: Sequence[str]) -> list[str]:
    """Return full names of tables: `rl` stands for every table of the task, nothing for every table there is."""
    full: list[str] = []
    for name in tables or names():
        full += [name] if "/" in name else [f"{name}/{table}" for table in find(name).tables()]
    return list(dict.fromkeys(full))


def reproduce(
    *tables: str,
    scale: str = "smoke",
    set: Mapping[str, object] | None = None,
    storage: str = STORAGE,
    resources: Resources | None = None,
    retry_diverged: bool = False,
) -> dict[str, FilledTable]:
    """Fill tables: train what is missing, predict, score, combine, measure, and write the report; return them by name.

    What is already on the storage is used; what was interrupted goes on. Failures are shown, and leave the rest alone.

    Raises:
        UserError: on a mistake of the user's, or where runs failed (each named on the screen).
    """
    filled = {} if retry_diverged else complete(*tables, scale=scale, set=set, storage=storage)
    if filled:
        return filled
    work = plan(*tables, scale=scale, set=set, storage=storage, retry_diverged=retry_diverged)
    filled, failures = carry_out(work, resources or Resources())
    if failures:
        raise UserError(f"failed: {len(failures)} (see above); mend the cause and run the same command again")
    return filled


def complete(
    *tables: str, scale: str = "smoke", set: Mapping[str, object] | None = None, storage: str = STORAGE
) -> dict[str, FilledTable]:
    """Return tables, given by their full names, as they were filled before, if nothing is to do for any of them.

    Nothing is returned where something is, or may be: `plan` says what. No task is imported, so it takes no time.
    """
    from retable.platform import report

    if not tables or not all("/" in name for name in tables):
        return {}
    where = Storage.open(storage)
    filled = report.complete(tables, scale, set or {}, where)
    if filled:
        report.write_report(where)
    return filled


def carry_out(work: Plan, resources: Resources) -> tuple[dict[str, FilledTable], dict[str, str]]:
    """Do what a plan of tables lacks, fill them and write the report; return the filled tables, and the failures."""
    from retable.platform.report import fill_and_keep, write_report

    failures = {}
    if not work.nothing_to_do:
        failures = execute(work, resources)
    filled = fill_and_keep(work)
    write_report(work.storage)
    return filled, failures


def execute(work: Plan, resources: Resources) -> dict[str, str]:
    """Do what a plan lacks; start Ray only where there is something to do. Return the failures."""
    if work.nothing_to_do:
        return {}
    with interruptible():
        work.storage.check_writable()
        begun = [training for training in work.trainings.values() if training.status not in ("new", "to be continued")]
        if (
            prepare_data(begun, work.storage) and work.tables
        ):  # with other data, what was trained may not count any more
            work = compile_plan(work.tables, work.storage, work.scale, work.changes, work.retry)
        with ray_cluster(nested=resources.workers > 1):
            check_nodes(work.storage)
            after = After(work, resources.gpus)
            failures = train_all(work, launch_for(work, resources), after) if work.missing else {}
            return failures | after.finish() | measure_all(work)


def prepare_data(trainings: Iterable[Training], storage: Storage) -> bool:
    """Make, here and now, the data sets of trainings that are missing; return whether any was."""
    found = False
    for training in trainings:
        where = training.task.dataset.where(training.config)
        if not storage.exists(f"data/{where}/dataset.json"):
            training.task.dataset.prepare(training.config, storage)
            found = True
    return found


def launch_for(work: Plan, resources: Resources) -> Launch:
    """Return what every trial of a plan shares.

    Raises:
        UserError: where data cannot be streamed as asked for.
    """
    for task in {training.task.name: training.task for training in work.missing}.values():
        if resources.stream and not task.dataset.streams:
            raise UserError(f"--stream: {task.name} has no data to stream; leave it out")
    return Launch(
        work.storage, resources, provenance.collect() | {"scale": work.scale, "changed": sorted(work.changes)}
    )


def train(
    task: str,
    set: Mapping[str, object] | None = None,
    *,
    scale: str = "smoke",
    storage: str = STORAGE,
    resources: Resources | None = None,
    keep: Sequence[int] = (),
    retry_diverged: bool = False,
) -> TrainedRun:
    """Train one config of a task, or go on with it, or return it at once if it is finished.

    Args:
        task: its name.
        set: changes to the default config at the scale.
        scale: one of the task's.
        storage: where data and runs lie.
        resources: what the training gets.
        keep: epochs whose weights are kept, besides the last.
        retry_diverged: try again what has diverged.

    Raises:
        UserError: on a mistake of the user's, or if the run fails.
    """
    found = find(task)
    config = config_at(found, scale, set or {})
    late = [epoch for epoch in keep if not 1 <= epoch <= config.epochs]
    if late:
        raise UserError(f"--keep {late[0]}: the run has the epochs 1..{config.epochs}")
    where = Storage.open(storage)
    work = compile_configs(found, [config], where, keep=keep, retry=retry_diverged, scale=scale, changes=set)
    failures = execute(work, resources or Resources())
    if failures:
        raise UserError(next(iter(failures.values())))
    return TrainedRun(found, RunFolder.of(work.storage, found, config), config)


@dataclass(frozen=True)
class TrainedRun:
    """A run that was loaded: its config, results and networks."""

    task: Task
    folder: RunFolder
    config: Any
    """The task's own class."""

    @property
    def fingerprint(self) -> str:
        """The run's name."""
        return self.folder.fingerprint

    @cached_property
    def result(self) -> Mapping[str, Any]:
        """`result.json`: the last metrics, seconds, the digest of the data.

        Raises:
            UserError: if the run is not finished.
        """
        result = self.folder.result()
        if result is None:
            raise UserError(f"run {self.fingerprint} is not finished; the command that began it goes on with it")
        return result

    @property
    def source(self) -> Source:
        """The data set that the run was trained on.

        Raises:
            UserError: if it is gone.
        """
        where = self.task.dataset.where(self.config)
        if not self.folder.storage.exists(f"data/{where}/dataset.json"):
            raise UserError(f"{self.folder.storage}/data/{where} is gone; put the run's data there again")
        return Source.of(self.folder.storage, where)

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics of the last epoch."""
        return dict(self.result["metrics"])

    @property
    def diverged(self) -> str:
        """Why the run's numbers mean nothing: they are not finite. Empty where they are."""
        return str(self.result.get("diverged", ""))

    @property
    def history(self) -> list[dict[str, Any]]:
        """The log, one entry an epoch."""
        return self.folder.history()

    def weights(self, epoch: int = 0) -> Mapping[str, Tensor]:
        """The networks' weights after an epoch that was kept; 0: the last."""
        return self.folder.weights(epoch or self.config.epochs)

    def score(self, view: Mapping[str, object] | None = None) -> dict[str, float]:
        """Return the scores of a view, given by the fields that differ from the task's default.

        Predictions and scores are kept: the same view again is only read.

        Raises:
            UserError: if the run is not finished or diverged, a field is unknown, the epoch was not kept, or the
                scoring fails.
        """
        if self.diverged:
            raise UserError(f"run {self.fingerprint} diverged: {self.diverged}")
        seen: Any = resolve(override(self.task.view(), dict(view or {})), self.config)
        weights = self.result["weights"].get(str(seen.epoch), "")
        if self.folder.scores(seen, weights) is None:
            failure = predict_and_score(self.task, self.config, seen, self.folder)
            if failure:
                raise UserError(f"run {self.fingerprint}: {failure}")
        kept = self.folder.scores(seen, weights)
        return dict(kept["metrics"]) if kept else {}

    @property
    def set_line(self) -> str:
        """The `--set` options that give this config."""
        return set_line(exact_changes(self.config))


def load(fingerprint_start: str, storage: str | Storage = STORAGE, task: str | None = None) -> TrainedRun:
    """Return a run by its fingerprint, or by as many of its first digits as are needed.

    With a task's name, the run's weights are good to use: it is of that task, finished, and has not diverged.

    Raises:
        UserError: if no run, or more than one, begins so, its `config.json` is missing or damaged, or it is not such a
            run of the task.
    """
    where = storage if isinstance(storage, Storage) else Storage.open(storage)
    every = [(t, f) for t in where.folders("runs") for f in where.folders(f"runs/{t}")]
    found = [(t, f) for t, f in every if f.startswith(fingerprint_start)]
    if len(found) != 1:
        raise UserError(f"{where}: {len(found)} runs begin with {fingerprint_start!r}")
    name, digits = found[0]
    if task not in (None, name):
        raise UserError(f"run {digits} is of {name}, not of {task}; name a run of {task}")
    folder, of = RunFolder(where, name, digits), find(name)
    try:
        run = TrainedRun(of, folder, folder.config(of))
    except UserError as error:
        raise UserError(f"run {digits} is of another version of {name} ({error}); train it again") from error
    if fingerprint(name, of.version, run.config) != digits:
        errors.print(f"note: run {digits} is of an older version of {name}; its numbers no longer count")
    if task and "diverged" in run.result:
        raise UserError(f"run {digits} has diverged: its weights are no numbers; train it with other settings")
    return run


def sweep(
    space: str | Space,
    *,
    set: Mapping[str, object] | None = None,
    scale: str = "smoke",
    storage: str = STORAGE,
    resources: Resources | None = None,
    samples: int | None = None,
    name: str = "",
) -> SweepResult:
    """Search a space, a `Space` or the name of one in `search_spaces/`, or go on with it; return what was found.

    `samples` is how many points to draw, where they are drawn; `name` is what the sweep's files are called, else after
    the space or its task.

    Raises:
        UserError: on a mistake of the user's.
    """
    from retable.platform.sweep import run_sweep

    with interruptible():
        return run_sweep(space, set or {}, scale, Storage.open(storage), resources or Resources(), samples, name)
