"""Which rows have the paper's data and setting; a difference to the published number is shown for these alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from retable.platform.config import fingerprint, lineage, override_lineage
from retable.platform.plan.plan import Plan
from retable.platform.spec.table import AnyRow, AnyTable, Combined, Measurement, Replicate, Results, expand
from retable.platform.spec.task import Task, find_scale, table_at
from retable.platform.store.run import RunFolder, view_key
from retable.platform.store.storage import Record, Storage
from retable.platform.text import and_more

DATA, _SETTING, PART, _DEVICE = "other data", "another setting", "a part of its replicates", "another device"
_PUBLISHED = "paper"
"""The scale that is the published setting."""
NAMED = 3
"""Rows that are named at most."""


def published_table(task: Task, name: str) -> AnyTable | None:
    """Return a table in its published setting; None where the task has no such table or scale."""
    table = task.tables().get(name.partition("/")[2])
    return table_at(task, table, _PUBLISHED, {}) if table is not None and _PUBLISHED in task.scales() else None


def apart(plan: Plan, name: str, results: Results) -> dict[str, list[str]]:
    """Return why each row must not be compared with the published numbers; empty if it may be.

    Rows without published numbers, and those that were not run, are left out.
    """
    task, table = plan.tables[name]
    rows = [row for row in table.rows if row.published and row in results]
    published = published_table(task, name) if rows else None
    printed = {row.label: row for row in published.rows if not row.absent} if published else {}
    reasons = {}
    for row in rows:
        same, why = printed.get(row.label), list[str]()
        behind = _behind(plan, name, row, results.select(row))
        if not _published_data(plan.storage, task, row, behind):
            why.append(DATA)
        if published is None or same is None or not _alike(row, same):
            why.append(_SETTING)
        else:
            why += _setting(task, behind, _expanded(task, published, same, printed))
        reasons[row.label] = [*why, *([_DEVICE] if isinstance(row, Measurement) else [])]
    return reasons


def sentence(task: Task, reasons: Mapping[str, Sequence[str]]) -> str:
    """Return why measured and published numbers are not compared (`apart`); empty if they are, in every row."""
    without = {label: why for label, why in reasons.items() if why}
    if not without:
        return ""
    every = list(dict.fromkeys(reason for why in without.values() for reason in why))
    rows = "" if len(without) == len(reasons) else f" for {and_more(list(without), NAMED, '; ')}"
    about = f" ({find_scale(task, _PUBLISHED).about})" if _PUBLISHED in task.scales() and every != [_DEVICE] else ""
    return f"No difference is shown{rows}: the published numbers are of {' and '.join(every)}{about}."


def data_info(storage: Storage, where: str, runs: Sequence[RunFolder]) -> Record | None:
    """Return a dataset's `dataset.json`; if it is not here, that of a bundled run, or None."""
    path = f"data/{where}/dataset.json"
    if storage.exists(path):
        return storage.read_record(path, {})
    recorded = (run.provenance().get("data") for run in {run.path: run for run in runs}.values() if run.bundle())
    return next((dict(info) for info in recorded if isinstance(info, dict)), None)


def _behind(plan: Plan, name: str, row: AnyRow, replicates: Iterable[Replicate]) -> list[Replicate]:
    """Return the replicates that a row's numbers are from; of a combined row, those of its members."""
    if not isinstance(row, Combined):
        return list(replicates)
    joined = [replicate.axes for replicate in replicates]
    return [replicate for label in row.of for replicate in plan.replicates[name][label] if replicate.axes in joined]


def _published_data(storage: Storage, task: Task, row: AnyRow, behind: Iterable[Replicate]) -> bool:
    """Return whether replicates and their parents read the published data, as far as they read any."""
    if isinstance(row, Measurement) and not row.reads_data:
        return True
    readers: dict[str, list[RunFolder]] = {}
    for config in (config for replicate in behind for config in lineage(replicate.config)):
        readers.setdefault(task.dataset.where(config), []).append(RunFolder.of(storage, task, config))
    infos = [data_info(storage, where, runs) for where, runs in readers.items()]
    return all(info is not None and task.dataset.published(info) for info in infos)


def _alike(row: AnyRow, printed: AnyRow) -> bool:
    """Return whether a row equals the published one of its label, apart from its configs."""
    if isinstance(row, Combined) and isinstance(printed, Combined):
        return (row.of, row.combine, row.view) == (printed.of, printed.combine, printed.view)
    if isinstance(row, Measurement) and isinstance(printed, Measurement):
        return row.arguments == printed.arguments
    return type(row) is type(printed)


def _expanded(task: Task, table: AnyTable, row: AnyRow, rows: Mapping[str, AnyRow]) -> list[Replicate]:
    """Return the replicates that a published row has; of a combined row, those of its members."""
    members = [rows[label] for label in row.of if label in rows] if isinstance(row, Combined) else [row]
    some = [member for member in members if not isinstance(member, Combined)]
    return [replicate for member in some for replicate in expand(table, member, task.config(), task.view())]


def _setting(task: Task, behind: Iterable[Replicate], published: Iterable[Replicate]) -> list[str]:
    """Return where replicates differ from the published ones; seeds do not count."""
    ours, theirs = ({_key(task, replicate) for replicate in replicates} for replicates in (behind, published))
    return [_SETTING] if ours - theirs else [PART] if theirs - ours else []


def _key(task: Task, replicate: Replicate) -> tuple[str, str, str]:
    """Return what distinguishes replicates apart from their seed."""
    config = override_lineage(replicate.config, {"seed": 0})
    view = "" if replicate.view is None else view_key(replicate.view)
    return replicate.label, fingerprint(task.name, task.version, config), view
