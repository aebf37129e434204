"""The layouts that recordings with captions come in: Clotho, AudioCaps, WavCaps, and one's own CSV.

Facts about the files: Clotho v2.1 (Zenodo 4783391), AudioCaps (github.com/cdjkim/audiocaps), WavCaps (Hugging Face
cvssp/WavCaps). Names in the tables and on disk differ by spaces, HTML entities and characters that file systems refuse.
"""

from __future__ import annotations

import csv
import hashlib
import html
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from os.path import isfile
from pathlib import Path, PurePosixPath
from typing import Any, Generic, TypeVar

from retable.platform.errors import UserError
from retable.platform.text import grouped
from retable.tasks.audio.collect.files import is_sound, sounds_below
from retable.tasks.audio.collect.text import read_cells, read_text

Value = TypeVar("Value")
CLOTHO = {"development": "training", "validation": "validation", "evaluation": "test"}
"""Clotho's names of the splits, and ours."""
AUDIOCAPS = ("train", "val", "test")
WAVCAPS = {
    "FreeSound": ("fsd_final.json", "freesound"),
    "BBC_Sound_Effects": ("bbc_final.json", "bbc"),
    "SoundBible": ("sb_final.json", "soundbible"),
    "AudioSet_SL": ("as_final.json", "youtube"),
}
"""Folder -> its table, and how its sources are called."""
FILE_COLUMNS = ("file", "file_name", "filename", "path", "audio")
CAPTION = r"captions?(_\d+)?"
"""Pattern of the names of caption columns."""
SHARES = {"test": 0.1, "validation": 0.1}
"""Of one's own recordings that no column deals out."""
SPLIT_NAMES = {
    **{name: "training" for name in ("training", "train", "development", "dev")},
    **{name: "validation" for name in ("validation", "valid", "val")},
    **{name: "test" for name in ("test", "evaluation", "eval")},
}


@dataclass(frozen=True)
class Entry:
    """A recording that a layout lists; whether its file is there and sound is not known yet."""

    file: str
    """Its name in the layout."""
    path: Path | None
    """Path on disk; None: there is no such file."""
    title: str
    """Title by its author: two recordings of one title are probably the same sound."""
    corpus: str
    split: str
    source: str
    captions: tuple[str, ...]
    keywords: str = ""
    remark: str = ""
    """Questions that the tables leave open about it; "" if none."""


def normalised(name: str) -> str:
    """Return a file's name as it is compared: no entities, no case, no characters that file systems refuse."""
    name = unicodedata.normalize("NFKC", html.unescape(html.unescape(name))).casefold()
    return " ".join(re.sub(r'[:/\\?*"<>|_\s]+', " ", name).split())


def cleaned(caption: str) -> str:
    """Return a caption on one line without spaces around it."""
    return " ".join(caption.split())


def challenge(root: Path) -> list[Entry]:
    """Return the recordings of the folders clotho/, audiocaps/ and wavcaps/ below `root`, whichever are there.

    Training comes first, then validation, then test.

    Raises:
        UserError: where there is none of the three, or a table is missing or broken.
    """
    readers = {"clotho": clotho, "audiocaps": audiocaps, "wavcaps": wavcaps}
    present = [name for name in readers if (root / name).is_dir()]
    if not present:
        raise UserError(f"{root}: none of the folders {', '.join(readers)}; put the unpacked data sets there")
    return by_split(entry for name in present for entry in readers[name](root / name))


def by_split(entries: Iterable[Entry]) -> list[Entry]:
    """Return entries with training first, then validation, then test; else in order."""
    return sorted(entries, key=lambda entry: ("training", "validation", "test").index(entry.split))


