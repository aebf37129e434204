"""Similarities joined of several models, shard by shard.

Members load their predictions of a shard when asked, `similarity` float32 (queries, recordings), and are read one after
another: memory holds two matrices, however many there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.platform.spec.table import Member, stored_as


@stored_as("retable.tasks.audio.combine.no_similarity")
def no_similarity(shard: str, members: Sequence[Member]) -> dict[str, Array]:
    """Return equal similarities of the first member's captions and recordings: ties score what chance scores."""
    return {"similarity": np.zeros_like(np.asarray(members[0].load()["similarity"], np.float32))}


@stored_as("retable.tasks.audio.combine.mean_similarity")
def mean_similarity(shard: str, members: Sequence[Member]) -> dict[str, Array]:
    """Return the mean of the members' cosines, each member counting alike: `similarity` float32 (queries, recordings).

    The sum is taken in float64, so the order of the members makes no difference but in the last bit.

    Source: table 2 (ensemble). The paper does not say how its eight systems were joined, and its code does not hold
    it; this is what the authors' system of 2024 does (`salsa`): cosines, before any temperature.

    Raises:
        UserError: where members are of different queries or recordings.
    """
    if not members:
        raise ValueError("no members to combine")
    total: Array | None = None
    for member in members:
        similarity = np.asarray(member.load()["similarity"], np.float64)
        if total is not None and similarity.shape != total.shape:
            raise UserError(
                f"row {member.label!r}: similarities {similarity.shape}, the others {total.shape}; join like with like"
            )
        total = similarity if total is None else np.add(total, similarity, out=total)
    assert total is not None
    return {"similarity": (total / len(members)).astype(np.float32)}
