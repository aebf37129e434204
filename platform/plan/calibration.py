"""Calibrates cost estimates with measured run times."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.plan.plan import READERS, Plan
from retable.platform.store.provenance import device_name
from retable.platform.store.query import Run, list_runs
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage

if TYPE_CHECKING:
    from retable.platform.spec.task import Task

LEAST, MOST = 3, 40
"""Fewer finished runs say nothing; of more, the newest are asked."""
SHORT = 0.1
"""Of the longest training's estimate: what is shorter says nothing of it, as starting is most of its time."""


@dataclass(frozen=True)
class Learnt:
    """How long a task's trainings took, measured by its own estimate."""

    factor: float
    """Seconds of a core that were measured for each that the task estimates: the median of runs."""
    runs: int


def learn(plan: Plan) -> dict[str, Learnt]:
    """Return task -> calibration by its finished runs, if the storage has a few of this scale and device.

    Only tasks that have something left to train are asked about.
    """
    learnt = {}
    for task in {each.task.name: each.task for each in plan.missing}.values():
        longest = max(task.cost(each.config) for each in plan.missing if each.task.name == task.name)
        ratios = list(_ratios(plan.storage, task, plan.scale, SHORT * longest))
        if len(ratios) >= LEAST:
            learnt[task.name] = Learnt(statistics.median(ratios), len(ratios))
    return learnt


def core_seconds(plan: Plan, known: Mapping[str, Learnt]) -> float:
    """Return the seconds of one CPU core that a plan takes: trainings as was learnt, the rest as tasks estimate."""
    training = sum(each.task.cost(each.config) for each in plan.missing)
    learnt = sum(training_cost(each.task, each.config, known) for each in plan.missing)
    return plan.cost - training + learnt


def training_cost(task: Task, config: object, known: Mapping[str, Learnt]) -> float:
    """Return the seconds of one CPU core that a training takes: as was learnt, else as its task estimates."""
    return task.cost(config) * (known[task.name].factor if task.name in known else 1.0)


def summary(known: Mapping[str, Learnt]) -> str:
    """Return a line about the calibration."""
    parts = (f"{name} {each.factor:.2g} of its estimate, by {each.runs} runs" for name, each in known.items())
    return f"trainings as measured at this scale on such a machine: {'; '.join(parts)}" if known else ""


def _ratios(storage: Storage, task: Task, scale: str, least: float) -> Iterator[float]:
    """Yield, of each finished run of this task, version, scale and device, measured by estimated seconds.

    Runs are left out that take less than `least` seconds of a core by the task's estimate.
    """
    try:
        runs = [run for run in list_runs(storage, task.name) if run.state == "finished" and run.scale in ("", scale)]
    except UserError:  # there are none
        return
    device = device_name()
    costs = ((run, _cost(task, run)) for run in runs)
    long = [(run, cost) for run, cost in costs if cost and cost >= least][:MOST]
    with ThreadPoolExecutor(READERS) as readers:
        taken = readers.map(lambda of: _seconds(storage, task, of[0], device), long)
        yield from (seconds / cost for seconds, (_, cost) in zip(taken, long, strict=True) if seconds)


def _cost(task: Task, run: Run) -> float | None:
    """Return the seconds of a core that a task estimates for a run; None where its config is of another version."""
    try:
        return task.cost(override(task.config(), run.config))
    except (UserError, KeyError, TypeError, ValueError, AttributeError):
        return None


def _seconds(storage: Storage, task: Task, run: Run, device: str) -> float | None:
    """Return the seconds of a core that a run took; None of one on another device, in a stack, or that is not whole."""
    folder = RunFolder(storage, task.name, run.run).folder
    try:
        made, result = folder.read_record("provenance.json", {}), folder.read_record("result.json", {})
        if made.get("device") != device or made.get("stack", 1) != 1:
            return None
        return float((result.get("used") or {}).get("cpu_seconds") or result["seconds"])
    except (UserError, OSError, KeyError, TypeError, ValueError, AttributeError):
        return None
