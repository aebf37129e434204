"""Learn from marks without a training: what queries are searched as moves towards hits that were called good.

1. Each marked query q has a target, Rocchio's: q + 0.75 (mean of its good hits) - 0.15 (mean of its bad ones), of
   length one; hits are segments' unit vectors, less the mean of all segments, towards which no query should move.
2. A linear map W takes queries to their targets as nearly as it may while it stays near the identity I: ridge
   regression, the least of |W q - t|^2 summed over the queries plus r |W - I|^2. Its solution is closed: with the
   queries and targets as rows of Q and T, W' = I + Q' (Q Q' + r)^-1 (T - Q).
3. r is one of `RIDGES`: that with the least error of each query's target when it is left out, closed too (PRESS).
4. It is judged by leaving out each query with good hits in turn, and choosing r without it: the average precision of
   its good hits among the recordings that were marked, for these words or others, with the map of the others and
   without any (a condensed list). What was marked as bad, or for other words alone, counts as not good. Left out is
   what may be good: what nobody marked, as marked is what was on top before, and what was good for other words that
   share a good hit with these, as they ask for the same. It is kept where precision rises, and the signs of the
   queries' gains, drawn at random, give as much in at most 5 % of cases.

A query that says almost the same as another one is helped by it when it is left out: the gain is that of queries like
those that were marked.

Sources: Rocchio 1971, with the weights of Manning, Raghavan and Schuetze 2008, *Introduction to Information Retrieval*,
section 9.1.1; a ridge towards a prior: Hoerl and Kennard 1970; PRESS: Allen 1974; condensed lists: Sakai 2007,
*Alternatives to Bpref*; the test: Smucker, Allan and Carterette 2007, *A Comparison of Statistical Significance Tests
for Information Retrieval Evaluation*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int64

from retable.platform.errors import UserError
from retable.tasks.audio.metrics import average_precision, tie_groups
from retable.tasks.audio.tools.search import nearest
from retable.tasks.audio.tools.search.marks import Mark, read_marks
from retable.tasks.audio.tools.search.refitted import Refit
from retable.tasks.audio.tools.search.search import Index

if TYPE_CHECKING:
    from retable.tasks.audio.tools.embed.embedder import Embedder
    from retable.tasks.audio.tools.embed.words import Words

GOOD, BAD = 0.75, 0.15
"""Rocchio's weights."""
RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
LEAST = 5
"""Queries with good hits, at least: with fewer no gain could be told from chance (of 4 the signs have 16 orders)."""
LEVEL, DRAWS = 0.05, 9999
"""Of the test, and how many signs are drawn where there are more than can be counted."""

Matrix = Float[np.ndarray, "queries dimension"]


@dataclass(frozen=True)
class Judged:
    """Data of a refit, and its gain for a query that it was not fitted on."""

    queries: int
    """Queries with good hits: those that were left out in turn."""
    good: int
    bad: int
    """Marks."""
    before: float
    """Mean average precision of the good hits as it was, in 0 to 1."""
    after: float
    """The same with what was learnt of the other queries."""
    p: float
    """Of the sign test."""

    @property
    def helps(self) -> bool:
        """Return whether it gains more than chance would."""
        return self.after > self.before and self.p <= LEVEL


@dataclass(frozen=True)
class Archive:
    """The segments of an index, by recordings."""

    vectors: nearest.Vectors
    mean: Float[np.ndarray, " dimension"]
    contents: Mapping[str, int]
    """The number of each recording."""
    owner: Int64[np.ndarray, " segments"]
    """The recording of each segment."""
    offset: Float[np.ndarray, " segments"]

    def best(self, query: Float[np.ndarray, " dimension"]) -> Float[np.ndarray, " recordings"]:
        """Return each recording's score: that of its best segment."""
        scores = np.concatenate([block @ query.astype(np.float32) for block in self.vectors])
        order = np.argsort(self.owner, kind="stable")
        starts = np.searchsorted(self.owner[order], np.arange(len(self.contents)))
        return np.maximum.reduceat(scores[order], starts)

    def segment(self, mark: Mark) -> int:
        """Return the number of the segment that was marked: of its recording the one nearest to its second."""
        own = np.flatnonzero(self.owner == self.contents[mark.content])
        return int(own[np.abs(self.offset[own] - mark.offset).argmin()])


@dataclass(frozen=True)
class Marked:
    """Marked queries, ready to be learnt from."""

    queries: Matrix
    """Unit vectors of their words."""
    targets: Matrix
    """Unit vectors of what they are to be searched as."""
    good: Sequence[Bool[np.ndarray, " recordings"]]
    """Of each the recordings that were marked as good."""
    ranked: Sequence[Bool[np.ndarray, " recordings"]]
    """Of each the recordings of which it is known whether they are good."""


