"""Observations in a file, actions out: what `retable predict rl` does with each file."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from retable.platform.config import check
from retable.platform.errors import UserError
from retable.tasks.rl.config import View
from retable.tasks.rl.export import Exported

SUFFIXES = (".npy",)
ROWS = 256
"""Observations that go through the networks together, as on a server: with a hundred candidates each, some 20 MB."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options for choosing actions."""

    seed: int = 0
    """Of the candidates that BCQ draws: block b of 256 rows draws with seed + b, the first as the server does."""
    samples: int = View.samples
    """Candidates for each observation."""

    def __post_init__(self) -> None:
        check(self, "seed", least=0)
        check(self, "samples")


def target(source: Path, options: Options) -> str:
    """Return what the answer to a file is called."""
    return f"{source.stem}.npy"


def answering(model: Exported, options: Options) -> Callable[[Path], bytes]:
    """Return what answers files."""
    return partial(answer, model, options)


def answer(model: Exported, options: Options, source: Path) -> bytes:
    """Return the actions, float32 (n, actions), for observations (n, states), as a file of NumPy's.

    Raises:
        UserError: where the file holds something else.
    """
    states = int(model.info["states"])
    try:
        rows = np.load(source, allow_pickle=False)
    except Exception as error:  # NumPy's reader of headers raises anything on broken bytes
        raise UserError(f"{source}: no array of NumPy's, or a broken one; write it by numpy.save") from error
    if not isinstance(rows, np.ndarray) or rows.dtype.kind not in "iuf" or rows.ndim != 2 or rows.shape[1] != states:
        shape = getattr(rows, "shape", "of several arrays")
        raise UserError(f"{source}: an array {shape}; wanted are numbers of shape (n, {states})")
    if not len(rows):
        raise UserError(f"{source}: no row; write one observation or more")
    with np.errstate(over="ignore"):  # those that do are refused
        observations = torch.from_numpy(rows.astype(np.float32))
    if not torch.isfinite(observations).all():
        raise UserError(f"{source}: numbers that are not finite in float32; mend or remove those rows")
    with torch.inference_mode():
        blocks = [
            model.act(part, model.noise(len(part), options.samples, options.seed + block))
            for block, part in enumerate(torch.split(observations, ROWS))
        ]
    file = io.BytesIO()
    np.save(file, torch.cat(blocks).numpy())
    return file.getvalue()
