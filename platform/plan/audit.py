"""Audit of a plan: row by row, which fields make each run, and its cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from retable.platform.config import exact_changes, parent, set_line
from retable.platform.plan.cost import Learnt, training_cost
from retable.platform.plan.plan import Combining, Plan
from retable.platform.spec.table import Combined, Measurement, Replicate, view_changes
from retable.platform.store.run import RunFolder
from retable.platform.text import and_more, grouped


def audit(plan: Plan, calibration: Mapping[str, Learnt], rates: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return each replicate of each row of a plan's tables, as plain data; a row that is not run has its reason.

    A training that several rows share stands in each of them, with its whole cost.

    Args:
        plan: of which tables.
        calibration: what finished runs took.
        rates: units a second of a GPU, as `python -m benchmarks gpu` measured; none: no GPU hours.
    """
    rows: list[dict[str, object]] = []
    for name, (_, table) in plan.tables.items():
        for row in table.rows:
            entry = {"table": name, "row": row.label}
            if row.absent:
                rows.append({**entry, "state": f"absent: {row.absent}"})
            elif isinstance(row, Combined):
                rows += [
                    {
                        **entry,
                        "state": _combined_state(plan, replicate),
                        "axes": dict(replicate.axes),
                        "joins": list(row.of),
                    }
                    for replicate in plan.combinings
                    if replicate.row is row
                ]
            else:
                replicates = plan.replicates[name].get(row.label, [])
                rows += [
                    {**entry, **_replicate(plan, name, row, replicate, calibration, rates)} for replicate in replicates
                ]
    return rows


def _combined_state(plan: Plan, combining: Combining) -> str:
    complete = plan.whole(combining) and combining.scores(plan.storage) is not None
    return "done" if complete else "to be combined"


def _replicate(
    plan: Plan,
    name: str,
    row: object,
    replicate: Replicate,
    calibration: Mapping[str, Learnt],
    rates: Mapping[str, float],
) -> dict[str, object]:
    task, _ = plan.tables[name]
    config, ancestor = replicate.config, parent(replicate.config)
    folder = RunFolder.of(plan.storage, task, config)
    training = plan.trainings.get(folder.path)
    work = task.gpu_work(config) if task.needs(config, "train").gpus else None
    view = None if isinstance(row, Measurement) else replicate.view
    return {
        "run": folder.fingerprint,
        "state": training.status if training else "measured alone",
        "axes": dict(replicate.axes),
        "set": exact_changes(config),
        "view": {} if view is None else view_changes(task.view(), config, view),
        "parent": RunFolder.of(plan.storage, task, ancestor).fingerprint if ancestor is not None else None,
        "data": task.dataset.where(config),
        "core_hours": training_cost(task, config, calibration) / 3600 if training else 0.0,
        "view_core_hours": 0.0 if view is None else task.view_cost(config, view) / 3600,
        "gpu_hours": work[1] / rates[work[0]] / 3600 if training and work and work[0] in rates else None,
    }


def summary(plan: Plan, calibration: Mapping[str, Learnt], seconds: float) -> dict[str, object]:
    """Return a plan's counts and cost as plain data."""
    return {
        "scale": plan.scale,
        "changes": dict(plan.changes),
        "tables": list(plan.tables),
        "trainings": dict(Counter(training.status for training in plan.trainings.values())),
        "evaluations": {"all": len(plan.scorings), "to_do": len(plan.unscored)},
        "combinations": {"all": len({combining.path for combining in plan.combinings}), "to_do": len(plan.uncombined)},
        "measurements": {"all": len(plan.timings), "to_do": len(plan.unmeasured)},
        "core_hours": seconds / 3600,
        "learnt": {name: {"factor": task.factor, "runs": task.runs} for name, task in calibration.items()},
    }


def lines(entries: list[dict[str, Any]]) -> list[str]:
    """Write an audit as lines: a row of a table, its replicates together where they differ in nothing but the axes."""
    text, table = [], ""
    for (name, label), same in grouped(
        ((replicate["table"], replicate["row"]), replicate) for replicate in entries
    ).items():
        if name != table:
            text.append(name)
            table = name
        once = list({entry.get("run", number): entry for number, entry in enumerate(same)}.values())
        states = ", ".join(
            f"{count} {state}" for state, count in Counter(replicate["state"] for replicate in once).items()
        )
        text.append(f"  {label}: {states if len(same) > 1 or 'run' in same[0] else same[0]['state']}")
        text += [f"    {line}" for line in _facts(same, once)]
    return text


def _facts(same: list[dict[str, Any]], once: list[dict[str, Any]]) -> list[str]:
    """Describe a row's replicates; `once` has one of each run, as a training costs once for all its views."""
    first = same[0]
    if "joins" in first:
        return [f"joins {'; '.join(first['joins'])}"]
    if "run" not in first:
        return []
    axes = {axis: [replicate["axes"].get(axis) for replicate in same] for axis in first["axes"]}
    over = "; ".join(f"{axis} {', '.join(map(str, dict.fromkeys(values)))}" for axis, values in axes.items())
    fields = {path: value for path, value in first["set"].items() if path not in axes}
    hours = sum(replicate["core_hours"] for replicate in once) + sum(replicate["view_core_hours"] for replicate in same)
    cost = f"{hours:,.3g} core hours"
    gpu = [replicate["gpu_hours"] for replicate in once if replicate["gpu_hours"] is not None]
    cost += f", or {sum(gpu):,.3g} GPU hours" if gpu else ""
    runs = and_more([replicate["run"][:8] for replicate in once], 4)
    own = {path: value for path, value in first["view"].items() if f"view.{path}" not in axes}
    view = " ".join(f"{path}={value}" for path, value in own.items()) or "as the task says"
    start = f"; starts from run {first['parent'][:8]}" if first["parent"] else ""
    return [
        set_line(fields) or "as the task says",
        *([f"for each {over}"] if over else []),
        f"view {view}; data {first['data']}{start}",
        f"{cost}; runs {runs}",
    ]
