"""Make a data set of recordings with captions: of the challenge's collections, or of one's own CSV."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from retable.platform.console import counted, progress_bar
from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.tasks.audio.collect import layouts, leaks
from retable.tasks.audio.collect.files import Remarks, decode, duration, header
from retable.tasks.audio.collect.layouts import Entry
from retable.tasks.audio.collect.recordings import (
    BEFORE,
    AudioShards,
    Decoded,
    Features,
    Item,
    Kind,
    Recording,
    Written,
    finish,
    read_info,
    read_recordings,
    write_shards,
)
from retable.tasks.audio.config import SAMPLE_RATE
from retable.tasks.audio.prepare.prepare import check_kind
from retable.tasks.audio.rewrite import variations

SLOWEST = 4_000
"""Bytes of a second of sound, at least, where a header does not say how long it is: 32 kbit/s."""
LONGEST = 300.0
"""Seconds that are kept of a file, from its beginning; WavCaps' longest lasts 18 hours."""
THREADS = 8
"""Files whose headers are read at once."""
CUT = "cut.json"
"""The recordings that were longer, with their seconds."""
GUARD = "guard"
"""Folder of what the leak guard heard in each shard, so that it need not listen again."""


def import_own(
    table: Path,
    target: Storage,
    name: str,
    *,
    folder: Path | None = None,
    features: Features = "waveform",
    workers: int = 1,
    replacing: bool = False,
) -> dict[str, Any]:
    """Import the recordings of a CSV (`layouts.own`); see `import_entries`.

    Without a column `split`, what an earlier import trained on is not held out now, and the reverse: the CSV may have
    grown since, and files may lie in other folders.
    """
    earlier = [] if replacing else _before(target)
    keys = layouts.file_keys(recording.file for recording in earlier)
    before = {key: recording.split for recording in earlier for key in (*keys[recording.file], leaks.origin(recording))}
    entries = layouts.own(table, folder, before)
    return import_entries(entries, target, name, "own", features=features, workers=workers, replacing=replacing)


def _before(target: Storage) -> list[Recording]:
    """Return the recordings of an earlier import; none where there is none, or a broken table that this one mends."""
    with suppress(UserError):
        return read_recordings(target)
    return []


def import_entries(
    entries: Sequence[Entry],
    target: Storage,
    name: str,
    kind: Kind,
    *,
    features: Features = "waveform",
    exclusions: Sequence[Path] = (),
    workers: int = 1,
    replacing: bool = False,
) -> dict[str, Any]:
    """Write a data set of what a layout lists.

    Recordings without a caption and files that are missing, broken, silent or shorter than 0.1 s are left out, a line
    each in `left_out.json`; `remarks.json` says what is odd about others, and what the lists of exclusions match. Of
    long files the first 300 s are kept, and `cut.json` lists them. Leaks are marked, and listed in `leaks.json`. An
    interrupted import goes on when repeated; shards with files that have changed since are written again. Captions keep
    the rewritten forms that they have.

    Args:
        entries: training first, then validation, then test.
        target: the data set's folder.
        name: the data set's name.
        kind: where it comes from.
        features: whether waveforms or mel spectrograms are kept.
        exclusions: published lists of what must not be trained on (`leaks.read_exclusions`).
        workers: processes that decode.
        replacing: whether a data set that has mostly other recordings is given up.

    Returns:
        Beside what `dataset.json` holds, a line each or "": `cut`, how many recordings were longer, and which; `gone`,
        how many that the data set held before are listed no more.

    Raises:
        UserError: where the folder holds a data set of another kind or mostly of other recordings, a list is broken, or
            nothing can be imported.
    """
    target.check_writable()
    check_kind(target, kind)
    old, before = read_info(target), _before(target)
    kept_on = {recording.file for recording in before} & {entry.file for entry in entries}
    if 2 * len(kept_on) < len({recording.file for recording in before}) and not replacing:
        more = "choose another --name, or give them up: `retable data import audio ... --replace`"
        raise UserError(f"{target}: of its {len(before)} recordings {len(kept_on)} are listed now; {more}")
    noted = _held_out_now(before, entries) if kind == "own" else []
    lists = {path: leaks.read_exclusions(path, noted.append) for path in exclusions}
    with progress_bar(f"looking for the files of {name}") as show:
        readable, broken = survey(entries, show)
    if not readable:
        more = f"; the first: {broken[0]}" if broken else ""
        raise UserError(f"{name}: none of {len(entries)} recordings can be imported{more}")
    items = [_item(number, entry, seconds) for number, (entry, seconds) in enumerate(readable)]
    if old:
        target.write_json(BEFORE, old)
    with progress_bar(f"importing {name}") as show:
        written = write_shards(target, features, items, show, workers, [_stamp(entry) for entry, _ in readable])
    titles = [readable[item][0].title for item in written.places]
    kept = (stored.seconds for stored in written.recordings)
    cut = _cut([readable[item] for item, seconds in zip(written.places, kept, strict=True) if seconds >= LONGEST])
    target.write_json(CUT, cut)
    with progress_bar(f"looking for leaks in {name}") as show:
        marked = guard(target, features, written, titles, frozenset[str]().union(*lists.values()), show)
    recordings, rewritten = variations.carry_over(before, marked)
    trained = {leaks.origin(recording) for recording in recordings if recording.split == "training"}
    for path, sources in lists.items():
        noted.append(f"{path}: {len(sources & trained)} of its {len(sources)} ids are of training recordings")
    noted += [f"{entry.file}: {entry.remark}" for entry, _ in readable if entry.remark]
    left_out, remarks = [*broken, *written.left_out], [*noted, *written.remarks]
    written = replace(written, recordings=recordings, left_out=left_out, remarks=remarks)
    rewrites = (old.get("rewrites") or "an earlier `audio augment`") if rewritten else ""
    captions = sum(1 for _ in variations.captions(recordings))
    counts = {"captions": captions, "rewritten": rewritten}
    rewriter = {"rewriter": {**old["rewriter"], **counts}} if rewritten and "rewriter" in old else {}
    gone = len({recording.file for recording in before} - {entry.file for entry in entries})
    told = {
        "cut": _cut_line(target, cut),
        "gone": f"{gone} of the {len(before)} before are listed no more" * bool(gone),
    }
    info = finish(target, name, kind, features, written, rewrites, **rewriter)
    target.remove(BEFORE)
    return info | told


