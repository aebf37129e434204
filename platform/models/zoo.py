"""The zoos: files of trained models that come with the tasks, so that a fresh machine has something real to serve."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open

from retable.platform.errors import UserError, nearest
from retable.platform.models import contract
from retable.platform.spec import extras
from retable.platform.spec.task import find_description, folder

_LISTED = {"data_description": "data", "licence": "license", "command": "trained by", "trained_by": "trained by"}
"""Metadata of a file that a list shows, and their labels; `retable zoo --json` shows all of a file's metadata."""


def zoo(task: str) -> dict[str, Path]:
    """Return the models in a task's zoo and their files, by name; the task's code that trains is not imported for that.

    Files that do not end as the task's exports do hold other things. One of several models names them in its metadata,
    as `models`.

    Raises:
        UserError: if there is no such task.
    """
    suffix = find_description(task).model_suffix
    files = sorted((folder(task) / "zoo").glob(f"[!.]*{suffix}"), key=lambda file: file.stem)
    return {name: file for file in files for name in names(file)}


def find_file(task: str, name: str) -> Path | None:
    """Return the file that a name means: the one of that path, or that of a model in a task's zoo; None: neither."""
    return Path(name) if Path(name).is_file() else zoo(task).get(name)


def names(file: Path) -> list[str]:
    """Return the names of the models in a file: those in its metadata, else the file's name."""
    if file.suffix != ".safetensors":
        return [file.stem]
    with safe_open(file, "numpy") as opened:
        listed = (opened.metadata() or {}).get("models")
    return [str(name) for name in json.loads(listed)] if listed else [file.stem]


def digest(task: str, name: str) -> str:
    """Return the SHA-256 of the file that holds a model of a task's zoo; empty where there is none."""
    shipped = zoo(task)
    return hashlib.sha256(shipped[name].read_bytes()).hexdigest() if name in shipped else ""


def read(task: str, name: str) -> bytes:
    """Return the file of a model in a task's zoo; out of a file of several, a file of that one alone.

    Raises:
        UserError: if there is none of that name, or the task's extra is not installed.
    """
    shipped = zoo(task)
    if name not in shipped:
        raise UserError(f"the zoo of {task} has no {name!r}{nearest(name, shipped)}")
    data = shipped[name].read_bytes()
    if names(shipped[name]) == [shipped[name].stem]:
        return data
    extras.check(task)
    return contract.exporter(task).one_of(data, name)


def about(task: str, name: str) -> Mapping[str, Any]:
    """Return the metadata of a file of a task's zoo.

    Raises:
        UserError: if there is none of that name, it is damaged, or the task's extra is not installed.
    """
    data = read(task, name)
    extras.check(task)
    return contract.exporter(task).read_export(data, name).about


def show(task: str) -> list[str]:
    """Return lines that list a task's zoo: of each model its score, data, license, and how it was trained."""
    lines = []
    for name, file in zoo(task).items():
        shared = f", one file with {len(names(file)) - 1} more" if len(names(file)) > 1 else ""
        lines.append(f"{name}  {file.stat().st_size / 1e6:.2f} MB{shared}")
        metadata = about(task, name)
        if score := metadata.get("score"):
            lines.append(f"  score: {score['metric']} {score['value']:.4g}, on {score['on']}")
        commit = f" (at commit {metadata['commit'][:7]})" if metadata.get("commit") else ""
        lines += [
            f"  {label}{commit * (key == 'command')}: {metadata[key]}"
            for key, label in _LISTED.items()
            if key in metadata
        ]
    return lines
