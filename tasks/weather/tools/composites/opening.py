"""Open a composite by what it holds, not by its name: HDF5, GRIB2 or PGM, packed by gzip or not."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import h5py

from retable.platform.errors import UserError

Form = Literal["hdf5", "grib", "pgm", "archive", ""]

LARGEST = 1 << 28
"""Maximum bytes of an unpacked file, and maximum pixels of a composite."""
GZIP = b"\x1f\x8b"
MAGIC: tuple[tuple[bytes, Form], ...] = (
    (b"\x89HDF\r\n\x1a\n", "hdf5"),
    (b"GRIB", "grib"),
    (b"P5\n", "pgm"),
    (b"P5 ", "pgm"),
    (b"P5\r", "pgm"),
    *((magic, "archive") for magic in (b"PK\3\4", b"BZh", b"\xfd7zXZ\0", b"(\xb5/\xfd")),
)
"""First bytes of the formats that are read, and of zip, bzip2, xz and zstd."""
TAR = slice(257, 262)
"""Position of the magic bytes in a tar archive."""


def form_of(path: Path) -> Form:
    """Return the format of a file, looked at through gzip; empty: none of the known ones, or not readable."""
    try:
        with path.open("rb") as file:
            head = file.read(TAR.stop)
        if head.startswith(GZIP):
            with gzip.open(path) as file:
                head = file.read(TAR.stop)
    except (OSError, EOFError, zlib.error):
        return ""
    if head[TAR] == b"ustar":
        return "archive"
    return next((form for magic, form in MAGIC if head.startswith(magic)), "")


def packed(path: Path) -> bool:
    """Return whether a file is packed by gzip."""
    with path.open("rb") as file:
        return file.read(len(GZIP)) == GZIP


def content(path: Path, size: int = LARGEST) -> bytes:
    """Return a file's first `size` bytes, unpacked."""
    with gzip.open(path) if packed(path) else path.open("rb") as file:
        return file.read(size)


@contextmanager
def hdf5(path: Path) -> Iterator[h5py.File]:
    """Open an HDF5 file; a packed one in memory.

    Raises:
        UserError: where it unpacks to more than `LARGEST` bytes.
    """
    source: Path | io.BytesIO = path
    if packed(path):
        data = content(path, LARGEST + 1)
        if len(data) > LARGEST:
            raise UserError(f"{path}: unpacks to more than {LARGEST >> 20} MiB; unpack it first")
        source = io.BytesIO(data)
    with h5py.File(source, "r", locking=False if source is path else None) as file:  # read-only mounts cannot lock
        yield file
