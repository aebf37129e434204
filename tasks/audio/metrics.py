"""Scores of a similarity matrix: recordings found by their captions, captions found by their recording.

Rule for ties: items of equal similarity stand in random order, and every score is its expectation over these orders,
computed exactly. The challenge leaves ties undefined, and unstable sorting gives one model several scores; here a model
that says the same of everything scores exactly what chance does. Queries are counted one by one: the challenge's script
keeps only the last of captions with equal words.

Arrays: `similarity` float (queries, items), `better` and `tied` int (queries,): how many other items are more similar
to the query than its relevant one, and how many are just as similar.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from retable.platform.spec.arrays import Array
from retable.platform.spec.claims import Estimate, bootstrap_of
from retable.platform.train.seeds import generator

Summaries = Mapping[str, Mapping[str, Array]]
"""Shard -> what `predict.summarise` keeps of it."""
DEPTH = 10
"""Ranks that the challenge's scores look at."""
MULTI_DEPTH = 16
"""Ranks that the challenge of 2025 looks at, where several recordings fit a caption."""
CUTS = (1, 5, 10)
"""The k of R@k."""


def ranks(
    similarity: Float[Array, "queries items"], relevant: Int[Array, " queries"]
) -> tuple[Int[Array, " queries"], Int[Array, " queries"]]:
    """Return `better` and `tied` of each query's one relevant item, of which `relevant` is the column.

    Its rank is one of `better + 1, ..., better + tied + 1`, each equally likely.

    Raises:
        ValueError: where a similarity is not a finite number, as after a training that diverged.
    """
    check_finite(similarity)
    own = np.take_along_axis(similarity, np.asarray(relevant)[:, None], axis=1)
    return (similarity > own).sum(axis=1), (similarity == own).sum(axis=1) - 1


def check_finite(similarity: Array) -> None:
    """Refuse similarities that cannot be ordered."""
    if not np.isfinite(similarity).all():
        raise ValueError("similarities are not finite numbers; the training has diverged")


def recall(better: Array, tied: Array, k: int) -> Float[Array, " queries"]:
    """Return the probability that the one relevant item is among the first k: R@k of each query."""
    probability: Array = np.clip(k - better, 0, tied + 1) / (tied + 1)
    return probability


def reciprocal_rank(better: Array, tied: Array, depth: int = DEPTH) -> Float[Array, " queries"]:
    """Return the expected 1 / rank, 0 beyond `depth`: with one relevant item that is AP@depth of each query."""
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, depth + 1))])
    first, last = np.minimum(better, depth), np.minimum(better + tied + 1, depth)
    expected: Array = (harmonic[last] - harmonic[first]) / (tied + 1)
    return expected


def columns_of(query_recording: Array, item_recording: Array) -> Int[Array, " queries"]:
    """Return the column of each query's recording.

    Raises:
        ValueError: where a recording has two columns, or a query's has none.
    """
    order = np.argsort(item_recording, kind="stable")
    ordered = np.asarray(item_recording)[order]
    if (ordered[1:] == ordered[:-1]).any():
        raise ValueError("a recording is among the items twice")
    position = np.searchsorted(ordered, query_recording).clip(max=max(0, len(ordered) - 1))
    if not len(ordered) or (ordered[position] != query_recording).any():
        raise ValueError("a query's recording is not among the items")
    columns: Array = order[position]
    return columns


def text_to_audio(better: Array, tied: Array) -> dict[str, Array]:
    """Return the scores of each query, float (queries,): `map10`, `r1`, `r5`, `r10`."""
    return {"map10": reciprocal_rank(better, tied)} | {f"r{k}": recall(better, tied, k) for k in CUTS}


def retrieval_scores(
    similarity: Float[Array, "queries items"],
    query_recording: Int[Array, " queries"],
    item_recording: Int[Array, " items"],
) -> dict[str, float]:
    """Return `map10`, `r1`, `r5`, `r10` of finding recordings by captions: the challenge's scores, in [0, 1].

    Args:
        similarity: of captions and recordings.
        query_recording: the recording of each caption, the one item that counts as found.
        item_recording: the recording of each column, all different.

    Raises:
        ValueError: where a query's recording is not one of the items, or similarities are not finite.
    """
    better, tied = ranks(similarity, columns_of(query_recording, item_recording))
    return means(text_to_audio(better, tied))


