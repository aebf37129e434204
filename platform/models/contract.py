"""Contracts of a task whose runs are exported, selected, served and used for batch prediction.

    tasks/<name>/export.py   write_export, read_export; one_of, if a file of its zoo holds several models;
                             served_as, if requests need more than the name of a model's file
    tasks/<name>/best.py     best
    tasks/<name>/answer.py   Options, SUFFIXES, target, answering

Each module is imported when it is asked for: they import torch, and what their task needs beyond it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from retable.platform.errors import UserError
from retable.platform.spec.task import folder

if TYPE_CHECKING:
    from retable.platform.models.select import Choice
    from retable.platform.trained import TrainedRun


class Exported(Protocol):
    """A model that was read from its exported file."""

    @property
    def about(self) -> Mapping[str, Any]:
        """The file's metadata (`export.about`)."""


class Exporter(Protocol):
    """Reads and writes exported files: a task's module `export`."""

    def write_export(self, run: TrainedRun, /, **options: object) -> bytes:
        """Return the exported file of a finished run."""

    def read_export(self, data: bytes, name: str, /) -> Exported:
        """Return the model in an exported file; `name` is for errors. Raises UserError if it is damaged."""

    def one_of(self, data: bytes, name: str, /) -> bytes:
        """Return an exported file of one model out of a file of several."""

    def served_as(self, model: Any, name: str, /) -> tuple[str, str, Mapping[str, object]]:
        """Return how requests name a model, its variant, and what `GET /v1/models` adds; `name` is its file's."""


class Selector(Protocol):
    """Selects the runs to serve: a task's module `best`."""

    def best(self, runs: Sequence[TrainedRun], /) -> Mapping[str, Choice]:
        """Return the best of finished runs, by the name each is served as. Raises UserError if none has a number."""


class Answers(Protocol):
    """Answers files in a batch: a task's module `answer`."""

    Options: Callable[[], Any]
    """A frozen dataclass of options; all have defaults."""
    SUFFIXES: Collection[str]
    """Suffixes of the files that it reads."""

    def target(self, source: Path, options: object, /) -> str:
        """Return the name of the answer to a file."""

    def answering(self, model: object, options: object, /) -> Callable[[Path], bytes]:
        """Return a function from a file to its answer. Raises UserError if model and options do not fit."""


MODULES = {
    "export": "reads and writes exported files",
    "best": "says which run is the best",
    "answer": "says what is made of a file",
}
"""Module -> what it is for."""


def lacks(task: str) -> list[str]:
    """Return the modules that a task does not have; with all of them its models can be served."""
    return [name for name in MODULES if not (folder(task) / f"{name}.py").exists()]


def exporter(task: str) -> Exporter:
    """Return a task's `export` module.

    Raises:
        UserError: if the task has none.
    """
    return cast(Exporter, _module(task, "export"))


def selector(task: str) -> Selector:
    """Return a task's `best` module.

    Raises:
        UserError: if the task has none.
    """
    return cast(Selector, _module(task, "best"))


def answers(task: str) -> Answers:
    """Return a task's `answer` module.

    Raises:
        UserError: if the task has none.
    """
    return cast(Answers, _module(task, "answer"))


def _module(task: str, name: str) -> object:
    if name in lacks(task):
        raise UserError(f"the task {task} has no module `{name}`, which {MODULES[name]}")
    return import_module(f"retable.tasks.{task}.{name}")
