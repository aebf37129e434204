"""Fill tables from what lies on the storage: results, scores, combinations, measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from retable.platform import combine, stages
from retable.platform.plan import Combining, Plan, combinings, timing_path
from retable.platform.runs import RunFolder
from retable.platform.table import Column, Combined, Measurement, Need, Replicate, Results, Row
from retable.platform.task import Task


@dataclass(frozen=True)
class Cell:
    """What the replicates of a row say in one column."""

    values: tuple[float, ...]
    published: float | None
    replicates: tuple[Replicate, ...]

    @property
    def mean(self) -> float | None:
        """The mean over replicates, or None where there is none."""
        return float(np.mean(self.values)) if self.values else None

    @property
    def deviation(self) -> float:
        """The standard deviation between replicates (n - 1), 0 for a single one."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else 0.0

    @property
    def difference(self) -> float | None:
        """Measured minus published, where there are both."""
        return None if self.mean is None or self.published is None else self.mean - self.published


def gather(plan: Plan, name: str) -> Results:
    """Return what is there for each row of a planned table."""
    task, table = plan.tables[name]
    found: dict[str, Sequence[Replicate]] = {}
    for row in table.rows:
        if isinstance(row, Combined):
            rows = [combined_replicate(plan, each) for each in combinings(plan, name, row)] if row.present else []
        else:
            needs = plan.needs[name].get(row.label, [])
            rows = [replicate(plan, task, row, need) for need in needs]
        found[row.label] = [each for each in rows if each is not None]
    return Results(found)


def replicate(plan: Plan, task: Task, row: Row | Measurement, need: Need) -> Replicate | None:
    """Return one replicate of a row, or None while it is not there."""
    folder = RunFolder.of(plan.storage, task, need.config)
    if isinstance(row, Measurement):
        path = timing_path(plan, task, row, need)
        if not plan.storage.exists(path):
            return None
        return Replicate(need, folder.fingerprint, plan.storage.read_json(path)["metrics"])
    training = plan.trainings[folder.path]
    result = folder.result()
    if result is None or training.status == "data changed":
        return None
    metrics = result["metrics"]
    if need.view is not None:
        scores = folder.scores(need.view, result["weights"].get(str(need.view.epoch), ""))
        if scores is None:
            return None
        metrics = {**metrics, **scores["metrics"]}
        summaries = partial(stages.summaries, task, need.config, need.view, folder)
        return Replicate(need, folder.fingerprint, metrics, tuple(folder.history()), summaries)
    return Replicate(need, folder.fingerprint, metrics, tuple(folder.history()))


def combined_replicate(plan: Plan, combining: Combining) -> Replicate | None:
    """Return one replicate of a combined row, or None while it is not there."""
    found = combining.scores(plan.storage)
    if found is None or any(plan.trainings[m.folder.path].status == "data changed" for m in combining.members):
        return None
    first = combining.members[0]
    need = Need(combining.row.label, combining.axes, first.config, combining.view)
    summaries = partial(combine.summaries, combining, plan.storage)
    return Replicate(need, first.folder.fingerprint, found["metrics"], summaries=summaries)


def cell(results: Results, row: Any, column: Column) -> Cell:
    """Return a cell of a table."""
    metric = row.metrics.get(column.header, column.metric) if isinstance(row, Row) else column.metric
    chosen = [r for r in results.select(row.label) if r.metrics.get(metric) is not None]
    values = tuple(float(r.metrics[metric]) * column.factor for r in chosen)
    return Cell(values, row.published.get(column.header), tuple(chosen))
