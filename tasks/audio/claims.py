"""The paper's findings, and ours, as functions of the measured rows.

Comparisons are of mAP@10 on the same captions, by a paired bootstrap that draws recordings, each with all its captions,
with Student's interval over training seeds. The paper gives no intervals; its gain from rewritten captions (0.56) is
about one standard error.

A claim that compares systems of the paper is tested only where each compared row, and each member of a compared
ensemble, has a higher mAP@10 than the linear control `MEAN_MEL`, fine-tuned with the same text encoder: what has not
learnt to listen says nothing of encoders, captions or ensembles. So are figure 2's claims, whose rows are table 2's
runs. The means over seeds are compared; what misses this gate is named in the verdict, and decides nothing about
comparisons of other rows. Comparisons with chance and with linear models have no gate: they are themselves the question
whether a system has learnt.

A claim that any one of n comparisons refutes could be lost by chance n times as easily: a loss is judged at 1 - 0.05/n
(Bonferroni).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from retable.platform.spec.arrays import Array
from retable.platform.spec.claims import UNTESTED, Estimate, Verdict, join, judge, mean_of, paired, too_few, untested
from retable.platform.spec.table import AnyRow, Claim, Replicate, Results, claim
from retable.platform.text import plural
from retable.tasks.audio import example
from retable.tasks.audio.figures import validation_losses
from retable.tasks.audio.metrics import DEPTH, bootstrap, per_query
from retable.tasks.audio.prepare.prepare import CLOTHO_TESTS
from retable.tasks.audio.tables import (
    ADDED,
    BEST,
    CANDIDATES,
    CLOTHO,
    CLOTHO_GPT,
    ENSEMBLE,
    GUARDED,
    MEAN_MEL,
    MEL_STATISTICS,
    MEMBERS,
    NO_REWRITES,
    NOT_FINE_TUNED,
    PASST_N,
    PASST_S,
    WITHOUT,
)

PERCENT = 100.0

Pair = tuple[AnyRow, AnyRow]
"""The row that should be better, and the other."""


def precisions(replicate: Replicate) -> tuple[Array, Array]:
    """Return AP@10 of every caption, and the recording it is clustered by: both (captions,)."""
    scores = per_query(replicate.summaries())
    return scores["map10"], scores["recording"]


def estimate(values: Array, recordings: Array, of: str = "", level: float = 0.95) -> Estimate:
    """Return the mean of shares (seeds, captions) with its interval, in per cent, and what it rests on."""
    number = plural(len(set(recordings.tolist())), "recording")
    about = f"mAP@10{of}, {plural(len(values), 'seed')}, {number}"
    return replace(bootstrap(PERCENT * values, recordings, level=level), about=about)


def missed(results: Results, rows: Sequence[AnyRow]) -> Verdict | None:
    """Return the verdict on rows of which some find no more than the linear control; None where all find more."""
    scores = {row.label: PERCENT * results.values(row, "map10") for row in [MEAN_MEL, *rows] if row in results}
    if MEAN_MEL.label not in scores:
        return untested("the gate is the linear control, which was not run")
    if unscored := [label for label, values in scores.items() if not values.size]:
        return untested(f"{unscored[0]} has no mAP@10, by which it would be above the linear control")
    means = {label: float(values.mean()) for label, values in scores.items()}
    control = means.pop(MEAN_MEL.label)
    behind = [f"{label} {score:.2f}" for label, score in means.items() if not score > control]
    return untested(f"at or below the linear control's {control:.2f} mAP@10: {', '.join(behind)}") if behind else None


def gain(*rows: Sequence[tuple[Array, Array]], chances: int = 1) -> Estimate | Verdict:
    """Return the mean gain of the first row of each pair over the second; a row is its `precisions` by seed.

    A loss has the interval of one of so many `chances` to lose.
    """
    recordings = rows[0][0][1]
    if any(not np.array_equal(recordings, other) for row in rows for _, other in row):
        return untested("rows are scored on different captions")
    scores = np.array([[values for values, _ in row] for row in rows])  # (rows, seeds, captions)
    pairs, gains = len(rows) // 2, (scores[::2] - scores[1::2]).mean(axis=0)
    level = 1 - 0.05 / chances if gains.mean() < 0 else 0.95
    return estimate(gains, recordings, f", mean of {pairs} pairs" * (pairs > 1), level)


def compare(results: Results, pairs: Sequence[Pair], chances: int = 1) -> Estimate | Verdict:
    """Return the mean over pairs of rows of how much better the first is; a verdict where that cannot be done.

    All pairs must have been run; the seeds are those that all rows share. See `gain` for `chances`.
    """
    rows = [row for pair in pairs for row in pair]
    if absent := [row.label for row in rows if row not in results]:
        return untested(f"not run: {', '.join(dict.fromkeys(absent))}")
    return paired(results, rows, precisions, partial(gain, chances=chances))


def better(results: Results, pairs: Sequence[Pair], members: Sequence[AnyRow] = (), chances: int = 1) -> Verdict:
    """Return whether the first rows of some pairs have the higher mAP@10, taken together; all must pass the gate.

    Args:
        results: of the table.
        pairs: of rows.
        members: of ensembles among them, which must pass the gate too.
        chances: comparisons of which any decides when it is lost.
    """
    outcome = compare(results, pairs, chances)
    compared = [row for pair in pairs for row in pair]
    return judge(outcome if isinstance(outcome, Verdict) else missed(results, [*compared, *members]) or outcome)


def beats_linear(results: Results, one: AnyRow, linear: AnyRow) -> Verdict:
    """Return whether a row's mAP@10 is higher than a linear model's."""
    return judge(compare(results, [(one, linear)]))


def ensemble_beats(results: Results, others: Mapping[str, AnyRow]) -> Verdict:
    """Return whether the ensemble beats each of some others that were run; by name of what they have more or less.

    Args:
        results: of the table.
        others: label of the system that an ensemble has more or less -> the ensemble.
    """
    rivals = {label: row for label, row in others.items() if ENSEMBLE in results and row in results}
    members, verdicts = [row for row in MEMBERS if row in results], {}
    for label, other in rivals.items():
        joined = [*members, *(row for row in CANDIDATES if row.label == label)]
        name = f"{len(members)} members, {other.label.removeprefix('ensemble ')}"
        verdicts[name] = better(results, [(ENSEMBLE, other)], joined, len(rivals))
    return join(verdicts)


def beats_best_member(results: Results) -> Verdict:
    """Return whether the ensemble beats the member that has the highest mAP@10 on the test set.

    That is the luckiest of equals, so each member is a chance to lose.
    """
    members = [row for row in MEMBERS if row in results]
    if ENSEMBLE not in results or not members:
        return untested("rows are missing")

    def score(row: AnyRow) -> float:
        """Return the mean mAP@10 of a row's seeds; the lowest one where all of them diverged."""
        values = results.values(row, "map10")
        return float(values.mean()) if values.size else -np.inf

    best = max(members, key=score)
    verdict = better(results, [(ENSEMBLE, best)], members, len(members))
    return join({f"{len(members)} members, against {best.label}": verdict})


