"""Fit a model's `Anchors`: where kinds of sound lie among words and among sounds.

An anchor is a class of the captions' lexicon. Among words it is the mean static vector of all its sentences. Among
sounds it is what the model makes of these sentences; of classes with labelled recordings it is the mean of each
recording's segment that lies nearest to that. `python -m retable.tasks.audio.tools.search.anchors FILE FOLDER` fits an
exported file to a folder in ESC's layout, without its fold 5, and writes the anchors into the file.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from retable.platform.store.storage import Storage
from retable.tasks.audio.export import with_anchors
from retable.tasks.audio.tools.compose import clips
from retable.tasks.audio.tools.embed.embedder import Embedder, embed_file
from retable.tasks.audio.tools.embed.lexicon import WORD, Anchors, table
from retable.tasks.audio.tools.search.classes import FOLD
from retable.tasks.audio.tools.search.opening import open_embedder
from retable.tasks.audio.world.captions import LEXICON, Words, is_plural, third_person

Vectors = Float32[np.ndarray, "rows dimension"]


def sentences(words: Words) -> list[str]:
    """Return every subject of a class with every verb."""
    return [f"{s} {v if is_plural(s) else third_person(v)}" for s in words.subjects for v in words.verbs]


def fit(embedder: Embedder, heard: Mapping[str, Sequence[Vectors]]) -> Anchors:
    """Return the anchors of a model.

    Args:
        embedder: the model; anchors that it has already are not used.
        heard: class -> the segments' vectors of each of its recordings.
    """
    embedder = replace(embedder, anchors=None)
    words, sounds = [], []
    for name, entry in LEXICON.items():
        said = sentences(entry)
        words.append(_mean([table().vector(sentence) for sentence in said]))
        meant = _mean(embedder.words(said))
        nearest = [segments[(segments @ meant).argmax()] for segments in heard.get(name, ())]
        sounds.append(_mean(nearest) if nearest else meant)
    own = {word for entry in LEXICON.values() for said in sentences(entry) for word in WORD.findall(said)}
    return Anchors(np.stack(words), np.stack(sounds), frozenset(own))


def hear(embedder: Embedder, folder: Path, left_out: Collection[int] = (FOLD,)) -> dict[str, list[Vectors]]:
    """Return class -> the segments' vectors of each recording of a labelled folder, without some folds."""
    heard: dict[str, list[Vectors]] = {}
    for clip in clips(folder):
        if clip.fold not in left_out:
            heard.setdefault(clip.sound, []).append(embed_file(embedder, clip.path).vectors)
    return heard


def _mean(vectors: Sequence[np.ndarray] | np.ndarray) -> Float32[np.ndarray, " dimension"]:
    mean = np.mean(np.asarray(vectors, np.float64), axis=0)
    unit: Float32[np.ndarray, " dimension"] = (mean / max(float(np.linalg.norm(mean)), 1e-12)).astype(np.float32)
    return unit


if __name__ == "__main__":
    file, folder = map(Path, sys.argv[1:3])
    model = open_embedder(str(file), Storage.open("."))
    Storage.open(file.absolute().parent).write(
        file.name, with_anchors(file.read_bytes(), fit(model, hear(model, folder)))
    )