def clotho(root: Path) -> list[Entry]:
    """Return Clotho's recordings: `clotho_captions_<split>.csv`, `clotho_metadata_<split>.csv`, `<split>/*.wav`.

    The tables may lie in any folder below `root`, the sounds in any folder below one that is named like the split.

    Raises:
        UserError: where no table of captions is there, or one lacks a column.
    """
    entries = []
    sounds = sounds_below(root)
    for theirs, split in CLOTHO.items():
        table = _first(root, f"clotho_captions_{theirs}.csv")
        if table is None:
            continue
        on_disk = Names((path.name, path) for path in sounds if theirs in path.relative_to(root).parts[:-1])
        metadata = _first(root, f"clotho_metadata_{theirs}.csv")
        metadata_rows = (
            Names((row["file_name"], row) for row in rows(metadata, ["file_name"], lenient=True)) if metadata else None
        )
        for row in rows(table, ["file_name", "caption_1"]):
            about, unknown = metadata_rows.find(row["file_name"]) if metadata_rows else (None, "")
            about, (path, missing) = about or {}, on_disk.find(row["file_name"])
            open_questions = [
                *([f"its metadata may be of {unknown}: none is taken"] if unknown else []),
                *([f"may be {missing}: none is taken"] if missing else []),
            ]
            entries.append(
                Entry(
                    file=row["file_name"].strip(),
                    path=path,
                    title=PurePosixPath(normalised(row["file_name"])).stem,
                    corpus="clotho",
                    split=split,
                    source=freesound_source(about),
                    captions=_captions(row),
                    keywords=";".join(word.strip() for word in about.get("keywords", "").split(";") if word.strip()),
                    remark="; ".join(open_questions),
                )
            )
    if not entries:
        raise UserError(f"{root}: no clotho_captions_development.csv (or validation, evaluation); take Zenodo 4783391")
    return entries


def freesound_source(about: Mapping[str, str]) -> str:
    """Return a source from a row of Clotho's metadata; "" where it says `Not found` and its link leads nowhere."""
    number = about.get("sound_id", "").strip()
    if re.fullmatch(r"\d+(\.0+)?", number):
        return f"freesound:{number.partition('.')[0].lstrip('0') or 0}"
    link = re.search(r"/(?:sounds|s)/(\d+)", about.get("sound_link", ""))
    return f"freesound:{link[1]}" if link else ""


def audiocaps(root: Path) -> list[Entry]:
    """Return AudioCaps' recordings, all for training as in the paper; rows of one clip are its captions.

    `train.csv`, `val.csv`, `test.csv` with audiocap_id, youtube_id, start_time, caption; sounds named `Y<youtube_id>`,
    `<youtube_id>`, `<youtube_id>_<start_time>` or `<audiocap_id>`, anywhere below `root`.

    Raises:
        UserError: where no table is there, or one lacks a column.
    """
    on_disk = {path.stem: path for path in sounds_below(root)}
    tables = [table for name in AUDIOCAPS if (table := _first(root, f"{name}.csv"))]
    if not tables:
        raise UserError(f"{root}: no train.csv, val.csv or test.csv; take them from github.com/cdjkim/audiocaps")
    clips = grouped(
        ((row["youtube_id"].strip(), row["start_time"].strip()), row)
        for table in tables
        for row in rows(table, ["youtube_id", "start_time", "caption"])
    )
    entries = []
    for (video, start), here in clips.items():
        names = [f"Y{video}", video, f"{video}_{start}", f"Y{video}_{start}"]
        names += [row["audiocap_id"].strip() for row in here if row.get("audiocap_id")]
        path = next((on_disk[name] for name in names if name in on_disk), None)
        captions = tuple(text for row in here if (text := cleaned(row["caption"])))
        file = path.name if path else f"Y{video}"
        entries.append(Entry(file, path, f"Y{video}", "audiocaps", "training", f"youtube:{video}@{start}", captions))
    return entries


