"""A photograph in a file, a painting out: what `retable predict style` does with each file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from retable.platform.errors import UserError
from retable.platform.models.predict import Job, note
from retable.tasks.style.export import Exported
from retable.tasks.style.files import images
from retable.tasks.style.files.images import SUFFIXES as SUFFIXES
from retable.tasks.style.tools.pictures import stylise
from retable.tasks.style.tools.pictures.batches import nothing, stylise_jobs
from retable.tasks.style.tools.pictures.stylise import NetworkStyle


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options for stylising photographs, as of `retable style image`."""

    size: int = 0
    """Pixels of the longer side; 0: the photograph's."""
    strength: float = 1.0
    """Share of the painting in the result."""
    original_colours: bool = False

    def __post_init__(self) -> None:
        if self.size < 0 or not 0 <= self.strength <= 1:
            raise ValueError("size is below 0, or strength outside [0, 1]")


def target(source: Path, options: Options) -> str:
    """Return what the answer to a file is called."""
    return images.result_name(source)


def answering(model: Exported, options: Options) -> Callable[[Path], bytes]:
    """Return what answers files."""
    given = stylise.Options(size=options.size, strength=options.strength, original_colours=options.original_colours)
    return partial(answer, model.style(given), given)


def answer(style: NetworkStyle, options: stylise.Options, source: Path) -> bytes:
    """Return the file of the painting, with the photograph's transparency and colour profile.

    Raises:
        UserError: where it is no picture, or larger than memory allows.
    """
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / images.result_name(source)
        for outcome in stylise_jobs(style, [Job(source, made)], options, nothing):
            if outcome.failure:
                raise UserError(outcome.failure)
            note(outcome.note.replace(f"{folder}/", ""))
        return made.read_bytes()
