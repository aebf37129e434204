"""Results that come with the tasks: packed at `small`, and shown beside what is measured here.

They lie apart from the user's own runs, in `<storage>/measured/<task>-<digest>`, so `--scale small` trains anew.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from retable.platform.report.packing import unpack
from retable.platform.report.write import (
    keep_section,
    request_of,
    request_slug,
    shipped_sections,
    table_of,
    task_of,
)
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


def place_of(task: str, bundle: Path, storage: Storage) -> Storage:
    """Return where the bundle of a task is unpacked."""
    return storage / f"measured/{task}-{sha256(bundle.read_bytes())[:8]}"


@contextmanager
def taking_in(tables: Collection[str], storage: Storage) -> Iterator[Callable[[], object]]:
    """Do what `take_in` does, and draw these results, in another process while a block runs; wait for it at the end.

    The block gets a function that waits at once. Nothing is begun where their bundles are unpacked, nor on a bucket,
    whose text lacks options. What that process could not do, `take_in` does, and says why not.
    """
    bundles = {task: file for task in map(task_of, tables) if (file := bundle_of(task))}
    if not storage.is_local or all(place_of(task, file, storage).exists(_WHOLE) for task, file in bundles.items()):
        yield lambda: None
        return
    command = [sys.executable, "-m", __name__, str(storage), *tables]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as beside:
        try:
            yield beside.wait
        except BaseException:
            beside.terminate()
            raise


def take_in(tables: Collection[str], storage: Storage) -> None:
    """Unpack the bundles of these tables' tasks, where that was not done, and fill the tables from them."""
    for task in dict.fromkeys(map(task_of, tables)):
        file = bundle_of(task)
        if file is None:
            continue
        unpacked = place_of(task, file, storage)
        if not unpacked.exists(_WHOLE):
            for old in storage.list("measured"):  # of a former version of the package
                if old.rpartition("-")[0] == task and (storage / f"measured/{old}").root != unpacked.root:
                    storage.remove(f"measured/{old}")
            unpack(file, unpacked)
            unpacked.write(_WHOLE, "")
        for name in tables:
            if task_of(name) == task:
                _fill(name, unpacked, storage)


def _fill(name: str, unpacked: Storage, storage: Storage) -> None:
    request = request_of(name, SCALE, {})
    path = f"tables/{request_slug(request)}.json"
    if unpacked.exists(path) or storage.exists(path):  # the user's own comes first
        return
    with unpacked.snapshot() as snapshot:
        part = keep_section(request, table_of(request), unpacked, storage / "report", snapshot)
    if part.filled:
        unpacked.write_json(path, request)


if __name__ == "__main__":
    _storage = Storage.open(sys.argv[1])
    take_in(sys.argv[2:], _storage)
    shipped_sections(_storage, _storage / "report")
