"""A made-up world as files: the layouts of Clotho, AudioCaps and WavCaps, with the defects that real collections have.

For trying out what reads, checks and guards real data. `planted.json` beside the three folders says what was planted.
"""

from __future__ import annotations

import csv
import html
import io
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retable.platform.errors import disk_errors
from retable.tasks.audio.collect.recordings import Recording, Waveform
from retable.tasks.audio.config import SAMPLE_RATE
from retable.tasks.audio.world.generate import World, describe, items, original, waveform

FOLDERS = {"training": "development", "validation": "validation", "test": "evaluation"}
"""Our names of Clotho's splits, and the official ones."""
WAVCAPS = {
    "freesound": ("FreeSound", "fsd_final.json"),
    "bbc": ("BBC_Sound_Effects", "bbc_final.json"),
    "soundbible": ("SoundBible", "sb_final.json"),
    "youtube": ("AudioSet_SL", "as_final.json"),
}
"""Source -> folder and table of WavCaps."""
METADATA = ("file_name", "keywords", "sound_id", "sound_link", "start_end_samples", "manufacturer", "license")
CLOTHO_RATE = 44100
"""Samples a second of Clotho's files."""
AUTHOR = "Müller & Söhne"
"""Not ASCII: Clotho's metadata are Latin-1."""


def write_layout(
    world: World, folder: Path, show: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, Any]:
    """Write a world below `folder` in the real layouts; sound files that are there already are kept.

    Args:
        world: what to write.
        folder: gets `clotho/`, `audiocaps/`, `wavcaps/` and `planted.json`.
        show: called with the recordings done and all.

    Returns:
        What `planted.json` holds. `defects`: file (relative to `folder`) -> missing, silent, corrupt, mislabelled,
        empty, short, duplicate, no caption; `odd`: file -> stereo, 8 kHz, 48 kHz, 70 s: to be read without complaint;
        `leaks`: file -> {"of": original, "by": id, name or sound, the strongest sign that gives it away}.

    Raises:
        UserError: where the folder cannot be written.
    """
    everything = items(world)
    recordings = [recording for recording, _ in everything]
    with disk_errors(str(folder)):
        for done, (recording, make) in enumerate(everything, 1):
            path = folder / place(recording)
            if not path.exists():
                write_sound(path, make(), CLOTHO_RATE if recording.corpus == "clotho" else SAMPLE_RATE)
            show(done, len(everything))
        planted = _plant_files(world, folder)
        extra = [(file.rsplit("/", 1)[1], _captions_of(world, file, what)) for file, what in planted.items()]
        for split in FOLDERS:
            _write_clotho(folder / "clotho", split, recordings, extra if split == "training" else [])
        _write_audiocaps(folder / "audiocaps", [each for each in recordings if each.corpus == "audiocaps"])
        _write_wavcaps(world, folder / "wavcaps", [each for each in recordings if each.corpus == "wavcaps"])
        odd = {file: what for file, what in planted.items() if what in ODD}
        defects = {file: what for file, what in planted.items() if what not in ODD}
        found = {"defects": defects, "odd": odd, "leaks": _leaks(world, recordings)}
        _write_text(folder / "planted.json", json.dumps(found, indent=2) + "\n")
    return found


def place(recording: Recording) -> str:
    """Return where a recording's file lies, relative to the folder of the three corpora."""
    if recording.corpus == "clotho":
        return f"clotho/{FOLDERS[recording.split]}/{_on_disk(recording.file)}"
    if recording.corpus == "audiocaps":
        return f"audiocaps/audio/{recording.file}"
    return f"wavcaps/{_home(recording)[0]}/{recording.file}"


def _home(recording: Recording) -> tuple[str, str]:
    return WAVCAPS[recording.source.split(":")[0]]


def _on_disk(name: str) -> str:
    """Return the name that a file has on disk: entities resolved, no colons, no spaces around it."""
    return html.unescape(name).replace(":", "_").strip()


def write_sound(path: Path, wave: Waveform, rate: int) -> None:
    """Write a waveform at 32 kHz, mono or (samples, channels), as a file of 16 bits at another rate, whole or not."""
    import soundfile
    import soxr

    if rate != SAMPLE_RATE:
        wave = np.clip(soxr.resample(wave, SAMPLE_RATE, rate), -1, 1)
    data = io.BytesIO()
    soundfile.write(data, wave, rate, format=path.suffix[1:].upper(), subtype="PCM_16")
    _write_bytes(path, data.getvalue())


def _write_bytes(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    writing = path.with_name(f".writing-{path.name}")
    writing.write_bytes(data)
    os.replace(writing, path)


def _write_text(path: Path, text: str, encoding: str = "utf-8") -> None:
    _write_bytes(path, text.encode(encoding))


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]], encoding: str = "utf-8") -> None:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerows([columns, *rows])
    _write_text(path, text.getvalue(), encoding)


ODD = ("stereo", "8 kHz", "48 kHz", "70 s")
DEFECTS = ("missing", "silent", "corrupt", "mislabelled", "empty", "short", "duplicate", "no caption")


