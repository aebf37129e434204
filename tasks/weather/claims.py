"""The paper's findings, and ours, as functions of the measured rows.

Every comparison is of the headline IoU, or of the Brier score, by a paired bootstrap over sequences, with Student's
interval over training seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from retable.platform.spec.claims import Estimate, Verdict, join, judge, paired, untested
from retable.platform.spec.table import AnyRow, Claim, Replicate, Results, claim
from retable.platform.text import plural
from retable.tasks.weather.metrics import (
    Counts,
    paired_brier,
    paired_difference,
    probabilities_of,
    scored,
    sequence_counts,
    squared_errors,
    thresholds,
)
from retable.tasks.weather.tables import (
    ALL_DRY,
    ALL_RAIN,
    BASELINE,
    BASELINE_ALL,
    BASELINE_IMPROVED,
    BASELINE_IOU,
    BASELINE_MASKED,
    BASELINE_RIGHT,
    CLIMATOLOGY,
    CONTEXT_BY_LEAD,
    CONTEXT_CALIBRATED,
    CONTEXT_TUNED,
    CONTEXT_UNCROPPED,
    IMPROVED_HELDOUT,
    IN_RUNS,
    MOVED,
    MOVED_BY_PYSTEPS,
    OFFICIAL_HELDOUT,
    OFFICIAL_ROW,
    ONE_BY_ONE,
    OUR_MEAN,
    OUR_VOTE,
    OUR_VOTERS,
    PERSISTENCE,
    SWIN_16BIT,
    SWIN_BCE,
    SWIN_CHANNELS,
    SWIN_DICE,
    SWIN_HELDOUT,
    SWIN_HIGH,
    SWIN_IOU,
    SWIN_LOW,
    SWIN_UPSAMPLE,
    VIVIT_BASE,
    VOTE,
    VOTERS,
)

EQUAL = 0.01
"""IoU scores within this of each other are equal: the reference's own runs differ by as much from epoch to epoch."""


def counts_of(replicate: Replicate, year: int | None) -> dict[str, Any]:
    """Return hits, false alarms and misses of each sequence, by shard, of all years or of one."""
    summaries = replicate.summaries()
    view: Any = replicate.view
    counts = sequence_counts(scored(view, summaries), thresholds(view, summaries))
    return {shard: table for shard, table in counts.items() if year in (None, int(shard.split("/")[1]))}


def iou_gap(better: Sequence[Counts], worse: Sequence[Counts]) -> Estimate | Verdict:
    """Return by how much the IoU of one row exceeds another's, of `counts_of` for each training seed."""
    if not all(better) or not all(worse):
        return untested("no sequences of that year")
    return replace(paired_difference(better, worse), about=about("IoU", better), form="+.3f")


def about(score: str, seeds: Sequence[Counts]) -> str:
    """Return what a comparison rests on: the score, training seeds and sequences."""
    sequences = plural(sum(len(table) for table in seeds[0].values()), "sequence")
    return f"{score}, {plural(len(seeds), 'seed')}, {sequences}"


def compare(results: Results, better: AnyRow, worse: AnyRow, year: int | None = None) -> Estimate | Verdict:
    """Return by how much the IoU of one row exceeds another's, seed by seed; a verdict where that cannot be done."""
    return paired(results, (better, worse), partial(counts_of, year=year), iou_gap)


def squared_errors_of(replicate: Replicate) -> dict[str, Any]:
    """Return the squared errors and pixels of each sequence, by shard, of the probabilities that a view reports."""
    summaries = replicate.summaries()
    view: Any = replicate.view
    return squared_errors(scored(view, summaries), probabilities_of(view, summaries))


def brier_gap(better: Sequence[Counts], worse: Sequence[Counts]) -> Estimate:
    """Return by how much the Brier score of one row exceeds another's, of `squared_errors_of` for each seed."""
    return replace(paired_brier(better, worse), about=about("Brier score", better), form="+.4f")


def lowers_brier(results: Results, better: AnyRow, worse: AnyRow) -> Verdict:
    """Return whether one row's Brier score is lower than another's, which is better."""
    return judge(paired(results, (better, worse), squared_errors_of, brier_gap), -math.inf, 0.0)


def unlearnt(results: Results, rows: Sequence[AnyRow]) -> Verdict | None:
    """Return why rows cannot be compared, or None where they can.

    The mean IoU over seeds of every row that was run must exceed that of each reference: climatology, at the threshold
    that is best on validation, and rain everywhere. A row below one of them counts as not trained. References
    themselves are exempt: a claim on them and other rows is that very comparison.
    """
    if any(row.label in REFERENCES for row in rows):
        return None
    least = {}
    for label in GATES:
        if label not in results.replicates or not results.values(label, "iou").size:
            return untested(f"{label}, which trained rows have to exceed, was not run")
        least[label] = float(results.values(label, "iou").mean())
    bar = max(least, key=lambda label: least[label])
    reached = {row.label: float(results.values(row, "iou").mean()) for row in rows if row in results}
    if missed := {label: mean for label, mean in reached.items() if mean <= least[bar]}:
        worst = min(missed, key=lambda label: missed[label])
        return untested(f"not trained enough: {worst} has an IoU of {missed[worst]:.3f}, {bar} {least[bar]:.3f}")
    return None


