"""Fit a model's `Anchors`: where kinds of sound lie among words and among sounds.

An anchor is a class of the captions' lexicon. Among words it is the mean static vector of all its sentences. Among
sounds it is what the model makes of these sentences; of classes with labelled recordings it is the mean of each
recording's segment that lies nearest to that. `retable audio anchors FILE FOLDER` fits an exported file to a folder in
ESC's layout, without the fold that the data of `--data` held out (default: the file's own, else 5), and writes the
anchors into the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage, write_file
from retable.platform.store.weights import read_bytes
from retable.platform.text import grouped
from retable.tasks.audio.collect.recordings import read_recordings
from retable.tasks.audio.export import Exported, read_export, with_anchors
from retable.tasks.audio.prepare.prepare import folder as data_folder
from retable.tasks.audio.tools.compose import CLASSES, clips, listed
from retable.tasks.audio.tools.embed.embedder import Embedder, embed_file
from retable.tasks.audio.tools.embed.lexicon import WORD, Anchors, table, unit
from retable.tasks.audio.tools.search.classes import FOLD
from retable.tasks.audio.world.captions import LEXICON, Words, clause

Vectors = Float32[np.ndarray, "rows dimension"]


def sentences(words: Words) -> list[str]:
    """Return every subject of a class with every verb."""
    return [clause(subject, verb) for subject in words.subjects for verb in words.verbs]


GENERATOR = frozenset(
    word for entry in LEXICON.values() for sentence in sentences(entry) for word in WORD.findall(sentence)
)
"""Words of generated captions."""


@dataclass(frozen=True)
class Fitted:
    """Data to which anchors were fitted."""

    heard: Mapping[str, int]
    """Class -> recordings that were used."""
    passed: Mapping[str, int]
    """Category of the folder that is no known class -> recordings, which were not used."""
    words: int
    """Words that count as trained on."""


def fit_file(file: Path, folder: Path, data: Sequence[str], storage: Storage) -> Fitted:
    """Fit anchors to labelled recordings, and write them into an exported file in place of those that it has.

    Args:
        file: of `retable audio export`.
        folder: in ESC's layout.
        data: the data sets that the model was trained on, whose words it knows; none: generated ones.
        storage: where these lie.

    Raises:
        UserError: where the file, the folder or a data set is missing or another.
    """
    before = read_bytes(file)
    exported = read_export(before, str(file))
    if not isinstance(exported, Exported):
        raise UserError(f"{file}: LAION-CLAP takes no anchors; name a file of `retable audio export`")
    own = trained_words(data, storage) if data else GENERATOR
    model = exported.embedder()
    folds = {storage.read_json(f"data/audio/{name}/dataset.json").get("test_fold", FOLD) for name in data}
    heard = hear(model, folder, folds or exported.about.get("test_folds") or {FOLD})
    write_file(file, with_anchors(before, fit(model, heard, own)))
    passed = Counter(row["category"] for row in listed(folder)[1] if row["category"] not in CLASSES)
    return Fitted({name: len(recordings) for name, recordings in heard.items()}, passed, len(own))


def trained_words(data: Sequence[str], storage: Storage) -> frozenset[str]:
    """Return the words of the training captions of data sets, rewritten ones included.

    Raises:
        UserError: where there is no such data set.
    """
    trained = [
        recording
        for name in data
        for recording in read_recordings(data_folder(storage, name))
        if recording.split == "training"
    ]
    texts = (
        text
        for recording in trained
        for text in (*recording.captions, *(form for forms in recording.rewrites for form in forms))
    )
    return frozenset(word for text in texts for word in WORD.findall(text.lower()))


def fit(embedder: Embedder, heard: Mapping[str, Sequence[Vectors]], own: Collection[str]) -> Anchors:
    """Return the anchors of a model.

    Args:
        embedder: the model; anchors that it has already are not used.
        heard: class -> the segments' vectors of each of its recordings.
        own: the words that the model was trained on.
    """
    embedder = replace(embedder, anchors=None)
    words, sounds = [], []
    for name, entry in LEXICON.items():
        captions = sentences(entry)
        words.append(_mean([table().vector(sentence) for sentence in captions]))
        meant = _mean(embedder.words(captions))
        nearest = [segments[(segments @ meant).argmax()] for segments in heard.get(name, ())]
        sounds.append(_mean(nearest) if nearest else meant)
    return Anchors(np.stack(words), np.stack(sounds), frozenset(own))


def hear(embedder: Embedder, folder: Path, left_out: Collection[int] = (FOLD,)) -> dict[str, list[Vectors]]:
    """Return class -> the segments' vectors of each recording of a labelled folder, without some folds."""
    kept = (clip for clip in clips(folder) if clip.fold not in left_out)
    return grouped((clip.sound, embed_file(embedder, clip.path).vectors) for clip in kept)


def _mean(vectors: Sequence[np.ndarray] | np.ndarray) -> Float32[np.ndarray, " dimension"]:
    return unit(np.mean(np.asarray(vectors, np.float64), axis=0)).astype(np.float32)
