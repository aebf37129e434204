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
        ratios = list(_ratios(plan.storage, task, plan.scale))
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


def _ratios(storage: Storage, task: Task, scale: str) -> Iterator[float]:
    """Yield, of each finished run of this task, version, scale and device, measured by estimated seconds."""
    try:
        runs = [run for run in list_runs(storage, task.name) if run.state == "finished" and run.scale in ("", scale)]
    except UserError:  # there are none
        return
    device = device_name()
    with ThreadPoolExecutor(READERS) as readers:
        for ratio in readers.map(lambda run: _ratio(storage, task, run, device), runs[:MOST]):
            if ratio:
                yield ratio


def _ratio(storage: Storage, task: Task, run: Run, device: str) -> float | None:
    """Return a run's measured by its estimated seconds; None of one on another device, or that is not whole."""
    folder = RunFolder(storage, task.name, run.run).folder
    try:
        made, result = folder.read_record("provenance.json", {}), folder.read_record("result.json", {})
        config = override(task.config(), run.config)
        if made.get("device") != device or made.get("stack", 1) != 1:
            return None
        used = result.get("used") or {}
        seconds = float(used.get("cpu_seconds") or result["seconds"])
        return seconds / task.cost(config)
    except (UserError, OSError, KeyError, TypeError, ValueError, ZeroDivisionError, AttributeError):
        return None
