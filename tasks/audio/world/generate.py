"""A made-up world of sounds and captions in three corpora, each recording a function of (seed, corpus, split, number).

Clotho's stand-in has five careful captions a recording and keywords; AudioCaps' has one caption and a narrower band;
WavCaps' is large, reverberant and noisy, its one caption a careless title. So what is learnt on the large one helps on
the small one, but not for free. Of the recordings of Clotho's kind one in eight is another one's scene in the opposite
order, one in eight has the opposite traits (both are hard negatives), and one in sixteen is the same scene again.
Some recordings of WavCaps' kind are planted leaks: validation and test recordings, cropped and under another name.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import numpy as np
import numpy.typing as npt

from retable.platform.errors import UserError, nearest
from retable.platform.spec.task import Source
from retable.platform.train.seeds import generator
from retable.tasks.audio.collect.recordings import SPLITS, Item, Recording, Waveform, read_recordings
from retable.tasks.audio.config import SAMPLE_RATE, Corpus
from retable.tasks.audio.world import captions, scenes
from retable.tasks.audio.world.captions import LEXICON, WRITERS, Habits
from retable.tasks.audio.world.scenes import Scene, Statement
from retable.tasks.audio.world.sounds import SOUNDS, Recorder, render


@dataclass(frozen=True, kw_only=True)
class World:
    """Number of recordings of each kind, and their length in seconds."""

    name: str
    clotho: tuple[int, int, int]
    """Training, validation and test recordings."""
    audiocaps: int
    wavcaps: int
    clotho_seconds: tuple[float, float]
    """Shortest and longest; so below."""
    audiocaps_seconds: tuple[float, float]
    wavcaps_seconds: tuple[float, float]
    seed: int = 0

    @property
    def leaks(self) -> int:
        """Number of recordings of WavCaps' kind that are also in the validation or test set."""
        return min(max(4, self.wavcaps // 32), self.wavcaps, 2 * min(self.clotho[1:]))


SIZES = {
    world.name: world
    for world in (
        World(
            name="tiny",
            clotho=(48, 24, 24),
            audiocaps=32,
            wavcaps=64,
            clotho_seconds=(1.6, 2.0),
            audiocaps_seconds=(2.0, 2.0),
            wavcaps_seconds=(1.0, 3.0),
        ),
        World(
            name="quick",
            clotho=(1200, 100, 200),
            audiocaps=200,
            wavcaps=600,
            clotho_seconds=(2.2, 3.0),
            audiocaps_seconds=(3.0, 3.0),
            wavcaps_seconds=(1.5, 3.0),
        ),
        World(
            name="small",
            clotho=(3000, 300, 500),
            audiocaps=600,
            wavcaps=2400,
            clotho_seconds=(2.2, 3.0),
            audiocaps_seconds=(3.0, 3.0),
            wavcaps_seconds=(1.5, 4.5),
        ),
        World(
            name="large",
            clotho=(3839, 1045, 1045),
            audiocaps=8000,
            wavcaps=24000,
            clotho_seconds=(15.0, 30.0),
            audiocaps_seconds=(10.0, 10.0),
            wavcaps_seconds=(2.0, 40.0),
        ),
    )
}
"""tiny is for trying out (96 + 32 + 64 recordings of 2 s), quick and small train on a processor, large has the real
sizes."""
CORPORA: dict[Corpus, tuple[Habits, Recorder]] = {
    "clotho": (captions.CLOTHO, Recorder()),
    "audiocaps": (captions.AUDIOCAPS, Recorder(floor=-42.0, colour=3.0, edge=7000.0)),
    "wavcaps": (captions.WAVCAPS, Recorder(floor=-38.0, colour=6.0, room=0.3)),
}
"""Habits of the writers and the recorder of each corpus."""
SOURCES = ("freesound", "bbc", "soundbible", "youtube")
"""Origins of recordings of WavCaps' kind, in turn."""
TRAITS = {
    name: (*sound.traits, "loudness", "distance", *([] if sound.counted else ["trend"]))
    for name, sound in SOUNDS.items()
}
AMBIENT = tuple(name for name, sound in SOUNDS.items() if sound.ambient)


def world(name: str) -> World:
    """Return the world of a size.

    Raises:
        UserError: where there is none of that name.
    """
    if name not in SIZES:
        raise UserError(f"size: no {name!r}{nearest(name, SIZES)}")
    return SIZES[name]


def is_unseen(pair: Sequence[str]) -> bool:
    """Whether no training recording has both sounds, which one pair in ten is: such scenes must be understood anew."""
    return zlib.crc32(" ".join(sorted(pair)).encode()) % 10 == 0


def items(world: World) -> list[Item]:
    """Return each recording with what synthesises it, a picklable function: training, then validation, then test."""
    keys: list[tuple[Corpus, str, int]] = [("clotho", "training", number) for number in range(world.clotho[0])]
    keys += [("audiocaps", "training", number) for number in range(world.audiocaps)]
    keys += [("wavcaps", "training", number) for number in range(world.wavcaps)]
    for split, count in zip(SPLITS[1:], world.clotho[1:], strict=True):
        keys += [("clotho", split, number) for number in range(count)]
    return [
        (replace(describe(world, *key), recording=index), partial(waveform, world, *key))
        for index, key in enumerate(keys)
    ]


def stream(world: World, corpus: str, split: str, number: int, purpose: str) -> np.random.Generator:
    """Return the random numbers for one purpose of one recording."""
    return generator(world.seed, f"audio.{corpus}.{split}.{purpose}", number)


def original(world: World, corpus: str, number: int) -> tuple[str, int] | None:
    """Return the split and number of the Clotho recording that a planted leak is a copy of; None where it is none."""
    if corpus != "wavcaps" or number >= world.leaks:
        return None
    return SPLITS[1 + number % 2], number // 2


def scene(world: World, corpus: Corpus, split: str, number: int) -> Scene:
    """Return what is heard in a recording."""
    if copied := original(world, corpus, number):
        return scene(world, "clotho", *copied)
    if corpus == "clotho":
        if number % 8 == 1:
            return scenes.reverse(scene(world, corpus, split, number - 1))
        if number % 8 == 3:
            return scenes.opposite(scene(world, corpus, split, number - 1))
        if number % 16 == 5:
            return scene(world, corpus, split, number - 1)
    rng = stream(world, corpus, split, number, "scene")
    ranges = {"clotho": world.clotho_seconds, "audiocaps": world.audiocaps_seconds, "wavcaps": world.wavcaps_seconds}
    seconds = round(float(rng.uniform(*ranges[corpus])), 2)
    while True:
        drawn = scenes.draw(rng, seconds, TRAITS, AMBIENT, rooms=True)
        if split != "training" or not any(map(is_unseen, combinations(drawn.sounds, 2))):
            return drawn


def describe(world: World, corpus: Corpus, split: str, number: int) -> Recording:
    """Return a recording's description; its number in the data set is 0 here."""
    heard = scene(world, corpus, split, number)
    rng = stream(world, corpus, split, number, "captions")
    habits, _ = CORPORA[corpus]
    words = {sound: LEXICON[sound] for sound in sorted(heard.sounds)}
    writers = WRITERS[:5] if corpus == "clotho" else WRITERS[:2] if corpus == "audiocaps" else WRITERS[5:]
    if corpus == "audiocaps":
        writers = (str(rng.choice(writers)),)
    written = [captions.caption(heard, writer, words, habits, rng) for writer in writers]
    copied = original(world, corpus, number)
    seconds = round(heard.seconds * SAMPLE_RATE)
    return Recording(
        recording=0,
        file=file_name(world, corpus, split, number),
        corpus=corpus,
        split=split,
        source=source(world, corpus, split, number),
        seconds=(len(range(seconds)[_crop(seconds)]) if copied else seconds) / SAMPLE_RATE,
        captions=tuple(text for text, _ in written),
        keywords=captions.keywords(heard, rng) if corpus == "clotho" else "",
        leak=copied is not None,
        rewrites=tuple(() for _ in written),
        facts=scenes.to_json(heard, [statement for _, statement in written]),
    )


def identity(corpus: str, split: str, number: int) -> int:
    """Return the number that a recording has where it comes from; no two have the same."""
    return 10 * (1000 + number) + {"clotho": SPLITS.index(split), "audiocaps": 3, "wavcaps": 4}[corpus]


def source(world: World, corpus: Corpus, split: str, number: int) -> str:
    """Return where a recording comes from. Half of the planted leaks say whose copy they are, half do not."""
    copied = original(world, corpus, number)
    if copied and number % 4 < 2:
        return source(world, "clotho", *copied)
    name = identity(corpus, split, number)
    if corpus == "audiocaps":
        return f"youtube:gen{name:08d}@{10 * (number % 7)}"
    kind = "freesound" if corpus == "clotho" or copied else SOURCES[number % len(SOURCES)]
    return f"youtube:gen{name:08d}" if kind == "youtube" else f"{kind}:{name}"


def file_name(world: World, corpus: Corpus, split: str, number: int) -> str:
    """Return a recording's name in the original data; some of Clotho's hold spaces, commas, entities and colons."""
    name = source(world, corpus, split, number).split(":")[1].split("@")[0]
    if corpus == "audiocaps":
        return f"Y{name}.wav"
    if corpus == "wavcaps":
        return f"{'Y' if name.startswith('gen') else ''}{name}.flac"
    sounds = [event.sound for event in scene(world, corpus, split, number).events]
    forms = ("{} {}.wav", "{}, {}.wav", "{} &amp; {}.wav", " {}_{}.wav", "{}: {}.wav", "{}-{}.wav")
    return forms[number % len(forms)].format(" ".join(sounds).capitalize(), name)


def _crop(samples: int) -> slice:
    """Return the part of its original that a planted leak keeps."""
    return slice(samples // 20, samples - samples // 20)


def waveform(world: World, corpus: Corpus, split: str, number: int) -> Waveform:
    """Synthesise a recording: float32 (samples,) at 32 kHz, in [-1, 1]."""
    if copied := original(world, corpus, number):
        uncut = waveform(world, "clotho", *copied)
        return np.float32(0.8) * uncut[_crop(len(uncut))]
    _, recorder = CORPORA[corpus]
    heard = scene(world, corpus, split, number)
    return render(heard, recorder, stream(world, corpus, split, number, "sound"))


def relevant(source: Source, split: str) -> npt.NDArray[np.bool_] | None:
    """Return of which recordings of a split each of its captions is true, where that is known.

    Args:
        source: the data set.
        split: training, validation or test.

    Returns:
        (captions, recordings), both in the data set's order. Everything that a caption states must hold; the recording
        that it was written for always counts. None where the data set does not say what its recordings hold.
    """
    chosen = [recording for recording in read_recordings(source.folder) if recording.split == split]
    if not all(recording.facts for recording in chosen):
        return None
    statements, owners, heard = _symbols(chosen)
    return scenes.relevance(statements, owners, heard)


def _symbols(recordings: Sequence[Recording]) -> tuple[list[Statement], list[int], list[Scene]]:
    """Return what each caption states, the place of the recording it belongs to, and each recording's scene."""
    statements: list[Statement] = []
    owners: list[int] = []
    heard = []
    for index, recording in enumerate(recordings):
        own, stated = scenes.from_json(recording.facts)
        heard.append(own)
        statements += stated
        owners += [index] * len(stated)
    return statements, owners, heard
