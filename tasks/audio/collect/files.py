"""Sound files as mono at 32 kHz: by soundfile, and what libsndfile does not read, videos too, by PyAV."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import soundfile
import soxr
from jaxtyping import Float32

from retable.platform.errors import UserError
from retable.tasks.audio.collect import ffmpeg
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
    ".aifc": ("AIFF",),
    ".au": ("AU",),
    ".snd": ("AU",),
    ".caf": ("CAF",),
    ".w64": ("W64",),
    **dict.fromkeys((".m4a", ".mp4", ".m4v", ".mov", ".3gp"), ("mov",)),
    **dict.fromkeys((".webm", ".mkv", ".mka"), ("matroska",)),
    ".aac": ("aac",),
    ".wma": ("asf",),
    ".avi": ("avi",),
}
"""Ends of names, and what libsndfile, or FFmpeg behind PyAV, calls such files."""
BY_FFMPEG = tuple(suffix for suffix, names in SUFFIXES.items() if names[0].islower())
"""Ends of names of files that libsndfile does not read."""
RATES = (1000, 768_000)
"""Sample rates of sound; a header with others is broken."""
ENDLESS = 1 << 40
"""Frames that no file has; libsndfile says more of a FLAC whose header does not know its length, and cannot seek it."""
REMEDY = "give a WAV, FLAC, OGG, MP3, AIFF or M4A file"
SILENT = 1e-4
"""A sound whose values are all below has none that can be heard: 80 dB below full scale."""
FULL, CLIPPED = 0.999, 0.01
"""Full scale, and the share of samples there from which a sound counts as clipped."""
CANCELLED = 1e-4
"""Channels cancel each other where their mean has less than this share of their power."""
SHORT = 0.5
"""Seconds that a file may hold less than its header says: MP3 headers are guesses."""
STEP = 0.5
"""Seconds that are decoded at once, and that are lost of a stream with what cannot be."""


@dataclass(frozen=True)
class Header:
    """What a file says of itself."""

    seconds: float
    rate: int
    """Samples a second."""
    channels: int
    container: str
    """libsndfile's name, WAV, FLAC, OGG, ..., or FFmpeg's: mov, matroska, ..."""


def is_sound(path: Path) -> bool:
    """Say whether a file's name is that of sound; hidden files are not."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def header(path: Path) -> Header:
    """Return what a file says of itself.

    Raises:
        UserError: where it is missing, empty, corrupt or no sound.
    """
    if path.suffix.lower() in BY_FFMPEG:
        with ffmpeg.opened(path) as sound:
            return Header(sound.seconds, sound.rate, sound.channels, sound.container)
    with _opened(path) as file:
        return Header(file.frames / file.samplerate, file.samplerate, file.channels, file.format)


def duration(path: Path) -> float:
    """Return the seconds that a file says it holds.

    Raises:
        UserError: where it is missing, empty, corrupt or no sound.
    """
    return header(path).seconds


def decode(
    path: Path, start: float = 0.0, seconds: float | None = None, remarks: Remarks | None = None
) -> Float32[np.ndarray, " samples"]:
    """Return a file's sound, or the part of it that begins at `start`, as mono at 32 kHz in [-1, 1].

    Channels are averaged, but where those of half a second cancel each other the first is heard; other rates are
    resampled (soxr's high quality), values beyond 1 clipped. Only the part asked for
    is decoded, so a long file costs no more memory than its part.

    Args:
        path: the file.
        start: seconds from the beginning.
        seconds: of sound, fewer where the file ends; None: to the end.
        remarks: takes what is odd about what was decoded.

    Raises:
        UserError: where the file is missing, empty, corrupt, no sound, or ends before `start`.
    """
    if path.suffix.lower() in BY_FFMPEG:
        return _part(path, start, seconds, remarks or Remarks())
    remarks = remarks or Remarks()
    with _opened(path) as file:
        first = round(start * file.samplerate)
        if first >= file.frames:
            raise UserError(f"{path}: ends after {file.frames / file.samplerate:g} s, before {start:g} s")
        file.seek(first)
        count = file.frames - first
        if seconds is not None:
            count = min(count, max(round(seconds * file.samplerate), 1))
        blocks = list(_mono(file, count, remarks))
        rate = file.samplerate
    waveform = np.concatenate(blocks) if blocks else np.zeros(0, np.float32)
    if not len(waveform):
        raise UserError(f"{path}: corrupt, no sound can be decoded; {REMEDY}")
    if remarks.numberless:
        raise UserError(f"{path}: holds values that are no numbers; {REMEDY}")
    if rate != SAMPLE_RATE:
        waveform = _resampled(waveform, rate)
    return np.clip(waveform, -1.0, 1.0)


