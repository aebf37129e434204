"""The leak guard: training recordings that are also in the validation or test set, and how that is known.

Four signs: the same source (a Freesound id), the same title, a published list of exclusions, the same sound. Sounds are
compared by a fingerprint of the mel spectrogram after Haitsma and Kalker (2002, *A Highly Robust Audio Fingerprinting
System*): whether the energy's difference between neighbouring bands grows or falls over time, 32 bits for every 10 ms.
It survives cropping at any place, another loudness and lossy encoding; not another speed or pitch, a cut below 2 s, or
resampling below 22 kHz. Shorter sounds are found where they are equal byte for byte.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, UInt32

from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.platform.store.storage import Storage
from retable.tasks.audio.collect.recordings import Recording
from retable.tasks.audio.collect.text import read_cells, read_text

Bits = UInt32[np.ndarray, " frames"]

ID_COLUMNS = {
    "youtube": r"youtube_?(ids?|urls?|links?)|yt_?ids?|video_ids?",
    "freesound": r"freesound_?(ids?|urls?|links?)|sound_ids?|fs_?ids?",
    "": r"ids?|urls?|links?|file_?name|fname",
}
"""Whose ids a column holds, by its name; "": either's. AudioCaps' `audiocap_id` is neither's."""
ID = {
    "youtube": re.compile(
        r"Y?([\w-]{11})|.*youtu(?:be\.com/|\.be/)(?:.*[?&]v=|(?:embed|shorts|live|v)/)?([\w-]{11})(?:[?&#/].*)?"
    ),
    "freesound": re.compile(r"(\d+)|.*freesound\.org/(?:.*/sounds|s)/(\d+)(?:[/?#].*)?"),
}
"""Ids, alone or in a URL."""
LEAKS = "leaks.json"
"""In a data set's folder: the training recordings that are marked, each with the signs by which it was found."""
FIRST_BAND, BANDS_JOINED, GROUPS = 14, 3, 33
"""Mel bands 14 to 112, about 0.3 to 10.5 kHz, in groups of three."""
WINDOW = 37
"""Frames (10 ms each) whose energy is added up: so long that a shift by half a frame hardly matters."""
STEP = 8
"""Every so many frames of a training recording are looked up among all frames of the held-out ones."""
WEAKEST = 4
"""Bits that are closest to turning, of which every combination is looked up."""
ERRORS = 0.3
"""Share of differing bits below which two stretches are the same sound; unrelated ones differ in about half."""
SHORTEST = 16
"""Compared frames, `STEP` apart, that a match needs: 1.3 s and the window."""
CANDIDATES = 20
"""Alignments of a recording that are compared in full, those with the most hits first."""
ROWS = 1 << 18
"""Shared frames that are counted at once, about: steady tones share every frame with every other."""
QUIET = 1e-4
"""Mean energy of a band below which a frame is taken for silence: it has no fingerprint."""


@dataclass(frozen=True)
class Leak:
    """A training recording that is also held out."""

    recording: int
    other: int | None
    """The held-out recording; None where only a list says so."""
    sign: str
    """source, title, list or sound."""


def origin(recording: Recording) -> str:
    """Return what a recording's sound comes from: equal for all parts of a video; "" where that is not known."""
    return recording.source.split("@")[0]


def read_listed(folder: Storage) -> frozenset[int]:
    """Return the numbers of the recordings that a published list of exclusions names; of generated data none."""
    lines = folder.read_json(LEAKS) if folder.exists(LEAKS) else []
    return frozenset(line["recording"] for line in lines if "list" in line["signs"])


def same_source(recordings: Sequence[Recording]) -> list[Leak]:
    """Return training recordings whose source is that of a held-out one; of a video any part counts."""
    return _equal([origin(recording) for recording in recordings], recordings, "source")


def same_title(recordings: Sequence[Recording], titles: Sequence[str]) -> list[Leak]:
    """Return training recordings whose normalised title is that of a held-out one; mere numbers say nothing."""
    return _equal([title if re.search(r"[^\W\d]", title) else "" for title in titles], recordings, "title")


def listed(recordings: Sequence[Recording], excluded: frozenset[str]) -> list[Leak]:
    """Return training recordings whose source is on a list of exclusions (`read_exclusions`)."""
    return [
        Leak(recording.recording, None, "list")
        for recording in recordings
        if recording.split == "training" and origin(recording) in excluded
    ]


