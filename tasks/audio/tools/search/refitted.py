"""A small change of what queries are searched as, learnt from marks; see `refit.py` for where it comes from.

An index with a refit has a file `refit-*.safetensors`: numbers alone. The recordings' vectors stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from retable.platform.errors import UserError

Vectors = Float32[np.ndarray, "rows dimension"]


@dataclass(frozen=True)
class Refit:
    """A linear map near the identity: a query's vector q becomes q + (q Q') C, of length one again.

    What is orthogonal to all marked queries stays as it is.
    """

    queries: Vectors
    """Q: the unit vectors of the words that were marked."""
    change: Vectors
    """C: what each of them adds."""
    said: Mapping[str, Any]
    """Data that it rests on, and its gain; `refit.Judged` as a dict."""

    def apply(self, vectors: Vectors) -> Vectors:
        """Return unit vectors of words as they are searched for."""
        moved = vectors + (vectors @ self.queries.T) @ self.change
        unit: Vectors = moved / np.maximum(np.linalg.norm(moved, axis=1, keepdims=True), 1e-12)
        return unit.astype(np.float32)

    def data(self) -> bytes:
        """Return it as a safetensors file."""
        from safetensors.numpy import save

        tensors = {"queries": self.queries, "change": self.change}
        return save({name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()},
                            {"said": json.dumps(dict(self.said))})  # fmt: skip


def read_refit(path: Path, dimension: int) -> Refit:
    """Read what `Refit.data` gave.

    Raises:
        UserError: where the file is missing, is another one, or is of vectors of another length.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            made = Refit(file.get_tensor("queries"), file.get_tensor("change"), json.loads(file.metadata()["said"]))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged or missing; run `retable audio refit {path.parent} --undo`") from error
    for tensor in (made.queries, made.change):
        good = tensor.shape == (len(made.queries), dimension) and tensor.dtype == np.float32
        if not (good and np.isfinite(tensor).all()):
            raise UserError(f"{path}: not what was written; run `retable audio refit {path.parent} --undo`")
    return made
