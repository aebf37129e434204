"""Read cache: the contents of a storage at one moment, as plans and reports read the same files repeatedly.

What plans and listings ask of finished runs is packed into one file a task, `<storage>/.index/<task>.packed`. It works
as git's index does: an entry holds the stamps (size and time) of the files that it was made from, and counts only while
the storage shows the same ones. It is a cache, too: absent, damaged or old, it is made again from the files. Of two who
write it at once the last one wins, and both are right.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from pyarrow import fs

from retable.platform.errors import disk_errors
from retable.platform.store.patience import patient

T = TypeVar("T")
_LISTED = ("runs", "combinations", "measurements", "tables")
"""Folders that are listed whole, in one go; of others each path is asked for by itself."""

Stamp = list[int] | list[str] | None
"""State of a path: size and time of a file, the names in a folder; None where nothing is there."""

FORMAT = 1
_RACY = 3 * 10**9
"""Nanoseconds: a file that changed so shortly before it was looked at may change again under the same stamp."""

Entry = dict[str, Any]
"""Of a run: `files` (path in its folder -> [size, time, what was kept of it]), `folder` (the folder's own time in ns,
0 where it is not known) and `bytes` (of all its files, when it was listed)."""


@dataclass
class Index:
    """Entries of a task's finished runs. They are parsed when asked for: a line a run is all that is held."""

    lines: dict[str, bytes] = field(default_factory=dict)
    """Fingerprint -> the newest stamp in its entry, and the entry as JSON."""
    added: dict[str, Entry] = field(default_factory=dict)
    """Entries that were looked up since the index was read, by fingerprint."""
    last: tuple[str, Entry] = ("", {})
    """The run that was asked for last, with its entry: a run's files are asked for one after another."""

    def entry(self, run: str) -> Entry:
        """Return the entry of a run; one without files if there is none."""
        if run in self.added:
            return self.added[run]
        last = self.last  # other threads ask too
        if last[0] == run:
            return last[1]
        try:
            entry: Entry = json.loads(self.lines[run].partition(b" ")[2])
            entry = entry if isinstance(entry["files"], dict) else {"files": {}}
        except (KeyError, ValueError, TypeError, RecursionError):
            entry = {"files": {}}
        self.last = (run, entry)
        return entry

    def kept(self, run: str, path: str, stamp: object) -> Any:
        """Return the value stored for a run's file, if its stamp is this one; else None."""
        stored = self.entry(run)["files"].get(path)
        same = isinstance(stored, list) and len(stored) == 3 and stored[:2] == stamp
        return stored[2] if same else None

    def note(self, run: str, files: Mapping[str, object], folder: int = 0, size: int = 0) -> None:
        """Record the values of a run's files: path -> [size, time, value]."""
        entry = self.added[run] = self.entry(run)
        entry["files"] |= files
        if folder or size:
            entry |= {"folder": folder, "bytes": size}

    def packed(self, alive: Collection[str], seconds: float) -> bytes:
        """Return the file of the index.

        Args:
            alive: the runs that are there; others are dropped.
            seconds: since the storage was listed: what changed after that, or just before, will not be trusted.
        """
        merged = self.lines | {run: line for run, entry in self.added.items() if (line := _line_of(entry))}
        head = json.dumps({"format": FORMAT, "seconds": seconds}).encode()
        return gzip.compress(
            b"\n".join([head, *(f"{run} ".encode() + merged[run] for run in merged if run in alive)]), 1
        )


def _line_of(entry: Entry) -> bytes:
    """Return an entry's line; empty if the storage reports no times, as no stamp could be trusted."""
    times = [stored[1] for stored in entry["files"].values()]
    if not times or not all(isinstance(moment, int) and moment > 0 for moment in times):
        return b""
    newest = max(*times, entry.get("folder", 0), 0)
    return f"{newest} {json.dumps(entry, separators=(',', ':'))}".encode()


def _index_path(task: str) -> str:
    """Return where the index of a task's runs lies. It is no `.gz`: pyarrow would unpack that as it is read."""
    return f".index/{task}.packed"


def _unpack(data: bytes, written: int) -> Index:
    """Return the index in a file's bytes; an empty one where they are damaged, or of another format.

    Args:
        data: the file's.
        written: when, ns of the storage's clock.
    """
    try:
        with gzip.open(io.BytesIO(data)) as lines:  # line by line: all at once would be in memory three times
            about = json.loads(next(lines))
            if about["format"] != FORMAT:
                return Index()
            trusted = written - int(about["seconds"] * 1e9) - _RACY
            pairs = (line.partition(b" ") for line in lines)
            return Index({run.decode(): rest for run, _, rest in pairs if int(rest.partition(b" ")[0]) < trusted})
    except (OSError, EOFError, StopIteration, zlib.error, ValueError, KeyError, TypeError, RecursionError):
        return Index()


