"""Unreferenced files of a storage, for `retable gc`.

Named are the runs of every table of every task here, at each of its scales, those of the tables that were filled with
changes of one's own, those of sweeps, and whatever those start from. Data sets and imported weights are never touched.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from retable.platform.config import fingerprint, override
from retable.platform.console import errors
from retable.platform.errors import Unreachable, UserError, one_line
from retable.platform.plan.plan import compile_plan
from retable.platform.spec import task as tasks
from retable.platform.store import lease
from retable.platform.store.query import Run, list_runs
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from retable.platform.text import grouped

_AT_WORK = 3600.0
"""Seconds: what changed so lately may be somebody's work, whatever it says of itself."""
RUN = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Unreferenced:
    """A folder or file that nothing names."""

    path: str
    size: int
    """Bytes."""
    changed: float
    """Time of the last write to a file in it, seconds since 1970; 0 where the storage reports no times."""
    why: str


@dataclass
class References:
    """The runs, combinations and measurements that tables and sweeps reference."""

    tasks: set[str]
    """Tasks that can be asked."""
    runs: set[str]
    """Paths of run folders."""
    combinations: set[str]
    measurements: set[str]
    """Paths of measurements, up to the device: other machines' count."""


def find_unreferenced(storage: Storage, older: float = 0.0) -> tuple[list[Unreferenced], list[str]]:
    """Return the unreferenced items, and notes about items left alone.

    Args:
        storage: where.
        older: days; what changed since is left alone.

    Raises:
        UserError: where a file that names runs cannot be read: what it names is not known then.
    """
    notes: list[str] = []
    named = _find_references(storage, notes)
    latest = time.time() - max(older * 86400, _AT_WORK)
    runs = list_runs(storage) if storage.folders("runs") else []
    _add_parents(named, runs)
    busy = [run for run in runs if run.state in ("running", "stale")]
    unreferenced = [
        Unreferenced(f"runs/{run.task}/{run.run}", run.size, run.changed, f"a {run.state} run that no table names")
        for run in runs
        if run.task in named.tasks
        and RUN.fullmatch(run.run)
        and f"runs/{run.task}/{run.run}" not in named.runs
        and run not in busy
    ]
    odd = [run for run in runs if not RUN.fullmatch(run.run)]
    notes += [f"left alone: {storage}/runs/{run.task}/{run.run!r} is no run's folder" for run in odd]
    unreferenced += _unreferenced_in(
        storage, "combinations", named.tasks, lambda path: path in named.combinations, "combination"
    )
    unreferenced += _unreferenced_in(
        storage, "measurements", named.tasks, lambda path: path.startswith(tuple(named.measurements)), "measurement"
    )
    unreferenced += unused_bundles(storage, runs)
    if older:
        unreferenced += _unreferenced_in(storage, "served", named.tasks, lambda path: False, "exported file")
    if not busy:
        unreferenced += _entries(storage, ".ray", "Ray's state, of a command that was killed")
    why = "temporary file of a write that was killed"
    unreferenced += [_waste(path, [stamp], why) for path, stamp in storage.files("", temporary=True)]
    if undated := sum(not item.changed for item in unreferenced):
        notes.append(f"left alone: {undated} unreferenced items, as {storage} reports no times; remove them by hand")
    return sorted((item for item in unreferenced if 0 < item.changed < latest), key=lambda item: -item.size), notes


def _find_references(storage: Storage, notes: list[str]) -> References:
    """Return what the tables of all tasks at all scales, and a storage's sweeps and changed tables, reference."""
    named = References(set(), set(), set(), set())
    requests = {
        f"tables/{file}": storage.read_record(f"tables/{file}", {"table": str, "scale": str, "set": dict})
        for file in storage.list("tables")
    }
    with storage.snapshot():
        for name in tasks.names():
            try:
                task = tasks.find(name)
                every: list[tuple[str, str, dict[str, object], str]]
                every = [(table, scale, {}, "") for table in task.tables() for scale in task.scales()]
            except Exception as error:  # a task's own functions may raise anything
                notes.append(f"left alone: all of {name} ({one_line(error)})")
                continue
            named.tasks.add(name)
            own = {file: asked for file, asked in requests.items() if asked["table"].startswith(f"{name}/")}
            every += [(e["table"].partition("/")[2], e["scale"], e["set"], file) for file, e in own.items() if e["set"]]
            for table, scale, changes, file in every:
                if table in task.tables() and scale in task.scales():
                    with _request_named(f"{storage}/{file}") if file else nullcontext():
                        _add_table(named, storage, task, table, scale, changes)
    named.runs |= {path for path in _points_of_sweeps(storage)}
    return named


@contextmanager
def _request_named(file: str) -> Iterator[None]:
    """Name the file of a request that cannot be planned; which runs it stands for is not known then.

    Raises:
        UserError: with the file's name and the remedy.
    """
    try:
        yield
    except Unreachable:
        raise
    except Exception as error:  # a task's own functions may raise anything
        raise UserError(f"{file}: {one_line(error)}; remove the file, or mend it, and run again") from error