def _part(path: Path, start: float, seconds: float | None, remarks: Remarks) -> Float32[np.ndarray, " samples"]:
    """Return a part of a file that FFmpeg reads: from its beginning, as its containers tell places badly."""
    first, found, have = round(start * SAMPLE_RATE), [], 0
    last = math.inf if seconds is None else first + max(round(seconds * SAMPLE_RATE), 1)
    for block in stream(path, remarks):
        found.append(block[max(first - have, 0) : int(min(last - have, len(block)))])
        have += len(block)
        if have >= last:
            break
    if have <= first:
        raise UserError(f"{path}: ends after {have / SAMPLE_RATE:g} s, before {start:g} s")
    return np.concatenate(found)


@dataclass
class Remarks:
    """What is odd about a file that was read as a stream."""

    lost: list[tuple[float, float]] = field(default_factory=list)
    """Seconds, from and to, that cannot be decoded; silence stands for them."""
    promised: float = 0.0
    """Seconds that its header says it holds."""
    seconds: float = 0.0
    """Seconds that it holds."""
    loudest: float = 0.0
    """The largest value of a channel."""
    clipped: int = 0
    """Samples at full scale, of `samples`."""
    samples: int = 0
    numberless: int = 0
    """Values that are no numbers; zeros stand for them."""
    cancels: bool = False
    """Whether its channels cancel each other, so that the first stands for all."""

    def lines(self) -> list[str]:
        """Say it, a clause each; nothing where nothing is odd."""
        found = [f"{_clock(start)} to {_clock(stop)} cannot be decoded; heard as silence" for start, stop in self.lost]
        if self.promised > self.seconds + SHORT:
            found.append(f"truncated: holds {self.seconds:.1f} s, its header says {self.promised:.1f} s")
        if self.numberless:
            found.append(f"{self.numberless} values are no numbers; heard as silence")
        if self.loudest < SILENT:
            found.append("silent")
        if self.cancels:
            found.append("its channels cancel each other; the first is heard")
        if self.clipped > CLIPPED * max(self.samples, 1):
            found.append(f"clipped: {self.clipped / self.samples:.0%} of its samples are at full scale")
        return found


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{seconds % 60:04.1f}"


def stream(path: Path, remarks: Remarks) -> Iterator[Float32[np.ndarray, " samples"]]:
    """Yield a file's sound as mono at 32 kHz in blocks: decoded once, from its beginning to its end.

    As `decode`, but what cannot be decoded is silence. What is odd is put into `remarks`, which are whole once the
    stream has ended.

    Raises:
        UserError: where the file is missing, empty, no sound, or nothing of it can be decoded.
    """
    resampler = None
    for rate, block in _channels(path, remarks):
        mono = np.clip(_joined(block, remarks), -1.0, 1.0)
        remarks.seconds += len(mono) / rate
        if rate != SAMPLE_RATE:
            resampler = resampler or soxr.ResampleStream(rate, SAMPLE_RATE, 1)
            mono = resampler.resample_chunk(mono)
        yield np.clip(mono, -1.0, 1.0)
    if resampler is not None:
        yield np.clip(resampler.resample_chunk(np.zeros(0, np.float32), last=True), -1.0, 1.0)
    if not remarks.samples or (remarks.numberless and not remarks.loudest):
        raise UserError(f"{path}: corrupt, no sound can be decoded; {REMEDY}")


