"""Which files are served: runs that were named, the best of a storage, or the zoo of a fresh machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from retable.platform import api
from retable.platform.config import override
from retable.platform.console import errors
from retable.platform.errors import UserError, nearest
from retable.platform.models import contract, zoo
from retable.platform.models.export import scale_of
from retable.platform.models.select import Choice, choose, eligible_runs, same_data
from retable.platform.report.papers import PAPERS
from retable.platform.report.results import FilledTable
from retable.platform.report.write import kept_tables, task_of
from retable.platform.spec.extras import missing
from retable.platform.spec.task import SMOKE, find_table, names
from retable.platform.store.storage import Storage
from retable.platform.text import plural
from retable.serve.launch.models import Model, fills, keep

_BRIEF = (SMOKE, "quick")
"""Scales whose runs were trained for seconds or minutes: they prove a path, or give a first look."""
NAMED = "named by --run"
"""Reason to serve a run that the user chose."""


@dataclass(frozen=True)
class Wanted:
    """The models that a user wants to serve."""

    tasks: Sequence[str] = ()
    """Tasks to serve; none: the papers' tasks that have something to serve, or those of the named runs and tables."""
    runs: Sequence[str] = ()
    """Fingerprints, or their first digits: these and no others."""
    zoo: bool = False
    """Whether the zoo's files are served, whatever runs there are."""
    best: Sequence[str] = ()
    """`TABLE`, or `TABLE/METRIC`: the best of the runs that fill a table."""
    index: str = ""
    """Of recordings, made by the model of audio that is served; none: what the server itself keeps."""
    anyway: bool = False
    """Whether a model of audio of the smoke scale may be served."""


def servable() -> tuple[str, ...]:
    """Return the tasks that can be served: the papers', by deployments of their own, and all that have the modules."""
    return (*PAPERS, *(name for name in names() if name not in PAPERS and not contract.lacks(name)))


def check_servable(task: str) -> None:
    """Raise a UserError where a task cannot be served; it says what is missing."""
    if task in servable():
        return
    if task in names():
        parts = " and ".join(f"{name}.py, which {contract.MODULES[name]}" for name in contract.lacks(task))
        raise UserError(f"serve: {task} has no {parts}; docs/extending.md has the parts of a task that is served")
    raise UserError(f"serve: no task {task!r}{nearest(task, servable())}")


def choose_models(wanted: Wanted, storage: Storage) -> list[Model]:
    """Export the models to serve to `<storage>/served`, and return them, each with the reason.

    Args:
        wanted: what.
        storage: where runs lie, and exported files go.

    Raises:
        UserError: on an unknown task, a run that cannot be served, or where there is nothing to serve.
    """
    for task in wanted.tasks:
        check_servable(task)
    if [bool(wanted.runs), wanted.zoo, bool(wanted.best)].count(True) > 1:
        raise UserError("--run, --zoo and --best exclude each other; leave out all but one")
    models: list[Model] = []
    if wanted.runs:
        tables = kept_tables(storage)
        models = [of_run(api.load(run, storage), NAMED, storage, tables) for run in dict.fromkeys(wanted.runs)]
        if others := {model.task for model in models} - set(wanted.tasks or servable()):
            raise UserError(f"--run names a run of {min(others)}, which is not among the tasks to serve; add it")
    else:
        named = {task_of(name): name for name in wanted.best}
        if twice := [name for name in wanted.best if named[task_of(name)] != name]:
            raise UserError(f"--best {twice[0]}: {named[task_of(twice[0])]} is of its task, too; name one table a task")
        if unknown := named.keys() - set(wanted.tasks or servable()):
            raise UserError(f"--best {named[min(unknown)]}: {min(unknown)} is not among the tasks to serve")
        for task in dict.fromkeys(wanted.tasks) or list(named) or [task for task in PAPERS if not missing(task)]:
            own = [] if wanted.zoo else best_of(named[task], storage) if task in named else best(task, storage)
            models += own or _of_zoo(task, storage)
    models = with_index(models, wanted.index, wanted.anyway, storage)
    if absent := sorted(set(wanted.tasks) - {model.task for model in models}):
        raise UserError(f"serve: nothing of {absent[0]} here: train a run of it, or leave it out")
    if not models:
        raise UserError(f"{storage}: no runs, and no zoo; train something first, e.g. `retable train rl`")
    return models


