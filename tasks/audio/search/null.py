"""How unusual a query's best hit is: compared with what captions without a meaning find in the same archive.

A cosine says nothing alone: some segments lie near to all words, and something is always the nearest. So an index
keeps the *null*, what word salads of the task's own lexicon ("hum newborn over a gravel") find in it:

1. A hit counts by how far its cosine lies above those of half of the salads with the same segment, in their standard
   deviations. A segment that is near to everything thereby loses its advantage.
2. The statistic of a query is the largest of these among its `DEPTH` nearest segments.
3. The other half of the salads are the null: the p value is the share of them that do at least as well, the query
   counted among them, (1 + those) / (1 + all).

A query that is itself a salad is exchangeable with the null, so its p value is at most 0.05 in 5 % of cases, for an
archive of any size and an index of any kind: the null is searched in the same way. The limit: a caption that makes
sense is more to a point than a salad, and one whose sound is absent may be near to what sounds alike, so that more than
5 % of those are found; how many is the model's affair (`docs/tasks/audio_search.md` says it for the zoo's). A p value
says nothing of which hit is right. No number below 1 / (1 + `CAPTIONS`) can come of it. Sounds as queries have no such
null.

Source of the p value: Davison and Hinkley 1997, *Bootstrap Methods and their Application*, section 4.2 (Monte Carlo
tests); of taking a segment's mean over queries off: hubness, as in Bogolin et al. 2022, *Cross Modal Retrieval with
Querybank Normalisation*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Float32

from retable.platform.train.seeds import generator
from retable.tasks.audio.search.nearest import Found, Vectors, gather
from retable.tasks.audio.world.captions import LEXICON

CAPTIONS = 256
"""Salads of either half."""
DEPTH = 10
"""Nearest segments of a query that are looked at."""
SHORTEST, LONGEST = 3, 8
"""Words of a salad."""
LEAST, SAME = 1e-3, 1e-3
"""The least deviation that a segment is given, and statistics that differ by less are equal: rounding is no finding."""
FOUND, DOUBTFUL = 0.05, 0.2
"""The largest p value of what counts as found, and as doubtful; beyond, nothing here sounds like that."""

Verdict = Literal["found", "doubtful", "nothing"]
Query = Float32[np.ndarray, "queries dimension"]
Search = Callable[[Query, int], Found]
"""Returns so many nearest segments of each query, as `nearest.nearest`."""


@dataclass(frozen=True)
class Null:
    """What meaningless captions find in an archive."""

    captions: Float32[np.ndarray, "captions dimension"]
    """Vectors of the half that segments are standardised by."""
    scores: Float[np.ndarray, " captions"]
    """Statistics of the other half."""

    def p_value(self, query: Float32[np.ndarray, " dimension"], vectors: Vectors, search: Search) -> float:
        """Return the share of meaningless captions that find at least as much as a query in words."""
        score = statistics(query[None], self.captions, vectors, search)[0]
        return float((1 + np.count_nonzero(self.scores >= score - SAME)) / (1 + len(self.scores)))


def salads(count: int, seed: int = 0) -> list[str]:
    """Return captions that mean nothing: words of the lexicon's subjects and verbs, drawn at random."""
    parts = [part for words in LEXICON.values() for part in (*words.subjects, *words.verbs)]
    words = sorted({word for part in parts for word in part.split()})
    rng = generator(seed, "audio.salads")
    return [" ".join(rng.choice(words, size=rng.integers(SHORTEST, LONGEST + 1))) for _ in range(count)]


def measure(embedded: Query, vectors: Vectors, search: Search) -> Null:
    """Return the null of an archive.

    Args:
        embedded: unit vectors of twice `CAPTIONS` salads.
        vectors: of the archive's segments.
        search: how the archive is searched.
    """
    half = len(embedded) // 2
    return Null(embedded[:half], statistics(embedded[half:], embedded[:half], vectors, search))


def statistics(queries: Query, captions: Query, vectors: Vectors, search: Search) -> Float[np.ndarray, " queries"]:
    """Return how far each query's best hit lies above what captions score with the same segment, in deviations."""
    scores, numbers = search(queries, DEPTH)
    there = numbers >= 0
    owner, place = np.nonzero(there)
    segments = gather(vectors, numbers[there])
    usual = segments @ captions.T
    above = np.full(scores.shape, -np.inf)
    above[owner, place] = (scores[there] - usual.mean(1)) / np.maximum(usual.std(1), LEAST)
    best: Float[np.ndarray, " queries"] = above.max(axis=1)
    return best


def verdict(p: float) -> Verdict:
    """Say what a p value means."""
    return "found" if p <= FOUND else "doubtful" if p <= DOUBTFUL else "nothing"
