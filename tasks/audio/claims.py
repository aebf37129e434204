"""The paper's findings, and ours, as functions of the measured rows.

Comparisons are of mAP@10 on the same captions, by a paired bootstrap that draws recordings, each with all its captions,
with Student's interval over training seeds. The paper gives no intervals; its gain from rewritten captions (0.56) is
about one standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from retable.platform.table import Claim, Replicate, Results, Status, Verdict
from retable.tasks.audio.figures import validation_losses
from retable.tasks.audio.metrics import DEPTH, bootstrap
from retable.tasks.audio.predict import per_query

UNTESTED: Status = "not tested at this scale"
SEEDS = 3
"""Fewer training seeds separate nothing."""
PERCENT = 100.0

BEST = "PaSST-N + roberta-large"
NO_REWRITES = f"{BEST}, no rewritten captions"
NOT_FINE_TUNED = f"{BEST}, not fine-tuned"
GUARDED = f"{BEST}, leaks excluded"
MEAN_MEL = "mean mel + roberta-large"
MEL_STATISTICS = "mean and deviation of mel + roberta-large"
ENSEMBLE = "ensemble of eight"
MEMBERS = (
    "PaSST-N + bert-base",
    "PaSST-N + roberta-base",
    "PaSST-N + bert-large",
    BEST,
    "PaSST-S + bert-large",
    "PaSST-S + roberta-large",
    "PaSST-S15 + bert-large",
    "PaSST-S15 + roberta-large",
)
"""Of the paper's ensemble: footnotes 1 to 8 of table 2."""
CANDIDATES = ("PaSST-S + bert-base", "PaSST-S + roberta-base", NO_REWRITES, NOT_FINE_TUNED)
"""Trained systems that are no members."""
CLOTHO, CLOTHO_GPT = "ClothoV2", "ClothoV2_GPT"

Pair = tuple[str, str]
"""Labels of the row that should be better, and of the other."""


def without(label: str) -> str:
    """Return the label of the ensemble without one of its members."""
    return f"ensemble without {label}"


def added(label: str) -> str:
    """Return the label of the ensemble with one more member."""
    return f"ensemble and {label}"


@dataclass(frozen=True)
class Difference:
    """A difference in points of a per cent, with its 95 % interval."""

    value: float
    low: float
    high: float
    about: str
    """Of what, and how many seeds and recordings it rests on."""

    def __str__(self) -> str:
        """Write it as one reads it."""
        return f"{self.value:+.2f} [{self.low:+.2f}, {self.high:+.2f}] {self.about}"

    @property
    def verdict(self) -> Verdict:
        """Say whether it is above 0."""
        if self.low > 0:
            return Verdict("holds", str(self))
        return Verdict("does not hold" if self.high < 0 else "not separable", str(self))


def precisions(replicate: Replicate) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return AP@10 of every caption, and the recording it is clustered by: both (captions,)."""
    scores = per_query(replicate.summaries())
    return scores["map10"], scores["recording"]


def plural(number: int, noun: str) -> str:
    """Return a number and its noun."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def too_few(seeds: int) -> Verdict | None:
    """Return the verdict on so many seeds, where they are too few for any other."""
    if not seeds:
        return Verdict(UNTESTED, "rows are missing")
    return Verdict(UNTESTED, f"{plural(seeds, 'seed')}; at least {SEEDS} are needed") if seeds < SEEDS else None


def same_seeds(results: Results, labels: Sequence[str]) -> list[list[Replicate]]:
    """Return the replicates of several rows, in lines of equal axes; lines that lack a row are left out."""
    first, *others = (results.select(label) for label in labels)
    lines = []
    for replicate in first:
        same = [[other for other in rows if other.need.axes == replicate.need.axes] for rows in others]
        if all(same):
            lines.append([replicate, *(rows[0] for rows in same)])
    return lines