def with_index(models: Sequence[Model], index: str, anyway: bool, storage: Storage) -> list[Model]:
    """Return the models, of those of audio only the one that an index was made with: others mean nothing there.

    Without an index the first one: it searches the recordings that the server keeps. A model of the smoke scale, to
    which all words are alike, gives way to the zoo's, unless it was named.

    Raises:
        UserError: where there is no such index, several are named, or its model or the one named is of the smoke scale.
    """
    others = [model for model in models if model.task != "audio"]
    own = [model for model in models if model.task == "audio"]
    if (several := len({model.sha256 for model in own if model.why == NAMED})) > 1:
        raise UserError(f"--run names {several} runs of audio, which serves one; leave out all but one")
    if index and not own:
        raise UserError(f"--index {index}: no model of audio is served; name the task audio, too")
    if index:
        made_with = import_module("retable.tasks.audio.tools.search.search").open_index(Path(index)).info["model"]
        own = [model for model in own if model.about.get("weights") == made_with]
        if not own:
            raise UserError(f"--index {index}: made with another model; name its run with --run, or index again")
    if own and own[0].about.get("scale") == SMOKE and not anyway:
        line = f"audio: run {own[0].about.get('fingerprint')} is of the smoke scale: it tells no sounds apart"
        if index or own[0].why == NAMED:
            raise UserError(f"{line}; use a run of --scale small or more, or add --anyway")
        errors.print(f"note: {line}; the zoo is served instead", markup=False)
        own = _of_zoo("audio", storage)
    return [*others, *own[:1]]


def best(task: str, storage: Storage) -> list[Model]:
    """Return the best runs of a task on a storage; none where there are none, or none has the number that says so.

    Runs of the scales `_BRIEF` give way to others, and to the zoo; they are not compared then, which takes minutes.
    """
    if not storage.folders(f"runs/{task}"):
        return []
    runs = eligible_runs(task, storage)
    lasting = [run for run in runs if scale_of(run) not in _BRIEF]
    brief = len(runs) - len(lasting)
    instead = "longer runs" if lasting else "models of the zoo" if zoo.zoo(task) else ""
    if brief and instead:
        those = f"{plural(brief, 'run')} here of the scales smoke and quick, trained for minutes"
        note = f"note: {task}: {instead} are served in place of {those} (--best {task}/TABLE serves those)"
        errors.print(note, markup=False)
        if not lasting:
            return []
    try:
        choices = contract.selector(task).best(lasting or runs)
    except UserError as error:
        instead = "; the zoo is served instead" if zoo.zoo(task) else ""
        errors.print(f"note: {error}{instead}", markup=False)
        return []
    return of_choices(choices, storage)


def of_choices(choices: Mapping[str, Choice], storage: Storage) -> list[Model]:
    """Export what was chosen, by name."""
    tables = kept_tables(storage)
    return [of_run(it.run, it.line().partition(": ")[2], storage, tables, name) for name, it in sorted(choices.items())]


def best_of(named: str, storage: Storage) -> list[Model]:
    """Return the best of the runs that fill a table.

    A table's numbers are what it shows: whoever chooses by them shows the luck of the best. So the runs are compared by
    their task's own rule, or by `METRIC` on the validation split, and never by the table's scores.

    Args:
        named: `task/table`, or `task/table/metric`.
        storage: where the table was filled.

    Raises:
        UserError: where there is no such table or metric, or the task has no validation split.
    """
    task, table, metric = (*named.split("/", 2), "", "")[:3]
    find_table(f"{task}/{table}")
    filled = [kept for kept in kept_tables(storage) if kept.name == f"{task}/{table}"]
    digits = {run for kept in filled for run in runs_of(kept)}
    runs = [run for run in eligible_runs(task, storage) if run.fingerprint in digits]
    if not runs:
        raise UserError(f"--best {named}: {storage} has no run of it; `retable reproduce {task}/{table}` makes them")
    rule = contract.selector(task)
    choices = by_metric(named, metric, rule, runs) if metric else rule.best(runs)
    return of_choices(choices, storage)


