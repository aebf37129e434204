"""Runs of the task `line` that were never trained: their files, written by hand."""

import json
import os
import time
from pathlib import Path

from retable.platform.config import override
from retable.platform.spec.table import resolve
from retable.platform.spec.task import find
from retable.platform.store.run import RunFolder

WEIGHTS = "f" * 64
"""The digest of weights that are nowhere."""


def begun(storage, at=1.0, **changes):
    """Begin a run; return its folder."""
    task = find("line")
    config = override(task.config(), changes)
    folder = RunFolder.of(storage, task, config)
    made = {"host": "node", "scale": "smoke", "commit": "c" * 40, "versions": {"torch": "1"}, "data": {"digest": "d"}}
    folder.begin(config, 1, made)
    folder.write_history(
        [{"epoch": epoch, "step": epoch * 8, "time": at + 10 * epoch, "loss": 1.0} for epoch in (1, 2)]
    )
    return folder


def finished(storage, metrics=None, entries=None, **changes):
    """Write a finished run, with a view that was scored; return its folder."""
    folder = begun(storage, **changes)
    result = {"data": "d", "metrics": {"epoch": 3, "loss": 0.5} | (metrics or {}), "seconds": 2.0}
    folder.folder.write_json("result.json", {**result, "weights": {"3": WEIGHTS}, **(entries or {})})
    task = find("line")
    folder.save_scores(resolve(task.view(), task.config()), WEIGHTS, {"rmse": 0.25}, 1.0)
    return folder


def attempt(folder, age=0.0, number=1, **entries):
    """Write an attempt at a run, whose last beat was some seconds ago."""
    folder.folder.write_json(f"attempts/{number:04d}/abc.json", {"host": "other", "state": "running"} | entries)
    aged(Path(folder.folder.root) / f"attempts/{number:04d}/abc.json", age)


def aged(path, seconds=100.0):
    """Let a file or folder, with all that is in it, have been written some seconds ago."""
    path, when = Path(path), time.time() - seconds
    for each in [*(sorted(path.rglob("*"), reverse=True) if path.is_dir() else []), path]:
        os.utime(each, (when, when))


def text(storage, path):
    """Read a JSON file without the platform."""
    return json.loads((Path(storage.root) / path).read_text())
