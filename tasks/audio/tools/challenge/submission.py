"""The challenge's submissions: a CSV with the ten best recordings of each caption, best first.

The header is `caption,file_name_1,...,file_name_10`, as in the organisers' example; their scorer goes by the columns'
order. Names are those of the files, without folders.

Source: the description of DCASE 2023 task 6b.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.platform.store.storage import write_file
from retable.tasks.audio.collect import layouts
from retable.tasks.audio.collect.files import Remarks, decode, is_sound
from retable.tasks.audio.config import SAMPLE_RATE
from retable.tasks.audio.model import Encoders
from retable.tasks.audio.predict import embed_audio, embed_text

RANKS = 10
"""Recordings that are named for a caption."""
HEADER = ("caption", *(f"file_name_{rank}" for rank in range(1, RANKS + 1)))

Row = tuple[str, tuple[str, ...]]
"""A caption and the names of its recordings, best first."""


def read_captions(path: Path) -> list[str]:
    """Return the captions of a CSV with a column `caption`, such as the challenge's `retrieval_captions.csv`.

    Raises:
        UserError: where there is no such file or column, no caption, or an empty one.
    """
    captions = [row["caption"].strip() for row in layouts.rows(path, ["caption"])]
    if not captions:
        raise UserError(f"{path}: holds no captions")
    if "" in captions:
        raise UserError(f"{path}: caption {captions.index('') + 1} is empty; fill it or remove its line")
    return captions


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write a submission; it appears only when it is whole.

    Raises:
        ValueError: where a caption has not ten recordings.
        UserError: where the file cannot be written.
    """
    text = io.StringIO(newline="")
    plain, quoted = (
        csv.writer(text, lineterminator="\n", quoting=quoting) for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
    )
    plain.writerow(HEADER)
    for caption, names in rows:
        if len(names) != RANKS:
            raise ValueError(f"caption {caption!r}: {len(names)} recordings, not {RANKS}")
        row = (caption, *names)
        (quoted if any("\r" in cell for cell in row) else plain).writerow(row)  # by itself, Python 3.11 quotes no "\r"
    write_file(path, text.getvalue())


def submit(
    models: Sequence[Encoders],
    captions: Path,
    audio: Path,
    out: Path,
    show: Callable[[int, int], None] = lambda done, total: None,
) -> list[str]:
    """Write the ten best recordings of each caption as a submission; return what is wrong or odd about recordings.

    Left out are those that cannot be decoded. Silent, truncated and very short ones are noted and stay.

    Args:
        models: in evaluation mode; of several, the mean of their cosines ranks (as `combine.mean_similarity`).
        captions: a CSV with a column `caption`.
        audio: the folder of the recordings; its subfolders are not searched.
        out: the CSV to write.
        show: called with the recordings heard and in all, of all models.

    Raises:
        UserError: where captions are missing or broken, there are fewer than ten recordings that can be decoded, or a
            model's vectors are not finite.
    """
    wanted, files = read_captions(captions), audio_files(audio)
    broken: dict[Path, str] = {}
    odd: dict[Path, str] = {}
    similarity = mean_cosines(models, wanted, files, show, broken, odd)
    decoded = [column for column, file in enumerate(files) if file not in broken]
    if len(decoded) < RANKS:
        raise UserError(
            f"{audio}: only {len(decoded)} recordings can be decoded, not {RANKS}; {next(iter(broken.values()))}"
        )
    if not np.isfinite(similarity[:, decoded]).all():
        raise UserError("similarities are not finite; the training of a model has diverged: name an earlier run")
    names = [files[column].name for column in decoded]
    write(out, ranked(similarity[:, decoded], wanted, names))
    notes = [f"note: {file}: {line}" for file, line in odd.items()]
    return [f"left out: {line}" for line in broken.values()] + notes


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
    odd: dict[Path, str],
) -> Array:
    """Return the cosines of captions and recordings, the mean over models: float64 (captions, files).

    Files that cannot be decoded go into `broken`, with the reason; their columns mean nothing. What is odd about others
    goes into `odd`.
    """
    total = len(models) * len(files)
    cosines = [
        embed_text(model, captions)
        @ embed_audio(model, heard(files, n * len(files), total, show, broken, odd)).T.astype(np.float64)
        for n, model in enumerate(models)
    ]
    mean: Array = np.mean(cosines, axis=0)
    return mean


def heard(
    files: Sequence[Path],
    before: int,
    total: int,
    show: Callable[[int, int], None],
    broken: dict[Path, str],
    odd: dict[Path, str],
) -> Iterator[Array]:
    """Yield the waveform of each file, one after another; of one that cannot be decoded, a second of silence."""
    for number, file in enumerate(files, 1):
        remarks = Remarks()
        try:
            yield decode(file, remarks=remarks)
            if lines := remarks.lines():
                odd[file] = "; ".join(lines)
        except UserError as error:
            broken[file] = str(error)
            yield np.zeros(SAMPLE_RATE, np.float32)
        show(before + number, total)


def ranked(similarity: Array, captions: Sequence[str], names: Sequence[str]) -> Iterator[Row]:
    """Yield the best recordings of each caption; equally similar ones are in the order of their columns."""
    for caption, row in zip(captions, similarity, strict=True):
        best = np.argsort(-row, kind="stable")[:RANKS]
        yield caption, tuple(names[column] for column in best)
