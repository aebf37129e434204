"""One place for everything that lasts: a local folder or any `pyarrow.fs` / fsspec URI."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from pyarrow import ArrowInvalid, fs

from retable.platform.errors import Denied, Unreachable, UserError, disk_errors, passing_errors, redact, words
from retable.platform.store import cache as snapshot
from retable.platform.store.patience import has_answered, note_answer, patient

T = TypeVar("T")
Record: TypeAlias = dict[str, Any]
"""A JSON object, as it was read."""

_OBJECT_STORES = ("s3", "gcs", "abfs")
"""pyarrow's own: an object appears whole when its stream is closed, and there are no folders to make."""


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a path with the suffix of `path`, in lower case, whose file becomes `path` once it is written whole.

    Raises:
        UserError: where the disk is full, the folder cannot be made or written, or `path` is one.
    """
    writing = path.with_name(f".writing-{uuid.uuid4().hex[:8]}{path.suffix.lower()}")
    with disk_errors(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield writing
            os.replace(writing, path)
        finally:
            with suppress(OSError):
                writing.unlink()


def check_target(file: Path, overwrite: bool) -> None:
    """Refuse, before the work, a file that exists or cannot be written.

    Raises:
        UserError: then; a file that exists is no reason where `overwrite` is set.
    """
    file = file.expanduser()
    if file.exists() and not overwrite:
        raise UserError(f"{file}: exists; --overwrite replaces it")
    Storage.open(file.absolute().parent).check_writable()


def write_file(file: Path, data: bytes | str) -> None:
    """Write a file that a user names, atomically, with the folders above it.

    Raises:
        UserError: where it cannot be written.
    """
    Storage.open(file.absolute().parent).write(file.name, data)


@dataclass(frozen=True)
class Storage:
    """A folder on a file system. Small, picklable, and the same on every node.

    Every write is atomic: a reader sees the old file, the new file, or none; never half of one.
    """

    filesystem: fs.FileSystem
    root: str

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what is known of its credentials too: a worker that starts while they are renewed waits for them."""
        return _received, (self.filesystem, self.root, has_answered(self.root), has_answered(self.root, writes=True))

    @staticmethod
    def open(where: str | Path | Storage) -> Storage:
        """Open `where`: a local path, or a URI such as `s3://bucket/path?region=...` or any fsspec protocol.

        What is open already is given back.

        Raises:
            UserError: if it is no place, nothing on this machine understands the URI, or its host does not answer.
        """
        if isinstance(where, Storage):
            return where
        if not isinstance(where, (str, os.PathLike)):
            raise UserError(f"storage={where!r}: name a folder, or a URI such as s3://bucket/path")
        where = str(where)
        if not where.strip() or not where.isprintable():
            raise UserError(
                f"--storage {where!r}: no name of a place; name a folder, or a URI such as s3://bucket/path"
            )
        if re.match(r"[A-Za-z](://|[\w+.-]+:/(?!/))", where):  # a scheme of one letter, or a slash too few
            raise UserError(f"--storage {where}: no URI; write it as in s3://bucket/path, or ./ before a folder's name")
        if "://" not in where:
            if len(where) > 4000 or any(len(os.fsencode(part)) > 255 for part in where.split("/")):
                raise UserError(f"--storage {where[:40]}...: longer than the name of a folder can be; choose another")
            return Storage(fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(where)))
        if any(letter.isspace() for letter in where):  # not quoted: what a secret is cannot be told from the rest
            raise UserError("--storage: a URI holds no spaces; write %20 for each")
        try:
            filesystem, root = fs.FileSystem.from_uri(where)
        except (ArrowInvalid, NotImplementedError) as error:
            if "Unrecognized filesystem" not in str(error):
                raise UserError(f"--storage {where}: {error}") from error
            filesystem, root = _fsspec(where)
        except OSError as error:
            raise UserError(f"--storage {where}: {str(error).splitlines()[0]}") from error
        if not root.strip("/") and any(kind in filesystem.type_name for kind in _OBJECT_STORES):
            raise UserError(f"--storage {where}: names no bucket; write it as in s3://bucket/path")
        return Storage(filesystem, root.rstrip("/"))._reached(where)

    def _reached(self, where: str) -> Storage:
        """Access the folder once, without retries, so that a wrong address fails at once."""
        try:
            with disk_errors(where):
                self.filesystem.get_file_info(self.root)
            note_answer(self.root)
        except (OSError, UserError) as error:
            if isinstance(error, Unreachable) and not isinstance(error, Denied):
                raise UserError(f"--storage {error}") from error
            # Otherwise reading or writing will say so: a bucket may deny its list alone.
        except Exception as error:  # of a library with errors of its own kinds, as hf:// without a network
            raise UserError(f"--storage {where}: {words(error) or type(error).__name__}; choose another") from error
        return self

    @property
    def is_local(self) -> bool:
        """Whether the files lie in a folder of this machine (or one mounted there)."""
        return isinstance(self.filesystem, fs.LocalFileSystem)

    def __truediv__(self, path: str) -> Storage:
        """Return the folder `path` below this one."""
        return Storage(self.filesystem, f"{self.root}/{path}")

    def __str__(self) -> str:
        """Return the folder as people write it, without secrets."""
        if self.is_local:
            return self.root
        protocol = self.filesystem.type_name.removeprefix("py::fsspec+")
        return redact(self.root if "://" in self.root else f"{protocol}://{self.root}")

    @patient
    def exists(self, path: str = "") -> bool:
        """Return whether a file or folder exists."""
        with disk_errors(self._name(path)):
            if cached := snapshot.current(self.filesystem, self._path(path)):
                return cached[0].stamp(cached[1]) is not None
            return bool(self.filesystem.get_file_info(self._path(path)).type != fs.FileType.NotFound)

    @patient
    def list(self, path: str = "") -> list[str]:
        """Return the sorted names in a folder; an absent folder is empty. Half-written files are hidden."""
        with disk_errors(self._name(path)):
            if cached := snapshot.current(self.filesystem, self._path(path)):
                return cached[0].names(cached[1])
            names = snapshot.entries_in(self.filesystem, self._path(path))
        return sorted(name for name in names if not name.startswith(".writing-"))

    @patient
    def folders(self, path: str = "") -> Sequence[str]:
        """Return the sorted names of the folders in a folder: no files, and nothing hidden."""
        with disk_errors(self._name(path)):
            if cached := snapshot.current(self.filesystem, self._path(path)):
                every = [name for name in cached[0].names(cached[1]) if not name.startswith(".")]
                return [name for name in every if cached[0].names(f"{cached[1]}/{name}")]
            entries = snapshot.entries_in(self.filesystem, self._path(path))
        return sorted(name for name, is_folder in entries.items() if is_folder and not name.startswith("."))

    def files(self, path: str, temporary: bool = False) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield every file below a folder, by its path from there, with its size and time (ns).

        `temporary`: instead those of writes, killed or at work; not those in folders without permission.
        """
        with disk_errors(self._name(path)):
            if self.is_local:  # as it is walked: there may be a million
                yield from snapshot.listed(self.filesystem, self._path(path), temporary)
            else:
                yield from self.retried(path, lambda: [*snapshot.listed(self.filesystem, self._path(path), temporary)])

    @patient
    def read(self, path: str) -> bytes:
        """Return a file's bytes. Raises FileNotFoundError where there is none."""
        with disk_errors(self._name(path)):
            if cached := snapshot.current(self.filesystem, self._path(path)):
                if cached[0].stamp(cached[1]) is None:
                    raise FileNotFoundError(self._name(path))
            with self.filesystem.open_input_stream(self._path(path)) as stream:
                data: bytes = stream.read()
        return data

    def write_table(self, path: str, table: Any, **options: Any) -> bytes:
        """Write an Arrow table as a Parquet file, at once, and return its bytes; options are `pq.write_table`'s."""
        import pyarrow.parquet as pq

        file = io.BytesIO()
        pq.write_table(table, file, **options)
        self.write(path, file.getvalue())
        return file.getvalue()

    def read_table(self, path: str, **options: Any) -> Any:
        """Return a Parquet file as an Arrow table; options are `pq.read_table`'s.

        Raises:
            Unreachable: where the storage does not answer for long.
            OSError, pa.ArrowException: where the file is missing or damaged.
        """
        import pyarrow.parquet as pq

        def read() -> Any:
            with self.filesystem.open_input_file(self._path(path)) as file:
                return pq.read_table(file, **options)

        return self.retried(path, read)

    @patient
    def retried(self, path: str, read: Callable[[], T]) -> T:
        """Return `read()`, which reads `path` through a library; it is called again while the storage does not answer.

        Raises:
            Unreachable: where it does not answer for long; other errors are those of `read`.
        """
        with passing_errors(self._name(path)):
            return read()

    def read_json(self, path: str) -> Any:
        """Return a JSON file's content.

        Raises:
            FileNotFoundError: where there is none.
            UserError: where the file is not JSON.
        """
        return self.memoize(path, "json", lambda: self._parse(path))

    def memoize(self, path: str, what: str, make: Callable[[], T]) -> T:
        """Return `make()`, which reads a file: once only within a snapshot; the value is shared, so change it not."""
        cached = snapshot.current(self.filesystem, self._path(path))
        if cached is None:
            return make()
        cached[0].stamp(cached[1])
        return cached[0].memoize((what, cached[1]), make)

    def read_indexed(self, path: str, make: Callable[[], T]) -> T | None:
        """Return `make()`, a summary of a finished run's file; within a snapshot possibly from the index."""
        cached = snapshot.current(self.filesystem, self._path(path))
        if cached is None:
            return make()
        value = cached[0].memoize(("brief", cached[1]), lambda: cached[0].read_indexed(cached[1], make))
        cached[0].stamp(cached[1])
        return value

    @contextmanager
    def snapshot(self) -> Iterator[snapshot.Snapshot]:
        """Answer this thread's reads from a snapshot while the block runs; later writes are not seen."""
        with snapshot.take(self.filesystem, self.root) as taken:
            yield taken
        if snapshot.current(self.filesystem, self.root) is None:
            with suppress(UserError, OSError):  # a storage for reading only has no index
                taken.keep_index(self.write)

    def _parse(self, path: str) -> Any:
        try:
            return json.loads(self.read(path))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{self._name(path)}: not a JSON file ({error}); remove it and run again") from error

    def read_record(
        self, path: str, entries: Mapping[str, type | tuple[type, ...]], remedy: str = "remove it and run again"
    ) -> Record:
        """Return the object in a JSON file; it may hold more than these entries.

        Args:
            path: the file.
            entries: name of an entry that must be there -> its type, or types.
            remedy: what to do where it is not.

        Raises:
            FileNotFoundError: where there is none.
            UserError: where the file is not JSON, no object, or an entry is missing or of another type.
        """
        record = self.read_json(path)
        if not isinstance(record, dict):
            raise UserError(f"{self._name(path)}: a {type(record).__name__}, not an object with entries; {remedy}")
        for name, kind in entries.items():
            if not isinstance(record.get(name, ...), kind):
                raise UserError(f"{self._name(path)}: the entry {name!r} is missing or of the wrong type; {remedy}")
        return record

    @patient
    def write(self, path: str, data: bytes | str) -> None:
        """Write a whole file at once.

        Raises:
            UserError: where the disk is full or the folder cannot be written.
        """
        data = data.encode() if isinstance(data, str) else data
        target = self._path(path)
        parent, name = target.rsplit("/", 1)
        with disk_errors(self._name(path)):
            if self.filesystem.type_name in _OBJECT_STORES:
                with self.filesystem.open_output_stream(target) as stream:
                    stream.write(data)
                return
            try:
                self.filesystem.create_dir(parent)
            except FileNotFoundError as error:
                raise UserError(f"{self}: no folder can be made here; choose another --storage") from error
            writing = f"{parent}/.writing-{uuid.uuid4().hex[:8]}-{name}"
            try:
                if self.is_local:
                    with open(writing, "wb") as file:
                        file.write(data)
                        file.flush()
                        os.fsync(file.fileno())
                    os.replace(writing, target)
                else:
                    with self.filesystem.open_output_stream(writing) as stream:
                        stream.write(data)
                    self.filesystem.move(writing, target)
            except BaseException:
                with suppress(OSError):
                    self.filesystem.delete_file(writing)
                raise

    @patient
    def claim(self, path: str, name: str, data: bytes) -> bool:
        """Make a folder that is not there yet, with a file in it; return False where another process was first.

        On a disk, making a folder is one step, over NFS too. A bucket has no folders, and pyarrow no conditional write:
        there a writer counts that finds its own file alone. Of two at once both may give way, never both stay.
        """
        if self.is_local:
            with disk_errors(self._name(path)):
                os.makedirs(os.path.dirname(self._path(path)), exist_ok=True)
                try:
                    os.mkdir(self._path(path))
                except FileExistsError:
                    return False
        elif self.list(path):
            return False
        self.write(f"{path}/{name}", data)
        if self.is_local or self.list(path) == [name]:
            return True
        self.remove(f"{path}/{name}")
        return False

    def check_writable(self) -> None:
        """Write a small file and remove it: better to fail now than after hours of work.

        Raises:
            UserError: where nothing can be written.
        """
        name = f".writing-{uuid.uuid4().hex[:8]}-writable.txt"  # of its own: others may check at the same time
        self.write(name, "yes")
        self.remove(name)

    def write_json(self, path: str, value: object) -> None:
        """Write `value` as indented JSON, with a stable order of keys."""
        self.write(path, json.dumps(value, indent=2, sort_keys=True) + "\n")

    @patient
    def remove(self, path: str) -> None:
        """Remove a file or a folder with all that is in it; absent is fine."""
        with disk_errors(self._name(path)), suppress(FileNotFoundError):  # another process was first
            kind = self.filesystem.get_file_info(self._path(path)).type
            if kind == fs.FileType.Directory:
                self.filesystem.delete_dir(self._path(path))
            elif kind == fs.FileType.File:
                self.filesystem.delete_file(self._path(path))

    @contextmanager
    def local(self, path: str) -> Iterator[Path]:
        """Yield a file or folder as a local path for reading: itself, or a copy in a temporary folder."""
        if self.is_local:
            yield Path(self._path(path))
            return
        folder = Path(tempfile.mkdtemp(prefix="retable-"))
        try:
            target = folder / path.rsplit("/", 1)[-1]
            self._copy(path, target)
            yield target
        finally:
            shutil.rmtree(folder)

    @patient
    def _copy(self, path: str, target: Path) -> None:
        with disk_errors(self._name(path)):
            fs.copy_files(self._path(path), str(target), self.filesystem, fs.LocalFileSystem())

    def _path(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def _name(self, path: str) -> str:
        return str(self / path) if path else str(self)


def _received(filesystem: fs.FileSystem, root: str, reads: bool, writes: bool) -> Storage:
    """Return a folder that another process has sent; `reads`, `writes`: whether it has granted that process them."""
    if reads:
        note_answer(root, writes)
    return Storage(filesystem, root)


def _fsspec(uri: str) -> tuple[fs.FileSystem, str]:
    """Return an fsspec file system without a cache of listings, which would hide what other processes write."""
    import fsspec

    try:
        try:
            filesystem, root = fsspec.core.url_to_fs(uri, use_listings_cache=False)
        except TypeError:  # sftp's hands what it does not know on to its client
            filesystem, root = fsspec.core.url_to_fs(uri)
    except Exception as error:  # some file systems raise what they please where the URI does not fit them
        raise UserError(f"--storage {uri}: {words(error) or type(error).__name__}; choose another") from error
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), root
