"""Byte ranges of the samples in a WAV or AU, despite wrong headers: sizes never updated, files that were joined.

A recorder that loses its power leaves a size of before, and of WAVs that were joined byte by byte each has a header of
its own. libsndfile reads what the first header says. Here the chunks are followed to the end of the file.
"""

from __future__ import annotations

import io
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

UNKNOWN = 0x7FFF0000
"""Bytes of sound that the header of a WAV says, or more, where it was written to a pipe."""
TAGS = (b"ID3", b"TAG", b"APETAGEX")
"""First bytes of tags, which may follow the chunks of a WAV and are no chunks."""


@dataclass(frozen=True)
class Part:
    """One header and its samples: bytes of a file."""

    begins: int
    ends: int
    samples: int = 0
    """Offset of the samples if there are more than the header says; else 0."""


MOST = 4096
"""Chunks that are followed: a file of more has them to take time."""


class Slice(io.FileIO):
    """A part of a file, as a file."""

    def __init__(self, path: Path, begins: int, ends: int | None = None) -> None:
        super().__init__(path, "rb")
        self._begins, self._ends = begins, os.fstat(self.fileno()).st_size if ends is None else ends
        self.seek(0)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Seek, counted from where the part begins; from its end with `SEEK_END`."""
        at = {io.SEEK_SET: self._begins, io.SEEK_CUR: super().tell(), io.SEEK_END: self._ends}[whence]
        return super().seek(at + offset) - self._begins

    def tell(self) -> int:
        """Return the offset, counted from where the part begins."""
        return super().tell() - self._begins

    def readinto(self, buffer: Any, /) -> int:
        """Read until the part ends."""
        left = max(self._ends - super().tell(), 0)
        return super().readinto(memoryview(buffer).cast("B")[:left]) or 0


def parts(path: Path) -> tuple[list[Part], int]:
    """Return the parts of a WAV or AU, and the bytes behind them that are neither samples nor chunks.

    One part without `samples` is a file that is as its header says, or one that is not understood here. Fewer bytes
    than half a second takes may be anything, and are passed over.
    """
    length = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(24)
        if head.startswith(b".snd") and len(head) == 24:
            begins, size, _, rate, channels = (int.from_bytes(head[n : n + 4], "big") for n in range(4, 24, 4))
            stale = size < UNKNOWN and length - begins - size > rate * channels / 2
            return [Part(0, length, begins if stale else 0)], 0
        complete, offset = list[Part](), 0
        while offset < length and (sound := _samples(file, offset, length)):
            begins, size, rate = sound
            is_empty = not size and _samples(file, begins, length) is not None
            if (
                not (is_empty or 0 < size < UNKNOWN) or begins + size > length
            ):  # to the end of the file; libsndfile knows of a first
                return [*complete, Part(offset, length, begins if complete else 0)], 0
            after = _after(file, begins, size, length)
            end, follows = _behind(file, after, length)
            rest = 0 if follows else length - end
            if rest > rate / 2 and end == after and _are_samples(file, after):
                return [*complete, Part(offset, length, begins)], 0
            complete.append(Part(offset, end))
            if not follows:
                return complete, rest if rest > rate / 2 else 0
            offset = end
    return [*complete, Part(offset, length)], 0  # whose last one is read as far as it can be


def _samples(file: io.BufferedReader, offset: int, length: int) -> tuple[int, int, int] | None:
    """Return where a WAV's samples begin, its header's count of their bytes, and bytes a second; None of another."""
    file.seek(offset)
    if not re.fullmatch(rb"RIFF....WAVE", file.read(12), re.DOTALL):
        return None
    offset, rate, passed = offset + 12, 0, 0
    while (chunk := _chunk(file, offset)) and chunk[0] != b"data":
        if (passed := passed + 1) > MOST:
            return None
        if chunk[0] == b"fmt ":
            rate = int.from_bytes(file.read(12)[8:], "little")
        offset += 8 + chunk[1] + (chunk[1] & 1)
    return (offset + 8, chunk[1], rate) if chunk and rate else None


def _behind(file: io.BufferedReader, offset: int, length: int) -> tuple[int, bool]:
    """Follow chunks behind the samples; return where they end, and whether another WAV begins there."""
    passed = 0
    while (chunk := _chunk(file, offset)) and chunk[0] != b"RIFF":
        if (passed := passed + 1) > MOST or not _begins(file, offset, length):
            return offset, False
        offset = _after(file, offset + 8, chunk[1], length)
    return offset, chunk is not None


def _after(file: io.BufferedReader, begins: int, size: int, length: int) -> int:
    """Return where the next chunk begins: a pad byte follows an odd size, which some writers leave out."""
    end = begins + size
    if size & 1 and _begins(file, end, length) and not _begins(file, end + 1, length):
        return end
    return end + (size & 1)


def _begins(file: io.BufferedReader, offset: int, length: int) -> bool:
    """Return whether a chunk that fits into the file begins at an offset, or another WAV."""
    chunk = _chunk(file, offset)
    if chunk is None or chunk[0] == b"RIFF":
        return chunk is not None
    return re.fullmatch(rb"[ -~]{4}", chunk[0]) is not None and offset + 8 + chunk[1] <= length


def _chunk(file: io.BufferedReader, offset: int) -> tuple[bytes, int] | None:
    """Return a chunk's name and size; None where the file ends."""
    file.seek(offset)
    head = file.read(8)
    return (head[:4], int.from_bytes(head[4:], "little")) if len(head) == 8 else None


def _are_samples(file: io.BufferedReader, offset: int) -> bool:
    file.seek(offset)
    head = file.read(4096)
    return not head.startswith(TAGS) and any(head)


def caf_share(path: Path) -> float:
    """Return the bytes of sound that the header of Apple's CAF says, over those that are there; 1 where it is whole."""
    with path.open("rb") as file:
        offset, length = 8, path.stat().st_size
        while offset + 12 <= length:
            file.seek(offset)
            name, size = file.read(4), int.from_bytes(file.read(8), "big", signed=True)
            if name == b"data":
                return max(size / max(length - offset - 12, 1), 1.0)
            offset += 12 + max(size, 0)
    return 1.0