def learn(index: Index, embedder: Embedder | Words) -> tuple[Refit, Judged]:
    """Fit and judge a refit on an index's marks; nothing is written. A refit that is there already changes nothing.

    Args:
        index: an open one.
        embedder: the model that it was made with.

    Raises:
        UserError: where there are too few marks.
    """
    archive = _archive(index)
    marks = [mark for mark in read_marks(index) if mark.content in archive.contents]
    many = len({mark.words for mark in marks if mark.good})
    if many < LEAST:
        raise UserError(
            f"{index.out}: good hits are marked for {many} queries; a refit takes {LEAST} (`retable audio shell`: +1)"
        )
    marked = _marked(archive, marks, embedder)
    before, after = left_out(archive, marked)
    good = sum(mark.good for mark in marks)
    judged = Judged(many, good, len(marks) - good, before.mean(), after.mean(), chance(after - before))
    made = fit(marked.queries, marked.targets)
    return replace(made, said=asdict(judged)), judged


def fit(queries: Matrix, targets: Matrix) -> Refit:
    """Return the ridge regression of targets on queries, towards the identity; both unit vectors, a row each."""
    ridge = min(RIDGES, key=lambda ridge: press(queries, targets, ridge))
    change = np.linalg.solve(queries @ queries.T + ridge * np.eye(len(queries)), targets - queries)
    return Refit(queries.astype(np.float32), change.astype(np.float32), {})


def press(queries: Matrix, targets: Matrix, ridge: float) -> float:
    """Return the squared error of each query's target when the map is fitted without it, summed."""
    inverse = np.linalg.inv(queries @ queries.T + ridge * np.eye(len(queries)))
    return float(np.square(inverse @ (targets - queries) / np.diag(inverse)[:, None]).sum())


def left_out(archive: Archive, marked: Marked) -> tuple[Float[np.ndarray, " queries"], Float[np.ndarray, " queries"]]:
    """Return the average precision of each query with good hits: as it is, and with the map of all the others.

    Ranked are the recordings of which it is known whether they are good.
    """
    precisions = []
    for number, (good, ranked) in enumerate(zip(marked.good, marked.ranked, strict=True)):
        if good.any():
            rest = np.arange(len(marked.queries)) != number
            own = marked.queries[number : number + 1]
            moved = fit(marked.queries[rest], marked.targets[rest]).apply(own.astype(np.float32))
            precisions.append([_precision(archive.best(query)[ranked], good[ranked]) for query in (own[0], moved[0])])
    before, after = np.array(precisions).T
    return before, after


def chance(gains: Float[np.ndarray, " queries"]) -> float:
    """Return how often gains with random signs have a mean as large: a one-sided randomisation test."""
    from scipy.stats import permutation_test

    def mean(values: Float[np.ndarray, ...], axis: int) -> Float[np.ndarray, ...]:
        means: Float[np.ndarray, ...] = values.mean(axis=axis)
        return means

    test = permutation_test(
        (gains,), mean, permutation_type="samples", alternative="greater", n_resamples=DRAWS, random_state=0
    )
    return float(test.pvalue)


def line(judged: Judged) -> str:
    """Return what a refit gains as people read it."""
    marks = f"{judged.queries} queries with good hits, {judged.good} marks good and {judged.bad} bad"
    precision = f"mean average precision {judged.before:.3f} -> {judged.after:.3f}, p {judged.p:.3f}"
    return f"{marks}; each query left out in turn: {precision}"


def _precision(scores: Float[np.ndarray, " ranked"], good: Bool[np.ndarray, " ranked"]) -> float:
    groups = tie_groups(scores[None], good[None], len(scores))
    return float(average_precision(groups, good.sum()[None], len(scores))[0])


def _archive(index: Index) -> Archive:
    contents = [content for table in index.tables for content in table["content"].to_pylist()]
    numbers = {content: number for number, content in enumerate(dict.fromkeys(contents))}
    offsets = np.concatenate([table["offset"].to_numpy() for table in index.tables])
    mean = sum(block.sum(axis=0, dtype=np.float64) for block in index.vectors) / len(contents)
    return Archive(index.vectors, mean, numbers, np.array([numbers[content] for content in contents]), offsets)


def _marked(archive: Archive, marks: Sequence[Mark], embedder: Embedder | Words) -> Marked:
    words = list(dict.fromkeys(mark.words for mark in marks))
    queries = embedder.words(words).astype(np.float64)
    targets = queries.copy()
    good, bad = np.zeros((2, len(words), len(archive.contents)), bool)
    for row, text in enumerate(words):
        own = [mark for mark in marks if mark.words == text]
        for wanted, weight, mask in ((True, GOOD, good), (False, -BAD, bad)):
            hits = [mark for mark in own if mark.good == wanted]
            mask[row, [archive.contents[mark.content] for mark in hits]] = True
            if hits:
                numbers = np.array([archive.segment(mark) for mark in hits], np.int64)
                targets[row] += weight * (nearest.gather(archive.vectors, numbers).mean(axis=0) - archive.mean)
    alike = good.astype(int) @ good.T > 0  # queries that share a good hit
    maybe = (alike.astype(int) @ good > 0) & ~good & ~bad
    ranked = (good | bad).any(0) & ~maybe
    return Marked(queries, targets / np.linalg.norm(targets, axis=1, keepdims=True), list(good), list(ranked))
