"""Which square and which frames belong to which split.

An event lasts hours, an archive often little longer: splitting by time would test on the rain trained on. So a square
belongs to one split only, with all its frames, where there are four squares or more. Fewer squares are in all splits,
and time is cut: the first half is training, then come validation, test and heldout, with gaps between them. (The
competition splits by time, each region in all.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retable.platform.errors import UserError
from retable.platform.text import plural
from retable.platform.train.seeds import generator
from retable.tasks.weather.w4c import layout

FEWEST = 4
"""Squares that are needed to split by place."""
CUT_SPLITS = ("validation", "test", "heldout")


@dataclass(frozen=True)
class Place:
    """A square of 6 size x 6 size pixels, and what its target saw over all frames of whole sequences."""

    name: str
    row: int
    column: int
    """The upper left pixel of the square in the composite."""
    coverage: float
    """Share of the target's pixels with a measurement."""
    rain: float
    """Share of rainy pixels among those."""


@dataclass(frozen=True)
class Cut:
    """Cut of an archive into places and splits."""

    by: str
    """`place` or `time`."""
    places: Sequence[Place]
    splits: Mapping[str, Sequence[str]]
    """The splits of each place, by its name."""
    frames: Mapping[str, Sequence[tuple[int, str]]]
    """The frames of each split, each with its `split_type` in the CSV."""


def cut(places: Sequence[Place], runs: Sequence[range], inputs: int, forecast: int, seed: int) -> Cut:
    """Return the splits of places, and the frames of splits; `runs` are the frames of stretches without a gap.

    Raises:
        UserError: where the places have to be split by time and the frames are too few.
    """
    if len(places) < FEWEST:
        return Cut(
            "time",
            places,
            {square.name: tuple(layout.SPLITS) for square in places},
            by_time(len(places), runs, inputs, forecast),
        )
    frames = {split: slots(runs, split, inputs, forecast) for split in layout.SPLITS}
    return Cut("place", places, {name: [split] for name, split in deal(places, seed).items()}, frames)


def slots(runs: Sequence[range], split: str, inputs: int, forecast: int) -> list[tuple[int, str]]:
    """Return a split's frames, each with its `split_type` in the CSV.

    Training has all; the others have as many sequences of inputs and targets as fit one after another into each run.
    """
    if split == "training":
        return [(frame, "-") for run in runs for frame in run]
    length = inputs + forecast
    kinds = [f"{split}_in"] * inputs + [f"{split}_target"] * forecast
    return [(run[k], kinds[k % length]) for run in runs for k in range(len(run) // length * length)]


def by_time(squares: int, runs: Sequence[range], inputs: int, forecast: int) -> dict[str, list[tuple[int, str]]]:
    """Return the frames of each split, one after another, with a gap as long as a forecast between them.

    Validation, test and heldout have a sixth each, but one sequence at least.

    Raises:
        UserError: where a split would hold no sequence.
    """
    frames, length = runs[-1].stop, inputs + forecast
    held = max(length, (frames - 3 * forecast) // 6)
    training = frames - 3 * (held + forecast)
    slots_of, start = {}, 0
    for split in layout.SPLITS:
        stop = start + (training if split == "training" else held)
        parts = [range(max(run.start, start), min(run.stop, stop)) for run in runs]
        slots_of[split] = slots([part for part in parts if len(part) >= length], split, inputs, forecast)
        start = stop + forecast
    if not all(slots_of.values()):
        have = f"{plural(squares, 'square')} {'has' if squares == 1 else 'have'} radar and rain"
        why = f"{have}, fewer than {FEWEST}, so time is split"
        raise UserError(f"{why}, but {frames} frames are too few; {4 * length + 3 * forecast} without a gap are enough")
    return slots_of


def deal(places: Sequence[Place], seed: int) -> dict[str, str]:
    """Deal squares to splits: half to training, the rest to validation, test and heldout in turn, by name.

    The rest is spread evenly along a line that winds through the rows, so that no split keeps to a corner.
    """
    rows = sorted({square.row for square in places})
    line = sorted(places, key=lambda square: (square.row, square.column * (-1) ** rows.index(square.row)))
    first, rest = int(generator(seed, "weather.splits").integers(len(line))), max(len(CUT_SPLITS), len(line) // 2)
    splits = dict.fromkeys((square.name for square in places), "training")
    for k in range(rest):
        splits[line[(first + k * len(line) // rest) % len(line)].name] = CUT_SPLITS[k % len(CUT_SPLITS)]
    return splits
