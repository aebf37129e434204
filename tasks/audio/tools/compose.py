"""Scenes composed of real recordings, so that real sounds have captions that are exactly known.

From a folder of short labelled recordings in folds (ESC-10 and ESC-50 have the form): training scenes of one to three
events and a background from some folds, validation scenes from another, and the recordings of a held-out fold as they
are for the test. Captions come from the grammar of `captions`. No recording, and no other of the same source where the
folds respect sources, is in two splits. What is told of an event is what we did to it: loudness, distance and trend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from retable.platform.errors import UserError
from retable.platform.train.seeds import generator, pick
from retable.tasks.audio.collect import layouts
from retable.tasks.audio.collect.files import decode
from retable.tasks.audio.collect.recordings import Item, Recording, Waveform
from retable.tasks.audio.config import SAMPLE_RATE
from retable.tasks.audio.world import captions, scenes
from retable.tasks.audio.world.captions import LEXICON, WRITERS
from retable.tasks.audio.world.scenes import Event, Scene
from retable.tasks.audio.world.sounds import Recorder, mix, shape_event

CLASSES = {
    "dog": "dog",
    "rooster": "rooster",
    "rain": "rain",
    "sea_waves": "waves",
    "crackling_fire": "fire",
    "crying_baby": "baby",
    "sneezing": "sneeze",
    "clock_tick": "clock",
    "helicopter": "helicopter",
    "chainsaw": "chainsaw",
}
"""ESC's names of classes, and ours."""
AMBIENT = ("rain", "waves", "fire", "helicopter", "clock")
TRAITS = {sound: ("loudness", "distance", "trend") for sound in CLASSES.values()}
COLUMNS = ("filename", "fold", "category")
LABELLED = captions.Habits(background_omitted=0, event_omitted=0, trait_omitted=1, room_omitted=1, wrong=0)
"""Habits of the test recordings' captions: they state the class and no more."""


@dataclass(frozen=True)
class Clip:
    """A labelled recording."""

    path: Path
    fold: int
    sound: str
    """A key of `captions.LEXICON`."""
    source: str
    """"" where unknown."""


@dataclass(frozen=True, kw_only=True)
class Composition:
    """Settings of a composition."""

    folder: Path
    """Holds one CSV with the columns filename, fold, category (and src_file), and the sounds in it or in `audio/`."""
    test_fold: int = 5
    validation_fold: int = 4
    all_folds: bool = False
    """Whether the validation fold is trained on too, once everything was chosen by it: then it says nothing more."""
    training: int = 2000
    """Scenes."""
    validation: int = 200
    alone: float = 0.0
    """Share of the training scenes that are one recording as it is, but for its loudness and where it begins."""
    seconds: float = 5.0
    seed: int = 0


def clips(folder: Path) -> list[Clip]:
    """Return the recordings that a folder's CSV lists, of the classes in `CLASSES`.

    Raises:
        UserError: where there is no such CSV, or none of its recordings is of a known class.
    """
    table, rows = listed(folder)
    root = folder / "audio" if (folder / "audio").is_dir() else folder
    try:
        recordings = [
            Clip(
                root / row["filename"],
                int(row["fold"]),
                CLASSES[row["category"]],
                f"freesound:{row['src_file']}" if row.get("src_file") else "",
            )
            for row in rows
            if row["category"] in CLASSES
        ]
    except ValueError as error:
        raise UserError(f"{table}: a fold is no number ({error}); folds are 1, 2, ...") from error
    if not recordings:
        raise UserError(f"{table}: no recording of a known class; known: {', '.join(CLASSES)}")
    return recordings


def listed(folder: Path) -> tuple[Path, list[dict[str, str]]]:
    """Return the CSV of a folder of labelled recordings, and its rows, of known classes and others.

    Raises:
        UserError: where there is no such CSV, or several, or it cannot be read, lacks a column or has no rows.
    """
    tables = sorted(folder.glob("*.csv"))
    if len(tables) != 1:
        raise UserError(f"{folder}: {len(tables)} CSV files; one must list the recordings ({', '.join(COLUMNS)})")
    if not (rows := layouts.rows(tables[0], COLUMNS)):
        raise UserError(f"{tables[0]}: lists no recordings; it needs rows of {', '.join(COLUMNS)}")
    return tables[0], rows


def items(composition: Composition) -> list[Item]:
    """Return each recording with what makes its sound, a picklable function: training, then validation, then test.

    Training scenes take their events from the folds that are neither the validation nor the test fold. Test recordings
    have five captions of their class, so that each caption is true of all recordings of the class; `generate.relevant`
    says so.

    Raises:
        UserError: where a fold has no recording or the CSV is broken.
    """
    recordings = clips(composition.folder)
    kept_out = {composition.test_fold} | (set() if composition.all_folds else {composition.validation_fold})
    parts = {
        "training": [clip for clip in recordings if clip.fold not in kept_out],
        "validation": [clip for clip in recordings if clip.fold == composition.validation_fold],
        "test": [clip for clip in recordings if clip.fold == composition.test_fold],
    }
    for split, chosen in parts.items():
        if not chosen:
            raise UserError(f"{composition.folder}: no recording is left for {split}; choose other folds")
    made: list[Item] = []
    for number in range(composition.training + composition.validation):
        split = "training" if number < composition.training else "validation"
        make = _alone if number < composition.alone * composition.training else _composed
        made.append(make(composition, parts[split], split, number))
    for clip in parts["test"]:
        made.append((_labelled(composition, clip, "test", len(made)), partial(decode, clip.path)))
    return made


