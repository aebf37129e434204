"""Published datasets by HTTP: resumed, checked on arrival, and bounded in size and time.

A task names its datasets in a JSON file: name -> `about`, `licence`, `page`, and one of `files` (url, path, bytes,
checksum), `hub` (folders of huggingface.co, whose own listing has sizes and SHA-256) or `by_hand` (what to do where a
login is needed).
"""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import requests

from retable.platform.console import consent, print_lines, progress_bar
from retable.platform.errors import UserError, disk_errors, nearest, one_line
from retable.platform.store.run import file_digest
from retable.platform.store.storage import Storage
from retable.platform.text import seconds_of, size

CHUNK = 1 << 16
"""Bytes that are written at once; a broken connection loses less than these."""
_TIMEOUT = (15, 60)
"""Seconds to connect, and between two pieces of an answer."""
TRIES = 5
"""Attempts at a file whose connection breaks; each continues where the last one ended."""
PAUSE = 2.0
"""Seconds before the second attempt; the pause doubles with each."""
UNKNOWN = 3_000_000_000
"""Largest file, in bytes, whose size is not published."""
_EXPANSION = 10
"""An archive that unpacks to more than this many times its size is refused."""
_HUB = "https://huggingface.co"


@dataclass(frozen=True)
class Remote:
    """A file to download."""

    url: str
    path: str
    """Its place below the download folder."""
    bytes: int = 0
    """0: not published."""
    checksum: str = ""
    """`md5:...` or `sha256:...`; "" where none is published."""


@dataclass(frozen=True)
class Hub:
    """Folders of a dataset on huggingface.co, at a revision."""

    repo: str
    revision: str
    folders: Sequence[str]


@dataclass(frozen=True)
class Published:
    """A dataset that can be had."""

    name: str
    about: str
    licence: str
    page: str
    files: Sequence[Remote] = ()
    hub: Hub | None = None
    by_hand: str = ""
    """Instructions where the files cannot be downloaded without a login; empty where they can."""
    needs: str = ""
    """A module that unpacks it, with its extra: `py7zr:archives`."""

    def __str__(self) -> str:
        """Return one line for a list of datasets."""
        total = sum(file.bytes for file in self.files)
        amount = "by hand" if self.by_hand else size(total) if total else "size as its page says"
        return f"{self.name}: {self.about}; {amount}; {self.licence}; {self.page}"


def read_published(file: Path) -> dict[str, Published]:
    """Return the datasets that a task's JSON file names."""
    datasets = {}
    for name, fields in json.loads(file.read_text()).items():
        files = tuple(Remote(**entry) for entry in fields.pop("files", ()))
        hub = Hub(**fields.pop("hub")) if "hub" in fields else None
        datasets[name] = Published(name, files=files, hub=hub, **fields)
    return datasets


def choose(published: Mapping[str, Published], name: str) -> Published:
    """Return a dataset by its name.

    Raises:
        UserError: where there is none of that name, or it must be fetched by hand.
    """
    if name not in published:
        raise UserError(f"{name}: no such dataset{nearest(name, published)}; name none to list them")
    if published[name].by_hand:
        raise UserError(f"{name} cannot be downloaded without a login; {published[name].by_hand}")
    return published[name]


def fetch_by_name(
    published: Mapping[str, Published],
    names: Sequence[str],
    folder_of: Callable[[Published], Path],
    *,
    yes: bool = False,
    mirror: str = "",
    limit: str = "",
    check: Callable[[Published], None] = lambda wanted: None,
) -> Iterator[tuple[Published, list[Path]]]:
    """Download datasets, and yield each with its files; without a name, list what there is.

    Args:
        published: those that a task knows.
        names: of those that are wanted.
        folder_of: dataset -> the folder of its files.
        yes: download without asking.
        mirror: see `fetch`.
        limit: the time that all of them together may take, such as `2h`; "" for any.
        check: called with each before the first download; raises where it is not to be fetched.

    Raises:
        UserError: as `choose` and `fetch`, and where the limit is no length of time.
    """
    if not names:
        print_lines(published.values())
    until = time.monotonic() + seconds_of(limit, "--limit") if limit else math.inf
    chosen = [choose(published, name) for name in names]
    for wanted in chosen:
        check(wanted)
    for wanted in chosen:
        yield wanted, fetch(wanted, folder_of(wanted), yes=yes, mirror=mirror, until=until)


def default_folder(storage: Storage, task: str) -> Path:
    """Return where a task's downloads go unless a folder is given.

    Raises:
        UserError: where the storage is not local.
    """
    if not storage.is_local:
        raise UserError(f"{storage}: is not local; give a --folder")
    return Path(storage.root) / "downloads" / task