def compare(results: Results, pairs: Sequence[Pair]) -> Difference | Verdict:
    """Return the mean over pairs of rows of how much better the first is; a verdict where that cannot be done.

    Pairs that were not run are left out; the seeds are those that all rows share.
    """
    there = [pair for pair in pairs if all(label in results for label in pair)]
    lines = same_seeds(results, [label for pair in there for label in pair]) if there else []
    refused = too_few(len(lines))
    if refused:
        return refused
    values, recordings = [], np.empty(0)
    for line in lines:
        scores = [precisions(replicate) for replicate in line]
        recordings = scores[0][1]
        if any(not np.array_equal(recordings, other) for _, other in scores):
            return Verdict(UNTESTED, "rows are scored on different captions")
        values.append(np.mean([a[0] - b[0] for a, b in zip(scores[::2], scores[1::2], strict=True)], axis=0))
    mean, low, high = (PERCENT * number for number in bootstrap(np.stack(values), recordings))
    size = f"{plural(len(lines), 'seed')}, {plural(len(set(recordings.tolist())), 'recording')}"
    of = f", mean of {len(there)} pairs" if len(there) > 1 else ""
    return Difference(mean, low, high, f"mAP@10{of}, {size}")


def better(results: Results, pairs: Sequence[Pair]) -> Verdict:
    """Say whether the first rows of some pairs have the higher mAP@10, taken together."""
    found = compare(results, pairs)
    return found if isinstance(found, Verdict) else found.verdict


def beats(one: str, other: str) -> Callable[[Results], Verdict]:
    """Return the check that a row's mAP@10 is higher than another's."""
    return partial(better, pairs=[(one, other)])


def joined(verdicts: Sequence[tuple[str, Verdict]]) -> Verdict:
    """Join named verdicts: a sentence holds if every part of it does, and not if one does not."""
    order: tuple[Status, ...] = ("does not hold", UNTESTED, "not separable", "holds")
    statuses = {verdict.status for _, verdict in verdicts}
    because = "; ".join(f"{name}: {verdict.because}" for name, verdict in verdicts)
    return Verdict(next(status for status in order if status in statuses), because)


def all_better(results: Results, pairs: Sequence[Pair], name: Callable[[Pair], str]) -> Verdict:
    """Say whether the first row of each pair that was run beats the second one."""
    there = [pair for pair in pairs if all(label in results for label in pair)]
    if not there:
        return Verdict(UNTESTED, "rows are missing")
    return joined([(name(pair), better(results, [pair])) for pair in there])


def beats_best_member(results: Results) -> Verdict:
    """Say whether the ensemble beats the member that has the highest mAP@10 on the test set."""
    there = [label for label in MEMBERS if label in results]
    if ENSEMBLE not in results or not there:
        return Verdict(UNTESTED, "rows are missing")
    best = max(there, key=lambda label: float(results.values(label, "map10").mean()))
    return joined([(f"{len(there)} members, against {best}", better(results, [(ENSEMBLE, best)]))])


def above(results: Results, label: str, level: Callable[[int], float]) -> Difference | Verdict:
    """Return how much a row's mAP@10 exceeds a level, a function of the number of recordings."""
    rows = results.select(label)
    refused = too_few(len(rows))
    if refused:
        return refused
    scores = [precisions(replicate) for replicate in rows]
    recordings = scores[0][1]
    number = len(set(recordings.tolist()))
    values = np.stack([values for values, _ in scores]) - level(number)
    mean, low, high = (PERCENT * value for value in bootstrap(values, recordings))
    return Difference(mean, low, high, f"mAP@10, {plural(len(rows), 'seed')}, {plural(number, 'recording')}")


def chance(recordings: int) -> float:
    """Return mAP@10 of a random order of so many recordings: the mean of 1 / rank, 0 beyond the tenth."""
    return float(np.sum(1 / np.arange(1, min(DEPTH, recordings) + 1)) / recordings)


def above_chance(results: Results, label: str) -> Verdict:
    """Say whether a row finds recordings better than chance."""
    found = above(results, label, chance)
    return found if isinstance(found, Verdict) else found.verdict


def published(recordings: int, percent: float) -> float:
    """Return a published score as a share, whatever the number of recordings."""
    return percent / PERCENT


def above_published(results: Results, levels: Mapping[str, float]) -> Verdict:
    """Say whether the ensemble's mAP@10 exceeds published ones; only Clotho's test set can be compared."""
    rows = results.select(ENSEMBLE)
    if not rows or rows[0].need.config.data != "dcase2023":
        return Verdict(UNTESTED, "other data than the published values'")
    verdicts = []
    for name, level in levels.items():
        found = above(results, ENSEMBLE, partial(published, percent=level))
        verdicts.append((name, found if isinstance(found, Verdict) else found.verdict))
    return joined(verdicts)


