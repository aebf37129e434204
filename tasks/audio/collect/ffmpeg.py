"""Decodes compressed sound, and that of videos, by PyAV, which brings FFmpeg's libraries along."""

from __future__ import annotations

import mmap
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from retable.platform.errors import UserError
from retable.tasks.audio.collect.chunks import Slice, caf_share

Blocks = Iterator[tuple[int, Float32[np.ndarray, "samples channels"]]]
"""Sample rate and samples in [-1, 1]; both rate and number of channels may change in a file of several streams."""

FORMATS = (
    "aac,ac3,aiff,amr,amrnb,amrwb,ape,asf,au,avi,caf,dsf,dts,dtshd,eac3,flac,flv,gsm,loas,matroska,mov,mp3,mpc,mpc8,"
    "mpeg,mpegts,ogg,tak,truehd,tta,voc,w64,wav,webm,wv"
)
"""FFmpeg's demuxers that may open a file: none that reads other files, as those of playlists do."""
OPTIONS = {"format_whitelist": FORMATS, "protocol_whitelist": "file"}
BARE = ("aac", "ac3", "amr", "amrnb", "amrwb", "dts", "eac3", "gsm", "loas", "mp3", "truehd")
"""Formats without a container: their clock counts packets, and their length is the bytes over a bit rate."""
BLOCK = 0.5
"""Seconds that are joined before they are handed on."""
GAP, RESTART = 0.015, 3600.0
"""A jump of the clock by more seconds is a gap; by still more, the clock was set anew."""
SILENCE, LEAST = 10.0, 60.0
"""Silence in gaps, at most, over what was decoded so far, or over so many seconds: broken clocks jump anywhere."""
TAGS = (b"ID3", b"TAG", b"APETAGEX", b"Xing", b"Info", b"VBRI", b"LAME")
"""Marks of the data that an MP3 holds besides sound, at the start and where files were joined."""


class UnreadableError(ValueError):
    """FFmpeg cannot open a file, or finds no sound in it."""


@dataclass(frozen=True)
class Sound:
    """The first audio track of a file."""

    container: str
    """FFmpeg's name in capitals: MOV, MATROSKA, MP3, ..."""
    seconds: float
    """As the header says, or a guess; 0 where there is none."""
    is_guess: bool
    rate: int
    channels: int
    path: Path
    file: Any

    def blocks(self, lost: list[tuple[float, float]]) -> Blocks:
        """Yield all samples until the decoder ends.

        Packets that are missing or cannot be decoded become silence of their length: by the clock of the container,
        or by the number of bytes where there is none, as in an MP3. The seconds from and to go into `lost`.
        """
        parts: list[Any] = []
        clock, rate = _Clock(self.container.lower() in BARE), self.rate
        for packet, frame in _frames(self.path, self.file, clock):
            block, missing = _floats(frame), clock.missing(packet, frame)
            changed = parts and (frame.sample_rate != rate or block.shape[1] != parts[0].shape[1])
            if parts and (missing or changed or sum(map(len, parts)) >= BLOCK * rate):
                yield rate, np.concatenate(parts)
                parts.clear()
            rate = frame.sample_rate
            if missing:
                lost.append((clock.heard, clock.heard + missing))
                clock.heard += missing
                yield from _silence(missing, rate, block.shape[1])
            clock.heard += len(block) / rate
            parts.append(block)
        if parts:
            yield rate, np.concatenate(parts)


class _Clock:
    """Tells where a frame belongs: by its time stamp, or by the bytes that could not be decoded before it."""

    def __init__(self, bare: bool) -> None:
        self._bare = bare
        self.heard = 0.0  # seconds that were handed on, silence among them
        self.bad = 0  # bytes that could not be decoded since the last frame
        self._next: float | None = None  # the time stamp that is due
        self._bytes, self._seconds, self._silent = 0, 0.0, 0.0

    def missing(self, packet: Any, frame: Any) -> float:
        """Return the seconds that are missing before a frame."""
        stamp = None if frame.pts is None else float(frame.pts * frame.time_base)
        due, length = self._next, frame.samples / frame.sample_rate
        if self._bare:
            jump = self.bad * self._seconds / max(self._bytes, 1)
        else:
            jump = 0.0 if stamp is None or due is None or packet.has_sidedata("new_extradata") else stamp - due
        self._next = (stamp if stamp is not None else due or 0.0) + length
        self._bytes, self._seconds, self.bad = self._bytes + packet.size, self._seconds + length, 0
        if not GAP < jump < RESTART or self._silent + jump > SILENCE * max(self._seconds, LEAST):
            return 0.0
        self._silent += jump
        return jump


