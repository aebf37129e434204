"""Named random streams: independent generators that are derived from one seed.

`numpy.random.default_rng([seed, epoch])` and `default_rng([seed, epoch, 0])` are the same stream, because NumPy pads
entropy with zeros. Spawn keys are not padded, and the name of a stream keeps two uses of equal numbers apart.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def sequence(seed: int, stream: str, *where: int) -> np.random.SeedSequence:
    """Return the seed sequence of a stream at a place: for generators other than NumPy's, by `generate_state`.

    Args:
        seed: the run's or the data set's, 0 or more.
        stream: the name of what is drawn, such as `weather.order`; each use has its own.
        where: the place in the stream, such as epoch and rank; each is in 0..2^32 - 1.

    Raises:
        ValueError: if a number is out of its range.
    """
    if any(not 0 <= number < 2**32 for number in where):  # a larger one would be read as two
        raise ValueError(f"{stream}: {where} are not all in 0..2^32 - 1")
    return np.random.SeedSequence(seed, spawn_key=(zlib.crc32(stream.encode()), *where))


def generator(seed: int, stream: str, *where: int) -> np.random.Generator:
    """Return NumPy's generator of a stream at a place. Arguments and errors are those of `sequence`."""
    return np.random.default_rng(sequence(seed, stream, *where))


def pick(options: Sequence[T], rng: np.random.Generator) -> T:
    """Draw one of several, all alike."""
    return options[int(rng.integers(len(options)))]