def beats(results: Results, better: AnyRow, *others: AnyRow) -> Verdict:
    """Return whether a row's IoU is higher than that of each of some others."""
    return join({f"against {worse.label}": judge(compare(results, better, worse)) for worse in others})


def beats_members(results: Results, vote: AnyRow, *members: AnyRow) -> Verdict:
    """Return whether a vote beats each of its members that was run."""
    return beats(results, vote, *(row for row in members if row in results))


def equals(results: Results, one: AnyRow, other: AnyRow) -> Verdict:
    """Return whether two rows' IoU scores are within `EQUAL` of each other."""
    return judge(compare(results, one, other), -EQUAL, EQUAL).noted(f"; equal means within {EQUAL}")


def better_by_year(results: Results, *rows: AnyRow) -> Verdict:
    """Return whether the first row beats the second in 2019, and the second the first in 2020."""
    years = {2019 + first: compare(results, rows[first], rows[1 - first], 2019 + first) for first in (0, 1)}
    return join({str(year): judge(gap) for year, gap in years.items()})


paper, ours = (partial(claim, gate=unlearnt, ours=own) for own in (False, True))
"""Claims on rows, each of which has to have learnt something."""
GATES = (CLIMATOLOGY.label, ALL_RAIN.label)
"""Labels of the rows that a trained row's mean IoU has to exceed, in every table that has claims."""
REFERENCES = (*GATES, ALL_DRY.label)
"""Rows that nobody trains."""
LADDER = (ALL_RAIN, CLIMATOLOGY, PERSISTENCE, CONTEXT_TUNED)
"""Each but the first at the threshold that is best on validation."""

CLAIMS: Mapping[str, Sequence[Claim]] = {
    "table1": [
        paper("BASELINE: binary cross-entropy beats optimising IoU.", beats, BASELINE, BASELINE_IOU),
        paper("SWIN-UNETR: binary cross-entropy beats IoU and Dice + focal.", beats, SWIN_BCE, SWIN_IOU, SWIN_DICE),
        paper("Adding the validation set to training helps.", beats, BASELINE_ALL, BASELINE),
        paper("The improvements of section 2.2 beat the official baseline.", beats, BASELINE_IMPROVED, OFFICIAL_ROW),
        paper("SWIN-UNETR beats ViViT.", beats, SWIN_BCE, VIVIT_BASE),
        paper("SWIN-UNETR beats the official baseline.", beats, SWIN_BCE, OFFICIAL_ROW),
        paper("16-bit training gives the same score.", equals, SWIN_16BIT, SWIN_BCE),
        paper("Thresholds below and above 0.5 lose.", beats, SWIN_BCE, SWIN_LOW, SWIN_HIGH),
        paper(
            "`repeat_interleave` beats `channel_conv` and `upsample`.", beats, SWIN_BCE, SWIN_CHANNELS, SWIN_UPSAMPLE
        ),
        paper(
            "The improved baseline is better in 2019, SWIN-UNETR in 2020.", better_by_year, BASELINE_IMPROVED, SWIN_BCE
        ),
        *(
            ours(f"{better.label.capitalize()} beats {worse.label}.", beats, better, worse)
            for worse, better in pairwise(LADDER)
        ),
        ours("Moving the retrieval with the clouds beats leaving it in place.", beats, MOVED, PERSISTENCE),
        ours("The context network beats the retrieval moved by optical flow.", beats, CONTEXT_TUNED, MOVED),
        ours("The context network beats the retrieval moved by pysteps.", beats, CONTEXT_TUNED, MOVED_BY_PYSTEPS),
        ours("The context network beats rain everywhere and always.", beats, CONTEXT_TUNED, ALL_RAIN),
        ours("The context network beats the same network without the crop.", beats, CONTEXT_TUNED, CONTEXT_UNCROPPED),
        ours(
            "A threshold for each region, year and lead time beats one for all.", beats, CONTEXT_BY_LEAD, CONTEXT_TUNED
        ),
        ours(
            "Isotonic calibration lowers the Brier score of the context network.",
            lowers_brier,
            CONTEXT_CALIBRATED,
            CONTEXT_TUNED,
        ),
        ours("The official baseline gains from the crop and the mask put right.", beats, BASELINE_RIGHT, OFFICIAL_ROW),
        ours("The difference mask changes nothing.", equals, BASELINE_MASKED, BASELINE),
    ],
    "table2": [
        paper("The majority vote beats each of its members.", beats_members, VOTE, *VOTERS),
        paper("The improved baseline beats the official one.", beats, IMPROVED_HELDOUT, OFFICIAL_HELDOUT),
        paper("SWIN-UNETR beats the official baseline.", beats, SWIN_HELDOUT, OFFICIAL_HELDOUT),
        ours("Our majority vote beats each of its members.", beats_members, OUR_VOTE, *OUR_VOTERS),
        ours("Mean probability with a tuned threshold beats the majority vote.", beats, OUR_MEAN, OUR_VOTE),
    ],
    "shuffling": [
        ours("Windows one by one train a better forecaster than windows in runs.", beats, ONE_BY_ONE, IN_RUNS)
    ],
}
