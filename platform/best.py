"""Which of several runs is served: the best by a number that no table shows, so never by a test score."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from retable.platform import exported
from retable.platform.api import TrainedRun
from retable.platform.config import fingerprint
from retable.platform.errors import UserError
from retable.platform.runs import RunFolder
from retable.platform.storage import Storage
from retable.platform.task import find

Rank = tuple[bool, int]
"""Of real data, and which of the task's scales, from the smallest; -1 where the scale is not known."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What was chosen, and why."""

    name: str
    """What it is served as."""
    run: TrainedRun
    metric: str
    """The number it was chosen by, in words."""
    value: float
    among: int
    """Runs that were compared."""
    passed_over: int
    """Runs that were not: of generated data, a smaller scale or other data, or without a number."""
    scale: str
    """Empty where it is not known."""
    real: bool
    """Whether its data are real."""

    def line(self) -> str:
        """Say it in one line."""
        data = "real" if self.real else "generated"
        of = f"the best of {self.among}" if self.among > 1 else "the only one"
        rest = f"; {self.passed_over} of less or other data not compared" if self.passed_over else ""
        where = f"scale {self.scale or 'unknown'}, {data} data{rest}"
        number = f"{self.metric} {self.value:.4g}"
        return f"{self.run.task.name} {self.name}: run {self.run.fingerprint}, {number}, {of} ({where})"


def usable(task: str, storage: Storage) -> list[TrainedRun]:
    """Return a task's runs whose numbers count: finished, not diverged, of this version; in order of fingerprints.

    Raises:
        UserError: if there is no such task.
    """
    of, found = find(task), []
    for digits in storage.folders(f"runs/{task}"):
        folder = RunFolder(storage, task, digits)
        try:
            config, result = folder.config(of), folder.result()
        except UserError:  # damaged, or of fields that the task no longer has
            continue
        if result and "diverged" not in result and fingerprint(task, of.version, config) == digits:
            found.append(TrainedRun(of, folder, config))
    return found


def info_of(run: TrainedRun) -> Mapping[str, Any]:
    """Return `dataset.json` of a run's data, as it was when the run began."""
    made: Mapping[str, Any] = exported.provenance(run).get("data") or run.source.info
    return made


def same_data(run: TrainedRun) -> Hashable:
    """Return what tells data sets apart: numbers of different ones cannot be compared."""
    return str(run.result["data"])


def choose(
    name: str,
    runs: Sequence[TrainedRun],
    score: Callable[[TrainedRun], float],
    metric: str,
    real: Callable[[Mapping[str, Any]], bool],
    mode: Literal["max", "min"] = "max",
    comparable: Callable[[TrainedRun], Hashable] = same_data,
) -> Choice:
    """Return the best of runs; one of generated data or of a smaller scale never beats one of real data or a larger.

    Args:
        name: what it is served as.
        runs: finished ones of one task.
        score: the number they are chosen by; where it raises a UserError or is not finite, the run is passed over.
        metric: that number in words.
        real: `dataset.json` -> whether the data are real.
        mode: whether it is the better, the larger it is, or the smaller.
        comparable: run -> a key; of the best runs by data and scale, those of the commonest key are compared.

    Raises:
        UserError: where there is no run, or none has a number.
    """
    ranks = {run.fingerprint: _rank(run, real) for run in runs}
    failures: list[str] = []
    for rank in sorted(set(ranks.values()), reverse=True):
        compared = _alike([run for run in runs if ranks[run.fingerprint] == rank], comparable)
        values = {run.fingerprint: value for run in compared if (value := _number(run, score, failures)) is not None}
        if values:
            best = (max if mode == "max" else min)(values, key=lambda digits: values[digits])
            run = next(run for run in compared if run.fingerprint == best)
            return Choice(
                name=name,
                run=run,
                metric=metric,
                value=values[best],
                among=len(values),
                passed_over=len(runs) - len(values),
                scale=exported.scale_of(run),
                real=rank[0],
            )
    raise UserError(f"no run for {name}: {failures[0] if failures else 'there is none; train one, or serve the zoo'}")


def _alike(runs: Sequence[TrainedRun], comparable: Callable[[TrainedRun], Hashable]) -> list[TrainedRun]:
    """Return the runs of the commonest key."""
    keys = [comparable(run) for run in runs]
    commonest = max(keys, key=keys.count)
    return [run for run, key in zip(runs, keys, strict=True) if key == commonest]


def _number(run: TrainedRun, score: Callable[[TrainedRun], float], failures: list[str]) -> float | None:
    """Return a run's number; none where it cannot be scored, which joins `failures`, or is not finite."""
    try:
        value = score(run)
    except UserError as error:
        failures.append(str(error))
        return None
    if not math.isfinite(value):
        failures.append(f"run {run.fingerprint} scores {value}")
        return None
    return value


def _rank(run: TrainedRun, real: Callable[[Mapping[str, Any]], bool]) -> Rank:
    scales, scale = list(run.task.scales()), exported.scale_of(run)
    return real(info_of(run)), scales.index(scale) if scale in scales else -1


def by_name(runs: Sequence[TrainedRun], name: Callable[[TrainedRun], str]) -> dict[str, list[TrainedRun]]:
    """Return runs by what each would be served as, in order of names; those of an empty name are left out."""
    names = {run.fingerprint: name(run) for run in runs}
    return {each: [r for r in runs if names[r.fingerprint] == each] for each in sorted(set(names.values())) if each}