def rise(replicate: Replicate) -> float:
    """Return by how much the last validation loss exceeds the lowest: how far a run over-fitted."""
    losses = validation_losses(replicate)
    return float(losses[-1] - losses.min())


def last_loss(replicate: Replicate) -> float:
    """Return the last validation loss."""
    return float(validation_losses(replicate)[-1])


def lower(results: Results, quantity: Callable[[Replicate], float], about: str) -> Verdict:
    """Say whether a quantity is lower with rewritten captions: Student's 95 % interval over pairs of equal seeds."""
    lines = same_seeds(results, [CLOTHO, CLOTHO_GPT])
    refused = too_few(len(lines))
    if refused:
        return refused
    gains = np.array([quantity(plain) - quantity(rewritten) for plain, rewritten in lines])
    margin = stats.t.ppf(0.975, len(gains) - 1) * gains.std(ddof=1) / np.sqrt(len(gains))
    found = Difference(gains.mean(), gains.mean() - margin, gains.mean() + margin, "")
    status = found.verdict.status
    means = [np.mean([quantity(line[side]) for line in lines]) for side in (0, 1)]
    because = f"{about} {means[0]:.3f} without, {means[1]:.3f} with"
    return Verdict(
        status, f"{because}: lower by {found.value:.3f} [{found.low:.3f}, {found.high:.3f}], {len(gains)} seeds"
    )


def claim(text: str, check: Callable[[Results], Verdict], ours: bool = False) -> Claim:
    """Return a claim."""
    return Claim(text=text, check=check, ours=ours)


ENCODERS = ("bert-base", "roberta-base", "bert-large", "roberta-large")
LARGER = [
    (f"{audio} + {family}-large", f"{audio} + {family}-base")
    for audio in ("PaSST-N", "PaSST-S")
    for family in ("bert", "roberta")
]
NO_OVERLAP = [(f"PaSST-N + {text}", f"PaSST-S + {text}") for text in ENCODERS]

TABLE2 = [
    claim("Larger sentence encoders tend to do better.", partial(better, pairs=LARGER)),
    claim("PaSST-N, without overlap, tends to beat PaSST-S.", partial(better, pairs=NO_OVERLAP)),
    claim("Fine-tuning on ClothoV2 helps.", beats(NO_REWRITES, NOT_FINE_TUNED)),
    claim("Fine-tuning on ClothoV2_GPT helps.", beats(BEST, NOT_FINE_TUNED)),
    claim("Rewritten captions give slightly better results.", beats(BEST, NO_REWRITES)),
    claim("The ensemble beats its best member.", beats_best_member),
    claim(
        "The ensemble beats the challenge's baseline and the best submission of 2022.",
        partial(above_published, levels={"baseline": 22.2, "2022": 29.9}),
    ),
    claim("PaSST beats chance before it is fine-tuned.", partial(above_chance, label=NOT_FINE_TUNED), ours=True),
    claim("PaSST beats a linear model of the mean mel spectrum.", beats(BEST, MEAN_MEL), ours=True),
    claim("PaSST beats one that is told the deviation over time too.", beats(BEST, MEL_STATISTICS), ours=True),
    claim("Training on recordings of the test set raises the score.", beats(BEST, GUARDED), ours=True),
]
ENSEMBLES = [
    claim(
        "Removing a system from the ensemble lowers its score.",
        partial(
            all_better,
            pairs=[(ENSEMBLE, without(label)) for label in MEMBERS],
            name=lambda pair: pair[1].removeprefix("ensemble "),
        ),
    ),
    claim(
        "Adding a system to the ensemble lowers its score.",
        partial(
            all_better,
            pairs=[(ENSEMBLE, added(label)) for label in CANDIDATES],
            name=lambda pair: pair[1].removeprefix("ensemble "),
        ),
    ),
]
FIGURE2 = [
    claim(
        "Validation loss rises less from its lowest value with rewritten captions: they over-fit less.",
        partial(lower, quantity=rise, about="rise"),
    ),
    claim(
        "Validation loss ends lower with rewritten captions.",
        partial(lower, quantity=last_loss, about="last loss"),
        ours=True,
    ),
]