def _alone(composition: Composition, chosen: Sequence[Clip], split: str, number: int) -> Item:
    """Return one recording, of a class drawn evenly, with captions that state the class."""
    rng = generator(composition.seed, "audio.alone", number)
    sound = pick(sorted({clip.sound for clip in chosen}), rng)
    clip = pick([clip for clip in chosen if clip.sound == sound], rng)
    recording = replace(_labelled(composition, clip, split, number), file=f"alone-{number:06d}.wav", source="")
    return recording, partial(vary, clip.path, (composition.seed, number))


def _composed(composition: Composition, chosen: Sequence[Clip], split: str, number: int) -> Item:
    """Return a scene of clips drawn from those of its split."""
    rng = generator(composition.seed, "audio.scene", number)
    sounds = {clip.sound for clip in chosen}
    possible = {sound: traits for sound, traits in TRAITS.items() if sound in sounds}
    scene = scenes.draw(rng, composition.seconds, possible, [s for s in AMBIENT if s in sounds], rooms=True)
    parts = [pick([clip for clip in chosen if clip.sound == event.sound], rng) for event in scene.events]
    words = {sound: LEXICON[sound] for sound in sorted(scene.sounds)}
    written = [captions.caption(scene, writer, words, captions.CLOTHO, rng) for writer in WRITERS[:5]]
    recording = Recording(
        recording=number,
        file=f"composed-{number:06d}.wav",
        corpus="clotho",
        split=split,
        source="",
        seconds=round(scene.seconds * SAMPLE_RATE) / SAMPLE_RATE,
        captions=tuple(text for text, _ in written),
        keywords=captions.keywords(scene, rng),
        rewrites=tuple(() for _ in written),
        facts=scenes.to_json(scene, [statement for _, statement in written]),
    )
    return recording, partial(compose, scene, tuple(clip.path for clip in parts), (composition.seed, number))


def _labelled(composition: Composition, clip: Clip, split: str, number: int) -> Recording:
    """Return a recording with captions that state its class."""
    rng = generator(composition.seed, "audio.label", number)
    scene = Scene((Event(clip.sound, 0.0, composition.seconds),), composition.seconds)
    written = [captions.caption(scene, writer, LEXICON, LABELLED, rng) for writer in WRITERS[:5]]
    return Recording(
        recording=number,
        file=clip.path.name,
        corpus="clotho",
        split=split,
        source=clip.source,
        seconds=composition.seconds,
        captions=tuple(text for text, _ in written),
        rewrites=tuple(() for _ in written),
        facts=scenes.to_json(scene, [statement for _, statement in written]),
    )


def compose(scene: Scene, paths: Sequence[Path], seed: tuple[int, int]) -> Waveform:
    """Mix a scene of real recordings: float32 (samples,) at 32 kHz, in [-1, 1].

    Args:
        scene: what happens when.
        paths: for each event, the recording to take. Its audible part is repeated or cut to the event's length.
        seed: of the room and the recorder: the data set's, and the recording's number.

    Raises:
        UserError: where a recording cannot be decoded.
    """
    rng = generator(seed[0], "audio.mix", seed[1])
    waves = []
    for event, path in zip(scene.events, paths, strict=True):
        wave = np.resize(audible(path), max(1, round(event.seconds * SAMPLE_RATE)))
        waves.append(shape_event(wave, event, rng))
    return mix(scene, waves, Recorder(colour=2.0), rng)


def vary(path: Path, seed: tuple[int, int]) -> Waveform:
    """Return a recording turned round its length by a random time, 14 dB softer to 6 dB louder, in [-1, 1].

    Raises:
        UserError: where it cannot be decoded.
    """
    rng = generator(seed[0], "audio.vary", seed[1])
    wave = decode(path)
    turned = np.roll(wave, int(rng.integers(len(wave)))) * 10 ** (rng.uniform(-14, 6) / 20)
    return np.clip(turned, -1.0, 1.0).astype(np.float32)


@lru_cache(maxsize=512)
def audible(path: Path) -> Waveform:
    """Return a recording from where it first to where it last comes within 30 dB of its loudest 50 ms.

    ESC pads its clips with silence, which in a scene would be an event that nobody hears.
    """
    wave = decode(path)
    step = SAMPLE_RATE // 20
    blocks = wave[: len(wave) // step * step].reshape(-1, step)
    level = np.sqrt((blocks**2).mean(axis=1)) if len(blocks) else np.zeros(1)
    loud = np.flatnonzero(level > 10 ** (-30 / 20) * level.max())
    return wave[loud[0] * step : (loud[-1] + 1) * step] if len(loud) else wave
