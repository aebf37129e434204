"""Rewritten captions in the published form, `variations.json`, and their way into a data set.

The form is that of the paper's code: a JSON list with one object for each training caption of Clotho, in order, of the
keys idx, path, caption, query, response, variations, finish_reason and usage.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from retable.platform.errors import UserError, disk_errors
from retable.platform.store.storage import write_file
from retable.tasks.audio.collect.recordings import Recording
from retable.tasks.audio.rewrite.prompts import WANTED, parse, words


@dataclass(frozen=True)
class Variation:
    """Rewritten forms of one caption."""

    idx: int
    """The caption's place among all that are rewritten: 5 * recording + caption in Clotho."""
    path: str
    """The recording's file."""
    caption: str
    query: str
    """Question to the model; "" if there was none."""
    response: Mapping[str, Any] | None
    """The endpoint's answer as it came."""
    variations: tuple[str, ...]
    finish_reason: str
    usage: Mapping[str, Any]
    """Tokens: `prompt_tokens`, `completion_tokens`."""


def augmented(recording: Recording) -> bool:
    """Return whether a recording's captions are rewritten: those of Clotho's training set, as in the paper."""
    return recording.corpus == "clotho" and recording.split == "training"


def captions(recordings: Sequence[Recording]) -> Iterator[tuple[Recording, str]]:
    """Yield each caption that is rewritten, with its recording, in order: the places are the published `idx`."""
    for recording in filter(augmented, recordings):
        for caption in recording.captions:
            yield recording, caption


def read(path: Path) -> list[Variation]:
    """Read a `variations.json`; answers that its writer did not split into five captions are split again.

    Raises:
        UserError: where the file is missing or not of the published form.
    """
    try:
        with disk_errors(str(path)):
            rows = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a JSON file; download it again") from error
    if not isinstance(rows, list):
        raise UserError(f"{path}: not a list; variations.json holds one object for each caption")
    return [variation(row, f"{path}: object {index}") for index, row in enumerate(rows)]


def write(path: Path, variations: Sequence[Variation]) -> None:
    """Write variations in the published form, the whole file at once."""
    text = json.dumps([asdict(row) for row in variations], indent=1) + "\n"
    write_file(path, text)


def fill(recordings: Sequence[Recording], variations: Sequence[Variation]) -> tuple[list[Recording], int]:
    """Add rewritten captions to recordings; return these, and the number of captions that have some.

    Captions are found by file name and words, not by place: a copy of Clotho with other files left out, or in another
    order, takes the same file.
    """
    forms = {_key(row.path, row.caption): row.variations for row in variations}
    filled, count = [], 0
    for row in recordings:
        if augmented(row):
            rewrites = tuple(forms.get(_key(row.file, caption), ()) for caption in row.captions)
            count += sum(map(bool, rewrites))
            row = replace(row, rewrites=rewrites)
        filled.append(row)
    return filled, count


def carry_over(before: Sequence[Recording], recordings: Sequence[Recording]) -> tuple[list[Recording], int]:
    """Add to recordings the rewritten forms that they had in an earlier data set; see `fill`."""
    earlier = [
        Variation(0, recording.file, caption, "", None, forms, "", {})
        for recording in filter(augmented, before)
        for caption, forms in zip(recording.captions, recording.rewrites, strict=False)
    ]
    return fill(recordings, earlier)


def variation(row: Any, where: str) -> Variation:
    """Check an object of the published form.

    Raises:
        UserError: where it is none; it begins with `where`.
    """
    if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("path", "caption")):
        raise UserError(f"{where} has no path and caption; use the published form")
    lines = row.get("variations")
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise UserError(f"{where}: variations are no list of sentences; use the published form")
    response = row["response"] if isinstance(row.get("response"), dict) else None
    reason = str(row.get("finish_reason") or "")
    answer = content(response) if len(lines) != WANTED else ""
    kept = parse(answer, row["caption"], reason == "length").captions if answer else ()
    return Variation(
        idx=row["idx"] if isinstance(row.get("idx"), int) else 0,
        path=row["path"],
        caption=row["caption"],
        query=str(row.get("query") or ""),
        response=response,
        variations=kept or tuple(line.strip() for line in lines if line.strip()),
        finish_reason=reason,
        usage=row["usage"] if isinstance(row.get("usage"), dict) else {},
    )


def content(response: Mapping[str, Any] | None) -> str:
    """Return the text of a chat completion; "" where there is none."""
    try:
        text = response["choices"][0]["message"]["content"]  # type: ignore[index]
    except (KeyError, IndexError, TypeError):
        return ""
    return text if isinstance(text, str) else ""


def _key(path: str, caption: str) -> tuple[str, tuple[str, ...]]:
    """Return what names a caption however its file's path and its punctuation are written."""
    return path.replace("\\", "/").rsplit("/", 1)[-1].rsplit(".", 1)[0].strip(), words(caption)
