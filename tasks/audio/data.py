"""Batches of recordings with captions: from memory, or as a stream.

An epoch's items are (recording, caption) pairs, each once, in an order that follows from seed and epoch. What is cut
out of a recording and which form its caption takes follow from seed, epoch and the item's place. So training can start
at any step, and the batches are the same for any number of workers, from memory as from a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from retable.platform.errors import UserError
from retable.platform.execute.streams import stream
from retable.platform.spec.arrays import Array
from retable.platform.spec.task import Source
from retable.platform.store.storage import Storage
from retable.platform.train.seeds import generator, pick
from retable.platform.train.worker import share
from retable.tasks.audio.collect.leaks import origin, read_listed
from retable.tasks.audio.collect.recordings import AudioShards, Recording, read_recordings
from retable.tasks.audio.config import BANDS, HOP, SAMPLE_RATE, SPLITS, Config, trained_on
from retable.tasks.audio.encoders.mel import SILENCE, frames_of
from retable.tasks.audio.rewrite.variations import augmented

Item = TypeVar("Item")
ORDER, CLIPS = "audio.order", "audio.clips"
"""Streams of random numbers: the order of an epoch's items; what is cut of a recording, and its caption's form."""
PIECE = 64
"""Clips that one task of Ray Data reads."""
EVALUATED = 1920.0
"""Seconds of sound, at most, in a batch that is only embedded, unless one recording is longer: 64 of 30 s."""
RATE = {"waveform": SAMPLE_RATE, "mel": SAMPLE_RATE // HOP}
"""Samples or frames a second."""


@dataclass(frozen=True)
class Batch:
    """Clips, and a caption of each in training."""

    audio: Float32[Tensor, "batch samples"] | Float32[Tensor, "batch frames 128"]
    """Waveforms at 32 kHz in [-1, 1], or log-mel spectrograms, not normalised; then silence up to the longest."""
    lengths: Int64[Tensor, " batch"]
    """Samples or frames of sound."""
    captions: tuple[str, ...]
    """One of each clip; none where recordings are only embedded."""
    recording: Int64[Tensor, " batch"]
    """Clips of the same number are the same recording: each is right for the other's caption."""
    features: Literal["waveform", "mel"]


@dataclass(frozen=True)
class Clip:
    """Part of a recording in a batch: samples or frames from `start` to `stop`."""

    recording: int
    start: int
    stop: int


def read(folder: Storage) -> dict[str, Array]:
    """Return the sound of training and validation one after another (`audio`), where each ends, and whose it is.

    Runs of one data set share it. One that trains on the test set too reads all of its sound as a stream.

    Raises:
        UserError: where there are none.
    """
    info = folder.read_json("dataset.json")
    shards = AudioShards(folder, info)
    numbers: list[int] = []
    sounds: list[Array] = []
    for name in (name for split in ("training", "validation") for name in info["shards"][split]):
        more, heard = shards.all_of(name)
        numbers += more
        sounds += heard
    if not sounds:
        raise UserError(f"{folder}: no recordings to train on; make or import the data set again")
    return {
        "recording": np.array(numbers, np.int64),
        "ends": np.cumsum([len(sound) for sound in sounds]),
        "audio": np.concatenate(sounds),
    }


