"""Look for defects of recordings and captions: of a data set, of the collections it is made of, or of any folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from retable.platform.console import counted
from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.tasks.audio.collect import layouts
from retable.tasks.audio.collect.files import SUFFIXES, Remarks, sounds_below, stream
from retable.tasks.audio.collect.layouts import Entry
from retable.tasks.audio.collect.recordings import AudioShards, Recording, digest, encode, read_recordings
from retable.tasks.audio.prepare.importer import THREADS

AGAIN = "make or import it again"


def check(where: Storage | Path, show: Callable[[int, int], None] = lambda done, total: None) -> list[str]:
    """Return one line for each defect; an empty list if all is fine.

    Every file is decoded: those missing, empty, corrupt, truncated, mislabelled, silent, clipped, shorter than 0.1 s or
    with channels that cancel each other are found; so are equal sounds, sources in two splits, and recordings without
    captions.

    Args:
        where: a data set's folder; one with clotho/, audiocaps/ or wavcaps/; a CSV, or a folder with one; or any
            folder of sounds.
        show: called with the files done and in all.
    """
    folder = Storage.open(where)
    try:
        if folder.exists("dataset.json"):
            return list(_check_dataset(folder, show))
        return list(_check_entries(_entries(Path(folder.root)), show))
    except UserError as error:
        return [str(error)]


def _entries(path: Path) -> list[Entry]:
    """Return what a layout, a CSV or a folder lists.

    Raises:
        UserError: where there is nothing, or a table is broken.
    """
    if path.is_file():
        return layouts.own(path)
    if any((path / name).is_dir() for name in ("clotho", "audiocaps", "wavcaps")):
        return layouts.challenge(path)
    tables = sorted(path.glob("*.csv"))
    if len(tables) == 1 and layouts.describes(tables[0]):
        return layouts.own(tables[0])
    sounds = sounds_below(path)
    if not sounds:
        raise UserError(f"{path}: no recordings ({', '.join(SUFFIXES)})")
    return [Entry(str(sound), sound, "", "", "", "", ("",)) for sound in sounds]


def _check_entries(entries: Sequence[Entry], show: Callable[[int, int], None]) -> Iterator[str]:
    first: dict[str, Entry] = {}
    with ThreadPoolExecutor(THREADS) as pool:
        heard = zip(entries, pool.map(listen, entries), strict=True)
        for entry, (defect, content) in counted(heard, show, len(entries)):
            name = str(entry.path or entry.file)
            if defect:
                yield f"{name}: {defect}"
            if entry.remark:
                yield f"{name}: {entry.remark}"
            if not entry.captions:
                yield f"{name}: no caption; write one, or take it out of the table"
            if content:
                other = first.setdefault(content, entry)
                if other is not entry:
                    yield f"{name}: the same sound as {other.path}{_across(entry.split, other.split)}; remove one"
    yield from _overlaps([(entry.source, entry.split, entry.file) for entry in entries])


def _across(one: str, other: str) -> str:
    return f", of the {other} set" if one != other else ""


def listen(entry: Entry) -> tuple[str, str]:
    """Return what is wrong with a recording, and a digest that equal sounds share; "" where there is none."""
    if entry.path is None:
        return "missing; put it back, or take it out of the table", ""
    hashed, remarks = hashlib.sha256(), Remarks()
    try:
        for block in stream(entry.path, remarks):
            hashed.update(encode(block).tobytes())
    except UserError as error:
        return str(error).removeprefix(f"{entry.path}: "), ""
    remedy = ""
    if remarks.is_damaged():
        remedy = "; get it again"
    elif remarks.defect():
        remedy = "; remove it"
    elif remarks.mislabelled:
        remedy = "; rename it"
    is_whole = not (remarks.is_damaged() or remarks.defect())
    return "; ".join(remarks.lines()) + remedy, hashed.hexdigest() if is_whole else ""


def _overlaps(listed: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    """Yield sources that are in two splits; `listed` has source, split and file of each."""
    splits: dict[str, tuple[str, str]] = {}
    for source, split, file in listed:
        if source:
            other, first = splits.setdefault(source.split("@")[0], (split, file))
            if other != split:
                remedy = "its import marks it as a leak" if "training" in (split, other) else "scores count it twice"
                yield f"{file}: of the {split} set, from {source} as {first} of the {other} set; {remedy}"


def _check_dataset(folder: Storage, show: Callable[[int, int], None]) -> Iterator[str]:
    info = folder.read_json("dataset.json")
    if not isinstance(info, dict) or not {"starts", "shards", "features", "sound", "digest"} <= info.keys():
        yield f"{folder}/dataset.json: not a data set's; {AGAIN}"
        return
    recordings = read_recordings(folder)
    if digest(recordings, [info["sound"]]) != info["digest"]:
        yield f"{folder}: dataset.json belongs to another recordings.parquet; {AGAIN}"
        return
    yield from _shard_defects(folder, AudioShards(folder, info), info["features"], recordings, show)
    for recording in recordings:
        if not recording.captions or not all(caption.strip() for caption in recording.captions):
            yield f"{folder}: {recording.file}: an empty caption; {AGAIN}"
    kept = [recording for recording in recordings if not recording.leak]
    yield from _overlaps([(recording.source, recording.split, recording.file) for recording in kept])


def _shard_defects(
    folder: Storage,
    shards: AudioShards,
    features: str,
    recordings: Sequence[Recording],
    show: Callable[[int, int], None],
) -> Iterator[str]:
    """Yield shards that cannot be read, and sounds that are silent or kept twice without being marked as a leak."""
    first: dict[str, Recording] = {}
    broken: set[str] = set()
    for recording in counted(recordings, show, len(recordings)):
        try:
            stored = shards.stored(recording.recording)
        except UserError as error:
            if str(error) not in broken:
                yield str(error)
            broken.add(str(error))
            continue
        if not stored.any() if features == "waveform" else (stored == stored[0]).all():
            yield f"{folder}: {recording.file}: silent; {AGAIN}"
        other = first.setdefault(hashlib.sha256(stored.tobytes()).hexdigest(), recording)
        if other is not recording and not recording.leak and not other.leak:
            yield f"{folder}: {recording.file}: the same sound as {other.file}{_across(recording.split, other.split)}"