def _equal(keys: Sequence[str], recordings: Sequence[Recording], sign: str) -> list[Leak]:
    held = {
        key: recording.recording
        for key, recording in zip(keys, recordings, strict=True)
        if key and recording.split != "training"
    }
    return [
        Leak(recording.recording, held[key], sign)
        for key, recording in zip(keys, recordings, strict=True)
        if recording.split == "training" and key in held
    ]


def read_exclusions(path: Path, report: Callable[[str], None] = lambda line: None) -> frozenset[str]:
    """Return the sources of a published list: WavCaps' JSON, or a CSV of Freesound ids or YouTube ids.

    Args:
        path: the list.
        report: takes a line on how many of its values are no ids.

    Raises:
        UserError: where the file is missing, holds no ids, or fewer than half of its values are ids.
    """
    try:
        text = read_text(path)
        values = _json_values(json.loads(text)) if path.suffix == ".json" else _csv_values(text)
    except (csv.Error, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read as a list of exclusions ({error})") from error
    if not values:
        raise UserError(f"{path}: no Freesound or YouTube ids; give a CSV with a column of ids, or WavCaps' JSON")
    sources = [_source(value, kinds) for value, kinds in values]
    if number := sources.count(""):
        other, rest = values[sources.index("")][0], len(values) - number
        if rest < number:
            why = f"only {rest} of {len(values)} values are Freesound or YouTube ids; {other!r} is none"
            raise UserError(f"{path}: cannot be read as a list of exclusions ({why})")
        report(f"{path}: {number} of {len(values)} values are no ids and exclude nothing; the first: {other!r}")
    return frozenset(source for source in sources if source)


def _json_values(content: Any) -> list[tuple[str, Sequence[str]]]:
    """Return the ids of `{"AudioSet": ["Y<id>.wav", ...], "FreeSound": [<id>, ...]}`, each with whose it is."""
    lists = [content.get(key, []) for key in ("AudioSet", "FreeSound")] if isinstance(content, dict) else []
    if not lists or not all(isinstance(values, list) for values in lists):
        raise ValueError("no object with the lists AudioSet and FreeSound")
    kinds = ("youtube", "freesound")
    return [(str(value).strip(), [kind]) for kind, values in zip(kinds, lists, strict=True) for value in values]


def _csv_values(text: str) -> list[tuple[str, Sequence[str]]]:
    """Return the values of a table's column of ids or URLs, or of its first column, each with whose they may be.

    Cells are separated by ',', ';' or tabs. AudioSet's own tables name their columns in the last of some lines that
    begin with `#`.
    """
    head = next((line for line in text.splitlines() if line and not line.startswith("#")), "")
    delimiter = max(",;\t", key=head.count)
    lines = [line for _, line in read_cells(text, delimiter, skipinitialspace=True)]
    comments = next((n for n, line in enumerate(lines) if not line[0].startswith("#")), len(lines))
    first = max(comments - 1, 0)
    names = [name.strip("# ").lower() for name in lines[first]] if lines else []
    places = (
        (kind, n) for kind, like in ID_COLUMNS.items() for n, name in enumerate(names) if re.fullmatch(like, name)
    )
    kind, column = next(places, ("", None))
    has_names = comments > 0 or column is not None or any(re.fullmatch(r"\w*_ids?", name) for name in names)
    if column is None and has_names:
        return []
    cells = (line[column or 0].strip() for line in lines[first + has_names :] if len(line) > (column or 0))
    return [(value, [kind] if kind else ["freesound", "youtube"]) for value in cells if value]


def _source(value: str, kinds: Sequence[str]) -> str:
    """Return the source that an id or a URL is of, the first of some kinds; "" where it is none."""
    bare = value.removesuffix(".wav").removesuffix(".flac")
    matches = ((kind, ID[kind].fullmatch(bare)) for kind in kinds)
    return next((f"{kind}:{match[1] or match[2]}" for kind, match in matches if match), "")


def fingerprint(
    mel: Float[np.ndarray, "frames 128"],
) -> tuple[Bits, Float[np.ndarray, "frames 32"], Bool[np.ndarray, " frames"]]:
    """Return the fingerprint of a log-mel spectrogram.

    Returns:
        The 32 bits of each frame as a number; how far each bit is from turning; and which frames hold sound.
    """
    if len(mel) < WINDOW + 2:
        return np.zeros(0, np.uint32), np.zeros((0, GROUPS - 1), np.float32), np.zeros(0, bool)
    chosen = np.exp(mel[:, FIRST_BAND : FIRST_BAND + BANDS_JOINED * GROUPS].astype(np.float64))
    energy = chosen.reshape(len(mel), GROUPS, BANDS_JOINED).sum(-1)
    total = np.concatenate([np.zeros((1, GROUPS)), np.cumsum(energy, axis=0)])
    summed = total[WINDOW:] - total[:-WINDOW]
    logarithm = np.log(summed)
    across = logarithm[:, :-1] - logarithm[:, 1:]
    growth = across[STEP:] - across[:-STEP]
    bits = np.ascontiguousarray(np.packbits(growth > 0, axis=1, bitorder="little")).view("<u4")[:, 0]
    loud = summed.mean(axis=1) > QUIET * WINDOW * BANDS_JOINED
    return bits, np.abs(growth), loud[STEP:] & loud[:-STEP]


class HeldOut:
    """The fingerprints of the validation and test recordings, to look others up in; 400 bytes a second."""

    def __init__(self, mels: Iterable[tuple[int, Array]]) -> None:
        """Take (recording, log-mel spectrogram) of each; one is in memory at a time."""
        self._bits: dict[int, Bits] = {}
        keys, owners, frames = [], [], []
        for recording, mel in mels:
            bits, _, loud = fingerprint(mel)
            self._bits[recording] = bits
            places = np.flatnonzero(loud)
            keys.append(bits[places])
            owners.append(np.full(len(places), recording, np.int64))
            frames.append(places)
        key = np.concatenate(keys) if keys else np.zeros(0, np.uint32)
        order = np.argsort(key, kind="stable")
        self._key = key[order]
        self._owner = np.concatenate(owners)[order] if keys else np.zeros(0, np.int64)
        self._frame = np.concatenate(frames)[order] if keys else np.zeros(0, np.int64)

    def find(self, mel: Float[np.ndarray, "frames 128"]) -> int | None:
        """Return the held-out recording that a sound shares at least about 2 s with; None where there is none."""
        bits, margins, loud = fingerprint(mel)
        places = np.flatnonzero(loud)[::STEP]
        if not len(places) or not len(self._key):
            return None
        for owner, shift in self._alignments(bits, margins, places):
            held = self._bits[owner]
            shifted = places + shift
            both = (shifted >= 0) & (shifted < len(held))
            if _agree(np.bitwise_count(bits[places[both]] ^ held[shifted[both]])):
                return owner
        return None

    def _alignments(self, bits: Bits, margins: Array, places: Array) -> list[tuple[int, int]]:
        """Return (recording, frames to add) of stretches that share a frame's bits, the most frequent first."""
        weak = np.argsort(margins[places], axis=1)[:, :WEAKEST].astype(np.uint32)
        flips = np.zeros((len(places), 1), np.uint32)
        for bit in range(weak.shape[1]):
            flips = np.concatenate([flips, flips ^ (np.uint32(1) << weak[:, bit : bit + 1])], axis=1)
        wanted = (bits[places][:, None] ^ flips).ravel()
        frame = np.repeat(places, flips.shape[1])
        low, high = np.searchsorted(self._key, wanted, "left"), np.searchsorted(self._key, wanted, "right")
        count = high - low
        pairs: Array = np.zeros(0, np.int64)
        votes: Array = np.zeros(0)
        for part in np.split(np.arange(len(count)), 1 + np.flatnonzero(np.diff(np.cumsum(count) // ROWS))):
            some = count[part]
            rows = np.repeat(low[part], some) + np.arange(some.sum()) - np.repeat(np.cumsum(some) - some, some)
            pair = (self._owner[rows] << 32) + self._frame[rows] - np.repeat(frame[part], some)
            new, times = np.unique(pair, return_counts=True)
            pairs, where = np.unique(np.concatenate([pairs, new]), return_inverse=True)
            votes = np.bincount(where, np.concatenate([votes, times]))
        best = pairs[np.argsort(-votes, kind="stable")[:CANDIDATES]]
        owners = (best + (1 << 31)) >> 32  # shifts may be negative
        return list(zip(owners.tolist(), (best - (owners << 32)).tolist(), strict=True))


def _agree(differing: Array) -> bool:
    """Return whether anywhere in an alignment `SHORTEST` frames one after another differ in few bits."""
    total = np.concatenate([[0], np.cumsum(differing)])
    return bool((total[SHORTEST:] - total[:-SHORTEST] < ERRORS * 32 * SHORTEST).any())
