"""Null distribution of a query's best hit: scores of random words in the same archive.

A cosine says nothing alone, and something is always the nearest. So an index keeps the *null*: the cosines of the best
hits of `SALADS` word salads, drawn from the common words of the static table (`embed/lexicon.py`), not from the
lexicon of generated captions. A query's p value is the share of salads that find at least as much, the query counted
among them, (1 + those) / (1 + all).

A query that is itself a salad is exchangeable with the null, so its p value is at most 0.05 in 5 % of cases, for an
archive of any size and an index of any kind: the null is searched in the same way. The verdict is a note beside the
hits, never a reason to hide them. Its limit was chosen on 180 queries for ESC-10's classes that were written before
anybody looked at what the model knows, in the held-out fold with and without the recordings of the class; what it tells
apart, and what not, stands in `docs/tasks/audio_queries.md`. Sounds as queries have no such null.

Source of the p value: Davison and Hinkley 1997, *Bootstrap Methods and their Application*, section 4.2 (Monte Carlo
tests).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Float32

from retable.platform.train.seeds import generator
from retable.tasks.audio.tools.embed.lexicon import table
from retable.tasks.audio.tools.search.nearest import Found

SALADS = 512
COMMON = slice(200, 12_000)
"""Places of the static table's words that salads are drawn from: the most frequent ones say little, the rarest are
names."""
SHORTEST, LONGEST = 3, 8
"""Words of a salad."""
SAME = 1e-6
"""Cosines that differ by less are equal: rounding is no finding."""
FOUND = 0.1
"""The largest p value of what counts as found; beyond, it is doubtful."""

Verdict = Literal["found", "doubtful"]
Query = Float32[np.ndarray, "queries dimension"]
Search = Callable[[Query, int], Found]
"""Returns so many nearest segments of each query, as `nearest.nearest`."""


@dataclass(frozen=True)
class Null:
    """Scores of random words in an archive."""

    scores: Float[np.ndarray, " salads"]
    """Cosines of their best hits."""
    anchors: str = ""
    """Digest of the anchors that the salads went through; "" where the model had none."""

    def p_value(self, score: float) -> float:
        """Return the share of salads whose best hit has at least a query's cosine."""
        return float((1 + np.count_nonzero(self.scores >= score - SAME)) / (1 + len(self.scores)))


def salads(count: int, seed: int = 0) -> list[str]:
    """Return captions that mean nothing: common words, drawn at random."""
    words = np.array([word for word in table().words[COMMON] if len(word) >= SHORTEST])
    rng = generator(seed, "audio.salads")
    return [" ".join(rng.choice(words, size=rng.integers(SHORTEST, LONGEST + 1))) for _ in range(count)]


def measure(embedded: Query, search: Search) -> Null:
    """Return the null of an archive.

    Args:
        embedded: unit vectors of salads.
        search: how the archive is searched.
    """
    return Null(search(embedded, 1)[0][:, 0].astype(np.float64))


def verdict(p: float) -> Verdict:
    """Return the meaning of a p value, in words."""
    return "found" if p <= FOUND else "doubtful"
