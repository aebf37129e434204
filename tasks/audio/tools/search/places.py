"""The recordings of a folder: where they lie, and which of them are the same.

A recording is known by its content, a SHA-256 of its bytes, and by its places: paths below the folder. A file whose
path, size and time of change are known is not read again; any other one is hashed, which costs far less than hearing
it. So a folder that was moved, mounted elsewhere or sorted anew is heard no second time.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from retable.platform.errors import UserError
from retable.platform.store.run import file_digest
from retable.tasks.audio.collect.files import SUFFIXES, irregular, is_sound

SCHEMA = pa.schema([("path", pa.string()), ("bytes", pa.int64()), ("modified", pa.int64()), ("content", pa.string())])
"""Columns of `places-*.arrow`: a row is a `File`."""


@dataclass(frozen=True)
class File:
    """A recording in a folder; one that changed is another."""

    path: str
    """Below the folder; absolute where it was added from elsewhere."""
    bytes: int
    modified: int
    """Nanoseconds, as the disk says."""
    content: str = ""
    """SHA-256 of its bytes; empty until it is identified."""


def file_at(name: str, path: Path) -> File:
    """Return a file by the name that it has in an index, unidentified.

    Raises:
        OSError: where it is missing, or a pipe or device, which might be read without end.
    """
    status = path.stat()
    if why := irregular(status.st_mode):
        raise OSError(errno.EINVAL, why)
    return File(name, status.st_size, status.st_mtime_ns)


def scan(folder: Path) -> tuple[list[File], list[str], dict[str, int]]:
    """Return the recordings below a folder by their names, sorted; what cannot be one, a line each; and what else lies.

    Linked folders are followed, each folder once. Hidden files and folders are not looked at.

    Returns:
        The recordings, the lines, and how many other files there are by the ends of their names.

    Raises:
        UserError: where there is no such folder, or no recording in it.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no folder; give one that holds recordings")
    files: list[File] = []
    failures: list[str] = []
    others: Counter[str] = Counter()
    for path in _below(folder, failures):
        if not is_sound(path):
            others[path.suffix.lower() or "no suffix"] += 1
            continue
        try:
            below = path.relative_to(folder).as_posix()
            below.encode()
            files.append(file_at(below, path))
        except UnicodeEncodeError:
            failures.append(f"{os.fsencode(path)!r}: its name is not UTF-8; rename it")
        except OSError as error:
            failures.append(f"{path}: {error.strerror}")
    if not files:
        raise UserError(f"{folder}: no recordings ({', '.join(sorted(SUFFIXES))})")
    return sorted(files, key=lambda file: file.path), failures, dict(others)


def _below(folder: Path, failures: list[str]) -> Iterator[Path]:
    """Yield the files below a folder, through links too; a folder that was visited is not visited again."""
    visited = {folder.resolve()}

    def unreadable(error: OSError) -> None:
        failures.append(f"{error.filename}: {error.strerror}")

    for parent, folders, names in os.walk(folder, followlinks=True, onerror=unreadable):
        visible = [name for name in sorted(folders) if not name.startswith(".")]
        new = []
        for name in visible:
            if (real := Path(parent, name).resolve()) not in visited:
                visited.add(real)
                new.append(name)
        folders[:] = new
        yield from (Path(parent, name) for name in names if not name.startswith("."))


def identify(folder: Path, files: Sequence[File], earlier: Iterable[File]) -> tuple[list[File], list[str]]:
    """Return files with their contents, and what is wrong with those that cannot be read.

    Args:
        folder: which they lie below.
        files: of `scan`.
        earlier: identified before; one with the same path, size and time of change is not read again.
    """
    contents = {replace(file, content=""): file.content for file in earlier}
    identified, failures = [], []
    for file in files:
        try:
            content = contents.get(file) or file_digest(folder / file.path)
        except OSError as error:
            failures.append(f"{folder / file.path}: {error.strerror}")
        else:
            identified.append(replace(file, content=content))
    return identified, failures


def table(files: Sequence[File]) -> pa.Table:
    """Return files as a table."""
    return pa.Table.from_pylist([vars(file) for file in files], schema=SCHEMA)


def files_of(tables: Iterable[pa.Table]) -> list[File]:
    """Return the files of tables."""
    columns = ([one[name].to_pylist() for name in SCHEMA.names] for one in tables)
    return [File(*row) for values in columns for row in zip(*values, strict=True)]