class Recordings:
    """The training batches of one run, and the validation set."""

    def __init__(self, columns: Mapping[str, Array] | None, source: Source, configs: Sequence[Config]) -> None:
        """Take what `arrays` returned, or None to read the shards as a stream; so are they where the test set is in.

        Raises:
            UserError: where nothing is left to train on, or the config asks for what mel spectrograms cannot give, or
                for rewritten captions that are not there.
        """
        (self.config,) = configs
        self.source, self.batch = source, self.config.batch
        self.features: Literal["waveform", "mel"] = source.info["features"]
        self.recordings = read_recordings(source.folder)
        columns = None if "test" in SPLITS[self.config.train_on] else columns
        self._columns = columns
        self._place = {number: row for row, number in enumerate(columns["recording"].tolist())} if columns else {}
        self._items = [
            (recording, caption)
            for recording in training_recordings(self.recordings, self.config, read_listed(source.folder))
            for caption in range(len(recording.captions))
        ]
        if not self._items:
            kept = ", ".join(self.config.corpora)
            raise UserError(f"{source.folder}: no captions of {kept} to train on; change corpora, leaks or the data")
        if self.config.shift_bands and self.features == "mel":
            raise UserError("shift_bands: this data set keeps mel spectrograms; use one that keeps waveforms")
        if self.config.augmentation and not any(_forms(*item) for item in self._items):
            raise UserError(
                f"augmentation {self.config.augmentation}: {source.folder} has no rewritten captions to train on; make "
                f"some, `retable audio augment {self.config.data}`, or set augmentation=0"
            )
        self.steps = self.config.steps or max(len(self._items) // self.batch, 1)

    def captions(self) -> list[str]:
        """Return the captions trained on, as they were written."""
        return [recording.captions[caption] for recording, caption in self._items]

    def queries(self, split: str) -> list[tuple[str, int]]:
        """Return each caption of a split, with the number of its recording; none of a split that was trained on."""
        return [] if split in SPLITS[trained_on(self.config)] else queries(self.recordings, split)

    def batches(self, epoch: int, start: int, rank: int, world: int) -> Iterator[Batch]:
        """Yield this rank's share of the epoch's batches from step `start` on.

        Items that do not fill a last batch are left out; where `steps` asks for more than there are, the epoch goes
        over all of them again, in another order.
        """
        own = share(self.batch, rank, world)
        order = self._order(epoch)
        positions = np.arange(start * self.batch, self.steps * self.batch).reshape(-1, self.batch)[:, own]
        chosen = [self._choose(epoch, position, int(order[position])) for position in positions.ravel().tolist()]
        sounds = self._sounds([clip for clip, _ in chosen])
        rows = positions.shape[1]
        for first in range(0, len(chosen), rows):
            clips, captions = zip(*chosen[first : first + rows], strict=True)
            yield collate([next(sounds) for _ in clips], clips, captions, self.features)

    def validation(self, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """Yield this rank's share of the validation recordings, whole and without captions: every `world`-th one."""
        return self.embedding(
            [recording for recording in self.recordings if recording.split == "validation"][rank::world]
        )

    def embedding(self, recordings: Sequence[Recording]) -> Iterator[Batch]:
        """Yield recordings whole, in order and without captions; at most `config.batch` at once, fewer of long ones."""
        uncut = [Clip(recording.recording, 0, extent(recording, self.features)) for recording in recordings]
        sounds = self._sounds(uncut)
        size = EVALUATED * RATE[self.features]
        for clips in bounded(uncut, lambda clip: clip.stop - clip.start, size, self.config.batch):
            yield collate([next(sounds) for _ in clips], clips, (), self.features)

    def _order(self, epoch: int) -> Array:
        """Return which item stands at each position of an epoch: one shuffled pass over all, or as many as it takes."""
        passes = -(-self.steps * self.batch // len(self._items))
        drawing = [generator(self.config.seed, ORDER, epoch, number) for number in range(passes)]
        return np.concatenate([random.permutation(len(self._items)) for random in drawing])

    def _choose(self, epoch: int, position: int, item: int) -> tuple[Clip, str]:
        """Return what a position of an epoch holds: which part of an item's recording, and its caption."""
        recording, caption = self._items[item]
        random = generator(self.config.seed, CLIPS, epoch, position)
        total, length = extent(recording, self.features), round(self.config.clip_seconds * RATE[self.features])
        start = int(random.integers(max(total - length, 0) + 1))
        return Clip(recording.recording, start, min(start + length, total)), self._words(recording, caption, random)

    def _words(self, recording: Recording, caption: int, random: np.random.Generator) -> str:
        """Return a caption, or with some probability one of its rewritten forms."""
        forms = _forms(recording, caption)
        if forms and random.random() < self.config.augmentation:
            return pick(forms, random)
        return recording.captions[caption]

    def _sounds(self, clips: Sequence[Clip]) -> Iterator[Array]:
        """Yield the sound of clips, int16 (samples,) or float16 (frames, 128), in order."""
        if self._columns is not None:
            ends, audio = self._columns["ends"], self._columns["audio"]
            for clip in clips:
                row = self._place[clip.recording]
                yield cut(audio[int(ends[row - 1]) if row else 0 : int(ends[row])], clip, self.features)
            return
        pieces = [
            {"clips": [[clip.recording, clip.start, clip.stop] for clip in clips[first : first + PIECE]]}
            for first in range(0, len(clips), PIECE)
        ]
        for piece in stream(pieces, partial(fetch, folder=self.source.folder, info=dict(self.source.info))):
            yield from np.split(piece["audio"], np.cumsum(piece["sizes"])[:-1])


def _forms(recording: Recording, caption: int) -> tuple[str, ...]:
    """Return a caption's rewritten forms: of Clotho's only, as in the paper."""
    return recording.rewrites[caption] if augmented(recording) and caption < len(recording.rewrites) else ()


def training_recordings(recordings: Sequence[Recording], config: Config, listed: frozenset[int]) -> list[Recording]:
    """Return the recordings that a run trains on: of its splits and corpora, without leaks unless it includes them.

    A leak is what could be known of a recording that is scored. Where the validation set is trained on, copies of its
    recordings stay left out, as a mark does not say whose copy a training recording is; and a leak is also one of its
    recordings whose source is a test recording's; sounds were only compared with the training set's. Where everything
    is trained on, only what a published list of exclusions names is left: it may know the challenge's own recordings.

    Args:
        recordings: the whole data set.
        config: the run's.
        listed: see `leaks.read_listed`.
    """
    splits = SPLITS[config.train_on]
    scored = {origin(recording) for recording in recordings if recording.split not in splits} - {""}

    def leaks(recording: Recording) -> bool:
        if config.train_on == "all":
            return recording.recording in listed
        return recording.leak or (recording.split != "training" and origin(recording) in scored)

    return [
        recording
        for recording in recordings
        if recording.split in splits
        and recording.corpus in config.corpora
        and not (config.leaks == "exclude" and leaks(recording))
    ]


def queries(recordings: Iterable[Recording], split: str) -> list[tuple[str, int]]:
    """Return each caption of a split, with the number of its recording."""
    return [
        (caption, recording.recording)
        for recording in recordings
        if recording.split == split
        for caption in recording.captions
    ]


def fetch(piece: Mapping[str, Any], folder: Storage, info: Mapping[str, Any]) -> dict[str, Array]:
    """Read the clips of a piece: their sound one after another, and the length of each."""
    shards = AudioShards(folder, info)
    clips = [Clip(*part) for part in piece["clips"]]
    sounds = [cut(shards.stored(clip.recording), clip, info["features"]) for clip in clips]
    return {"audio": np.concatenate(sounds), "sizes": np.array([len(part) for part in sounds])}


def extent(recording: Recording, features: str) -> int:
    """Return how many samples or frames a recording has."""
    samples = round(recording.seconds * SAMPLE_RATE)
    return samples if features == "waveform" else frames_of(samples)


def cut(stored: Array, clip: Clip, features: str) -> Array:
    """Return a clip of a recording's stored values, int16 (samples,) or float16 (frames, 128)."""
    sound = stored if features == "waveform" else stored.reshape(-1, BANDS)
    return sound[clip.start : clip.stop]


def collate(sounds: Sequence[Array], clips: Sequence[Clip], captions: tuple[str, ...], features: str) -> Batch:
    """Join clips into a batch; silence follows the shorter ones."""
    lengths = [len(sound) for sound in sounds]
    padding = 0.0 if features == "waveform" else SILENCE
    audio = pad_sequence([torch.from_numpy(sound.astype(np.float32)) for sound in sounds], True, padding)
    if features == "waveform":
        audio /= 32768
    return Batch(
        audio=audio,
        lengths=torch.tensor(lengths),
        captions=captions,
        recording=torch.tensor([clip.recording for clip in clips]),
        features="waveform" if features == "waveform" else "mel",
    )


def bounded(items: Iterable[Item], length: Callable[[Item], int], size: float, most: int = 0) -> Iterator[list[Item]]:
    """Yield runs of items in order that, padded to their longest, take at most `size`; an item that is longer is alone.

    Args:
        items: recordings, or what is taken of them.
        length: of an item, samples or frames.
        size: of a run, in the same unit.
        most: items of a run; 0: any number.
    """
    run: list[Item] = []
    longest = 0
    for item in items:
        longest = max(longest, length(item))
        if run and (len(run) == most or longest * (len(run) + 1) > size):
            yield run
            run, longest = [], length(item)
        run.append(item)
    if run:
        yield run