def _held_out_now(before: Sequence[Recording], entries: Sequence[Entry]) -> list[str]:
    """Return a remark on recordings that an earlier import trained on and this one holds out, if there are any."""
    keys, listed = (layouts.file_keys(row.file for row in rows) for rows in (before, entries))
    trained = {key for row in before if row.split == "training" for key in keys[row.file]}
    held = [row.file for row in entries if row.split != "training" and trained & {*listed[row.file]}]
    named = f"{', '.join(held[:3])}{', ...' * (len(held) > 3)}"
    return [f"held out now, trained on before ({len(held)}): {named}; train anew, not from an earlier run"] * bool(held)


def _cut(full: Sequence[tuple[Entry, float]]) -> list[tuple[str, float]]:
    """Return which of the recordings that fill 300 s are longer, with their seconds; a header may say too few."""
    longer = []
    for entry, seconds in full:
        assert entry.path is not None
        true = seconds if seconds > LONGEST else duration(entry.path)
        if true > LONGEST + 1 / SAMPLE_RATE:
            longer.append((entry.file, true))
    return longer


def _cut_line(target: Storage, cut: Sequence[tuple[str, float]]) -> str:
    """Return a line on the recordings that were cut: the first few by name, the others by where they are listed."""
    named = ", ".join(f"{file} ({seconds:.0f} s)" for file, seconds in cut[:3])
    more = f", ...: see {target}/{CUT}" if len(cut) > 3 else ""
    return f"cut to their first {LONGEST:.0f} s ({len(cut)}): {named}{more}" if cut else ""


def survey(entries: Sequence[Entry], show: Callable[[int, int], None]) -> tuple[list[tuple[Entry, float]], list[str]]:
    """Return the entries whose files seem fine, with their seconds, and a line for each of the others."""
    readable, broken = [], []
    with ThreadPoolExecutor(THREADS) as pool:
        read = zip(entries, pool.map(_seconds, entries), strict=True)
        for entry, seconds in counted(read, show, len(entries)):
            if isinstance(seconds, str):
                broken.append(seconds)
            else:
                readable.append((entry, seconds))
    return readable, broken


def _stamp(entry: Entry) -> str:
    """Return what is otherwise once a file was replaced by another."""
    assert entry.path is not None
    status = entry.path.stat()
    return f"{entry.path.absolute()} {status.st_size} {status.st_mtime_ns}"


def _seconds(entry: Entry) -> float | str:
    """Return the seconds that a file's header says, 0 where it does not know them, or what is wrong."""
    if not entry.captions:
        return f"{entry.file}: no caption"
    if entry.path is None:
        return f"{entry.file}: missing{f'; {entry.remark}' if entry.remark else ''}"
    try:
        file_header = header(entry.path)
    except UserError as error:
        return str(error)
    return 0.0 if file_header.is_guess else file_header.seconds


