"""Class mAP: whether words find the recordings of their class, judged on a fold of real recordings that nobody heard.

A query is a sentence that names a class ("a dog barks"), and what it finds are all recordings of the fold. Each class
has several sentences; the score is the mean over them and over the classes, beside what chance gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.platform.train.seeds import generator
from retable.tasks.audio.config import SPLITS, Config, trained_on
from retable.tasks.audio.metrics import average_precision, check_finite, tie_groups
from retable.tasks.audio.tools.compose import Clip, clips
from retable.tasks.audio.tools.embed.embedder import Embedder, embed_file
from retable.tasks.audio.world.captions import LEXICON, clause

FOLD = 5
"""Of ESC's folds the one that data sets of composed scenes hold out, unless they are told otherwise."""
WORDINGS = 5
"""Sentences of a class."""
SAMPLES = 1000
"""Of the bootstrap."""


def sentences(sound: str) -> list[str]:
    """Return sentences for a class of the lexicon, a key of `captions.LEXICON`: its k-th subject with its k-th verb."""
    words = LEXICON[sound]
    return list(map(clause, words.subjects, words.verbs))[:WORDINGS]


def class_map(
    similarity: Float[Array, "queries clips"], relevance: Bool[Array, "queries clips"]
) -> Float[Array, " queries"]:
    """Return the average precision of each query over all clips; ties count as the expectation over their orders.

    A query without a relevant clip has none (not a number).
    """
    check_finite(similarity)
    depth = similarity.shape[1]
    return average_precision(tie_groups(similarity, relevance, depth), relevance.sum(axis=1), depth)


def fold_of(folds: Sequence[int], name: str) -> int:
    """Return the fold that a model never heard.

    Args:
        folds: which fold each set of scenes held out that it was trained on (`export.test_folds`).
        name: what errors call the model.

    Raises:
        UserError: where there is none: one set held out what another trained on.
    """
    held_out = set(folds) or {FOLD}
    if len(held_out) > 1 or 0 in held_out:
        scenes = "its scenes, or of those of what it started from"
        raise UserError(f"{name}: heard every fold of {scenes}; leave --classes out")
    return held_out.pop()


def judge(embedder: Embedder, folder: Path, fold: int = FOLD, config: Config | None = None) -> dict[str, Any]:
    """Return how well words find the recordings of their class: what an exported file keeps as its `score`.

    Args:
        embedder: the model; it must not have been trained on the fold.
        folder: labelled recordings in folds, as `compose` reads them.
        fold: which is judged on.
        config: the run's that the model is of; None where that is not known.

    Returns:
        `metric`, `value`, `low` and `high` (95 %, a bootstrap over the clips' sources), `chance` and `on`.

    Raises:
        UserError: where the folder has no such recordings, one cannot be read, or the model was trained on its test
            set too, which of composed scenes is this fold.
    """
    if config and "test" in SPLITS[trained_on(config)]:
        raise UserError(f"{embedder.source}: trained on its test set too (train_on=all); leave --classes out")
    heard = [clip for clip in clips(folder) if clip.fold == fold]
    if not heard:
        raise UserError(f"{folder}: no recording of fold {fold}; name a folder with such folds")
    sounds = sorted({clip.sound for clip in heard})
    queries = [(sound, sentence) for sound in sounds for sentence in sentences(sound)]
    words = embedder.words([sentence for _, sentence in queries])
    similarity = np.stack([(words @ embed_file(embedder, clip.path).vectors.T).max(axis=1) for clip in heard], axis=1)
    relevance = np.array([[clip.sound == sound for clip in heard] for sound, _ in queries])
    low, high = _interval(similarity, relevance, heard)
    on = f"{len(heard)} recordings of {folder.name}'s fold {fold}, {len(sounds)} classes by {len(queries)} sentences"
    return {
        "metric": "class mAP",
        "value": round(float(class_map(similarity, relevance).mean()), 3),
        "low": low,
        "high": high,
        "chance": round(float(class_map(np.zeros(similarity.shape), relevance).mean()), 3),
        "on": on,
    }


def _interval(similarity: Array, relevance: Array, heard: Sequence[Clip]) -> tuple[float, float]:
    """Return the ends of the score's 95 % interval; what is of one source is drawn together."""
    _, source = np.unique([clip.source or str(clip.path) for clip in heard], return_inverse=True)
    members = [np.flatnonzero(source == number) for number in range(source.max() + 1)]
    rng = generator(0, "audio.class_map")
    scores = []
    for _ in range(SAMPLES):
        drawn = np.concatenate([members[number] for number in rng.integers(len(members), size=len(members))])
        scores.append(np.nanmean(class_map(similarity[:, drawn], relevance[:, drawn])))
    low, high = np.percentile(scores, [2.5, 97.5])
    return round(float(low), 3), round(float(high), 3)


def line(score: Mapping[str, Any]) -> str:
    """Return a score as people read it; empty where it is none of `judge`."""
    if score.get("metric") != "class mAP":
        return ""
    return (
        f"class mAP {score['value']:.2f} [{score['low']:.2f}, {score['high']:.2f}], "
        f"by chance {score['chance']:.2f}; {score['on']}"
    )