def above(results: Results, row: AnyRow, level: Callable[[int], float]) -> Estimate | Verdict:
    """Return how much a row's mAP@10 exceeds a level, a function of the number of recordings."""

    def excess(scores: Sequence[tuple[Array, Array]]) -> Estimate:
        recordings = scores[0][1]
        values = np.stack([values for values, _ in scores]) - level(len(set(recordings.tolist())))
        return estimate(values, recordings)

    return paired(results, [row], precisions, excess)


def chance(recordings: int) -> float:
    """Return mAP@10 of a random order of so many recordings: the mean of 1 / rank, 0 beyond the tenth."""
    return float(np.sum(1 / np.arange(1, min(DEPTH, recordings) + 1)) / recordings)


def above_chance(results: Results, row: AnyRow) -> Verdict:
    """Return whether a row finds recordings better than chance."""
    return judge(above(results, row, chance))


def published(recordings: int, percent: float) -> float:
    """Return a published score as a share; as `chance` it takes the number of recordings, which does not matter."""
    return percent / PERCENT


def above_published(results: Results, levels: Mapping[str, float]) -> Verdict:
    """Return whether the ensemble's mAP@10 exceeds published ones; only Clotho's whole test set can be compared.

    Who loses to the lower one loses to the higher one too, so several are one chance to lose.
    """
    rows = results.select(ENSEMBLE)
    if not rows or rows[0].config.data != "dcase2023":
        return untested("other data than the published values'")
    _, recordings = precisions(rows[0])
    if (count := len(set(recordings.tolist()))) != CLOTHO_TESTS:
        among = f"the published values are among Clotho's {CLOTHO_TESTS:,}"
        return untested(f"{plural(count, 'recording')} to find; {among}")
    excesses = {name: above(results, ENSEMBLE, partial(published, percent=level)) for name, level in levels.items()}
    behind = missed(results, [ENSEMBLE, *(row for row in MEMBERS if row in results)])
    return join(
        {name: judge(excess if isinstance(excess, Verdict) else behind or excess) for name, excess in excesses.items()}
    )