def fetch(
    wanted: Published,
    folder: Path,
    *,
    yes: bool = False,
    mirror: str = "",
    until: float = math.inf,
) -> list[Path]:
    """Download a dataset's files into `folder` and unpack archives there; what is there already is kept.

    Args:
        wanted: the dataset.
        folder: where its files go.
        yes: download without asking.
        mirror: an address that holds the files below their host and path; "" for the published addresses.
        until: when it has to be over, on the monotonic clock.

    Returns:
        The files, in order; an archive that was unpacked is gone.

    Raises:
        UserError: where the user declines, the disk is too small, a server refuses, a file is not the published one, or
            the time is up.
    """
    _check_unpacking(wanted)
    with requests.Session() as session:
        files = listed(wanted.hub, session, mirror) if wanted.hub else list(wanted.files)
        missing = [file for file in files if not _is_there(folder / file.path, file)]
        if missing:
            amount = sum(file.bytes for file in missing)
            _check_space(folder, missing)
            consent(
                f"{wanted.name}: {wanted.about}\nlicence: {wanted.licence} ({wanted.page})\n"
                f"{len(missing)} files, {size(amount) if amount else 'of unpublished size'}, to {folder}",
                yes,
            )
        for file in missing:
            with progress_bar(file.path) as show:
                download(file, folder / file.path, session, mirror=mirror, until=until, show=show)
    for file in files:
        unpack(folder / file.path)
    return [folder / file.path for file in files]


def _is_there(target: Path, file: Remote) -> bool:
    """Return whether a file was downloaded before: only a checked file gets its name."""
    return marker(target).exists() or (target.is_file() and file.bytes in (0, target.stat().st_size))


def marker(archive: Path) -> Path:
    """Return the empty file that stands for an archive that was unpacked."""
    return archive.with_name(archive.name + ".unpacked")


def at(url: str, mirror: str) -> str:
    """Return the address of a file, or of its copy on a mirror: MIRROR/host/path."""
    return f"{mirror.rstrip('/')}/{url.partition('://')[2]}" if mirror else url


def listed(hub: Hub, session: requests.Session, mirror: str) -> list[Remote]:
    """Return the files in folders of a dataset on huggingface.co, with size, and SHA-256 where the hub has it.

    Raises:
        UserError: where the hub does not answer or lists nothing.
    """
    base, files = f"{_HUB}/api/datasets/{hub.repo}/tree/{hub.revision}", []
    for folder in hub.folders:
        url: str | None = at(f"{base}/{folder}?recursive=true", mirror)
        while url:
            try:
                answer = session.get(url, timeout=_TIMEOUT)
                answer.raise_for_status()
                entries = answer.json()
            except (requests.RequestException, ValueError) as error:
                raise UserError(f"{url}: {one_line(error)}; try again later, or give a --mirror") from error
            for entry in entries:
                if entry["type"] == "file":
                    if PurePosixPath(entry["path"]).is_absolute() or ".." in PurePosixPath(entry["path"]).parts:
                        raise UserError(f"{url}: lists {entry['path']!r}, which would leave the folder")
                    digest = f"sha256:{entry['lfs']['oid']}" if entry.get("lfs") else ""
                    address = f"{_HUB}/datasets/{hub.repo}/resolve/{hub.revision}/{entry['path']}"
                    files.append(Remote(address, entry["path"], entry["size"], digest))
            url = answer.links.get("next", {}).get("url")
            url = at(url, mirror) if url and not (mirror and url.startswith(mirror)) else url
    if not files:
        raise UserError(f"{_HUB}/datasets/{hub.repo}: no files in {', '.join(hub.folders)}")
    return files


def _check_space(folder: Path, files: Sequence[Remote]) -> None:
    """Raise where the disk does not hold files and what archives among them unpack to, about as much again.

    Raises:
        UserError: then, with both numbers.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    packed = sum(file.bytes for file in files if _is_archive(file.path))  # about as much again once it is unpacked
    wanted = sum(file.bytes - have(folder / file.path) for file in files) + packed
    free = shutil.disk_usage(existing).free
    if wanted > free:
        raise UserError(f"{existing}: {size(free)} are free, {size(wanted)} are needed; free some, or give a --folder")


def have(target: Path) -> int:
    """Return how many bytes of a file an earlier attempt left."""
    part = partial(target)
    return part.stat().st_size if part.exists() else 0


def partial(target: Path) -> Path:
    """Return the name of a file while it is downloaded."""
    return target.with_name(target.name + ".part")


def download(
    file: Remote,
    target: Path,
    session: requests.Session,
    *,
    mirror: str = "",
    until: float = float("inf"),
    show: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Download one file to `target`, continuing an earlier attempt; it gets its name once it is checked.

    Raises:
        UserError: where the server refuses, the connection keeps breaking, the file is larger than published or another
            one, or the time is up.
    """
    url = at(file.url, mirror)
    with disk_errors(str(target)):
        target.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(TRIES):
        try:
            receive(url, file, target, session, until, show)
            break
        except requests.RequestException as error:  # an OSError, too
            if attempt + 1 == TRIES:
                again = "run the same command again to continue"
                raise UserError(f"{url}: {one_line(error)} after {size(have(target))}; {again}") from error
            time.sleep(PAUSE * 2**attempt)
    check(partial(target), file, url)
    partial(target).replace(target)