def wavcaps(root: Path) -> list[Entry]:
    """Return WavCaps' recordings, all for training: `json_files/<source>/*.json`, `<id>.flac` below `<source>/`.

    The sounds may be of any format; AudioSet's are named after the id without `.wav`.

    Raises:
        UserError: where no table is there, or one is broken.
    """
    entries = []
    sounds = sounds_below(root)
    for folder, (name, kind) in WAVCAPS.items():
        table = _first(root, name)
        if table is None:
            continue
        on_disk = {path.stem: path for path in sounds if folder in path.relative_to(root).parts[:-1]}
        for item in _json_items(table):
            number = str(item["id"]).strip().removesuffix(".wav")
            file = f"{folder}/{number}"
            title = str(item.get("file_name") or item.get("title") or number)
            video = number.removeprefix("Y") if kind == "youtube" else number
            caption = cleaned(str(item.get("caption") or ""))
            entries.append(
                Entry(
                    file=file,
                    path=on_disk.get(number),
                    title=_stem(title) if title != number else number,
                    corpus="wavcaps",
                    split="training",
                    source=f"{kind}:{video}",
                    captions=(caption,) if caption else (),
                    keywords=";".join(map(str, item["tags"])) if isinstance(item.get("tags"), list) else "",
                )
            )
    if not entries:
        raise UserError(f"{root}: no {', '.join(name for name, _ in WAVCAPS.values())}; take cvssp/WavCaps' json_files")
    return entries


def own(table: Path, folder: Path | None = None, before: Mapping[str, str] | None = None) -> list[Entry]:
    """Return the recordings of a CSV: a column `file` (or `file_name`), and `caption` or `caption_1`, `caption_2`, ....

    Rows of one file are its captions. Columns `split`, `source` and `keywords` are heeded. Without `split`, a tenth
    becomes the test and a tenth the validation set, by a hash of the source, or of the name where there is none: the
    same each time, and what shares a source stays together. They stand in Clotho's place: what a system is fine-tuned
    and scored on. A name without a folder may lie in any folder below, where exactly one file is called so.

    Args:
        table: the CSV.
        folder: what names of files are relative to; None: the CSV's own, or the one named like the CSV beside it.
        before: the splits of an earlier import, by `origin` and by `file_keys`: they stay, and new sources alone are
            dealt.

    Raises:
        UserError: where the CSV is missing or lacks a column, or names a split that does not exist.
    """
    listed = rows(table, [])
    columns = list(listed[0]) if listed else []
    file_column = _file_column(columns)
    if file_column is None:
        raise UserError(f"{table}: needs columns file and caption (or caption_1, ...), has {', '.join(columns) or '-'}")
    if other := next((c for c in columns if re.fullmatch(r"captions?\W?\d+", c)), ""):
        raise UserError(
            f"{table}: the captions of column {other!r} would not be read; call it caption_1, caption_2, ..."
        )
    roots = [folder] if folder else [table.parent, table.with_suffix(""), table.parent / "audio"]
    on_disk = _below(roots)
    listed = [row for row in listed if row[file_column].strip() or _captions(row)]  # Excel's empty last rows
    if nameless := next((_captions(row)[0] for row in listed if not row[file_column].strip()), ""):
        raise UserError(f"{table}: the row with the caption {nameless!r} names no file; write its name, or remove it")
    entries = []
    for file, here in grouped((row[file_column].strip(), row) for row in listed).items():
        if len(splits := {_split(table, row.get("split", "")) for row in here}) > 1:
            raise UserError(f"{table}: {file} is in {' and in '.join(sorted(splits))}; leave it in one split")
        path = next((root / file for root in roots if isfile(root / file)), None)  # false of too long names as well
        fitting = [path] if path else _fitting(file, on_disk)
        entries.append(
            Entry(
                file=file,
                path=fitting[0] if len(fitting) == 1 else None,
                title=normalised(str(PurePosixPath(file).with_suffix("")) if PurePosixPath(file).name else ""),
                corpus="clotho",
                split=splits.pop(),
                source=here[0].get("source", "").strip(),
                captions=tuple(dict.fromkeys(text for row in here for text in _captions(row))),
                keywords=here[0].get("keywords", "").strip(),
                remark=_either(fitting, table.parent),
            )
        )
    return by_split(entries if "split" in columns else _deal(entries, before or {}))