def means(scores: dict[str, Array]) -> dict[str, float]:
    """Return the mean of each score; queries that have none (not a number) are left out."""
    return {name: float(np.nanmean(values)) for name, values in scores.items()}


@dataclass(frozen=True)
class Ties:
    """The best-placed items of each query, those of equal similarity together: all that scores up to a depth need.

    Each array is (queries, depth), best first. Where a query has fewer different similarities, -inf, 0 and 0 follow.
    """

    value: Array
    """The similarity, float."""
    count: Array
    """How many items have it, int."""
    relevant: Array
    """How many of them are relevant, int."""


def tie_groups(value: Array, relevant: Array, depth: int, count: Array | None = None) -> Ties:
    """Return the `depth` best groups of equal similarity.

    Args:
        value: similarities (queries, items).
        relevant: whether, or how many times, an item is relevant (queries, items).
        depth: ranks that will be looked at.
        count: how many items an entry stands for; one each where it is not given.
    """
    queries, items = value.shape
    order = np.argsort(-value, axis=1, kind="stable")
    ordered = np.take_along_axis(value, order, axis=1)
    group = np.zeros((queries, items), np.intp)
    group[:, 1:] = np.cumsum(ordered[:, 1:] != ordered[:, :-1], axis=1)
    near = group < depth
    cell = (np.arange(queries)[:, None] * depth + group)[near]

    def total(numbers: Array) -> Array:
        weights = np.take_along_axis(numbers, order, axis=1)[near].astype(np.float64)
        return np.bincount(cell, weights, queries * depth).reshape(queries, depth).astype(np.int32)

    best = np.full(queries * depth, -np.inf, value.dtype)
    best[cell] = ordered[near]
    return Ties(best.reshape(queries, depth), total(np.ones(value.shape) if count is None else count), total(relevant))


def merge(parts: Sequence[Ties]) -> Ties:
    """Return the best groups of items that were looked at in several parts, of the same queries and depth."""
    value, count, relevant = (
        np.concatenate([getattr(part, name) for part in parts], axis=1) for name in ("value", "count", "relevant")
    )
    return tie_groups(value, relevant, parts[0].value.shape[1], count)


def places(ties: Ties, depth: int) -> tuple[Array, Array, Array, Array]:
    """Return which group holds each rank up to `depth`; ranks beyond the last item get one with nothing relevant.

    Returns:
        Of each query and rank, all int (queries, depth): the items of the group, the relevant ones among them, the
        relevant items of the groups before, and the rank's place in the group, from 1.
    """
    rank = np.arange(1, depth + 1)
    end, hits = (
        np.pad(np.cumsum(numbers, axis=1, dtype=np.int64), ((0, 0), (1, 0))) for numbers in (ties.count, ties.relevant)
    )
    group = (end[:, None, 1:] < rank[:, None]).sum(axis=2)
    count, relevant = (np.pad(numbers, ((0, 0), (0, 1))) for numbers in (ties.count, ties.relevant))
    taken = [np.take_along_axis(numbers, group, axis=1) for numbers in (count, relevant, hits, end)]
    return taken[0], taken[1], taken[2], rank - taken[3]


def average_precision(ties: Ties, relevant: Int[Array, " queries"], depth: int) -> Float[Array, " queries"]:
    """Return the expected AP@depth of each query: precision at each hit, summed, over the number of relevant items.

    Args:
        ties: at least `depth` groups of each query.
        relevant: all relevant items of each query, also those far down; not a number comes of none.
        depth: ranks that count.

    The divisor is the number of all relevant items, as in the challenge's code of 2025 and in WavCaps', not
    min(relevant, depth): with more than `depth` of them 1 cannot be reached.

    Source of the expectation: McSherry and Najork 2008, *Computing information retrieval performance measures
    efficiently in the presence of tied scores*, section 2.3.
    """
    count, hits, earlier, position = places(ties, depth)
    probability = hits / np.maximum(count, 1)
    beside = (position - 1) * (hits - 1) / np.maximum(count - 1, 1)
    precision = probability * (earlier + 1 + beside) / np.arange(1, depth + 1)
    divided: Array = np.divide(precision.sum(axis=1), relevant, out=np.full(len(relevant), np.nan), where=relevant > 0)
    return divided