def by_metric(named: str, metric: str, rule: Any, runs: Sequence[api.TrainedRun]) -> dict[str, Choice]:
    """Return the best of runs by a metric on the validation split; the larger it is, the better.

    Raises:
        UserError: where the task has no such split, or scores no such metric.
    """
    task = runs[0].task
    validation = {"split": "validation"}
    try:
        override(task.view(), validation)
    except UserError as error:
        prefix = named.removesuffix(f"/{metric}")
        raise UserError(
            f"--best {named}: {metric} is what the table shows, and {task.name} has no validation split to choose by; "
            f"--best {prefix} chooses among the same runs by numbers that no table shows"
        ) from error

    def score(run: api.TrainedRun) -> float:
        scores = run.score(validation)
        if metric not in scores:
            raise UserError(f"--best {named}: no metric {metric!r}{nearest(metric, scores)}")
        return scores[metric]

    name, alike = getattr(rule, "NAME", task.name), getattr(rule, "comparable", same_data)
    return {name: choose(name, runs, score, f"validation {metric}", comparable=alike, smoke=True)}


def of_run(run: api.TrainedRun, why: str, storage: Storage, tables: Sequence[FilledTable], name: str = "") -> Model:
    """Export a run; it names the first of the tables' cells that it fills.

    Raises:
        UserError: where it is not finished, has diverged, or is of a kind that nobody can serve.
    """
    check_servable(run.task.name)
    if run.diverged:
        raise UserError(f"run {run.fingerprint} has diverged: its weights are no numbers; name another")
    model = of_file(run.task.name, name, contract.exporter(run.task.name).write_export(run), why, storage)
    cell = cell_of(model, tables)
    return replace(model, about={**model.about, "cell": cell}) if cell else model


def _of_zoo(task: str, storage: Storage) -> list[Model]:
    """Return the models of a task's zoo."""
    return [of_file(task, name, zoo.read(task, name), "from the zoo", storage) for name in zoo.zoo(task)]


def of_file(task: str, name: str, data: bytes, why: str, storage: Storage) -> Model:
    """Keep an exported file, by the names under which requests know it; without a name, also by its run's first digits.

    Raises:
        UserError: where the file is none of the task's.
    """
    exporter = contract.exporter(task)
    exported = exporter.read_export(data, name or task)
    if hasattr(exporter, "served_as"):
        known_as, variant, facts = exporter.served_as(exported, name)
    else:
        known_as, variant, facts = name or task, "", {"files": sorted(contract.answers(task).SUFFIXES)}
    if not name:
        variant = variant or str(exported.about.get("fingerprint", ""))[:8]
    return keep(data, storage, task=task, name=known_as, variant=variant, why=why, about={**exported.about, **facts})


def runs_of(table: FilledTable) -> set[str]:
    """Return the fingerprints of the runs behind a table's numbers, those included that others were joined of."""
    replicates = [replicate for row in table.rows for replicate in row.replicates]
    return {origin.run for replicate in replicates for origin in replicate.origin.parts()}


def cell_of(model: Model, tables: Sequence[FilledTable]) -> str:
    """Return the first cell that a model's run alone fills at its epoch, `table/row/column`; empty where there is none.

    Tables of another scale than the run's come last.
    """
    for table in sorted(tables, key=lambda table: table.scale != str(model.about.get("scale", ""))):
        for row in table.rows:
            indices = [index for index, replicate in enumerate(row.replicates) if fills(model, replicate.origin)]
            for column, cell in zip(table.columns, row.cells, strict=False):
                if any(cell.values[index] is not None for index in indices):
                    return f"{table.name}/{row.label}/{column.header}"
    return ""
