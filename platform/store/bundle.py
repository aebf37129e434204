"""The file format of a bundle: finished runs without their weights, in one file that can be sent.

A tar archive of regular files, compressed by xz. Its first member, `bundle.json`, lists every other member in order,
with its size and SHA-256; the others are named by their paths on a storage. A bundle is data from anywhere: it is read
as a stream in bounded memory, nothing in it is run, and nothing is written before all of it has been verified.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from retable.platform.errors import UserError, words
from retable.platform.store.run import safe, sha256
from retable.platform.store.storage import Record, whole_file

FORMAT = 1
MANIFEST = "bundle.json"
BLOCK = tarfile.BLOCKSIZE
COMPRESSION = {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 32 << 20}
"""xz -6, with repetitions found up to 32 MB back: runs of a table hold the same pictures and targets."""
CHUNK = 1 << 20
"""Bytes that are decompressed at a time."""
MEMORY = 128 << 20
"""Bytes that decompression may take: what xz -9 asks for, and a half more."""
MEMBERS = 500_000
_LONG_NAME = 1024
"""Bytes of a member's path at most."""
_MANIFEST_SIZE = 64 << 20
_RECORD, ARRAYS, _TENSORS = 32 << 20, 512 << 20, 4 << 30
"""Bytes of one file at most: of JSON, of arrays, of weights and checkpoints."""
TOTAL = 16 << 30, 1 << 40
"""Bytes of all files at most: without, and with weights or checkpoints."""

TASK = r"[A-Za-z_]\w*"
RUN = rf"runs/{TASK}/[0-9a-f]{{16}}"
VIEW = rf"{RUN}/views/[^/]+"
_COMBINATION = rf"combinations/{TASK}/[0-9a-f]{{16}}"
SHARD = r"[0-9a-f]{16}/(?:[^/]+/){1,8}"
KINDS: Mapping[str, tuple[str, int]] = {
    "config": (rf"{RUN}/config\.json", _RECORD),
    "provenance": (rf"{RUN}/provenance\.json", _RECORD),
    "log": (rf"{RUN}/metrics\.jsonl", _RECORD),
    "result": (rf"{RUN}/result\.json", _RECORD),
    "scores": (rf"{VIEW}/scores\.json", _RECORD),
    "shards": (rf"(?:{VIEW}|{_COMBINATION})/[0-9a-f]{{16}}/shards\.json", _RECORD),
    "combination": (rf"{_COMBINATION}/scores\.json", _RECORD),
    "measurement": (rf"measurements/{TASK}/[^/]+\.json", _RECORD),
    "request": (r"tables/[^/]+\.json", 64 << 10),
    "summary": (rf"(?:{VIEW}|{_COMBINATION})/{SHARD}summary\.npz", ARRAYS),
    "predictions": (rf"{VIEW}/{SHARD}predictions\.npz", _TENSORS),
    "weights": (rf"{RUN}/weights/epoch-\d{{4,9}}\.safetensors", _TENSORS),
    "checkpoint": (rf"{RUN}/checkpoint-\d{{8,12}}/(?:model\.safetensors|state\.pt)", _TENSORS),
    "manifest": (rf"{RUN}/checkpoint-\d{{8,12}}/manifest\.json", _RECORD),
}
"""Kind of a file -> the pattern of its path, and its largest size in bytes. Nothing else may be in a bundle."""
HEAVY = ("predictions", "weights", "checkpoint")
"""Kinds that are in a bundle only if it says so (`weights`, `resume`); all others are read whole to be checked."""
_KIND = {name: re.compile(pattern) for name, (pattern, _) in KINDS.items()}


@dataclass(frozen=True)
class Member:
    """A file in a bundle."""

    path: str
    kind: str
    size: int
    digest: str
    """SHA-256 of its content, in hexadecimal."""

    @property
    def task(self) -> str:
        """The task whose file it is; empty for a table's request."""
        return "" if self.kind == "request" else self.path.split("/")[1]

    @property
    def run(self) -> str:
        """The run's fingerprint; empty for what belongs to no run."""
        return self.path.split("/")[2] if self.path.startswith("runs/") else ""


@dataclass(frozen=True)
class Bundle:
    """A bundle whose members were all verified."""

    file: Path
    id: str
    """SHA-256 of the file."""
    about: Record
    """The manifest without its list of members."""
    members: tuple[Member, ...] = field(repr=False)


Check = Callable[[Member, bytes], None]
"""Raises a UserError where the content of a member is not what its kind asks for."""


def kind_of(path: str) -> str | None:
    """Return the kind of a file by its path on a storage; None if it may not be in a bundle."""
    if not safe(path):
        return None
    return next((kind for kind, pattern in _KIND.items() if pattern.fullmatch(path)), None)


# Writing ---------------------------------------------------------------------------------------------------------