def _frames(path: Path, file: Any, clock: _Clock) -> Iterator[tuple[Any, Any]]:
    """Yield packets with their frames, and count the bytes that could not be decoded; tags are none.

    FFmpeg stops where an Ogg goes on with another sample rate: what follows is opened as a file that begins there.
    """
    import av

    begins: int | None = 0
    offset = yield from _link(file, clock)
    while offset is not None and begins is not None and (begins := _next_ogg(path, begins + offset)) is not None:
        try:
            with Slice(path, begins) as source, av.open(source, options=OPTIONS) as rest:
                offset = (yield from _link(rest, clock)) if rest.streams.audio else None
        except av.FFmpegError:  # no stream begins there
            return


def _link(file: Any, clock: _Clock) -> Generator[tuple[Any, Any], None, int | None]:
    """Yield the frames of one stream; return the offset from which another one follows, or None."""
    import av

    packets, offset = file.demux(file.streams.audio[0]), 0
    while True:
        try:
            packet = next(packets, None)
        except av.error.PatchWelcomeError:
            return offset
        except av.FFmpegError:  # the file ends in the middle of something
            return None
        if packet is None:
            return None
        offset = packet.pos or offset
        try:
            frames = packet.decode()
        except av.FFmpegError:
            if not any(tag in bytes(packet) for tag in TAGS):
                clock.bad += packet.size
            continue
        for frame in frames:
            if frame.samples and frame.sample_rate:
                yield packet, frame


def _next_ogg(path: Path, offset: int) -> int | None:
    """Return where the next stream of an Ogg begins; None where none does."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        begins = data.find(b"OggS\0\2", offset + 1)
    return None if begins < 0 else begins


def _floats(frame: Any) -> Float32[np.ndarray, "samples channels"]:
    values = frame.to_ndarray()
    if values.dtype == np.uint8:
        values = (values.astype(np.float32) - 128) / 128
    elif values.dtype.kind == "i":
        values = values.astype(np.float32) / np.float32(2.0 ** (8 * values.dtype.itemsize - 1))
    rows = values.T if frame.format.is_planar else values.reshape(frame.samples, -1)
    return np.ascontiguousarray(rows, np.float32)


def _silence(seconds: float, rate: int, channels: int) -> Blocks:
    left, step = round(seconds * rate), max(round(BLOCK * rate), 1)
    while left > 0:
        yield rate, np.zeros((min(left, step), channels), np.float32)
        left -= step


@contextmanager
def opened(path: Path) -> Iterator[Sound]:
    """Open a regular file.

    Raises:
        UnreadableError: where FFmpeg cannot read it, or it holds no sound.
        UserError: where PyAV is not installed.
    """
    try:
        import av
    except ImportError as error:
        raise UserError(f"{path}: is read by PyAV; install it: pip install av") from error
    try:
        file = av.open(f"file:{path}", options=OPTIONS, metadata_errors="replace")
    except (av.FFmpegError, OSError, ValueError) as error:
        raise UnreadableError("corrupt, it cannot be decoded") from error
    with file:
        if not file.streams.audio:
            raise UnreadableError("holds no sound")
        track, name = file.streams.audio[0], file.format.name.split(",")[0]
        if not track.codec_context or not track.rate or not track.channels:
            raise UnreadableError("corrupt, it cannot be decoded")
        seconds = float(file.duration or 0) / av.time_base
        is_guess = name in (*BARE, "mpeg", "mpegts") and not (name == "mp3" and _has_count(path))
        seconds *= caf_share(path) if name == "caf" else 1.0
        if file.streams.video:  # which may last longer than the sound
            track_seconds = float(track.duration * track.time_base) if track.duration and track.time_base else 0.0
            is_guess, seconds = is_guess or not track_seconds, track_seconds or seconds
        yield Sound(name.upper(), seconds, is_guess, int(track.rate), int(track.channels), path, file)


def _has_count(path: Path) -> bool:
    """Return whether an MP3 begins with a frame that counts the others."""
    with path.open("rb") as file:
        head = file.read(10)
        size = 0
        if head[:3] == b"ID3" and len(head) == 10:
            for byte in head[6:]:
                size = size << 7 | byte & 127
            size += 10
        file.seek(size)
        start = file.read(4096)
    return any(tag in start for tag in (b"Xing", b"Info", b"VBRI"))
