"""A recording in a file, its vectors out: what `retable predict audio` does with each file."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from retable.tasks.audio.collect.files import SUFFIXES as SUFFIXES
from retable.tasks.audio.export import Exported
from retable.tasks.audio.tools.adopt.clap import Clap
from retable.tasks.audio.tools.embed.embedder import Embedder, embed_file


@dataclass(frozen=True, kw_only=True)
class Options:
    """There is nothing to choose."""


def target(source: Path, options: Options) -> str:
    """Return what the answer to a file is called."""
    return f"{source.stem}.npz"


def answering(model: Exported | Clap, options: Options) -> Callable[[Path], bytes]:
    """Return what answers files."""
    return partial(answer, model.embedder())


def answer(embedder: Embedder, source: Path) -> bytes:
    """Return `vectors`, unit float32 (segments, dimension), and `offsets`, the second at which each begins, as npz.

    Raises:
        UserError: where the file is none that can be heard.
    """
    offsets, vectors, _ = embed_file(embedder, source)
    file = io.BytesIO()
    np.savez(file, vectors=vectors, offsets=np.array(offsets, np.float64))
    return file.getvalue()