def receive(
    url: str,
    file: Remote,
    target: Path,
    session: requests.Session,
    until: float,
    show: Callable[[int, int], None],
) -> None:
    """Append what a server has beyond the bytes that are there; begin again where it cannot continue.

    Raises:
        requests.RequestException: where the connection breaks or the server is busy.
        UserError: where the server refuses, sends more than was published, or the time is up.
    """
    done = have(target)
    if file.bytes and done == file.bytes:
        return
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={done}-"} if done else {})}
    with session.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as answer:
        if answer.status_code in (408, 429) or answer.status_code >= 500:
            answer.raise_for_status()
        if answer.status_code == 416 or not answer.headers.get("Content-Range", f"bytes {done}-").startswith(
            f"bytes {done}-"
        ):
            partial(target).unlink(missing_ok=True)
            raise requests.ConnectionError("the server cannot continue this file")
        if answer.status_code >= 400:
            raise UserError(f"{url}: the server answers {answer.status_code} {answer.reason}; see its page")
        if answer.status_code != 206:
            done = 0
        length = answer.headers.get("Content-Length", "")
        total = file.bytes or (done + int(length) if length.isdigit() else 0)
        with disk_errors(str(target)):
            out = partial(target).open("ab" if done else "wb")
        with out:
            for piece in answer.iter_content(CHUNK):
                done += len(piece)
                if done > (file.bytes or UNKNOWN):
                    partial(target).unlink()
                    raise UserError(f"{url}: larger than {size(file.bytes or UNKNOWN)}; it is not the published file")
                if time.monotonic() > until:
                    raise UserError(f"{target.name}: the time is up after {size(done)}; the same command continues")
                with disk_errors(str(target)):
                    out.write(piece)
                show(done, total)
    if total and done < total:
        raise requests.ConnectionError("the connection ended early")


def check(path: Path, file: Remote, url: str) -> None:
    """Raise, and remove the file, where it is not the published one.

    Raises:
        UserError: where size or checksum differ.
    """
    kind, _, wanted = file.checksum.partition(":")
    mismatch = ""
    if file.bytes and path.stat().st_size != file.bytes:
        mismatch = f"{path.stat().st_size:,} bytes, published are {file.bytes:,}"
    elif kind:
        digest = file_digest(path, kind)
        mismatch = f"its {kind} is {digest}, published is {wanted}" if digest != wanted else ""
    if mismatch:
        path.unlink()
        raise UserError(f"{url}: {mismatch}; it was removed, run the same command again")


def _is_archive(name: str) -> bool:
    """Return whether a file is unpacked when it arrives."""
    return name.endswith((".zip", ".7z"))


def _check_unpacking(wanted: Published) -> None:
    """Raise, before anything is downloaded, where what unpacks a dataset is not installed.

    Raises:
        UserError: naming it.
    """
    module, _, extra = wanted.needs.partition(":")
    if module and importlib.util.find_spec(module) is None:
        raise UserError(f"{wanted.name} is unpacked by {module}: pip install 'retable[{extra}]'")


def unpack(archive: Path) -> None:
    """Unpack an archive into its folder and put an empty file in its place; other files are left alone.

    Raises:
        UserError: where it is damaged or unpacks to far more than its size.
    """
    if not _is_archive(archive.name) or marker(archive).exists():
        return
    packed = archive.stat().st_size
    try:
        with disk_errors(str(archive)):
            if archive.suffix == ".7z":
                _unpack_7z(archive, packed)
            else:
                _unpack_zip(archive, packed)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise UserError(f"{archive}: {one_line(error)}; remove it and run the same command again") from error
    marker(archive).touch()
    archive.unlink()


def _unpack_zip(archive: Path, packed: int) -> None:
    """Unpack a .zip; zipfile keeps its members below the folder."""
    with zipfile.ZipFile(archive) as content:
        _refuse_bomb(archive, sum(member.file_size for member in content.infolist()), packed)
        try:
            content.extractall(archive.parent)
        except NotImplementedError as error:  # a RuntimeError, too
            raise zipfile.BadZipFile(str(error)) from error


def _unpack_7z(archive: Path, packed: int) -> None:
    """Unpack a .7z; py7zr refuses members that would leave the folder.

    Raises:
        UserError: where py7zr is not installed.
    """
    try:
        import py7zr
    except ImportError as error:
        raise UserError(f"{archive}: is unpacked by py7zr; pip install 'retable[archives]'") from error
    try:
        with py7zr.SevenZipFile(archive) as content:
            _refuse_bomb(archive, content.archiveinfo().uncompressed, packed)
            content.extractall(archive.parent)
    except py7zr.exceptions.ArchiveError as error:
        raise zipfile.BadZipFile(str(error)) from error


def _refuse_bomb(archive: Path, unpacked: int, packed: int) -> None:
    """Raise where an archive unpacks to far more than its size.

    Raises:
        UserError: then.
    """
    if unpacked > _EXPANSION * max(packed, 1 << 20):
        raise UserError(f"{archive}: unpacks to {size(unpacked)}, from {size(packed)}; it is not the published file")
