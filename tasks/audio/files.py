"""Sound files: WAV, FLAC, OGG, MP3 and AIFF, read as mono at 32 kHz."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import soxr
from jaxtyping import Float32

from retable.platform.errors import UserError
from retable.tasks.audio.config import SAMPLE_RATE

SUFFIXES = {
    ".wav": ("WAV", "WAVEX", "RF64"),
    ".flac": ("FLAC",),
    ".ogg": ("OGG",),
    ".oga": ("OGG",),
    ".opus": ("OGG",),
    ".mp3": ("MP3", "MPEG"),
    ".aif": ("AIFF",),
    ".aiff": ("AIFF",),
}
"""Ends of names, and what libsndfile calls such files."""
RATES = (1000, 768_000)
"""Sample rates of sound; a header with others is broken."""
ENDLESS = 1 << 40
"""Frames that no file has; libsndfile says more of a FLAC whose header does not know its length, and cannot seek it."""
REMEDY = "give a WAV, FLAC, OGG, MP3 or AIFF file"
CHUNK = 1 << 20
"""Samples of all channels that are decoded at once."""


@dataclass(frozen=True)
class Header:
    """What a file says of itself."""

    seconds: float
    rate: int
    """Samples a second."""
    channels: int
    container: str
    """libsndfile's name: WAV, FLAC, OGG, ..."""


def is_sound(path: Path) -> bool:
    """Say whether a file's name is that of sound; hidden files are not."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def header(path: Path) -> Header:
    """Return what a file says of itself.

    Raises:
        UserError: where it is missing, empty, corrupt or no sound.
    """
    with _opened(path) as file:
        return Header(file.frames / file.samplerate, file.samplerate, file.channels, file.format)


def duration(path: Path) -> float:
    """Return the seconds that a file says it holds.

    Raises:
        UserError: where it is missing, empty, corrupt or no sound.
    """
    return header(path).seconds


def decode(path: Path, start: float = 0.0, seconds: float | None = None) -> Float32[np.ndarray, " samples"]:
    """Return a file's sound, or the part of it that begins at `start`, as mono at 32 kHz in [-1, 1].

    Channels are averaged, other rates resampled (soxr's high quality), values beyond 1 clipped. Only the part asked for
    is decoded, so a long file costs no more memory than its part.

    Args:
        path: the file.
        start: seconds from the beginning.
        seconds: of sound, fewer where the file ends; None: to the end.

    Raises:
        UserError: where the file is missing, empty, corrupt, no sound, or ends before `start`.
    """
    with _opened(path) as file:
        first = round(start * file.samplerate)
        if first >= file.frames:
            raise UserError(f"{path}: ends after {file.frames / file.samplerate:g} s, before {start:g} s")
        file.seek(first)
        count = file.frames - first
        if seconds is not None:
            count = min(count, max(round(seconds * file.samplerate), 1))
        blocks = list(_mono(file, count))
        rate = file.samplerate
    waveform = np.concatenate(blocks) if blocks else np.zeros(0, np.float32)
    if not len(waveform):
        raise UserError(f"{path}: corrupt, no sound can be decoded; {REMEDY}")
    if not np.isfinite(waveform).all():
        raise UserError(f"{path}: holds values that are no numbers; {REMEDY}")
    if rate != SAMPLE_RATE:
        waveform = _resampled(waveform, rate)
    return np.clip(waveform, -1.0, 1.0)


def _mono(file: soundfile.SoundFile, count: int) -> Iterator[Float32[np.ndarray, " samples"]]:
    step = max(CHUNK // file.channels, 1)
    while count > 0:
        block = file.read(min(step, count), dtype="float32", always_2d=True)
        if not len(block):
            return
        yield block.mean(axis=1)
        count -= len(block)


def _resampled(waveform: Float32[np.ndarray, " samples"], rate: int) -> Float32[np.ndarray, " samples"]:
    """Resample; where a sound is so short that nothing would be left, a sample is."""
    out = soxr.resample(waveform, rate, SAMPLE_RATE)
    return np.asarray(out if len(out) else waveform[:1], np.float32)


@contextmanager
def _opened(path: Path) -> Iterator[soundfile.SoundFile]:
    """Open a file; what libsndfile says of it becomes one clear line."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise UserError(f"{path}: missing; put it back or take it out of the list") from error
    if path.is_dir():
        raise UserError(f"{path}: a folder, no file; {REMEDY}")
    if not size:
        raise UserError(f"{path}: empty (0 bytes); {REMEDY}")
    try:
        with soundfile.SoundFile(str(path)) as file:
            if not RATES[0] <= file.samplerate <= RATES[1]:
                raise UserError(f"{path}: corrupt, its header says {file.samplerate} samples a second; {REMEDY}")
            if file.frames >= ENDLESS:
                unknown = "its header does not say how long it is, as where it was written to a pipe"
                raise UserError(f"{path}: {unknown}; write it anew, e.g. with `ffmpeg -i OLD NEW.flac`")
            if not file.frames:
                raise UserError(f"{path}: no sound (0 s); {REMEDY}")
            yield file
    except (soundfile.LibsndfileError, RuntimeError, TypeError) as error:
        raise UserError(f"{path}: {_what(path)}; {REMEDY}") from error


def _what(path: Path) -> str:
    """Say what a file is that is no sound."""
    try:
        with path.open("rb") as file:
            head = file.read(512)
    except OSError:
        return "cannot be read"
    named = "mislabelled" if path.suffix.lower() in SUFFIXES else "not a sound file"
    known = {b"\x89PNG": "a PNG picture", b"\xff\xd8\xff": "a JPEG picture", b"PK\x03\x04": "a ZIP archive"}
    for magic, name in known.items():
        if head.startswith(magic):
            return f"{named}, it is {name}"
    if b"ftyp" in head[:16]:
        return f"{named}, it is MP4 or M4A; convert it with `ffmpeg -i`"
    if not set(head) & {*range(9), *range(14, 27)}:
        return f"{named}, it is text"
    return "corrupt, it cannot be decoded"
