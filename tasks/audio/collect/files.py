"""Decodes sound files to mono at 32 kHz: uncompressed ones by libsndfile, all others, and videos, by PyAV.

libsndfile's count of samples is right for what is uncompressed. Of an MP3 without a Xing header it is a guess, and of
files that were joined it is the first one's, beyond which nothing is read: such files are decoded until they end.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr
from jaxtyping import Float32

from retable.platform.errors import UserError
from retable.tasks.audio.collect import chunks, ffmpeg
from retable.tasks.audio.config import SAMPLE_RATE, SHORTEST

SUFFIXES = {
    ".wav": ("WAV", "WAVEX", "RF64"),
    ".flac": ("FLAC",),
    **dict.fromkeys((".ogg", ".oga", ".opus", ".spx"), ("OGG",)),
    **dict.fromkeys((".mp3", ".mp2", ".mpga"), ("MP3",)),
    **dict.fromkeys((".aif", ".aiff", ".aifc"), ("AIFF",)),
    **dict.fromkeys((".au", ".snd"), ("AU",)),
    ".caf": ("CAF",),
    ".w64": ("W64",),
    **dict.fromkeys((".m4a", ".m4b", ".mp4", ".m4v", ".mov", ".3gp", ".3g2"), ("MOV",)),
    **dict.fromkeys((".webm", ".weba", ".mkv", ".mka"), ("MATROSKA",)),
    **dict.fromkeys((".ts", ".mts", ".m2ts"), ("MPEGTS",)),
    **dict.fromkeys((".mpg", ".mpeg", ".vob"), ("MPEG",)),
    ".aac": ("AAC",),
    ".ac3": ("AC3",),
    ".eac3": ("EAC3",),
    ".amr": ("AMR",),
    **dict.fromkeys((".wma", ".wmv"), ("ASF",)),
    ".avi": ("AVI",),
    ".flv": ("FLV",),
    ".wv": ("WV",),
    ".ape": ("APE",),
    ".tta": ("TTA",),
}
"""Ends of names, and what libsndfile or FFmpeg calls such files, in capitals."""
HEADS = (b"RIFF", b"RIFX", b"RF64", b"riff", b"FORM", b".snd", b"caff")
"""First bytes of what libsndfile reads: WAV, RF64, Wave64, AIFF, AU and CAF."""
CUT = re.compile(r"(?:data|SSND|Data Size|riff|Riff size)\s*: (\d+) \(should be (\d+)\)")
"""libsndfile on a file that was cut off: bytes that its header says, and that are there. Of RF64 and W64 all bytes."""
PLAIN = ("PCM_", "FLOAT", "DOUBLE", "ULAW", "ALAW")
"""Prefixes of libsndfile's names of uncompressed encodings."""
RATES = (1000, 768_000)
"""Sample rates of sound; a header with others is broken."""
ENDLESS = 1 << 40
"""Samples that no file has; libsndfile says more where a header does not know."""
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
"""Seconds that are decoded at once."""
GAPS = 3
"""Gaps that are named one by one."""


@dataclass(frozen=True)
class Header:
    """Header of a sound file; its length may be a guess, or that of its first part."""

    seconds: float
    rate: int
    """Samples a second."""
    channels: int
    container: str
    """libsndfile's name, WAV, AIFF, ..., or FFmpeg's in capitals: MP3, OGG, MOV, MATROSKA, ..."""
    is_guess: bool = False
    """Whether the length is a guess."""