@dataclass
class Snapshot:
    """A cached listing of a storage with parsed files. Later writes are not seen."""

    filesystem: fs.FileSystem
    root: str
    folders: dict[str, dict[str, tuple[int, int] | None]] = field(default_factory=dict)
    """Path of a listed folder, of at most two parts -> name -> size and time of a file; None of a folder."""
    works: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    """Path of a folder of three parts, such as a run's -> path in there of each file -> its size and time."""
    listed: set[str] = field(default_factory=set)
    values: dict[object, object] = field(default_factory=dict)
    """Contents that were read, and the values made of them."""
    touched: dict[str, Stamp] = field(default_factory=dict)
    """Every path that was asked for, and what was there: while none of them changes, nor does what was made of them."""
    indexes: dict[str, Index] = field(default_factory=dict)
    """Task -> the index of its runs, read when it is first asked for."""
    begun: float = field(default_factory=time.monotonic)
    """Time of creation, before anything was listed, in seconds of this process's clock."""

    def path_of(self, filesystem: fs.FileSystem, path: str) -> str | None:
        """Return a path relative to the root, or None where it lies elsewhere."""
        if (path != self.root and not path.startswith(f"{self.root}/")) or not self.filesystem.equals(filesystem):
            return None
        return path[len(self.root) + 1 :]

    def stamp(self, path: str) -> Stamp:
        """Return the stamp of a path, and record the read."""
        if path not in self.touched:
            self.touched[path] = self._listed(path) if self._covers(path) else self._asked(path)
        return self.touched[path]

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a folder; of none, and of a file, an empty list."""
        content = self.stamp(path) or []
        return [name for name in content if isinstance(name, str)]

    def memoize(self, key: object, make: Callable[[], T]) -> T:
        """Return `make()`, which is called the first time only."""
        if key not in self.values:
            self.values[key] = make()
        return cast(T, self.values[key])

    def read_indexed(self, path: str, make: Callable[[], T | None]) -> T | None:
        """Return `make()`, a summary of a finished run's file: from the index if that has this version of the file.

        Args:
            path: of a file in a run's folder, `runs/<task>/<fingerprint>/...`.
            make: reads the file; None is not kept.
        """
        stamp = self.stamp(path)
        _, task, run, inner = path.split("/", 3)
        index = self.index(task)
        value: T | None = index.kept(run, inner, stamp)
        if value is None and stamp is not None:
            parsed_key = ("json", path)
            before = parsed_key in self.values
            value = make()
            if not before:
                self.values.pop(parsed_key, None)  # of a hundred thousand results, the metrics would fill the memory
            if value is not None:
                index.note(run, {inner: [*stamp, value]})
        return value

    def is_indexed(self, path: str) -> bool:
        """Return whether `read_indexed` answers without reading the file, or no such file exists."""
        _, task, run, inner = path.split("/", 3)
        stamp = self._listed(path) if self._covers(path) else None
        return stamp is None or self.index(task).kept(run, inner, stamp) is not None

    def below(self, path: str) -> Mapping[str, tuple[int, int]]:
        """Return every file below a listed folder of three parts, such as a run's, with its size and time."""
        self._covers(path)
        return self.works.get(path, {})

    def index(self, task: str) -> Index:
        """Return the index of a task's runs."""
        if task not in self.indexes:
            content = self._with_time(_index_path(task))
            self.indexes[task] = _unpack(*content) if content else Index()
        return self.indexes[task]

    def keep_index(
        self,
        write: Callable[[str, bytes], None],
        least: int = 50,
        alive: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        """Write the indexes to which at least so many runs were added.

        Args:
            write: (path, bytes).
            least: of fewer, the next reader reads the files themselves.
            alive: task -> its runs that are there; none: those that were listed.
        """
        for task, index in self.indexes.items():
            if len(index.added) >= least:
                runs = self.folders.get(f"runs/{task}", {}) if alive is None else alive.get(task, ())
                write(_index_path(task), index.packed(runs, time.monotonic() - self.begun))

    @contextmanager
    def record_reads(self) -> Iterator[dict[str, Stamp]]:
        """Yield the paths that the block reads, with their stamps."""
        before, self.touched = self.touched, {}
        touched = self.touched
        try:
            yield touched
        finally:
            self.touched = before | touched

    def _covers(self, path: str) -> bool:
        top = path.split("/", 1)[0]
        if top in _LISTED and top not in self.listed:
            self._list(top)
        return top in _LISTED

    @patient
    def _list(self, top: str) -> None:
        with disk_errors(f"{self.root}/{top}"):
            for name, stamp in listed(self.filesystem, f"{self.root}/{top}"):
                self._add(f"{top}/{name}", stamp)
        self.listed.add(top)  # not before: a listing that fails is asked for again

    def _add(self, path: str, stamp: tuple[int, int]) -> None:
        """Add a file. Names are shared: a storage has millions of files, of few names."""
        top, *parts = path.split("/", 3)
        if len(parts) == 3:
            work = f"{top}/{parts[0]}/{parts[1]}"
            if work in self.works:
                self.works[work][sys.intern(parts[2])] = stamp
                return
            self.works[work] = {sys.intern(parts[2]): stamp}
        above = top
        for depth, name in enumerate(parts[:2]):
            is_file = depth == len(parts) - 1
            self.folders.setdefault(above, {})[name] = stamp if is_file else None
            above = f"{above}/{name}"

    def _listed(self, path: str) -> Stamp:
        parts = path.split("/", 3)
        work = self.works.get("/".join(parts[:3]))
        if work is not None:
            inner = parts[3] if len(parts) == 4 else ""
            if inner in work:
                return list(work[inner])
            start = f"{inner}/" if inner else ""
            names = {file[len(start) :].split("/", 1)[0] for file in work if file.startswith(start)}
            return sorted(names) or None
        if path in self.folders:
            return sorted(self.folders[path])
        above, _, name = path.rpartition("/")
        stamp = self.folders.get(above, {}).get(name)
        return list(stamp) if stamp else None

    @patient
    def _asked(self, path: str) -> Stamp:
        with disk_errors(f"{self.root}/{path}"):
            info = self.filesystem.get_file_info(f"{self.root}/{path}" if path else self.root)
            if info.type != fs.FileType.Directory:
                return [info.size, info.mtime_ns] if info.type == fs.FileType.File else None
            names = entries_in(self.filesystem, info.path)
        return sorted(name for name in names if not name.startswith(".writing-"))

    @patient
    def _with_time(self, path: str) -> tuple[bytes, int] | None:
        with disk_errors(f"{self.root}/{path}"):
            info = self.filesystem.get_file_info(f"{self.root}/{path}")
            if info.type != fs.FileType.File:
                return None
            with self.filesystem.open_input_stream(info.path) as stream:
                return stream.read(), info.mtime_ns or 0


def listed(filesystem: fs.FileSystem, folder: str, temporary: bool = False) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield every file below a folder, by its path from there, with its size and time (ns).

    `temporary`: instead those that are being written, or were half written; not those in folders without permission.
    """
    if isinstance(filesystem, fs.LocalFileSystem):  # a list of a million pyarrow's objects would take half a gigabyte
        yield from _walked(folder, "", temporary)
        return
    selector = fs.FileSelector(folder, allow_not_found=True, recursive=True)
    infos = filesystem.get_file_info(selector)
    while infos:
        info = infos.pop()  # and its memory is free: there may be a million
        if info.type == fs.FileType.File and info.base_name.startswith(".writing-") == temporary:
            yield info.path[len(folder) + 1 :], (info.size, info.mtime_ns)


def entries_in(filesystem: fs.FileSystem, folder: str) -> dict[str, bool]:
    """Return the names in a folder, and whether each is a folder; without those that are no text, and of none, none."""
    if isinstance(filesystem, fs.LocalFileSystem):
        with suppress(FileNotFoundError), os.scandir(folder) as entries:
            return {entry.name: entry.is_dir() for entry in entries if is_text(entry.name)}
        return {}  # pyarrow, if it were asked now, fails where another process makes the folder meanwhile
    infos = filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    return {info.base_name: info.type == fs.FileType.Directory for info in infos}


def is_text(name: str) -> bool:
    """Return whether a local file's name is valid text; pyarrow fails on others."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


def _walked(folder: str, above: str, temporary: bool) -> Iterator[tuple[str, tuple[int, int]]]:
    try:
        with os.scandir(f"{folder}/{above}") as entries:
            for entry in entries:
                if not is_text(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=not temporary):
                    yield from _walked(folder, f"{above}{entry.name}/", temporary)
                elif entry.name.startswith(".writing-") == temporary:
                    with suppress(FileNotFoundError):  # it went meanwhile, or is a link to nothing
                        about = entry.stat(follow_symlinks=not temporary)
                        yield f"{above}{entry.name}", (about.st_size, about.st_mtime_ns)
    except (FileNotFoundError, NotADirectoryError):
        return
    except PermissionError:
        if not temporary:
            raise


_current: ContextVar[Snapshot | None] = ContextVar("snapshot", default=None)
"""The snapshot of this thread; threads that a block starts see it where they run in a copy of its context."""


def current(filesystem: fs.FileSystem, path: str) -> tuple[Snapshot, str] | None:
    """Return the snapshot that answers for a path, and the path relative to it; None where there is none."""
    taken = _current.get()
    relative = None if taken is None else taken.path_of(filesystem, path)
    return None if taken is None or relative is None else (taken, relative)


@contextmanager
def take(filesystem: fs.FileSystem, root: str) -> Iterator[Snapshot]:
    """Answer this thread's reads below `root` from one snapshot in the block; nested calls below it share it."""
    outer = _current.get()
    taken = outer if outer and outer.path_of(filesystem, root) is not None else Snapshot(filesystem, root)
    before = _current.set(taken)
    try:
        yield taken
    finally:
        _current.reset(before)
