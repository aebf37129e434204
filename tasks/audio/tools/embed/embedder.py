"""A trained pair of encoders as what embeds: a run, or the one file that `retable audio export` writes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float32
from torch import nn

from retable.platform.errors import UserError, words
from retable.platform.train.worker import best_device
from retable.tasks.audio.collect.files import Remarks, stream
from retable.tasks.audio.config import SAMPLE_RATE, SHORTEST
from retable.tasks.audio.model import Encoders
from retable.tasks.audio.predict import embed_audio, embed_text
from retable.tasks.audio.tools.embed.lexicon import Anchors

Network = TypeVar("Network", bound=nn.Module)
Waveform = Float32[np.ndarray, " samples"]

BATCH = 8
"""Segments, or captions, that are encoded at once."""


@dataclass(frozen=True)
class Embedder:
    """A network that embeds segments and words as unit vectors of one space."""

    segment: float
    """Seconds that are embedded at once, at most."""
    dimension: int
    """Length of the vectors."""
    network: Encoders
    fingerprint: str
    """SHA-256 of the weights and of what they compute with; a run and its exported file share it."""
    source: str
    """Name that opens it again: a run's fingerprint, or a file's absolute path."""
    scale: str = ""
    """At which the run was trained; empty where it is not known."""
    score: Mapping[str, Any] = field(default_factory=dict)
    """Score on data that it never heard, as its file states; empty if the file states none."""
    anchors: Anchors | None = None
    """Anchors, by which words are searched that the model was not trained on; None if its file has none."""

    def sounds(self, segments: Sequence[Waveform]) -> Float32[np.ndarray, "segments dimension"]:
        """Embed segments of sound at 32 kHz, none longer than `segment` seconds."""
        return embed_audio(self.network, segments)

    def words(self, captions: Sequence[str]) -> Float32[np.ndarray, "captions dimension"]:
        """Embed captions."""
        vectors = embed_text(self.network, captions) if captions else np.empty((0, self.dimension), np.float32)
        return self.anchors.blend(captions, vectors) if self.anchors else vectors


def pieces(path: Path, segment: float, remarks: Remarks, hop: float | None = None) -> Iterator[tuple[float, Waveform]]:
    """Yield a recording's segments with their offsets, without holding more than one and a block.

    The file is decoded once; what is odd about it goes into `remarks`.

    Args:
        path: the recording.
        segment: seconds of each.
        remarks: what is odd.
        hop: seconds from the start of one to that of the next; None: they do not overlap.

    Raises:
        UserError: where the file is none that can be read.
    """
    length, number = round(segment * SAMPLE_RATE), 0
    step = length if hop is None else round(hop * SAMPLE_RATE)
    rest = np.zeros(0, np.float32)
    for block in stream(path, remarks):
        rest = np.concatenate([rest, block])
        while len(rest) > length:  # one that ends here may be the last
            yield number * step / SAMPLE_RATE, rest[:length]
            rest, number = rest[step:], number + 1
    new = len(rest) - (length - step if number else 0)
    if new >= SHORTEST * SAMPLE_RATE or not number:
        yield number * step / SAMPLE_RATE, rest


class Heard(NamedTuple):
    """Embedding of a recording."""

    starts: list[float]
    """Seconds at which its segments begin."""
    vectors: Float32[np.ndarray, "segments dimension"]
    """Unit vectors."""
    remarks: list[str]
    """Warnings about the file, a clause each."""


def embed_file(embedder: Embedder, path: Path, hop: float | None = None) -> Heard:
    """Embed one recording's segments, a batch of them at once; see `pieces`.

    Raises:
        UserError: where the file cannot be decoded, its sound is of no use, or its embedding is not finite.
    """
    (made,) = embed_each(embedder, [path], hop)
    if isinstance(made, UserError):
        raise made
    return made


def embed_each(embedder: Embedder, paths: Sequence[Path], hop: float | None = None) -> list[Heard | UserError]:
    """Embed recordings; a batch holds segments of several, where they are short.

    What else is in a batch may change the last bit of a vector.

    Returns:
        What was heard in each, or why there is nothing.
    """
    remarks = [Remarks() for _ in paths]
    starts: list[list[float]] = [[] for _ in paths]
    vectors: list[list[Float32[np.ndarray, " dimension"]]] = [[] for _ in paths]
    broken: dict[int, UserError] = {}
    rest = _pieces_of(embedder, paths, hop, remarks, broken)
    while batch := list(islice(rest, BATCH)):
        embedded = embedder.sounds([waveform for _, _, waveform in batch])
        for (number, offset, _), vector in zip(batch, embedded, strict=True):
            starts[number].append(offset)
            vectors[number].append(vector)
    return [
        broken.get(number) or _heard(path, starts[number], vectors[number], remarks[number])
        for number, path in enumerate(paths)
    ]


def _pieces_of(
    embedder: Embedder,
    paths: Sequence[Path],
    hop: float | None,
    remarks: Sequence[Remarks],
    broken: dict[int, UserError],
) -> Iterator[tuple[int, float, Waveform]]:
    """Yield segments: the number of a recording, an offset, sound. Why there are none goes into `broken`."""
    for number, path in enumerate(paths):
        try:
            for offset, waveform in pieces(path, embedder.segment, remarks[number], hop):
                yield number, offset, waveform
        except UserError as error:
            broken[number] = error


def _heard(
    path: Path, starts: list[float], vectors: Sequence[Float32[np.ndarray, " dimension"]], remarks: Remarks
) -> Heard | UserError:
    if defect := remarks.defect():
        return UserError(f"{path}: {defect}")
    joined = np.stack(vectors)
    if not np.isfinite(joined).all():
        return UserError(f"{path}: the model makes no numbers of it; look at the file, or use another model")
    return Heard(starts, joined, remarks.lines())


def placed(make: Callable[[], Network], device: str, source: str) -> Network:
    """Make a network, in evaluation mode, on a device; none: a GPU where there is one.

    Raises:
        UserError: where that fails, as where there is no such device; `source` is what it calls the network.
    """
    where = device or best_device()
    try:
        return make().eval().to(where)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"{source} on {where}: {words(error)}") from error