def load(path: Path) -> Decoded:
    """Return a file's sound, at most its first 300 s, and what is odd about it.

    Raises:
        UserError: where it cannot be decoded, is silent or shorter than 0.1 s.
    """
    remarks = Remarks()
    waveform = decode(path, 0.0, LONGEST, remarks)
    if defect := remarks.defect():
        raise UserError(f"{path}: {defect}")
    return Decoded(waveform, tuple(f"{path}: {line}" for line in remarks.lines()))


def _item(number: int, entry: Entry, seconds: float) -> Item:
    """Return a recording and what decodes it; its bytes say how long it counts as where its header does not know."""
    assert entry.path is not None
    recording = Recording(
        recording=number,
        file=entry.file,
        corpus=entry.corpus,
        split=entry.split,
        source=entry.source,
        seconds=min(seconds or entry.path.stat().st_size / SLOWEST, LONGEST),
        captions=entry.captions,
        keywords=entry.keywords,
        rewrites=((),) * len(entry.captions),
    )
    return recording, partial(load, entry.path)


def guard(
    target: Storage,
    features: Features,
    written: Written,
    titles: Sequence[str],
    excluded: frozenset[str],
    show: Callable[[int, int], None],
) -> list[Recording]:
    """Find training recordings that are also held out; write `leaks.json` and return the recordings with their marks.

    Args:
        target: the data set's folder.
        features: what its shards keep.
        written: its recordings and shards.
        titles: of each recording.
        excluded: sources that must not be trained on.
        show: called with the shards listened to and in all.
    """
    recordings = written.recordings
    matches = [
        *leaks.same_source(recordings),
        *leaks.same_title(recordings, titles),
        *leaks.listed(recordings, excluded),
        *_same_sound(target, features, written, show),
    ]
    signs: dict[int, dict[str, int | None]] = {}
    for leak in matches:
        signs.setdefault(leak.recording, {})[leak.sign] = leak.other
    lines = [
        {
            "recording": number,
            "file": recordings[number].file,
            "signs": list(here),
            "of": sorted({recordings[other].file for other in here.values() if other is not None}),
        }
        for number, here in sorted(signs.items())
    ]
    target.write_json(leaks.LEAKS, lines)
    return [replace(recording, leak=recording.recording in signs) for recording in recordings]


def _same_sound(
    target: Storage, features: Features, written: Written, show: Callable[[int, int], None]
) -> Iterator[leaks.Leak]:
    """Yield the leaks by equal fingerprints or bytes; shards that were listened to are not listened to again.

    What was heard is noted by the sound on both sides, as places in the shard and among what is held out: numbers of
    recordings move with what comes before them.
    """
    shards = AudioShards(target, {"features": features, "starts": written.starts})
    held = [recording for recording in written.recordings if recording.split != "training"]
    asked_of = [written.sounds[file] for split in ("validation", "test") for file in written.shards[split]]
    files = written.shards["training"]
    held_out: leaks.HeldOut | None = None
    equal: dict[str, int] = {}
    for file in counted(files, show, len(files)):
        numbers = _numbers(written, file)
        asked = hashlib.sha256(" ".join(("equal", written.sounds[file], *asked_of)).encode()).hexdigest()
        note = f"{GUARD}/{file}.json"
        noted: Mapping[str, Any] = target.read_json(note) if target.exists(note) else {}
        if noted.get("asked") != asked:
            held_out = held_out or leaks.HeldOut(
                (where, shards.mel(recording.recording)) for where, recording in enumerate(held)
            )
            equal = equal or {_sha256(shards, recording.recording): where for where, recording in enumerate(held)}
            heard = [
                (
                    row,
                    held_out.find(shards.mel(number)) if (same := equal.get(_sha256(shards, number))) is None else same,
                )
                for row, number in enumerate(numbers)
            ]
            noted = {"asked": asked, "heard": [pair for pair in heard if pair[1] is not None]}
            target.write_json(note, noted)
        yield from (leaks.Leak(numbers[row], held[where].recording, "sound") for row, where in noted["heard"])


def _sha256(shards: AudioShards, recording: int) -> str:
    return hashlib.sha256(shards.stored(recording).tobytes()).hexdigest()


def _numbers(written: Written, file: str) -> range:
    first = written.starts[file]
    later = [start for start in written.starts.values() if start > first]
    return range(first, min(later, default=len(written.recordings)))