def _add_table(
    named: References, storage: Storage, task: tasks.Task, table: str, scale: str, changes: dict[str, object]
) -> None:
    """Add the references of a table."""
    try:
        of = tasks.table_at(task, task.tables()[table], scale, changes)
    except UserError:  # asked for with fields that the task no longer has: it names nothing
        return
    plan = compile_plan({f"{task.name}/{table}": (task, of)}, storage, scale, changes)
    named.runs |= plan.trainings.keys()
    named.combinations |= {combining.place for combining in plan.combinings}
    for path, timing in plan.timings.items():
        run = fingerprint(task.name, task.version, timing.config)
        named.measurements.add(path[: path.index(run) + len(run)])


def _points_of_sweeps(storage: Storage) -> Iterable[str]:
    """Yield the run folders of all points of sweeps, whichever task's they are.

    Raises:
        UserError: where a sweep's file cannot be read.
    """
    task_of_run = {run: task for task in storage.folders("runs") for run in storage.folders(f"runs/{task}")}
    for file in storage.list("sweeps"):
        if file.endswith(".json"):
            points = storage.read_json(f"sweeps/{file}")
            try:
                digits = [str(point["fingerprint"]) for point in points]
            except (TypeError, KeyError) as error:
                raise UserError(f"{storage}/sweeps/{file}: no sweep's points; mend or remove it first") from error
            yield from (f"runs/{task_of_run[run]}/{run}" for run in digits if run in task_of_run)


def _add_parents(named: References, runs: Sequence[Run]) -> None:
    """Add the runs that named ones, and those at work, start from."""
    by_path = {f"runs/{run.task}/{run.run}": run for run in runs}
    open_ = [run for path, run in by_path.items() if path in named.runs or run.state in ("running", "stale")]
    while open_:
        run = open_.pop()
        if run.config.get("init") != "parent" or run.task not in named.tasks:
            continue
        task = tasks.find(run.task)
        try:
            ancestor = override(task.config(), dict(run.config["init.overrides"]))
        except (UserError, KeyError, TypeError, ValueError):
            continue
        path = f"runs/{task.name}/{fingerprint(task.name, task.version, ancestor)}"
        if path not in named.runs:
            named.runs.add(path)
            open_ += [by_path[path]] if path in by_path else []


def _unreferenced_in(
    storage: Storage, top: str, of: set[str], is_named: Callable[[str], bool], what: str
) -> list[Unreferenced]:
    """Return the folders and files `<top>/<task>/<name>` that are not named, of the tasks that can be asked."""
    folders = [f"{top}/{task}" for task in of & set(storage.folders(top))]
    every = [item for folder in folders for item in _entries(storage, folder, f"unreferenced {what}")]
    return [item for item in every if not is_named(item.path)]


def _entries(storage: Storage, folder: str, why: str) -> list[Unreferenced]:
    """Return what lies in a folder, each entry with its size and age."""
    groups = grouped((f"{folder}/{path.split('/')[0]}", stamp) for path, stamp in storage.files(folder))
    return [_waste(path, stamps, why) for path, stamps in groups.items()]


def unused_bundles(storage: Storage, runs: Sequence[Run]) -> list[Unreferenced]:
    """Return the manifests of bundles of which no run, combination or measurement is here any more."""
    about = dict(storage.files("bundles"))
    used = {run.bundle for run in runs}
    for top in ("combinations", "measurements") if about else ():
        for path, _ in storage.files(top):
            if path.endswith(".json") and not path.endswith("/shards.json"):
                bundle = storage.read_record(f"{top}/{path}", {}).get("bundle")
                used |= {str(bundle.get("id", ""))[:16]} if isinstance(bundle, dict) else set()
    return [_waste(f"bundles/{name}", [stamp], "unused manifest of a bundle")
            for name, stamp in about.items() if name[:16] not in used]  # fmt: skip


def _waste(path: str, stamps: Sequence[tuple[int, int]], why: str) -> Unreferenced:
    """Return an unreferenced path with its size and age."""
    return Unreferenced(
        path, sum(size for size, _ in stamps), max((when or 0 for _, when in stamps), default=0) / 1e9, why
    )


def remove(storage: Storage, unreferenced: Sequence[Unreferenced], done: Callable[[int, int], None]) -> None:
    """Remove it, but for runs that a command has resumed since they were listed.

    A run's result goes first, so that one half removed is not taken for a finished one.
    """
    for count, item in enumerate(unreferenced, 1):
        is_run = item.path.startswith("runs/") and item.path.count("/") == 2
        if is_run and not _acquired(storage, item.path):
            errors.print(f"left alone: {item.path}, which another command has resumed", markup=False)
        else:
            if is_run:
                storage.remove(f"{item.path}/result.json")
            storage.remove(item.path)
        done(count, len(unreferenced))


def _acquired(storage: Storage, path: str) -> bool:
    """Return whether no attempt at a run was active within the hour, with the run's lease: nobody may resume it now."""
    run = RunFolder(storage, *path.split("/")[1:])
    number = lease.newest_number(run)
    beaten = max((when or 0 for _, (_, when) in storage.files(f"{path}/attempts")), default=0) / 1e9
    if beaten > time.time() - _AT_WORK:
        return False
    try:
        lease.acquire(run, "gc", step=number, dead=number)  # a step of its own: it is never one that died too often
    except lease.LeaseLost:
        return False
    return True
