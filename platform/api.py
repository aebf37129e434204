"""What a notebook calls, and what the command line calls: one path for both."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from retable.platform import provenance
from retable.platform.board import console
from retable.platform.cluster import interruptible, ray_cluster
from retable.platform.combine import combine_all
from retable.platform.config import differences, fingerprint, override, override_lineage
from retable.platform.errors import UserError
from retable.platform.launch import Context, Resources, load_arrays, train_all
from retable.platform.plan import Plan, compile_configs, compile_plan
from retable.platform.runs import RunFolder
from retable.platform.stages import Scorer, measure_all, predict_and_score
from retable.platform.storage import Storage
from retable.platform.table import Figure, Table, changed, resolve
from retable.platform.task import Task, find, find_table, names, scaled

if TYPE_CHECKING:
    from torch import Tensor

STORAGE = os.environ.get("RETABLE_STORAGE", "results")


def plan(*tables: str, scale: str = "smoke", set: Mapping[str, object] | None = None, storage: str = STORAGE) -> Plan:
    """Compile tables (such as `rl/table1`; a task's name stands for all of its tables) into the work they need.

    Reads the storage and starts nothing.

    Raises:
        UserError: on an unknown table, scale or field.
    """
    chosen: dict[str, tuple[Task, Table | Figure]] = {}
    for name in expand_names(tables):
        task, table = find_table(name)
        table = scaled(task, table, scale)
        override(task.config(), set or {})
        chosen[name] = (task, changed(table, set or {}))
    return compile_plan(chosen, Storage.open(storage))


def expand_names(tables: Sequence[str]) -> list[str]:
    """Return full names of tables: `rl` stands for every table of the task, nothing for every table there is."""
    full: list[str] = []
    for name in tables or names():
        full += [name] if "/" in name else [f"{name}/{table}" for table in find(name).tables]
    return list(dict.fromkeys(full))


def reproduce(
    *tables: str,
    scale: str = "smoke",
    set: Mapping[str, object] | None = None,
    storage: str = STORAGE,
    resources: Resources | None = None,
) -> Plan:
    """Fill tables: train what is missing, predict, score, combine, measure, and write the report.

    What is already on the storage is used; what was interrupted goes on. Failures are shown, and leave the rest alone.

    Raises:
        UserError: on a mistake of the user's, or where runs failed (each named on the screen).
    """
    from retable.platform.report import remember, write_report

    chosen = plan(*tables, scale=scale, set=set, storage=storage)
    failures = execute(chosen, resources or Resources())
    done = compile_plan(chosen.tables, chosen.storage)
    remember(done, scale, set or {})
    write_report(chosen.storage)
    if failures:
        raise UserError(f"failed: {len(failures)} (see above); mend the cause and run the same command again")
    return done


def execute(work: Plan, resources: Resources) -> dict[str, str]:
    """Do what a plan lacks; start Ray only where there is something to do. Return the failures."""
    if work.nothing_to_do:
        return {}
    with interruptible():
        work.storage.check_writable()
        prepare_data(work)
        work = compile_plan(work.tables, work.storage) if work.tables else work
        with ray_cluster(nested=resources.workers > 1):
            scorer = Scorer(work, resources.gpus)
            failures = train_all(work, context_for(work, resources), scorer.submit) if work.missing else {}
            return failures | scorer.finish() | combine_all(work) | measure_all(work)


def prepare_data(work: Plan) -> None:
    """Make the data sets that are missing, where they can be made here."""
    for training in work.trainings.values():
        where = training.task.dataset.where(training.config)
        if not work.storage.exists(f"data/{where}/dataset.json"):
            training.task.dataset.prepare(training.config, work.storage)


def context_for(work: Plan, resources: Resources) -> Context:
    """Load the data that missing trainings read and return what every trial shares."""
    tasks = {t.task.dataset.where(t.config): t.task for t in work.missing}
    return Context(work.storage, resources, provenance.collect(), load_arrays(tasks, work.storage, resources.stream))


def train(
    task: str,
    set: Mapping[str, object] | None = None,
    *,
    scale: str = "smoke",
    storage: str = STORAGE,
    resources: Resources | None = None,
) -> Run:
    """Train one config of a task, or go on with it, or return it at once if it is finished.

    Raises:
        UserError: on a mistake of the user's, or if the run fails.
    """
    found = find(task)
    config = config_at(found, scale, set or {})
    work = compile_configs(found, [config], Storage.open(storage))
    failures = execute(work, resources or Resources())
    if failures:
        raise UserError(next(iter(failures.values())))
    return Run(found, RunFolder.of(work.storage, found, config), config)


def config_at(task: Task, scale: str, changes: Mapping[str, object]) -> Any:
    """Return the task's default config at a scale, with changes."""
    overrides = scaled(task, Table(title="", rows=(), columns=()), scale).overrides
    return override_lineage(override_lineage(task.config(), overrides), changes)


@dataclass(frozen=True)
class Run:
    """A run that was loaded: its config, results and networks."""

    task: Task
    folder: RunFolder
    config: Any

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
            raise UserError(f"run {self.fingerprint} is not finished")
        return result

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics of the last epoch."""
        return dict(self.result["metrics"])

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
            UserError: if the run is not finished, a field is unknown, the epoch was not kept, or the scoring fails.
        """
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
        return set_line(differences(self.config, self.task.config()))


def set_line(changes: Mapping[str, object]) -> str:
    """Write changes as `--set` options, ready to paste."""
    import json
    import shlex

    pairs = [f"{path}={value if isinstance(value, str) else json.dumps(value)}" for path, value in changes.items()]
    return " ".join(f"--set {shlex.quote(pair)}" for pair in pairs)


def load(fingerprint_start: str, storage: str = STORAGE) -> Run:
    """Return a run by its fingerprint, or by as many of its first digits as are needed.

    Raises:
        UserError: if no run, or more than one, begins so.
    """
    where = Storage.open(storage)
    found = [(t, f) for t in where.list("runs") for f in where.list(f"runs/{t}") if f.startswith(fingerprint_start)]
    if len(found) != 1:
        raise UserError(f"{where}: {len(found)} runs begin with {fingerprint_start!r}")
    task = find(found[0][0])
    folder = RunFolder(where, *found[0])
    config = folder.config(task)
    if fingerprint(task.name, task.version, config) != folder.fingerprint:
        console.print(f"note: {folder.fingerprint} is of an older version of {task.name}; its numbers no longer count")
    return Run(task, folder, config)


def sweep(
    name: str,
    *,
    set: Mapping[str, object] | None = None,
    scale: str = "smoke",
    storage: str = STORAGE,
    resources: Resources | None = None,
    samples: int | None = None,
) -> Any:
    """Search a space of `search_spaces/` and return what was found, best first; the same call goes on."""
    from retable.platform.sweep import run_sweep

    with interruptible():
        return run_sweep(name, set or {}, scale, Storage.open(storage), resources or Resources(), samples)