def any_recall(ties: Ties, relevant: Int[Array, " queries"], k: int) -> Float[Array, " queries"]:
    """Return the probability that a relevant item is among the first k: R@k by the best-placed one.

    Not a number for queries without a relevant item (`relevant` counts them all).
    """
    count, hits, _, position = places(ties, k)
    left = np.maximum(count - position + 1, 1)
    missed = np.where(hits == 0, 1, np.clip(left - hits, 0, None) / left)
    return np.where(relevant > 0, 1 - missed.prod(axis=1), np.nan)


def multi_text_to_audio(similarity: Array, relevance: Array) -> dict[str, Array]:
    """Return AP of each query where several recordings fit it, float (queries,): `map10_multi`, `map16_multi`."""
    check_finite(similarity)
    ties, relevant = tie_groups(similarity, relevance, MULTI_DEPTH), relevance.sum(axis=1)
    return {f"map{depth}_multi": average_precision(ties, relevant, depth) for depth in (DEPTH, MULTI_DEPTH)}


def audio_to_text(ties: Ties, captions: Int[Array, " recordings"]) -> dict[str, Array]:
    """Return the scores of each recording as a query, float (recordings,): `a2t_map10`, `a2t_r1`, ...

    Args:
        ties: groups of captions, of which a recording's own are relevant, (recordings, at least 10).
        captions: how many captions a recording has; not a number comes of none.
    """
    scores = {"a2t_map10": average_precision(ties, captions, DEPTH)}
    return scores | {f"a2t_r{k}": any_recall(ties, captions, k) for k in CUTS}


def per_query(summaries: Summaries) -> dict[str, Array]:
    """Return the scores of every caption of a view, and `recording`, what they are clustered by: each (queries,).

    The scores are `map10`, `r1`, `r5`, `r10`, and, of data that know which recordings fit a caption, `map10_multi` and
    `map16_multi`, not a number for captions that fit none. `bootstrap` of their differences compares two runs.
    """
    ordered = [summaries[shard] for shard in sorted(summaries)]
    names = ("recording", "better", "tied", "map10_multi", "map16_multi")
    joined = {name: np.concatenate([part[name] for part in ordered]) for name in names if name in ordered[0]}
    return joined | text_to_audio(joined.pop("better"), joined.pop("tied"))


def per_recording(summaries: Summaries) -> dict[str, Array]:
    """Return the scores of every recording as a query, and `recording`: each (recordings,).

    See `audio_to_text`; not a number for recordings without captions.
    """
    parts = list(summaries.values())
    ties = merge([Ties(part["a2t_value"], part["a2t_count"], part["a2t_relevant"]) for part in parts])
    captions: Array = np.sum([part["item_captions"] for part in parts], axis=0)
    return audio_to_text(ties, captions) | {"recording": parts[0]["item_recording"]}


def bootstrap(
    values: Float[Array, "*seeds queries"],
    cluster: Int[Array, " queries"],
    samples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> Estimate:
    """Return the mean of scores with its bootstrap interval.

    Args:
        values: a score of each query; or of each training seed and query.
        cluster: what belongs together: the recording of each query.
        samples: how often to resample.
        seed: seed of the resampling; equal seeds give equal intervals.
        level: how often the interval holds the true mean.

    Each sample takes recordings with replacement, each with all of its captions; the interval is widened by Student's
    of the training seeds. With one seed it says nothing of training's noise. Queries without a score (not a number)
    are left out, and so are samples that hold none with a score.

    Source: Efron and Tibshirani 1993, section 13.3 (percentile interval); clusters: Davison and Hinkley 1997, 3.8.
    """
    rows = np.atleast_2d(np.asarray(values, np.float64))
    scored = np.isfinite(rows)
    _, member = np.unique(cluster, return_inverse=True)
    number = int(member.max()) + 1
    sums = np.stack([np.bincount(member, row, number) for row in np.where(scored, rows, 0)])
    sizes = np.stack([np.bincount(member, row, number) for row in scored.astype(np.float64)])
    random, resampled = generator(seed, "audio.bootstrap"), np.empty(samples)
    for sample in range(samples):
        times = np.bincount(random.integers(number, size=number), minlength=number)
        total = sizes @ times
        resampled[sample] = np.mean(np.divide(sums @ times, total, out=np.full(len(rows), np.nan), where=total > 0))
    drawn = resampled[np.isfinite(resampled)]
    return bootstrap_of(sums.sum(axis=1) / sizes.sum(axis=1), drawn, level)
