"""The paper's findings, and ours, as functions of the measured rows.

Every comparison is of the headline IoU, by a paired bootstrap over sequences, with Student's interval over
training seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from retable.platform.table import Claim, Replicate, Results, Status, Verdict
from retable.tasks.weather.metrics import paired_difference, sequence_counts
from retable.tasks.weather.predict import thresholds

UNTESTED: Status = "not tested at this scale"
SEEDS = 3
"""Fewer training seeds separate nothing."""
EQUAL = 0.01
"""IoU scores within this of each other are equal: the reference's own runs differ by as much from epoch to epoch."""


@dataclass(frozen=True)
class Difference:
    """How much the IoU of one row exceeds another's, with a 95 % interval."""

    value: float
    low: float
    high: float
    seeds: int
    sequences: int

    def __str__(self) -> str:
        """Write it as one reads it."""
        interval = f"[{self.low:+.3f}, {self.high:+.3f}]"
        return f"{self.value:+.3f} {interval} IoU, {self.seeds} seeds, {self.sequences} sequences"


def counts_of(replicate: Replicate, year: int | None) -> dict[str, Any]:
    """Return hits, false alarms and misses of each sequence, by shard, of all years or of one."""
    return {shard: table for shard, table in _counts(replicate).items() if year in (None, int(shard.split("/")[1]))}


def _counts(replicate: Replicate) -> dict[str, Any]:
    summaries = replicate.summaries()
    view: Any = replicate.need.view
    chosen = thresholds(view, summaries)
    return sequence_counts({shard: summaries[shard] for shard in chosen}, chosen)


def compare(results: Results, better: str, worse: str, year: int | None = None) -> Difference | Verdict:
    """Compare two rows, seed by seed; a verdict where that cannot be done."""
    pairs = [(a, b) for a in results.select(better) for b in results.select(worse) if a.need.axes == b.need.axes]
    if not pairs:
        return Verdict(UNTESTED, "rows are missing")
    if len(pairs) < SEEDS:
        return Verdict(UNTESTED, f"{len(pairs)} seed{'s' if len(pairs) > 1 else ''}; at least {SEEDS} are needed")
    sides = [[counts_of(pair[side], year) for pair in pairs] for side in (0, 1)]
    if not all(sides[0]) or not all(sides[1]):
        return Verdict(UNTESTED, "no sequences of that year")
    sequences = sum(len(table) for table in sides[0][0].values())
    return Difference(*paired_difference(sides[0], sides[1]), len(pairs), sequences)


def beats(results: Results, better: str, worse: str, year: int | None = None) -> Verdict:
    """Say whether one row's IoU is higher than another's."""
    found = compare(results, better, worse, year)
    if isinstance(found, Verdict):
        return found
    if found.low > 0:
        return Verdict("holds", str(found))
    return Verdict("does not hold" if found.high < 0 else "not separable", str(found))


def equals(results: Results, one: str, other: str) -> Verdict:
    """Say whether two rows' IoU scores are within `EQUAL` of each other."""
    found = compare(results, one, other)
    if isinstance(found, Verdict):
        return found
    because = f"{found}; equal means within {EQUAL}"
    if -EQUAL < found.low and found.high < EQUAL:
        return Verdict("holds", because)
    return Verdict("does not hold" if found.low > EQUAL or found.high < -EQUAL else "not separable", because)


def all_of(results: Results, checks: Sequence[tuple[str, Any]]) -> Verdict:
    """Join verdicts: a sentence holds if every part of it does, and not if one does not."""
    verdicts = [(name, check(results)) for name, check in checks]
    statuses = {verdict.status for _, verdict in verdicts}
    because = "; ".join(f"{name}: {verdict.because}" for name, verdict in verdicts)
    order: tuple[Status, ...] = ("does not hold", UNTESTED, "not separable", "holds")
    return Verdict(next(status for status in order if status in statuses), because)


def every(better: str, *worse: str) -> Any:
    """Return the check that a row beats each of some others."""
    return partial(all_of, checks=[(f"against {label}", partial(beats, better=better, worse=label)) for label in worse])


def vote_beats_members(results: Results, vote: str, members: Sequence[str]) -> Verdict:
    """Say whether a vote's IoU is higher than that of each member that was run."""
    there = [label for label in members if label in results]
    return every(vote, *there)(results) if vote in results and there else Verdict(UNTESTED, "rows are missing")


