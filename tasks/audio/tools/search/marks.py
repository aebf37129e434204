"""Marks: which hits were good and which bad, kept beside the index, and as pairs to fine-tune on.

`marks.jsonl` has a line a mark: the words, the recording by its content, the second, and whether it was good. Lines are
only ever added, each at once, so that several shells mark at a time; of one recording and the same words the last line
counts. As recordings are known by their content, marks outlast moves and renames, and an index that is built anew.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import soundfile

from retable.platform.errors import UserError, disk_errors
from retable.platform.store.storage import Storage
from retable.tasks.audio.collect.files import decode, duration
from retable.tasks.audio.config import SAMPLE_RATE
from retable.tasks.audio.tools.search.search import Hit, Index

MARKS = "marks.jsonl"
WHOLE = 30.0
"""Seconds of a recording that is taken as a whole: Clotho's longest."""
PART = 10.0
"""Seconds that are cut out of a longer one."""
COLUMNS = ["file", "caption", "source"]
"""Of a CSV of pairs; the source is the recording's content."""


@dataclass(frozen=True)
class Mark:
    """A user's mark of a hit: good or bad."""

    words: str
    content: str
    """SHA-256 of the recording's file."""
    offset: float
    """Second at which the hit begins."""
    good: bool


KINDS = {"words": str, "content": str, "offset": float | int, "good": bool}
"""Types of the entries of a mark's line; JSON may have a whole second as an integer."""


def mark(index: Index, words: str, hit: Hit, good: bool) -> None:
    """Keep whether a hit was good.

    Raises:
        UserError: where it cannot be written, or the hit's file has left the index since.
    """
    content = next((file.content for file in index.files if file.path == hit.file), None)
    if content is None:
        raise UserError(f"{hit.file}: not in the index any more; search again")
    line = json.dumps(asdict(Mark(" ".join(words.split()), content, hit.offset, good)), ensure_ascii=False) + "\n"
    path = index.out / MARKS
    with disk_errors(str(path)):
        with path.open("ab", buffering=0) as file:
            file.write(line.encode())  # one call: lines of several writers do not mix


def read_marks(index: Index) -> list[Mark]:
    """Return the marks that count, oldest first; a last line that was not written whole does not.

    Raises:
        UserError: where the file is none of ours.
    """
    path = index.out / MARKS
    if not path.is_file():
        return []
    with disk_errors(str(path)):
        text = path.read_text("utf-8", errors="replace")
    marks: dict[tuple[str, str], Mark] = {}
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        try:
            made = Mark(**json.loads(line))
            if not all(isinstance(getattr(made, name), kind) for name, kind in KINDS.items()):
                raise TypeError("a value of another type")
        except (ValueError, TypeError, RecursionError) as error:
            if not line.endswith("\n"):
                continue
            raise UserError(f"{path}: line {number} is no mark; remove that line") from error
        key = made.words, made.content
        marks.pop(key, None)
        marks[key] = made
    return list(marks.values())


@dataclass(frozen=True)
class Pairs:
    """Result of writing an index's marks as pairs."""

    pairs: int
    bad: int
    """Marks of bad hits: a CSV of pairs has no place for them."""
    gone: int
    """Good ones whose recordings are not there any more."""


def write_pairs(index: Index, table: Path) -> Pairs:
    """Write the good marks as a CSV that `retable audio finetune` takes: file, caption, source.

    Of a recording above 30 s the ten seconds around the hit are cut out, into a folder beside the CSV that is called
    like it: the words say nothing of the rest. A CSV that this function wrote is replaced.

    Raises:
        UserError: where no hit was marked good, none of their recordings is there, one cannot be read, the CSV is
            another one, or the files cannot be written.
    """
    marks = read_marks(index)
    good = [marking for marking in marks if marking.good]
    if not good:
        raise UserError(f"{index.out}: no hit is marked good; mark some in `retable audio shell`: +1")
    if table.exists() and not _is_pairs(table):
        raise UserError(f"{table}: was not written by `audio pairs`; choose another name")
    rows, storage = [], Storage.open(table.absolute().parent)
    for marking in good:
        paths = (index.folder / path for path in index.paths.get(marking.content, ()))
        recording = next((path for path in paths if path.is_file()), None)
        if recording is not None:
            rows.append(
                (_file(marking, recording, table, index.info["segment"], storage), marking.words, marking.content)
            )
    if not rows:  # a table of before is worth more than an empty one
        count = f"none of the {len(good)} recordings marked good is there"
        raise UserError(f"{index.folder}: {count}; mount its disk, or index their new folder")
    text = io.StringIO(newline="")
    csv.writer(text).writerows([COLUMNS, *rows])
    storage.write(table.name, text.getvalue().encode())
    return Pairs(len(rows), len(marks) - len(good), len(good) - len(rows))


def _is_pairs(table: Path) -> bool:
    """Return whether a file is one of `write_pairs`: the columns, and rows that end in a recording's content."""
    with disk_errors(str(table)):
        first, *rows = table.read_text("utf-8", errors="replace").splitlines() or [""]
    return first == ",".join(COLUMNS) and all(re.search(",[0-9a-f]{64}$", row) for row in rows)


def _file(marking: Mark, recording: Path, table: Path, segment: float, storage: Storage) -> str:
    """Return what the CSV calls a mark's sound: the recording, or a part of it that is cut out."""
    seconds = duration(recording)
    if seconds <= WHOLE:
        return str(recording.absolute())
    start = min(max(marking.offset + segment / 2 - PART / 2, 0.0), seconds - PART)
    name, sound = f"{marking.content[:16]}-{start:.1f}.flac", io.BytesIO()
    soundfile.write(sound, decode(recording, start, PART), SAMPLE_RATE, format="FLAC")
    storage.write(f"{table.stem}/{name}", sound.getvalue())
    return name


def marked(words: str, hits: Sequence[Hit]) -> tuple[Hit, bool] | None:
    """Return the hit that `+2` or `-3` means, and whether it is good; None where the words are no mark.

    Raises:
        UserError: where there is no hit of that number.
    """
    text = words.strip()
    number = hit_number(text[1:])
    if text[:1] not in ("+", "-") or number is None:
        return None
    return numbered(number, hits), text[0] == "+"


def hit_number(text: str) -> int | None:
    """Return the number that a text is; None where it is none, or has more digits than any hit's."""
    return int(text) if re.fullmatch(r"\d{1,9}", text) else None


def numbered(number: int, hits: Sequence[Hit]) -> Hit:
    """Return a hit by its number, from 1 on.

    Raises:
        UserError: where there is none.
    """
    if not 1 <= number <= len(hits):
        raise UserError(f"hit {number}: the last query has {len(hits)}")
    return hits[number - 1]
