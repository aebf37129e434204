"""What leaves the platform: the rankings of trained models for the captions and recordings of the challenge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.tasks.audio.collect.files import decode, is_sound
from retable.tasks.audio.config import SAMPLE_RATE
from retable.tasks.audio.predict import embed_audio, embed_text
from retable.tasks.audio.tools.challenge import submission
from retable.tasks.audio.tools.challenge.submission import RANKS, Row

if TYPE_CHECKING:
    from retable.tasks.audio.model import Encoders


def submit(
    models: Sequence[Encoders],
    captions: Path,
    audio: Path,
    out: Path,
    show: Callable[[int, int], None] = lambda done, total: None,
) -> list[str]:
    """Write the ten best recordings of each caption as a submission; return what its check complains of.

    A recording that cannot be decoded is in no line, and named in what is returned.

    Args:
        models: in evaluation mode; of several, the mean of their cosines ranks (as `combine.mean_similarity`).
        captions: a CSV with a column `caption`.
        audio: the folder of the recordings; its subfolders are not searched.
        out: the CSV to write.
        show: called with the recordings heard and in all, of all models.

    Raises:
        UserError: where captions are missing or broken, or there are fewer than ten recordings that can be decoded.
    """
    wanted, files = submission.read_captions(captions), audio_files(audio)
    broken: dict[Path, str] = {}
    similarity = mean_cosines(models, wanted, files, show, broken)
    whole = [column for column, file in enumerate(files) if file not in broken]
    if len(whole) < RANKS:
        raise UserError(
            f"{audio}: only {len(whole)} recordings can be decoded, not {RANKS}; {next(iter(broken.values()))}"
        )
    names = [files[column].name for column in whole]
    submission.write(out, ranked(similarity[:, whole], wanted, names))
    return [*(f"left out: {line}" for line in broken.values()), *submission.check(out, wanted, names)]


def audio_files(folder: Path) -> list[Path]:
    """Return the recordings of a folder in order of name.

    Raises:
        UserError: where there is no such folder, or it holds fewer than a submission names.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; name the one of the recordings")
    files = sorted(file for file in folder.iterdir() if is_sound(file))
    if len(files) < RANKS:
        raise UserError(f"{folder}: holds {len(files)} recordings; a submission names {RANKS} for each caption")
    return files


def mean_cosines(
    models: Sequence[Encoders],
    captions: Sequence[str],
    files: Sequence[Path],
    show: Callable[[int, int], None],
    broken: dict[Path, str],
) -> Array:
    """Return the cosines of captions and recordings, the mean over models: float64 (captions, files).

    Files that cannot be decoded go into `broken`, with the reason; their columns mean nothing.
    """
    total = len(models) * len(files)
    cosines = [
        embed_text(model, captions)
        @ embed_audio(model, heard(files, n * len(files), total, show, broken)).T.astype(np.float64)
        for n, model in enumerate(models)
    ]
    mean: Array = np.mean(cosines, axis=0)
    return mean


def heard(
    files: Sequence[Path], before: int, total: int, show: Callable[[int, int], None], broken: dict[Path, str]
) -> Iterator[Array]:
    """Yield the waveform of each file, one after another; of one that cannot be decoded, a second of silence."""
    for number, file in enumerate(files, 1):
        try:
            yield decode(file)
        except UserError as error:
            broken[file] = str(error)
            yield np.zeros(SAMPLE_RATE, np.float32)
        show(before + number, total)


def ranked(similarity: Array, captions: Sequence[str], names: Sequence[str]) -> Iterator[Row]:
    """Yield the best recordings of each caption; equally similar ones are in the order of their columns."""
    for caption, row in zip(captions, similarity, strict=True):
        best = np.argsort(-row, kind="stable")[:RANKS]
        yield caption, tuple(names[column] for column in best)
