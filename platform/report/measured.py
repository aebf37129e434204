"""Results that come with the tasks: packed at `small`, and shown beside what is measured here.

They lie apart from the user's own runs, in `<storage>/measured/<task>-<digest>`, so `--scale small` trains anew.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from retable.platform.report.packing import unpack
from retable.platform.report.write import keep_section, request_of, request_slug, table_of, task_of
from retable.platform.spec.task import folder
from retable.platform.store.run import sha256
from retable.platform.store.storage import Storage

SCALE = "small"
_WHOLE = "unpacked"
"""File of a folder into which a whole bundle was unpacked; without it, unpacking was interrupted and begins again."""


def bundle_of(task: str) -> Path | None:
    """Return the bundle that comes with a task, if there is one; the task is not imported for that."""
    file = folder(task) / "results" / f"{SCALE}.bundle"
    return file if file.is_file() else None


def take_in(tables: Collection[str], storage: Storage) -> None:
    """Unpack the bundles of these tables' tasks, where that was not done, and fill the tables from them."""
    for task in dict.fromkeys(map(task_of, tables)):
        file = bundle_of(task)
        if file is None:
            continue
        place = storage / f"measured/{task}-{sha256(file.read_bytes())[:8]}"
        if not place.exists(_WHOLE):
            for old in storage.list("measured"):  # of a former version of the package
                if old.rpartition("-")[0] == task:
                    storage.remove(f"measured/{old}")
            unpack(file, place)
            place.write(_WHOLE, "")
        for name in tables:
            if task_of(name) == task:
                _fill(name, place, storage)


def _fill(name: str, place: Storage, storage: Storage) -> None:
    request = request_of(name, SCALE, {})
    path = f"tables/{request_slug(request)}.json"
    if place.exists(path) or storage.exists(path):  # the user's own comes first
        return
    with place.snapshot() as snapshot:
        part = keep_section(request, table_of(request), place, storage / "report", snapshot)
    if part.filled:
        place.write_json(path, request)