def _plant_files(world: World, folder: Path) -> dict[str, str]:
    """Write the odd and the broken files among Clotho's training files; return file -> what is the matter."""
    planted = {f"clotho/development/planted {what}.wav": what for what in (*ODD, *DEFECTS)}
    for number, (file, what) in enumerate(planted.items()):
        wave = waveform(world, "clotho", "training", world.clotho[0] + number)
        path = folder / file
        if what == "stereo":
            write_sound(path, np.stack([wave, 0.5 * wave], axis=1), CLOTHO_RATE)
        elif what in ("8 kHz", "48 kHz"):
            write_sound(path, wave, int(what.split()[0]) * 1000)
        elif what == "70 s":
            write_sound(path, np.resize(wave, 70 * SAMPLE_RATE), CLOTHO_RATE)
        elif what == "silent":
            write_sound(path, np.zeros_like(wave), CLOTHO_RATE)
        elif what == "empty":
            write_sound(path, wave[:0], SAMPLE_RATE)
        elif what == "short":
            write_sound(path, wave[: SAMPLE_RATE // 20], CLOTHO_RATE)
        elif what == "corrupt":
            _write_bytes(path, b"RIFF" + np.random.default_rng(number).bytes(4000))
        elif what == "mislabelled":
            _write_text(path, "<!DOCTYPE html><title>404 Not Found</title>")
        elif what == "duplicate":
            _write_bytes(path, (folder / place(describe(world, "clotho", "training", 0))).read_bytes())
        elif what == "no caption":
            write_sound(path, wave, CLOTHO_RATE)
    return planted


def _captions_of(world: World, file: str, what: str) -> tuple[str, ...]:
    """Return the captions of a planted file: those of the recording that it was made from, or empty ones."""
    number = world.clotho[0] + (*ODD, *DEFECTS).index(what)
    captions = describe(world, "clotho", "training", number).captions
    return ("",) * len(captions) if what == "no caption" else captions


def _write_clotho(
    folder: Path, split: str, recordings: Sequence[Recording], extra: Sequence[tuple[str, tuple[str, ...]]]
) -> None:
    """Write a split's captions and metadata; files beside the recordings have captions, but no known origin."""
    chosen = [each for each in recordings if (each.corpus, each.split) == ("clotho", split)]
    columns = ["file_name", *(f"caption_{number}" for number in range(1, 6))]
    captions = [(each.file, *each.captions) for each in chosen] + [(file, *texts) for file, texts in extra]
    _write_csv(folder / f"clotho_captions_{FOLDERS[split]}.csv", columns, captions)
    metadata = []
    for each in chosen:
        number = each.source.split(":")[1]
        link, samples = f"https://freesound.org/people/x/sounds/{number}", round(each.seconds * CLOTHO_RATE)
        metadata.append((each.file, each.keywords, number, link, f"[0, {samples}]", AUTHOR, "CC0"))
    metadata += [(file, "", "Not found", "Not found", "", "Not found", "Not found") for file, _ in extra]
    _write_csv(folder / f"clotho_metadata_{FOLDERS[split]}.csv", METADATA, metadata, "latin-1")


def _write_audiocaps(folder: Path, recordings: Sequence[Recording]) -> None:
    """Write the three tables: nine of ten rows are for training."""
    rows: dict[str, list[tuple[object, ...]]] = {"train": [], "val": [], "test": []}
    for number, each in enumerate(recordings):
        video, start = each.source.removeprefix("youtube:").split("@")
        name = {18: "val", 19: "test"}.get(number % 20, "train")
        rows[name].append((number, video, start, each.captions[0]))
    for name, listed in rows.items():
        _write_csv(folder / f"dataset/{name}.csv", ("audiocap_id", "youtube_id", "start_time", "caption"), listed)


def _write_wavcaps(world: World, folder: Path, recordings: Sequence[Recording]) -> None:
    """Write a table for each source. `file_name` is the title, which one in four leaks took from its original."""
    tables: dict[str, list[dict[str, object]]] = {kind: [] for kind in WAVCAPS}
    for number, each in enumerate(recordings):
        kind = each.source.split(":")[0]
        name = each.file.removesuffix(".flac")
        item: dict[str, object] = {
            "id": f"{name}.wav" if kind == "youtube" else name,
            "caption": each.captions[0],
            "duration": each.seconds,
            "audio": f"wav/{each.file}",
            "download_link": f"https://example.org/{name}",
        }
        copied = original(world, "wavcaps", number)
        if kind == "freesound":
            title = (
                describe(world, "clotho", *copied).file if copied and _sign(number) == "name" else f"take {name}.wav"
            )
            item |= {"file_name": title, "href": f"/s/{name}", "tags": [], "author": AUTHOR, "description": ""}
        elif kind != "youtube":
            item |= {"description": each.captions[0], "category": ""} if kind == "bbc" else {"title": f"take {name}"}
        tables[kind].append(item)
    for kind, listed in tables.items():
        path = folder / "json_files" / "/".join(WAVCAPS[kind])
        _write_text(path, json.dumps({"num_captions_per_audio": 1, "data": listed}, indent=1))


def _sign(number: int) -> str:
    """What gives a planted leak away: the same id, else the same name, else the sound alone."""
    return ("id", "id", "name", "sound")[number % 4]


def _leaks(world: World, recordings: Sequence[Recording]) -> dict[str, dict[str, str]]:
    found = {}
    for number, each in enumerate(each for each in recordings if each.corpus == "wavcaps"):
        copied = original(world, "wavcaps", number)
        if copied:
            found[place(each)] = {"of": place(describe(world, "clotho", *copied)), "by": _sign(number)}
    return found
