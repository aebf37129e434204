"""The public API for notebooks; the command line calls the same functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

from retable.platform.config import changes_of
from retable.platform.errors import UserError as UserError
from retable.platform.execute.run import execute
from retable.platform.execute.session import interruptible
from retable.platform.execute.sweep import SweepResult, run_sweep
from retable.platform.plan.plan import Plan, compile_configs, compile_plan
from retable.platform.report import measured, packing, verifying, write
from retable.platform.report.notebook import Runs, Tables
from retable.platform.report.results import FilledTable
from retable.platform.spec.resources import Resources as Resources
from retable.platform.spec.space import Space as Space
from retable.platform.spec.table import Figure, Table, hidden
from retable.platform.spec.task import (
    DEFAULT_SCALE,
    SMOKE,
    Task,
    check_rows,
    config_at,
    find,
    find_table,
    names,
    table_at,
)
from retable.platform.store import query
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from retable.platform.trained import STORAGE
from retable.platform.trained import TrainedRun as TrainedRun
from retable.platform.trained import is_run_name as is_run_name
from retable.platform.trained import load as load

Set = Mapping[str, object] | Sequence[str] | None
"""Changes to a config: field path -> value, or what `--set` takes: `["prune=snip", "prune.sparsity=0.9"]`."""
Where = str | Path | Storage
"""Location of data, runs and reports: a folder or a URI."""


def plan(
    *tables: str,
    scale: str = DEFAULT_SCALE,
    set: Set = None,
    rows: Sequence[str] | str = (),
    storage: Where = STORAGE,
    retry_diverged: bool = False,
    train: bool = True,
) -> Plan:
    """Compile tables (such as `rl/table1`; a task's name stands for all of its tables) into the work they need.

    Reads the storage and starts nothing. Without `train` it is what finished runs give, and nothing else.

    Args:
        tables: their names.
        scale: one of the tasks'.
        set: changes to config fields and replicate axes, and to views as `view.` and a path.
        rows: labels of the rows to run, in which `*` stands for any text; none: all. Tables without any are left out.
        storage: where runs lie.
        retry_diverged: try again what has diverged.
        train: whether to train what is missing.

    Raises:
        UserError: on an unknown table, scale, field or row.
    """
    changes, patterns = changes_of(set), _patterns_of(rows)
    chosen: dict[str, tuple[Task, Table | Figure]] = {}
    for name in expand_names(tables):
        task, table = find_table(name)
        chosen[name] = (task, table_at(task, table, scale, changes, patterns))
    check_rows(patterns, [table for _, table in chosen.values()])
    chosen = {name: of for name, of in chosen.items() if any(not hidden(row) for row in of[1].rows)}
    return compile_plan(chosen, Storage.open(storage), scale, changes, patterns, retry=retry_diverged, train=train)


def _patterns_of(rows: Sequence[str] | str | None) -> tuple[str, ...]:
    """Return the labels or patterns of chosen rows, in the order that names the choice.

    Raises:
        UserError: where one is no text.
    """
    patterns = [rows] if isinstance(rows, str) else list(rows or ())
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise UserError(f"rows={rows!r}: write labels of rows, such as 'dense' or 'SNIP 9*'")
    return tuple(sorted({*patterns}))


def expand_names(tables: Sequence[str]) -> list[str]:
    """Return full names of tables: `rl` stands for every table of the task, nothing for every table there is.

    Raises:
        UserError: if one is no text, or names no task.
    """
    full: list[str] = []
    for name in tables or names():
        if not isinstance(name, str):
            raise UserError(f"{name!r} names no table; write each as text, such as 'rl/table1', 'rl/figure1'")
        full += [name] if "/" in name else [f"{name}/{table}" for table in find(name).tables()]
    return list(dict.fromkeys(full))


def reproduce(
    *tables: str,
    scale: str = DEFAULT_SCALE,
    set: Set = None,
    rows: Sequence[str] | str = (),
    storage: Where = STORAGE,
    resources: Resources | None = None,
    retry_diverged: bool = False,
    train: bool = True,
) -> Tables:
    """Fill tables: train what is missing, predict, score, combine, measure, and write the report; return them by name.

    What is already on the storage is used; what was interrupted goes on. Failures are shown, and leave the rest alone.
    Without `train` tables are filled from finished runs alone: the other rows stay empty (`plan.left_out`). Arguments
    are those of `plan`; `resources` is what trainings get.

    Raises:
        UserError: on a mistake of the user's, or where runs failed (each named on the screen).
    """
    request: Any = {"scale": scale, "set": set, "rows": rows, "storage": storage}
    filled = {} if retry_diverged else complete(*tables, **request)
    if filled:
        return Tables(filled)
    work = plan(*tables, **request, retry_diverged=retry_diverged, train=train)
    filled, failures = carry_out(work, resources or Resources())
    if failures:
        raise UserError(f"failed: {len(failures)} (see above); mend the cause and run the same command again")
    return Tables(filled)


def complete(
    *tables: str,
    scale: str = DEFAULT_SCALE,
    set: Set = None,
    rows: Sequence[str] | str = (),
    storage: Where = STORAGE,
) -> dict[str, FilledTable]:
    """Return tables, given by their full names, as they were filled before, if nothing is to do for any of them.

    Nothing is returned where something is, or may be: `plan` says what. No task is imported, so it takes no time.
    """
    if not tables or not all("/" in str(name) for name in tables):
        return {}
    where = Storage.open(storage)
    filled = write.complete(tables, scale, changes_of(set), _patterns_of(rows), where)
    if filled:
        write.write_report(where)
    return filled


def carry_out(work: Plan, resources: Resources) -> tuple[dict[str, FilledTable], dict[str, str]]:
    """Carry out a plan of tables, fill them and write the report; return the filled tables, and the failures."""
    failures: dict[str, str] = {}
    work.measure_on = resources.measure_on
    full_tables = work.scale not in (SMOKE, measured.SCALE) and not work.changes and not work.rows
    with measured.taking_in(work.tables if full_tables and work.missing else (), work.storage) as finish:
        if not work.nothing_to_do:
            write.keep_requests(work)
            failures = execute(work, resources, finish)
        filled = write.fill_and_keep(work)
    if work.train:  # they were to be filled, and are not
        failures |= {line: line for part in filled.values() for line in part.corrupt}
    if full_tables:
        measured.take_in(filled, work.storage)
    write.write_report(work.storage)
    return filled, failures


def train(
    task: str,
    set: Set = None,
    *,
    scale: str = DEFAULT_SCALE,
    storage: Where = STORAGE,
    resources: Resources | None = None,
    keep: Sequence[int] = (),
    retry_diverged: bool = False,
) -> TrainedRun:
    """Train one config of a task, or go on with it, or return it at once if it is finished.

    Args:
        task: its name.
        set: changes to the default config at the scale, as `{"seed": 1}` or as `["seed=1"]`.
        scale: one of the task's.
        storage: where data and runs lie.
        resources: what the training gets.
        keep: epochs whose weights are kept, besides the last.
        retry_diverged: try again what has diverged.

    Raises:
        UserError: on a mistake of the user's, or if the run fails.
    """
    task_value, changes = find(task), changes_of(set)
    config = config_at(task_value, scale, changes)
    if not isinstance(keep, Collection) or not all(isinstance(epoch, SupportsIndex) for epoch in keep):
        raise UserError(f"keep={keep!r}: write a list of epochs, such as [1, 10]")
    late = [epoch for epoch in keep if not 1 <= epoch <= config.epochs]
    if late:
        raise UserError(f"--keep {late[0]}: the run has the epochs 1..{config.epochs}")
    where = Storage.open(storage)
    work = compile_configs(task_value, [config], where, keep=keep, retry=retry_diverged, scale=scale, changes=changes)
    failures = execute(work, resources or Resources())
    if failures:
        raise UserError(next(iter(failures.values())))
    folder = RunFolder.of(work.storage, task_value, config)
    if work.trainings[folder.path].status == "parent diverged":
        raise UserError(
            f"run {folder.fingerprint}: the run it starts from diverged; try that one again: --retry-diverged"
        )
    return TrainedRun(task_value, folder, config)


def sweep(
    space: str | Space,
    *,
    set: Set = None,
    scale: str = DEFAULT_SCALE,
    storage: Where = STORAGE,
    resources: Resources | None = None,
    samples: int | None = None,
    name: str = "",
) -> SweepResult:
    """Search a space, a `Space` or the name of one in `search_spaces/`, or go on with it; return what was found.

    `samples` is how many points to draw, where they are drawn; `name` is what the sweep's files are called, else after
    the space or its task. The deadline of `resources` is for points that are known beforehand, as a grid's are;
    searchers and schedulers have none.

    Raises:
        UserError: on a mistake of the user's.
    """
    with interruptible():
        return run_sweep(space, changes_of(set), scale, Storage.open(storage), resources or Resources(), samples, name)


def runs(
    task: str = "",
    *,
    where: Set = None,
    state: Sequence[str] = (),
    sort: str = "age",
    storage: Where = STORAGE,
) -> Runs:
    """Return what is known of the runs on a storage, the newest first; `frame()` gives it as a data frame.

    Args:
        task: only this task's; all, where it is empty.
        where: only runs whose config, or whose entry here, has these values.
        state: only runs in one of these states: `finished`, `running`, `failed`, ...
        sort: `age`, or a field of the config or of the entry; `-size`: the largest first.
        storage: where they lie.

    Raises:
        UserError: where there is no such task, field or state.
    """
    every = query.list_runs(Storage.open(storage), task)
    return Runs(query.select(every, changes_of(where), [state] if isinstance(state, str) else state, sort))


def pack(
    *tables: str,
    out: str | Path,
    scale: str = "small",
    set: Set = None,
    storage: Where = STORAGE,
    weights: bool = False,
    resume: bool = False,
    rows: Sequence[str] | str = (),
) -> packing.Packed:
    """Pack the finished runs, combinations and measurements that fill tables into one file, without weights.

    Args:
        tables: such as `rl/table1`; a task's name stands for all of its tables; none: all that were asked for.
        out: the file; one that exists is replaced.
        scale: the tables'.
        set: changes that the tables were asked for with.
        storage: where the runs lie.
        weights: whether the weights that were kept go along.
        resume: whether what an unfinished campaign needs to go on elsewhere goes along.
        rows: labels of the rows to pack, as `plan` takes them; tables without any are left out.

    Raises:
        UserError: on an unknown table, scale or row, a damaged file, or where there is nothing to pack.
    """
    where, patterns = Storage.open(storage), _patterns_of(rows)
    names = expand_names(tables) if tables else ()
    if patterns and not names:
        raise UserError("--rows: name the tables whose rows they are")
    if patterns:  # those that have such rows
        names = list(plan(*names, scale=scale, set=set, rows=patterns, storage=where).tables)
    return packing.pack(names, scale, changes_of(set), where, Path(out), weights, resume, patterns)


def unpack(bundle: str | Path, storage: Where = STORAGE) -> packing.Unpacked:
    """Unpack a bundle into a storage; return what was taken, and what was not. Existing runs are kept.

    Raises:
        UserError: if the file is damaged or no bundle; nothing was written then.
    """
    return packing.unpack(Path(bundle), Storage.open(storage))


def verify(
    bundle: str | Path,
    sample: int = 5,
    seed: int = 0,
    tolerance: float = 0.02,
    keep: Where = "",
    storage: Where = STORAGE,
    resources: Resources | None = None,
) -> list[verifying.Checked]:
    """Train a random sample of a bundle's runs again, and compare their metrics and scores; return it run by run.

    Args:
        bundle: the file.
        sample: how many runs.
        seed: of the sample.
        tolerance: relative, where the device, versions or code are others.
        keep: the storage in which they are trained; else a temporary one. Only it can read datasets of a bucket.
        storage: where datasets are found; nothing is written there.
        resources: what each training gets.

    Raises:
        UserError: if the file is damaged or no bundle, or a training fails.
    """
    into = Storage.open(keep) if keep else None
    given = resources or Resources()
    return verifying.verify(Path(bundle), Storage.open(storage), into, sample, seed, tolerance, given)


def report(
    storage: Where = STORAGE,
    output: str | Path | None = None,
    tables: Sequence[str] = (),
    *,
    scale: str = DEFAULT_SCALE,
    set: Set = None,
    rows: Sequence[str] | str = (),
) -> str:
    """Write the report of all that a storage holds, or of some tables alone, and return where its page is.

    Args:
        storage: where tables were filled.
        output: the report's folder; else `report` on the storage.
        tables: their names; none: all that were filled there. They are filled from the scores that are there.
        scale: of these tables, as `set` and `rows` are (see `plan`).
        set: changes.
        rows: labels of rows.

    Raises:
        UserError: where no table was filled.
    """
    return f"{write_report(Storage.open(storage), output, tables, scale=scale, set=set, rows=rows)[0]}/index.html"


def write_report(
    storage: Storage, output: str | Path | None, tables: Sequence[str], *, single: bool = False, **request: Any
) -> tuple[Storage, list[FilledTable]]:
    """Write a report; return its folder and the tables that it shows.

    `single`: as one file. The other arguments and the errors are those of `report`.
    """
    into = Storage.open(output) if output else storage / "report"
    if tables:
        parts = list(write.fill_and_keep(plan(*tables, **request, storage=storage, train=False), into).values())
        return write.write_report(storage, into, single, parts), parts
    if request.get("set") or request.get("rows") or request.get("scale", DEFAULT_SCALE) != DEFAULT_SCALE:
        raise UserError("--scale, --set and --rows choose from tables; name some, such as rl/figure1")
    if not storage.list("tables"):
        raise UserError(f"{storage}: no tables have been reproduced here; retable.reproduce(...) fills some")
    parts = [*write.sections(storage, into), *write.shipped_sections(storage, into)]
    return write.write_report(storage, into, single, parts), parts
