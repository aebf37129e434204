"""The zoos: files of trained models that come with the tasks, so that a fresh machine has something real to serve."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from retable.platform import extras
from retable.platform.errors import UserError, nearest
from retable.platform.task import folder

SUFFIXES = (".safetensors", ".rtsn")
"""Of files that hold a model."""

LONG = ("config", "metrics", "versions", "data_digest")
"""What a file says of itself and a list does not; the command stands for the config."""


def zoo(task: str) -> dict[str, Path]:
    """Return the files in a task's zoo, by name; the task is not imported for that.

    Raises:
        UserError: if there is no such task.
    """
    files = sorted((folder(task) / "zoo").glob("*"))
    return {file.stem: file for file in files if file.suffix in SUFFIXES}


def find(task: str, name: str) -> Path:
    """Return a file of a task's zoo.

    Raises:
        UserError: if there is none of that name.
    """
    there = zoo(task)
    if name not in there:
        raise UserError(f"the zoo of {task} has no {name!r}{nearest(name, there)}")
    return there[name]


def about(task: str, name: str) -> Mapping[str, Any]:
    """Return what a file of a task's zoo says of itself.

    Raises:
        UserError: if there is none of that name, it is damaged, or the task's extra is not installed.
    """
    file = find(task, name)
    extras.check(task)
    said: Mapping[str, Any] = import_module(f"retable.tasks.{task}.export").read_export(file.read_bytes(), name).about
    return said


def show(task: str) -> list[str]:
    """Return lines that list a task's zoo and say of each file what it is and where it is from."""
    lines = []
    for name, file in zoo(task).items():
        lines.append(f"{name}  {file.stat().st_size / 1e6:.2f} MB")
        lines += [f"  {key}: {value}" for key, value in about(task, name).items() if key not in LONG]
    return lines