def write_bundle(file: Path, about: Mapping[str, object], files: Mapping[str, Callable[[], bytes]]) -> int:
    """Write a bundle, all or nothing; return its size in bytes.

    Args:
        file: where it goes.
        about: what the manifest says besides the members.
        files: path on a storage -> a function that reads the content; called twice, so that not all is in memory.

    Raises:
        UserError: if the file cannot be written, or a content changes meanwhile.
    """
    listed = []
    for path, read in files.items():
        try:
            listed.append((path, len(data := read()), sha256(data)))
        except FileNotFoundError as error:
            raise UserError(f"{path} was removed while it was packed; run the same command again") from error
    manifest = json.dumps({"format": FORMAT, **about, "members": listed}, sort_keys=True).encode()
    _check_sizes(listed, len(manifest), _is_heavy(about))
    with (
        whole_file(file) as writing,
        lzma.open(writing, "wb", filters=[COMPRESSION]) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        _add(archive, MANIFEST, manifest)
        for path, size, digest in listed:
            try:
                data = files[path]()
            except FileNotFoundError:
                data = b""
            if (len(data), sha256(data)) != (size, digest):
                raise UserError(f"{path} changed while it was packed; run the same command again")
            _add(archive, path, data)
    return file.stat().st_size


def _add(archive: tarfile.TarFile, path: str, data: bytes) -> None:
    info = tarfile.TarInfo(path)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


# Reading ---------------------------------------------------------------------------------------------------------


def read_bundle(file: Path, check: Check) -> Bundle:
    """Verify a bundle from its first to its last byte, and write nothing.

    Raises:
        UserError: if it cannot be read, is damaged or truncated, or holds what a bundle may not hold.
    """
    with opened(file) as stream:
        about, members = _manifest(file, stream)
        for member, content in contents(file, stream, members):
            check(member, content)
        stream.end()
        return Bundle(file, stream.digest.hexdigest(), about, members)


def replay(bundle: Bundle) -> Iterator[tuple[Member, Callable[[], bytes]]]:
    """Yield the members of a bundle that was verified, each with a function that returns its content.

    A content is read and compared with its digest once more, as the file may have changed.

    Raises:
        UserError: if it has.
    """
    with opened(bundle.file) as stream:
        if _manifest(bundle.file, stream)[1] != bundle.members:
            raise UserError(f"{bundle.file}: it changed while it was read; run the same command again")
        for member in bundle.members:
            _enter(bundle.file, stream, member)
            yield member, lambda member=member: _whole(bundle.file, stream, member)  # type: ignore[misc]
            stream.leave()


def contents(file: Path, stream: Stream, members: tuple[Member, ...]) -> Iterator[tuple[Member, bytes]]:
    """Yield each member with its content; that of a heavy one is verified as it passes, and not kept."""
    for member in members:
        _enter(file, stream, member)
        if member.kind in HEAVY:
            digest = hashlib.sha256()
            while chunk := stream.member(CHUNK):
                digest.update(chunk)
            if digest.hexdigest() != member.digest:
                raise damaged(file, f"{member.path} is not what was packed")
            content = b""
        else:
            content = _whole(file, stream, member)
        stream.leave()
        yield member, content


def _enter(file: Path, stream: Stream, member: Member) -> None:
    header = stream.header()
    if header is None or header != (member.path, member.size):
        raise damaged(file, f"{member.path} is not where the manifest says")


def _whole(file: Path, stream: Stream, member: Member) -> bytes:
    content = stream.member(member.size)
    if sha256(content) != member.digest:
        raise damaged(file, f"{member.path} is not what was packed")
    return content


def _is_heavy(about: Mapping[str, object]) -> bool:
    """Return whether a bundle may hold weights."""
    return bool(about.get("weights")) or bool(about.get("resume"))


def _check_sizes(listed: Sequence[tuple[str, int, str]], manifest: int, heavy: bool) -> None:
    """Refuse to write what nobody could unpack.

    Raises:
        UserError: naming the file, or the remedy.
    """
    for path, size, _ in listed:
        most = KINDS[kind][1] if (kind := kind_of(path)) else 0
        if size > most:
            raise UserError(f"{path}: {size:,} bytes, a bundle takes {most:,} of such a file; leave it out")
    if len(listed) > MEMBERS or manifest > _MANIFEST_SIZE or sum(size for _, size, _ in listed) > TOTAL[heavy]:
        raise UserError(f"{len(listed):,} files are more than one bundle takes; pack fewer tables in each")


def _manifest(file: Path, stream: Stream) -> tuple[Record, tuple[Member, ...]]:
    header = stream.header()
    if header is None or header[0] != MANIFEST or header[1] > _MANIFEST_SIZE:
        raise UserError(f"{file}: no bundle of retable; `retable runs pack` writes one")
    about = json.loads(stream.member(header[1]))
    stream.leave()
    if not isinstance(about, dict) or not isinstance(about.get("format"), int):
        raise UserError(f"{file}: no bundle of retable; `retable runs pack` writes one")
    if about["format"] != FORMAT:
        raise UserError(f"{file}: a bundle of format {about['format']}, not {FORMAT}; update retable")
    texts = ("packed", "host", "device")
    if any(not isinstance(about.get(name), str) for name in texts) or not isinstance(about.get("tables"), list):
        raise damaged(file, "the manifest lacks an entry")
    listed = about.pop("members", None)
    if not isinstance(listed, list) or len(listed) > MEMBERS:
        raise damaged(file, "the manifest lists no members, or too many")
    heavy = _is_heavy(about)
    members = tuple(_member(file, entry, heavy) for entry in listed)
    paths = {member.path for member in members}
    above = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
    if len(paths) != len(members) or paths & above:
        raise damaged(file, "two members have one path")
    if sum(member.size for member in members) > TOTAL[heavy]:
        raise damaged(file, "it holds more than a bundle may hold")
    return about, members


def _member(file: Path, listed: object, heavy: bool) -> Member:
    """Return a member as the manifest lists it."""
    if not isinstance(listed, list) or len(listed) != 3:
        raise damaged(file, "the manifest is not in order")
    path, size, digest = listed
    if not isinstance(path, str) or type(size) is not int or not isinstance(digest, str):
        raise damaged(file, "the manifest is not in order")
    kind = kind_of(path)
    if kind is None or (kind in HEAVY and not heavy):
        raise damaged(file, f"{path[:100]!r} is no file of a bundle")
    if not 0 <= size <= KINDS[kind][1] or not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise damaged(file, f"{path[:100]!r} has a size or digest that cannot be")
    return Member(path, kind, size, digest)


def damaged(file: Path, why: str) -> UserError:
    """Return the error of a bundle that is refused."""
    return UserError(f"{file}: damaged or no bundle, {why}; nothing was taken from it, get it again")


@contextmanager
def opened(file: Path) -> Iterator[Stream]:
    """Open a bundle; turn any error of reading it into one line."""
    try:
        with open(file, "rb") as raw:
            yield Stream(file, raw)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{file}: {error.strerror or type(error).__name__}; name a bundle that can be read") from error
    except (lzma.LZMAError, tarfile.TarError, EOFError, ValueError, RecursionError) as error:
        why = words(error) or type(error).__name__
        raise damaged(file, f"it cannot be read ({why[:100]})") from error


class Stream:
    """Reads a tar archive that is compressed by xz, forwards and in bounded memory.

    Only regular files with plain headers are read; what Python's own reader would obey (links, devices, extended
    headers, sparse files) is refused.
    """

    def __init__(self, file: Path, raw: IO[bytes]) -> None:
        """Take an open file; `file` names it in errors."""
        self.file, self.raw, self.digest = file, raw, hashlib.sha256()
        self.engine = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)
        self.left = self.padding = 0

    def header(self) -> tuple[str, int] | None:
        """Return the path and size of the next member, which is then read; None at the end of the archive."""
        long = b""
        block = self._exactly(BLOCK)
        if block == bytes(BLOCK):
            return None
        info = self._info(block)
        if info.type == tarfile.GNUTYPE_LONGNAME:
            if not 0 < info.size <= _LONG_NAME:  # the format can write sizes below 0
                raise damaged(self.file, "a path is too long")
            long = self._exactly(-(-info.size // BLOCK) * BLOCK)[: info.size].rstrip(b"\0")
            info = self._info(self._exactly(BLOCK))
        if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or info.size < 0:
            raise damaged(self.file, "a member is no regular file")
        self.left, self.padding = info.size, -info.size % BLOCK
        return long.decode() if long else info.name, info.size

    def _info(self, block: bytes) -> tarfile.TarInfo:
        return tarfile.TarInfo.frombuf(block, "utf-8", "strict")

    def member(self, size: int) -> bytes:
        """Return at most so many bytes of the member that is read."""
        size = min(size, self.left)
        self.left -= size
        return self._exactly(size)

    def leave(self) -> None:
        """Skip what is left of the member that is read."""
        while self.left:
            self.member(CHUNK)
        self._exactly(self.padding)
        self.padding = 0

    def end(self) -> None:
        """Read to the end of the file.

        Raises:
            UserError: if anything but zeros follows the last member.
        """
        if self.header() is not None:
            raise damaged(self.file, "it holds more than the manifest lists")
        rest = 0
        while not self.engine.eof:
            block = self._some(CHUNK)
            rest += len(block)
            if block.strip(b"\0") or rest > tarfile.RECORDSIZE:
                raise damaged(self.file, "something follows its last member")
        if self.engine.unused_data or self.raw.read(1):
            raise damaged(self.file, "something follows its end")

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size > 0:
            part = self._some(min(size, CHUNK))
            if not part and self.engine.eof:
                raise EOFError("it ends too early")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _some(self, most: int) -> bytes:
        if self.engine.eof:
            return b""
        data = b""
        if self.engine.needs_input:
            data = self.raw.read(CHUNK)
            self.digest.update(data)
            if not data:
                raise EOFError("it ends too early")
        return self.engine.decompress(data, most)
