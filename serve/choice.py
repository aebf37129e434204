"""Which files are served: runs that were named, the best of a storage, or the zoo of a fresh machine."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from retable.platform import api, zoo
from retable.platform.best import usable
from retable.platform.board import errors
from retable.platform.errors import UserError, nearest
from retable.platform.storage import Storage
from retable.serve.models import Model, keep

TASKS = ("weather", "style", "audio", "rl")
"""What can be served."""
NAMED = "named by --run"
"""Why a run is served that the user chose."""


def choose_models(
    tasks: Sequence[str], runs: Sequence[str], from_zoo: bool, storage: Storage, index: str = "", anyway: bool = False
) -> list[Model]:
    """Export what is served to `<storage>/served`, and return it, each with the reason.

    Args:
        tasks: which; none: all that there is something of.
        runs: fingerprints, or their first digits: these and no others.
        from_zoo: the zoo's files, whatever runs there are.
        storage: where runs lie, and exported files go.
        index: of recordings, made by the model of audio that is served; none: what the server itself keeps.
        anyway: whether a model of audio of the smoke scale may be served.

    Raises:
        UserError: on an unknown task, a run that cannot be served, or where there is nothing to serve.
    """
    for task in tasks:
        if task not in TASKS:
            raise UserError(f"serve: no task {task!r}{nearest(task, TASKS)}")
    if runs and from_zoo:
        raise UserError("--run and --zoo exclude each other; leave one out")
    models: list[Model] = []
    if runs:
        models = [of_run(api.load(run, storage), NAMED, storage) for run in dict.fromkeys(runs)]
        if others := {model.task for model in models} - set(tasks or TASKS):
            raise UserError(f"--run names a run of {min(others)}, which is not among the tasks to serve; add it")
    else:
        for task in tasks or TASKS:
            models += ([] if from_zoo else best(task, storage)) or of_zoo(task, storage)
    models = with_index(models, index, anyway, storage)
    if absent := sorted(set(tasks) - {model.task for model in models}):
        raise UserError(f"serve: nothing of {absent[0]} here: train a run of it, or leave it out")
    if not models:
        raise UserError(f"{storage}: no runs, and no zoo; train something first, e.g. `retable train rl`")
    return models


def with_index(models: Sequence[Model], index: str, anyway: bool, storage: Storage) -> list[Model]:
    """Return the models, of those of audio only the one that an index was made with: others mean nothing there.

    Without an index the first one: it searches the recordings that the server keeps. A model of the smoke scale, to
    which all words are alike, gives way to the zoo's, unless it was named.

    Raises:
        UserError: where there is no such index, or its model, or the one named, is of the smoke scale.
    """
    others = [model for model in models if model.task != "audio"]
    own = [model for model in models if model.task == "audio"]
    if index and own:
        made_with = import_module("retable.tasks.audio.search").open_index(Path(index)).info["model"]
        own = [model for model in own if model.about.get("weights") == made_with]
        if not own:
            raise UserError(f"--index {index}: made with another model; name its run with --run, or index again")
    if own and own[0].about.get("scale") == "smoke" and not anyway:
        line = f"audio: run {own[0].about.get('fingerprint')} is of the smoke scale: it tells no sounds apart"
        if index or own[0].why == NAMED:
            raise UserError(f"{line}; use a run of --scale small or more, or add --anyway")
        errors.print(f"note: {line}; the zoo is served instead", markup=False)
        own = of_zoo("audio", storage)
    return [*others, *own[:1]]


def best(task: str, storage: Storage) -> list[Model]:
    """Return the best runs of a task on a storage; none where there are none, or none has the number that says so."""
    if not storage.folders(f"runs/{task}"):
        return []
    try:
        found = import_module(f"retable.tasks.{task}.best").best(usable(task, storage))
    except UserError as error:
        errors.print(f"note: {error}; the zoo is served instead", markup=False)
        return []
    return [of_run(it.run, it.line().partition(": ")[2], storage, name) for name, it in sorted(found.items())]


def of_run(run: api.TrainedRun, why: str, storage: Storage, name: str = "") -> Model:
    """Export a run.

    Raises:
        UserError: where it is not finished, has diverged, or is of a kind that nobody can serve.
    """
    if run.task.name not in TASKS:
        raise UserError(f"run {run.fingerprint} is of {run.task.name}; what can be served: {', '.join(TASKS)}")
    if run.diverged:
        raise UserError(f"run {run.fingerprint} has diverged: its weights are no numbers; name another")
    return of_file(run.task.name, name, reader(run.task.name).write_export(run), why, storage)


def of_zoo(task: str, storage: Storage) -> list[Model]:
    """Return the files of a task's zoo."""
    return [of_file(task, name, file.read_bytes(), "from the zoo", storage) for name, file in zoo.zoo(task).items()]


def of_file(task: str, name: str, data: bytes, why: str, storage: Storage) -> Model:
    """Keep an exported file, by the names under which requests know it.

    Raises:
        UserError: where the file is none of the task's.
    """
    exported = reader(task).read_export(data, name or task)
    place, variant = named(task, name, exported)
    about = {**exported.about, **known(task, exported)}
    return keep(data, storage, task=task, name=place, variant=variant, why=why, about=about)


def known(task: str, exported: Any) -> dict[str, Any]:
    """Return what is to be known of a file beyond what it says of itself: how to ask its model."""
    if task == "audio":  # what tells whether an index was made with it
        fingerprint = import_module("retable.tasks.audio.embedder").weights_fingerprint
        return {"weights": fingerprint(exported.config, exported.weights)}
    if task == "rl":
        return {"states": int(exported.info["states"]), "actions": int(exported.info["actions"])}
    return {}


def named(task: str, name: str, exported: Any) -> tuple[str, str]:
    """Return what requests call a model, and its variant: policies are known by their environment.

    The variant of one that has no name is its run's first digits.
    """
    digits = str(exported.about.get("fingerprint", ""))[:8]
    if task == "rl":
        environment = str(exported.config.environment)
        return environment, name.removeprefix(environment).strip("-_") or digits
    if task == "style":
        painted = "-".join(exported.about.get("paintings", ())) or "style"
        return (name, "") if name else (painted, digits)
    return (name or task, "" if name else digits)


def reader(task: str) -> Any:
    """Return the module that reads and writes a task's exported files."""
    return import_module(f"retable.tasks.{task}.export")