def _joined(block: Float32[np.ndarray, "samples channels"], remarks: Remarks) -> Float32[np.ndarray, " samples"]:
    """Return a block's mean over channels, or its first channel where they cancel each other, and take note."""
    finite = np.isfinite(block)
    remarks.numberless += int((~finite).sum())
    block = np.where(finite, block, np.float32(0))
    size = np.abs(block)
    remarks.loudest = max(remarks.loudest, float(size.max(initial=0.0)))
    remarks.clipped += int((size.max(1) >= FULL).sum())
    remarks.samples += len(block)
    mono: Float32[np.ndarray, " samples"] = block.mean(axis=1)
    power = float(np.square(block).mean())
    if block.shape[1] > 1 and power > SILENT**2 and float(np.square(mono).mean()) < CANCELLED * power:
        remarks.cancels = True
        return block[:, 0]
    return mono


def _channels(path: Path, remarks: Remarks) -> Iterator[tuple[int, Float32[np.ndarray, "samples channels"]]]:
    """Yield a file's sample rate and blocks of all channels; what cannot be decoded is silence."""
    if path.suffix.lower() in BY_FFMPEG:
        with ffmpeg.opened(path) as sound:
            remarks.promised = sound.seconds
            yield from ((sound.rate, block) for block in sound.blocks(remarks.lost))
        return
    with _opened(path) as file:
        rate, channels, frames = file.samplerate, file.channels, file.frames
        whole = re.search(r"data : (\d+) \(should be (\d+)\)", file.extra_info)  # of a WAV: libsndfile mends it itself
    remarks.promised = frames / rate * (int(whole[1]) / max(int(whole[2]), 1) if whole else 1)
    step, place = max(round(STEP * rate), 1), 0
    while place < frames:
        for block in _run(path, place, step):
            place += len(block)
            yield rate, block
        if place >= frames:
            return
        found = (place + lost for lost in range(step, frames - place, step))
        resumed = next((start for start in found if next(_run(path, start, step), None) is not None), None)
        if resumed is None:  # nothing comes after it: that is how a truncated file ends
            return
        remarks.lost.append((place / rate, resumed / rate))
        yield rate, np.zeros((resumed - place, channels), np.float32)
        place = resumed


class _Sound(soundfile.SoundFile):  # type: ignore[misc]
    """A file that is read on from where it stopped.

    soundfile seeks to that place after each read, unless a file cannot seek. MP3 pays for it: a frame needs bits of
    those before, so that each block would begin with one or two that are damaged.
    """

    def seekable(self) -> bool:
        """Say no, so that nothing seeks but `seek`."""
        return False


def _run(path: Path, start: int, step: int) -> Iterator[Float32[np.ndarray, "samples channels"]]:
    """Yield blocks of a file from a sample on, until it ends or cannot be decoded further."""
    with suppress(soundfile.LibsndfileError, RuntimeError), _Sound(str(path)) as file:
        if start:
            file.seek(start)
        while len(block := file.read(step, dtype="float32", always_2d=True)):
            yield np.asarray(block, np.float32)


def _mono(file: soundfile.SoundFile, count: int, remarks: Remarks) -> Iterator[Float32[np.ndarray, " samples"]]:
    step = max(round(STEP * file.samplerate), 1)
    while count > 0:
        block = file.read(min(step, count), dtype="float32", always_2d=True)
        if not len(block):
            return
        yield _joined(np.asarray(block, np.float32), remarks)
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
        with _Sound(str(path)) as file:
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
        return f"{named}, it is MP4 or M4A; call it so"
    if not set(head) & {*range(9), *range(14, 27)}:
        return f"{named}, it is text"
    return "corrupt, it cannot be decoded"
