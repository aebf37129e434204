"""Scores of offline RL: D4RL's normalised score."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

D4RL: dict[str, Any] = json.loads((Path(__file__).parent / "recordings" / "d4rl.json").read_text())
"""D4RL's reference returns (`references`) and its published files by SHA-256 (`files`)."""


def normalised_score(environment: str, returns: npt.ArrayLike) -> Array | None:
    """Return D4RL's normalised score, 100 (R - random) / (expert - random), or None without reference returns.

    Args:
        environment: a name without version, such as `Hopper`.
        returns: undiscounted returns, any shape; the score has the same shape.

    Source: Fu et al. 2020, D4RL, section 5, times 100 as in its tables. The references are those of D4RL's own
    simulator; a score on other data or in another simulator version is not a D4RL score, and reports must say so.

    """
    reference = D4RL["references"].get(environment)
    if reference is None:
        return None
    low, high = reference["ref_min"], reference["ref_max"]
    scores: Array = 100 * (np.asarray(returns, np.float64) - low) / (high - low)
    return scores
