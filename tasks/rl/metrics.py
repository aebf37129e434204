"""Scores of offline RL: D4RL's normalised score."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from retable.platform.spec.arrays import Array

D4RL: dict[str, Any] = json.loads((Path(__file__).parent / "recordings" / "d4rl.json").read_text())
"""D4RL's reference returns (`references`) and its published files by SHA-256 (`files`)."""


def references(environment: str, info: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the returns that count as 0 and 100: a data set's own, else D4RL's for the environment as D4RL has it.

    `info` is `dataset.json`: `reference` (a Minari set's `ref_min_score` and `ref_max_score`), and `settings`, which
    change what an episode earns.
    """
    if "reference" in info:
        low, high = info["reference"]
        return low, high
    entry = None if info.get("settings") else D4RL["references"].get(environment)
    return entry and (entry["ref_min"], entry["ref_max"])


def is_reference(scores: Any) -> bool:
    """Return whether something is the returns of a random and of an expert policy, as JSON holds them."""
    match scores:
        case [int() | float() as low, int() | float() as high]:
            return -sys.float_info.max <= low < high <= sys.float_info.max  # whole numbers in JSON may be larger
    return False


def normalised_score(environment: str, returns: npt.ArrayLike, info: Mapping[str, Any] | None = None) -> Array | None:
    """Return the normalised score, 100 (R - random) / (expert - random), or None without reference returns.

    Args:
        environment: a name without version, such as `Hopper`.
        returns: undiscounted returns, any shape; the score has the same shape.
        info: of the data, see `references`.

    Source: Fu et al. 2020, D4RL, section 5, times 100 as in its tables. The references are those of D4RL's own
    simulator; a score on other data or in another simulator version is not a D4RL score, and reports must say so.

    """
    reference = references(environment, info or {})
    if reference is None:
        return None
    low, high = reference
    return 100 * (np.asarray(returns, np.float64) - low) / (high - low)
