"""Which of several runs is served: the best by a number that no table shows, so never by a test score."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from retable.platform.api import TrainedRun
from retable.platform.config import fingerprint
from retable.platform.console import errors, progress_bar
from retable.platform.errors import UserError
from retable.platform.models import export
from retable.platform.spec.task import SMOKE, Info, find
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage

Rank = tuple[bool, int]
"""Of real data, and which of the task's scales, from the smallest; -1 where the scale is not known."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The selected run, with the reason."""

    name: str
    """Name under which it is served."""
    run: TrainedRun
    metric: str
    """The number it was chosen by, in words."""
    value: float | None
    """That number; None where the runs were not compared, as at the smoke scale."""
    among: int
    """Runs that were compared, or that it was taken from."""
    passed_over: int
    """Runs that were not: of generated data, a smaller scale or other data, or without a number."""
    scale: str
    """Empty where it is not known."""
    real: bool
    """Whether its data are real."""

    def line(self) -> str:
        """Return the choice as one line."""
        data = "real" if self.real else "generated"
        of = f"the best of {self.among}" if self.among > 1 else "the only one"
        if self.value is None:
            number = f"the first of {self.among}, not compared: what a smoke run scores means nothing"
        else:
            number = f"{self.metric} {self.value:.4g}, {of}"
        rest = f"; {self.passed_over} of less or other data not compared" if self.passed_over else ""
        where = f"scale {self.scale or 'unknown'}, {data} data{rest}"
        return f"{self.run.task.name} {self.name}: run {self.run.fingerprint}, {number} ({where})"


def eligible_runs(task: str, storage: Storage) -> list[TrainedRun]:
    """Return a task's runs whose numbers count: finished, not diverged, of this version; in order of fingerprints.

    Raises:
        UserError: if there is no such task.
    """
    of, choices = find(task), []
    for digits in storage.folders(f"runs/{task}"):
        folder = RunFolder(storage, task, digits)
        try:
            config, result = folder.config(of), folder.result()
        except UserError:  # damaged, or of fields that the task no longer has
            continue
        complete = result and "diverged" not in result and not folder.lacks(config.epochs)
        if complete and fingerprint(task, of.version, config) == digits:
            choices.append(TrainedRun(of, folder, config))
    return choices


def info_of(run: TrainedRun) -> Info:
    """Return `dataset.json` of a run's data, as it was when the run began."""
    return run.folder.provenance().get("data") or run.source.info


def same_data(run: TrainedRun) -> Hashable:
    """Return the digest of a run's dataset: numbers on different datasets cannot be compared."""
    return str(run.result["data"])


def choose(
    name: str,
    runs: Sequence[TrainedRun],
    score: Callable[[TrainedRun], float],
    metric: str,
    *,
    mode: Literal["max", "min"] = "max",
    comparable: Callable[[TrainedRun], Hashable] = same_data,
    smoke: bool = False,
) -> Choice:
    """Return the best of runs; one of generated data or of a smaller scale never beats one of real data or a larger.

    Runs of the smoke scale are not compared, as to score a hundred of them takes minutes and says nothing.

    Args:
        name: what it is served as.
        runs: finished ones of one task.
        score: the number they are chosen by; where it raises a UserError or is not finite, the run is passed over.
        metric: that number in words.
        mode: whether it is the better, the larger it is, or the smaller.
        comparable: run -> a key; of the best runs by data and scale, those of the commonest key are compared.
        smoke: whether those of the smoke scale are compared nevertheless.

    Raises:
        UserError: where there is no run, or none has a number.
    """
    ranks = {run.fingerprint: _rank(run) for run in runs}
    failures: list[str] = []
    for rank in sorted(set(ranks.values()), reverse=True):
        compared = _alike([run for run in runs if ranks[run.fingerprint] == rank], comparable)
        if export.scale_of(compared[0]) == SMOKE and not smoke:
            values: dict[str, float | None] = {run.fingerprint: None for run in compared}
            best = compared[0].fingerprint
        else:
            numbers = _numbers(f"{name}: {metric}", compared, score, failures)
            values, best = {**numbers}, (max if mode == "max" else min)(numbers, key=numbers.__getitem__, default="")
        if values:
            run = next(run for run in compared if run.fingerprint == best)
            return Choice(
                name=name,
                run=run,
                metric=metric,
                value=values[best],
                among=len(values),
                passed_over=len(runs) - len(values),
                scale=export.scale_of(run),
                real=rank[0],
            )
    raise UserError(f"no run for {name}: {failures[0] if failures else 'there is none; train one, or serve the zoo'}")


def _alike(runs: Sequence[TrainedRun], comparable: Callable[[TrainedRun], Hashable]) -> list[TrainedRun]:
    """Return the runs of the commonest key."""
    keys = [comparable(run) for run in runs]
    commonest = max(keys, key=keys.count)
    return [run for run, key in zip(runs, keys, strict=True) if key == commonest]


def _numbers(
    title: str, runs: Sequence[TrainedRun], score: Callable[[TrainedRun], float], failures: list[str]
) -> dict[str, float]:
    """Return runs' numbers by fingerprint, of those that can be scored; each is kept, and asked for once."""
    numbers = {}
    with progress_bar(f"{title} of {len(runs)} runs") as advance:
        for done, run in enumerate(runs):
            advance(done, len(runs))
            if (value := _number(run, score, failures)) is not None:
                numbers[run.fingerprint] = value
    return numbers


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


def is_real(info: Info) -> bool:
    """Return whether `dataset.json` is of measured data.

    Sets without `real` said so in words of their task, and where there are none they count as measured.
    """
    generated = "generated" in (info.get("kind"), info.get("source")) or info.get("generated")
    return bool(info.get("real", not (generated or info.get("simulated_satellite"))))


def _rank(run: TrainedRun) -> Rank:
    scales, scale = list(run.task.scales()), export.scale_of(run)
    return is_real(info_of(run)), scales.index(scale) if scale in scales else -1


def choose_each(
    named: Mapping[str, Sequence[TrainedRun]], score: Callable[[TrainedRun], float], metric: str, **options: Any
) -> dict[str, Choice]:
    """Return the best run of each name, as `choose`; of a name without one, a note says why.

    Raises:
        UserError: where there are names, and none has one.
    """
    choices, failures = {}, list[UserError]()
    for name, runs in named.items():
        try:
            choices[name] = choose(name, runs, score, metric, **options)
        except UserError as error:
            failures.append(error)
    if failures and not choices:
        raise failures[0]
    for failure in failures:
        errors.print(f"note: {failure}", markup=False)
    return choices


def group_by_name(runs: Sequence[TrainedRun], name: Callable[[TrainedRun], str]) -> dict[str, list[TrainedRun]]:
    """Return runs grouped by the name each would be served as, in order of names; empty names are left out."""
    names = {run.fingerprint: name(run) for run in runs}
    return {group: [r for r in runs if names[r.fingerprint] == group] for group in sorted(set(names.values())) if group}