def _below(folders: Sequence[Path]) -> dict[tuple[str, str], set[Path]]:
    """Return the sounds below folders by their normalised path there, by their name, and by their normalised name."""
    sounds: dict[tuple[str, str], set[Path]] = {}
    for folder in folders:
        for path in filter(is_sound, folder.rglob("*") if folder.is_dir() else ()):
            relative = "/".join(map(normalised, path.relative_to(folder).parts))
            for key in (("path", relative), ("name", path.name), ("loose", normalised(path.name))):
                sounds.setdefault(key, set()).add(path)
    return sounds


def _either(fitting: Sequence[Path], beside: Path) -> str:
    """Return a remark on a name that several files fit; "" where one or none does."""
    names = [str(path.relative_to(beside)) if path.is_relative_to(beside) else str(path) for path in fitting]
    return f"may be {' or '.join(names)}: none is taken" if len(names) > 1 else ""


def _fitting(file: str, on_disk: Mapping[tuple[str, str], set[Path]]) -> list[Path]:
    """Return the files that a listed name can mean where none is called exactly so.

    A name with a folder means no file of another folder: that would be another recording.
    """
    parts = [part for part in re.split(r"[/\\]", file) if part != "."]
    path = "/".join(map(normalised, parts))
    keys = [("path", path)] if len(parts) > 1 else [("name", "".join(parts)), ("loose", path)]
    return sorted(next((on_disk[key] for key in keys if key in on_disk), set()))


def describes(table: Path) -> bool:
    """Return whether a CSV lists files with captions.

    Raises:
        UserError: where it cannot be read.
    """
    listed = rows(table, [])
    return bool(listed) and _file_column(list(listed[0])) is not None


def _file_column(columns: Sequence[str]) -> str | None:
    """Return the column with names of files; None where that or a column of captions is missing."""
    captioned = any(re.fullmatch(CAPTION, name) for name in columns)
    return next((name for name in FILE_COLUMNS if captioned and name in columns), None)


def _split(table: Path, name: str) -> str:
    if name.strip().lower() in SPLIT_NAMES:
        return SPLIT_NAMES[name.strip().lower()]
    if name.strip():
        raise UserError(f"{table}: there is no split {name!r}; write training, validation or test")
    return "training"


def origin(source: str, file: str) -> str:
    """Return what of one's own recordings belong together: their source, or the file where there is none."""
    return source.split("@")[0] or normalised(file)