def is_sound(path: Path) -> bool:
    """Return whether a file's name is that of sound; hidden files are not."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def sounds_below(folder: Path) -> list[Path]:
    """Return the files of sound in a folder and in those below it, in order of path."""
    return sorted(filter(is_sound, folder.rglob("*")))


def header(path: Path) -> Header:
    """Return what a file says of itself, without decoding it.

    Raises:
        UserError: where it is missing, empty, corrupt or no sound.
    """
    with _opened(path) as sound:
        return sound.header


def duration(path: Path, most: float = np.inf) -> float:
    """Return the seconds that a file holds, by decoding it to its end, or until there are more than `most`.

    Raises:
        UserError: where it is missing, empty, corrupt or no sound.
    """
    seconds = 0.0
    with _opened(path) as sound:
        for rate, block in sound.blocks:
            seconds += len(block) / rate
            if seconds > most:
                break
    return seconds


def decode(
    path: Path, start: float = 0.0, seconds: float | None = None, remarks: Remarks | None = None
) -> Float32[np.ndarray, " samples"]:
    """Return a file's sound, or the part of it that begins at `start`, as mono at 32 kHz in [-1, 1].

    Channels are averaged, but where those of half a second cancel each other the first is used; other rates are
    resampled (soxr's high quality), values beyond 1 clipped, values that are not finite and what cannot be decoded
    become silence. No more than the part is kept in memory; a compressed file is decoded from its beginning.

    Args:
        path: the file.
        start: seconds from the beginning.
        seconds: of sound, fewer where the file ends; None: to the end.
        remarks: takes what is odd about what was decoded.

    Raises:
        UserError: where the file is missing, empty, corrupt, no sound, or ends before `start`.
    """
    remarks = remarks or Remarks()
    runs: list[tuple[int, list[Float32[np.ndarray, " samples"]]]] = []
    last = np.inf if seconds is None else start + seconds
    with _opened(path, remarks, start) as sound:
        time = sound.begins
        for rate, block in sound.blocks:
            first = max(round((start - time) * rate), 0)
            stop = (
                len(block) if last > time + len(block) / rate else max(round((last - time) * rate), first + (not runs))
            )
            part = block[first:stop]
            time += len(block) / rate
            if len(part):
                if not runs or runs[-1][0] != rate:
                    runs.append((rate, []))
                runs[-1][1].append(_joined(part, remarks))
                remarks.seconds += len(part) / rate
            if time >= last:
                remarks.promised = 0.0
                break
    if not runs and time:
        raise UserError(f"{path}: ends after {time:g} s, before {start:g} s")
    _check_heard(path, remarks)
    waveform = np.concatenate([_resampled(np.concatenate(parts), rate) for rate, parts in runs])
    clipped: Float32[np.ndarray, " samples"] = np.clip(waveform, -1.0, 1.0)
    return clipped


@dataclass
class Remarks:
    """Oddities of a file that was decoded."""

    lost: list[tuple[float, float]] = field(default_factory=list)
    """Seconds, from and to, that are missing or cannot be decoded; silence stands for them."""
    mislabelled: str = ""
    """Container of the file if its name says otherwise; else ""."""
    promised: float = 0.0
    """Seconds that its header says it holds; 0 where it says nothing."""
    seconds: float = 0.0
    """Seconds that it holds."""
    loudest: float = 0.0
    """The largest value of a channel."""
    clipped: int = 0
    """Samples at full scale, of `samples`."""
    samples: int = 0
    unheard: int = 0
    """Bytes behind the sound that are neither chunks nor samples."""
    numberless: int = 0
    """Values that are not finite; zeros stand for them."""
    cancels: bool = False
    """Whether its channels cancel each other, so that the first stands for all."""

    def defect(self) -> str:
        """Return why the sound is of no use to an index or a data set; "" where it is."""
        if self.seconds < SHORTEST - 0.5 / SAMPLE_RATE:
            return f"too short ({self.seconds:.3f} s, {SHORTEST} s are needed)"
        return "silent" if self.loudest < SILENT else ""

    def is_damaged(self) -> bool:
        """Return whether something of the file is missing."""
        return bool(self.lost) or self.promised > self.seconds + SHORT

    def lines(self) -> list[str]:
        """Return a clause for each thing that is odd; nothing where nothing is."""
        clauses = [f"mislabelled, it is {self.mislabelled}"] if self.mislabelled else []
        clauses += _gap_lines(self.lost)
        if self.promised > self.seconds + SHORT:
            clauses.append(f"truncated: holds {self.seconds:.1f} s, its header says {self.promised:.1f} s")
        if self.unheard:
            clauses.append(f"{self.unheard:,} bytes behind its sound are not heard")
        if self.numberless:
            clauses.append(f"{self.numberless} values are no numbers; heard as silence")
        if defect := self.defect():
            clauses.append(defect)
        if self.cancels:
            clauses.append("its channels cancel each other; the first is heard")
        if self.clipped > CLIPPED * max(self.samples, 1):
            clauses.append(f"clipped: {self.clipped / self.samples:.0%} of its samples are at full scale")
        return clauses


def _gap_lines(lost: list[tuple[float, float]]) -> list[str]:
    """Return a clause for each gap; where there are many, for the first ones, and one for all others."""
    clauses = [f"{_clock(start)} to {_clock(stop)} cannot be decoded; heard as silence" for start, stop in lost[:GAPS]]
    if rest := lost[GAPS:]:
        clauses.append(f"{len(rest)} gaps more, of {sum(stop - start for start, stop in rest):.1f} s in all")
    return clauses


def _clock(seconds: float) -> str:
    minutes, tenths = divmod(round(10 * seconds), 600)  # rounded first: 59.97 s are 1:00.0
    return f"{minutes}:{tenths / 10:04.1f}"


def stream(path: Path, remarks: Remarks) -> Iterator[Float32[np.ndarray, " samples"]]:
    """Yield a file's sound as mono at 32 kHz in blocks: decoded once, from its beginning to its end.

    As `decode`. What is odd is put into `remarks`, which are whole once the stream has ended.

    Raises:
        UserError: where the file is missing, empty, no sound, or nothing of it can be decoded.
    """
    resampler, before = None, SAMPLE_RATE
    with _opened(path, remarks) as sound:
        for rate, block in sound.blocks:
            mono = np.clip(_joined(block, remarks), -1.0, 1.0)
            remarks.seconds += len(mono) / rate
            if rate != before:
                if resampler is not None:
                    yield _end(resampler)
                resampler, before = None if rate == SAMPLE_RATE else soxr.ResampleStream(rate, SAMPLE_RATE, 1), rate
            yield mono if resampler is None else np.clip(resampler.resample_chunk(mono), -1.0, 1.0)
    if resampler is not None:
        yield _end(resampler)
    _check_heard(path, remarks)


def _end(resampler: soxr.ResampleStream) -> Float32[np.ndarray, " samples"]:
    rest: Float32[np.ndarray, " samples"] = np.clip(
        resampler.resample_chunk(np.zeros(0, np.float32), last=True), -1.0, 1.0
    )
    return rest


def _check_heard(path: Path, remarks: Remarks) -> None:
    """Raise UserError where nothing of a file was decoded, or only what is not finite."""
    if not remarks.samples or (remarks.numberless and not remarks.loudest):
        what = "holds values that are no numbers" if remarks.samples else "no sound (0 s)"
        raise UserError(f"{path}: {what}; {REMEDY}")


def _joined(block: Float32[np.ndarray, "samples channels"], remarks: Remarks) -> Float32[np.ndarray, " samples"]:
    """Return a block's mean over channels, or its first channel where they cancel each other; update the remarks."""
    finite = np.isfinite(block)
    if not finite.all():
        remarks.numberless += int((~finite).sum())
        block = np.where(finite, block, np.float32(0))
    size = np.abs(block)
    remarks.loudest = max(remarks.loudest, float(size.max(initial=0.0)))
    remarks.clipped += int((size.max(1) >= FULL).sum())
    remarks.samples += len(block)
    if block.shape[1] == 1:
        return block[:, 0]
    mono: Float32[np.ndarray, " samples"] = block.mean(axis=1)
    power = float(np.square(block).mean())
    if power > SILENT**2 and float(np.square(mono).mean()) < CANCELLED * power:
        remarks.cancels = True
        return block[:, 0]
    return mono


def _resampled(waveform: Float32[np.ndarray, " samples"], rate: int) -> Float32[np.ndarray, " samples"]:
    """Resample; where a sound is so short that nothing would be left, a sample is."""
    if rate == SAMPLE_RATE:
        return waveform
    out = soxr.resample(waveform, rate, SAMPLE_RATE)
    return np.asarray(out if len(out) else waveform[:1], np.float32)


@dataclass(frozen=True)
class _Sound:
    """An open file."""

    header: Header
    begins: float
    """Seconds at which the blocks begin."""
    blocks: ffmpeg.Blocks


@contextmanager
def _opened(path: Path, remarks: Remarks | None = None, start: float = 0.0) -> Iterator[_Sound]:
    """Open a file, at a second where that costs nothing; what makes that impossible becomes one clear line."""
    remarks = remarks or Remarks()
    _check_regular(path)
    try:
        with _by_libsndfile(path, start, remarks) or _by_ffmpeg(path, remarks) as sound:
            file_header = sound.header
            if not RATES[0] <= file_header.rate <= RATES[1]:
                raise UserError(f"{path}: corrupt, its header says {file_header.rate} samples a second; {REMEDY}")
            wanted = SUFFIXES.get(path.suffix.lower(), (file_header.container,))
            remarks.mislabelled = "" if file_header.container in wanted else file_header.container
            remarks.promised = 0.0 if file_header.is_guess else file_header.seconds
            yield sound
    except ffmpeg.UnreadableError as error:
        raise UserError(f"{path}: {_what(path) or error}; {REMEDY}") from error


def _check_regular(path: Path) -> None:
    try:
        status = path.stat()
    except OSError as error:
        raise UserError(f"{path}: missing; put it back or take it out of the list") from error
    if why := irregular(status.st_mode):
        raise UserError(f"{path}: {why}; {REMEDY}")
    if not status.st_size:
        raise UserError(f"{path}: empty (0 bytes); {REMEDY}")


def irregular(mode: int) -> str:
    """Return what a file of a mode is, where it is none that can be read to its end; else ""."""
    if stat.S_ISDIR(mode):
        return "a folder, no file"
    return "" if stat.S_ISREG(mode) else "a pipe or device, no file"


@contextmanager
def _by_ffmpeg(path: Path, remarks: Remarks) -> Iterator[_Sound]:
    with ffmpeg.opened(path) as sound:
        file_header = Header(sound.seconds, sound.rate, sound.channels, sound.container, sound.is_guess)
        yield _Sound(file_header, 0.0, sound.blocks(remarks.lost))


def _by_libsndfile(path: Path, start: float, remarks: Remarks) -> AbstractContextManager[_Sound] | None:
    """Open a file whose samples libsndfile counts rightly; None where it is another, or holds none as it says."""
    try:
        with path.open("rb") as file:
            if file.read(4) not in HEADS:
                return None
        parts, unheard = chunks.parts(path)
        if len(parts) > 1 or parts[0].samples or unheard:
            heard, headers = list[chunks.Part](), list[Header]()
            for part in parts:  # one after another: a process may open so many files alone
                try:
                    with _part(path, part) as (sound, container):
                        if not sound.subtype.startswith(PLAIN):
                            return None
                        seconds = sound.frames / sound.samplerate
                        headers.append(Header(seconds, sound.samplerate, sound.channels, container))
                    heard.append(part)
                except soundfile.LibsndfileError:
                    if not heard:  # FFmpeg may read the first
                        return None
                    unheard += part.ends - part.begins
            remarks.unheard = unheard
            joint_header = replace(headers[0], seconds=sum(header.seconds for header in headers))
            return nullcontext(_Sound(joint_header, 0.0, _read_parts(path, heard)))
        sound = soundfile.SoundFile(str(path))
    except (OSError, soundfile.LibsndfileError, RuntimeError, TypeError):
        return None
    if not 0 < sound.frames < ENDLESS or not sound.subtype.startswith(PLAIN):
        sound.close()
        return None
    return _read(sound, start)


def _read_parts(path: Path, parts: Sequence[chunks.Part]) -> ffmpeg.Blocks:
    """Read WAVs that were joined, and samples that no header counts."""
    for part in parts:
        with _part(path, part) as (sound, _):
            yield from _blocks(sound, max(round(STEP * sound.samplerate), 1))


@contextmanager
def _part(path: Path, part: chunks.Part) -> Iterator[tuple[soundfile.SoundFile, str]]:
    """Open a part; give it and the name of its container."""
    with chunks.Slice(path, part.begins, part.ends) as file, soundfile.SoundFile(file) as sound:
        if not part.samples or not sound.subtype.startswith(PLAIN):
            yield sound, sound.format
            return
        endian = "BIG" if sound.format == "AU" else "LITTLE"
        layout: Any = {"samplerate": sound.samplerate, "channels": sound.channels, "subtype": sound.subtype}
        with (
            chunks.Slice(path, part.samples) as raw,
            soundfile.SoundFile(raw, format="RAW", endian=endian, **layout) as plain,
        ):
            yield plain, sound.format


@contextmanager
def _read(file: soundfile.SoundFile, start: float) -> Iterator[_Sound]:
    with file:
        rate, first = file.samplerate, 0
        cut = CUT.search(file.extra_info)
        is_cut = cut and int(cut[1]) < chunks.UNKNOWN
        seconds = file.frames / rate * (int(cut[1]) / max(int(cut[2]), 1) if cut and is_cut else 1.0)
        if start:
            first = min(round(start * rate), file.frames)
            file.seek(first)
        blocks = _blocks(file, max(round(STEP * rate), 1))
        yield _Sound(Header(seconds, rate, file.channels, file.format), first / rate, blocks)


def _blocks(file: soundfile.SoundFile, step: int) -> ffmpeg.Blocks:
    """Yield what is left of a file, until it ends or cannot be decoded further."""
    with suppress(soundfile.LibsndfileError, RuntimeError):
        while len(block := file.read(step, dtype="float32", always_2d=True)):
            yield file.samplerate, np.asarray(block, np.float32)


def _what(path: Path) -> str:
    """Return what a file is that is no sound; "" where that is not known."""
    try:
        with path.open("rb") as file:
            head = file.read(512)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    named = "mislabelled" if path.suffix.lower() in SUFFIXES else "not a sound file"
    signatures = {b"\x89PNG": "a PNG picture", b"\xff\xd8\xff": "a JPEG picture", b"PK\x03\x04": "a ZIP archive"}
    for magic, name in signatures.items():
        if head.startswith(magic):
            return f"{named}, it is {name}"
    if not set(head) & {*range(9), *range(14, 27)}:
        return f"{named}, it is text"
    return ""