BASELINE, SWIN = "BASELINE bce. Epoch 23", "SWIN-UNETR bce. Epoch 3"
IMPROVED = "BASELINE bce, improved, train all. Epoch 15"
CONTEXT = "context network"
TUNED = "context network, tuned threshold"
FLOW = "retrieval moved by optical flow"
LADDER = ("all dry", "climatology", "persistence of a retrieval", TUNED)
"""Each but the first at the threshold that is best on validation."""


def claim(text: str, check: Any, ours: bool = False) -> Claim:
    """Return a claim."""
    return Claim(text=text, check=check, ours=ours)


TABLE1 = [
    claim("BASELINE: binary cross-entropy beats optimising IoU.", every(BASELINE, "BASELINE IoU. Epoch 25")),
    claim(
        "SWIN-UNETR: binary cross-entropy beats IoU and Dice + focal.",
        every(SWIN, "SWIN-UNETR IoU. Epoch 2", "SWIN-UNETR dice focal. Epoch 2"),
    ),
    claim(
        "Adding the validation set to training helps.",
        every("BASELINE bce, train all. Epoch 24", BASELINE),
    ),
    claim("The improvements of section 2.2 beat the official baseline.", every(IMPROVED, "BASELINE bce, official")),
    claim("SWIN-UNETR beats ViViT.", every(SWIN, "VIVIT bce. VIVIT base")),
    claim("SWIN-UNETR beats the official baseline.", every(SWIN, "BASELINE bce, official")),
    claim(
        "16-bit training gives the same score.",
        partial(equals, one="SWIN-UNETR bce, 16bit training. Epoch 3", other=SWIN),
    ),
    claim(
        "Thresholds below and above 0.5 lose.",
        every(SWIN, "SWIN-UNETR bce. Epoch 3. 0.2 threshold", "SWIN-UNETR bce. Epoch 3. 0.65 threshold"),
    ),
    claim(
        "`repeat_interleave` beats `channel_conv` and `upsample`.",
        every(SWIN, "SWIN-UNETR bce, channel conv. Epoch 1", "SWIN-UNETR bce, upsample. Epoch 1"),
    ),
    claim(
        "The improved baseline is better in 2019, SWIN-UNETR in 2020.",
        partial(
            all_of,
            checks=[
                ("2019", partial(beats, better=IMPROVED, worse=SWIN, year=2019)),
                ("2020", partial(beats, better=SWIN, worse=IMPROVED, year=2020)),
            ],
        ),
    ),
    *(
        claim(f"{better.capitalize()} beats {worse}.", every(better, worse), ours=True)
        for worse, better in pairwise(LADDER)
    ),
    claim(
        "Moving the retrieval with the clouds beats leaving it in place.",
        every(FLOW, "persistence of a retrieval"),
        ours=True,
    ),
    claim("The context network beats the retrieval moved by optical flow.", every(TUNED, FLOW), ours=True),
    claim(
        "The context network beats the same network without the crop.",
        every(TUNED, "context network without the crop, tuned threshold"),
        ours=True,
    ),
    claim(
        "The official baseline gains from the crop and the mask put right.",
        every("BASELINE bce, crop and mask put right", "BASELINE bce, official"),
        ours=True,
    ),
    claim(
        "The difference mask changes nothing.",
        partial(equals, one="BASELINE bce. Epoch 23, difference mask", other=BASELINE),
        ours=True,
    ),
]
VOTERS = (
    "BASELINE bce improved. Epoch 15",
    "SWIN-UNETR bce. Epoch 3",
    "SWIN-UNETR bce, AdaBelief. Epoch 4",
    "SWIN-UNETR bce, channel conv, AdaBelief. Epoch 3",
    "SWIN-UNETR bce, channel conv, AdaBelief. Epoch 4",
)
OUR_VOTERS = (
    "BASELINE bce, crop and mask put right",
    "BASELINE bce, improved, crop and mask put right",
    CONTEXT,
)
TABLE2 = [
    claim(
        "The majority vote beats each of its members.",
        partial(vote_beats_members, vote="majority vote", members=VOTERS),
    ),
    claim("The improved baseline beats the official one.", every(VOTERS[0], "official BASELINE")),
    claim("SWIN-UNETR beats the official baseline.", every(SWIN, "official BASELINE")),
    claim(
        "Our majority vote beats each of its members.",
        partial(vote_beats_members, vote="majority vote of ours", members=OUR_VOTERS),
        ours=True,
    ),
    claim(
        "Mean probability with a tuned threshold beats the majority vote.",
        every("mean probability of ours, tuned threshold", "majority vote of ours"),
        ours=True,
    ),
]