def rise(replicate: Replicate) -> float:
    """Return by how much the last validation loss exceeds the lowest: how far a run over-fitted."""
    losses = validation_losses(replicate)
    return float(losses[-1] - losses.min())


def last_loss(replicate: Replicate) -> float:
    """Return the last validation loss."""
    return float(validation_losses(replicate)[-1])


def lower(results: Results, quantity: Callable[[Replicate], float], about: str) -> Verdict:
    """Return whether a quantity is lower with rewritten captions: Student's 95 % interval over pairs of equal seeds."""
    lines = results.lines(CLOTHO, CLOTHO_GPT)
    if refused := too_few(len(lines)):
        return refused
    if behind := missed(results, [CLOTHO, CLOTHO_GPT]):
        return behind
    values = np.array([[quantity(replicate) for replicate in line] for line in lines])
    if not values.any():
        return untested(f"{about} 0 in every run")
    difference = mean_of([values[:, 0] - values[:, 1]], f"over {plural(len(lines), 'seed')}", ".3f")
    without, rewritten = values.mean(axis=0)
    return judge(difference, about=f"{about} {without:.3f} without, {rewritten:.3f} with: lower by")


BY_RULES = "; rules rewrote these captions: the words are WordNet's, and generated captions have their forms anyway"
"""Stands behind verdicts on data where no language model rewrote."""


def by_rules(replicate: Replicate) -> bool:
    """Return whether rules rewrote the captions of a run's data; where older summaries lack it, its name decides."""
    told = [part["by_rules"] for part in replicate.summaries().values() if "by_rules" in part]
    return bool(told[0].all()) if told else replicate.config.data.startswith("generated-")


def on_rewrites(results: Results, row: AnyRow, check: Callable[..., Verdict], *rest: object) -> Verdict:
    """Return the verdict of `check(results, *rest)`; where rules rewrote a `row`'s captions it says what they add."""
    verdict = check(results, *rest)
    rows = results.select(row)
    return verdict.noted(BY_RULES) if rows and verdict.status != UNTESTED and by_rules(rows[0]) else verdict


LARGER: list[Pair] = [
    (systems[f"{family}-large"], systems[f"{family}-base"])
    for systems in (PASST_N, PASST_S)
    for family in ("bert", "roberta")
]
NO_OVERLAP: list[Pair] = [(PASST_N[text], PASST_S[text]) for text in PASST_N]

CLAIMS: Mapping[str, Sequence[Claim]] = {
    "table1": example.CLAIMS,
    "table2": [
        claim("Larger sentence encoders tend to do better.", better, LARGER),
        claim("PaSST-N, without overlap, tends to beat PaSST-S.", better, NO_OVERLAP),
        claim("Fine-tuning on ClothoV2 helps.", better, [(NO_REWRITES, NOT_FINE_TUNED)]),
        claim("Fine-tuning on ClothoV2_GPT helps.", better, [(BEST, NOT_FINE_TUNED)]),
        claim("Rewritten captions give slightly better results.", on_rewrites, BEST, better, [(BEST, NO_REWRITES)]),
        claim("The ensemble beats its best member.", beats_best_member),
        claim(
            "The ensemble beats the challenge's baseline and the best submission of 2022.",
            above_published,
            {"baseline": 22.2, "2022": 29.9},
        ),
        claim("PaSST beats chance before it is fine-tuned.", above_chance, NOT_FINE_TUNED, ours=True),
        claim("PaSST beats a linear model of the mean mel spectrum.", beats_linear, BEST, MEAN_MEL, ours=True),
        claim(
            "PaSST beats one that is told the deviation over time too.", beats_linear, BEST, MEL_STATISTICS, ours=True
        ),
        claim("Training on recordings of the test set raises the score.", better, [(BEST, GUARDED)], ours=True),
    ],
    "ensembles": [
        claim("Removing a system from the ensemble lowers its score.", ensemble_beats, WITHOUT),
        claim("Adding a system to the ensemble lowers its score.", ensemble_beats, ADDED),
    ],
    "figure2": [
        claim(
            "Validation loss rises less from its lowest value with rewritten captions: they over-fit less.",
            on_rewrites,
            CLOTHO_GPT,
            lower,
            rise,
            "rise",
        ),
        claim(
            "Validation loss ends lower with rewritten captions.",
            on_rewrites,
            CLOTHO_GPT,
            lower,
            last_loss,
            "last loss",
            ours=True,
        ),
    ],
}