def file_keys(files: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return what each file is found by in another listing: its path, and its name where it is the only one here."""
    names = {file: normalised(re.split(r"[/\\]", file)[-1]) for file in files}
    counts = Counter(names.values())
    return {file: (normalised(file), *([f"*/{name}"] if counts[name] == 1 else [])) for file, name in names.items()}


def _deal(entries: Sequence[Entry], before: Mapping[str, str]) -> Iterator[Entry]:
    """Yield entries with their splits: whole sources, in the order of their hashes, until a split has its share.

    A source larger than what a split still wants is passed over, unless all are: then it takes the smallest one. The
    largest source is trained on. Sources that have a split from before keep it; one with files of several is trained on
    if any of them was.
    """
    groups = grouped((origin(entry.source, entry.file), entry) for entry in entries)
    order = sorted(groups, key=lambda key: hashlib.sha256(key.encode()).digest())
    sizes = {key: len(groups[key]) for key in order}
    keys = file_keys(entry.file for entry in entries)
    names = {origin: [origin, *(key for entry in groups[origin] for key in keys[entry.file])] for origin in order}
    earlier = {key: [before[name] for name in names[key] if name in before] for key in order}
    splits = {
        key: "training" if "training" in previous else previous[0] for key, previous in earlier.items() if previous
    }
    largest = max(reversed(order), key=sizes.__getitem__) if order else ""
    free = [key for key in order if key not in splits and (key != largest or splits)] if len(order) > 2 else []
    for others, (split, share) in zip((1, 0) if free else (), SHARES.items(), strict=False):
        held = sum(sizes[key] for key in order if splits.get(key) == split)
        left, taken = max(round(share * len(entries)), 1) - held, list[str]()
        if left <= 0 or not free:
            continue
        for key in free:
            if sizes[key] <= left and len(free) - len(taken) > others:
                taken.append(key)
                left -= sizes[key]
        taken = taken or ([] if held else [min(free, key=sizes.__getitem__)])
        free = [key for key in free if key not in taken]
        splits |= dict.fromkeys(taken, split)
    for key in order:
        for entry in groups[key]:
            yield replace(entry, split=splits.get(key, "training"))


class Names(Generic[Value]):
    """Values by name, also found where spaces, case, entities or refused characters differ, if only one fits then."""

    def __init__(self, pairs: Iterable[tuple[str, Value]]) -> None:
        """Take names and values; of two with exactly one name the first counts."""
        self._exact: dict[str, Value] = {}
        self._loose: dict[str, list[str]] = {}
        for name, value in pairs:
            if name.strip() not in self._exact:
                self._exact[name.strip()] = value
                self._loose.setdefault(normalised(name), []).append(name.strip())

    def find(self, name: str) -> tuple[Value | None, str]:
        """Return the value of a name and "", or None; where several fit, None and their names."""
        name = re.split(r"[/\\]", name)[-1].strip()
        fitting = [name] if name in self._exact else self._loose.get(normalised(name), [])
        if len(fitting) > 1:
            return None, " or ".join(map(repr, fitting))
        return (self._exact[fitting[0]], "") if fitting else (None, "")


def rows(table: Path, columns: Sequence[str], lenient: bool = False) -> list[dict[str, str]]:
    """Return the rows of a CSV with a header, separated by ',', ';' or tabs.

    Args:
        table: the CSV.
        columns: that it must have.
        lenient: see `read_text`.

    Raises:
        UserError: where it is missing, no text, or lacks one of `columns`, or a row has more cells than the header.
    """
    text = read_text(table, lenient)
    first = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=first.count)
    try:
        listed = list(read_cells(text, delimiter))
    except csv.Error as error:
        raise UserError(f"{table}: not a CSV file ({error})") from error
    names = [name.strip().lower() for name in listed[0][1]] if listed else []
    if twice := next((name for name in names if re.fullmatch(CAPTION, name) and names.count(name) > 1), ""):
        raise UserError(f"{table}: has two columns {twice!r}; call them caption_1, caption_2, ...")
    records = []
    for number, cells in listed[1:]:
        if any(cell.strip() for cell in cells[len(names) :]):
            remedy = f"put text that holds {delimiter!r} into double quotes"
            raise UserError(f"{table}: line {number} has more cells than the header; {remedy}")
        records.append(dict(zip_longest(names, cells[: len(names)], fillvalue="")))
    if absent := [column for column in columns if column not in names]:
        raise UserError(f"{table}: no column {', '.join(absent)}; it has {', '.join(names) or 'none'}")
    return records


def _json_items(table: Path) -> list[dict[str, Any]]:
    try:
        items = json.loads(table.read_text(encoding="utf-8"))["data"]
        if not isinstance(items, list) or not all(isinstance(item, dict) and "id" in item for item in items):
            raise ValueError("data is no list of objects with an id")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{table}: not a table of WavCaps ({error!r}); download it again") from error
    checked: list[dict[str, Any]] = items
    return checked


def _captions(row: Mapping[str, str]) -> tuple[str, ...]:
    names = sorted((name for name in row if re.fullmatch(CAPTION, name)), key=_number)
    return tuple(text for name in names if (text := cleaned(row[name])))


def _number(column: str) -> tuple[int, str]:
    """Return what sorts columns by their numbers, which may have more digits than `int` takes."""
    digits = column.partition("_")[2].lstrip("0")
    return len(digits), digits


def _stem(name: str) -> str:
    """Return a normalised name without a sound file's ending; titles may hold dots."""
    return normalised(re.sub(r"\.(wav|flac|ogg|mp3|aiff?|m4a)\s*$", "", name, flags=re.IGNORECASE))


def _first(root: Path, name: str) -> Path | None:
    return next(iter(sorted(root.rglob(name), key=lambda path: len(path.parts))), None)
