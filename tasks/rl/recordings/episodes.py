"""Rows of a recording in order of time: where its episodes really end, and the columns that trainings read.

Recorders differ in how an episode ends in their files. Gymnasium's vector environments reset a lane either in the step
that ends an episode (same-step: the successor that comes back is the next episode's first state) or in the step after
it (next-step: a row in which nothing happens but the reset, with reward 0). And marks get lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array

COLUMNS = ("observation", "action", "reward", "next_observation", "terminal", "timeout", "episode", "step")
"""The internal form's columns."""
FIT, PER_NUMBER, PART = 100_000, 10, 100_000
"""Rows that a step's prediction is fitted on, at most; rows that each of its numbers needs, else it predicts no
change; rows that are compared at once."""
JUMP, FAR = 4.0, 80.0
"""Least step that counts as unusual, in standard deviations of steps within episodes: JUMP if it leads to a state like
those in which episodes begin, FAR if it leads anywhere, where such states are not special."""
SHOWN = 5
"""Rows that a line names."""


@dataclass(frozen=True)
class Rows:
    """A recording: N rows in order of time."""

    observations: Array
    actions: Array
    rewards: Array
    terminals: Array
    """(N,) bool."""
    timeouts: Array
    """(N,) bool."""
    successors: Array | None
    """(N, states) the observation after each row; None: the file has none."""
    last: Array
    """(N,) bool: the last row of an episode, also of one that is cut without a mark."""
    limit: int | None = None
    """Steps after which the environment ends an episode; None: not known."""

    def take(self, kept: Array) -> Rows:
        """Return some rows: by number, or (N,) bool."""
        arrays: dict[str, Any] = {
            name: value[kept] for name, value in vars(self).items() if isinstance(value, np.ndarray)
        }
        return replace(self, **arrays)


@dataclass(frozen=True)
class Recording:
    """A recording as it is stored."""

    columns: dict[str, Array]
    """The internal form's: observation (N, states), action (N, actions), reward (N,), next_observation (N, states),
    terminal (N,), timeout (N,), episode (N,), step (N,)."""
    returns: Array
    """(episodes,) float64, undiscounted, of those that end in a mark; rows that are left out included."""
    remarks: list[str]
    """Warnings: properties that are unexpected but may be right."""
    mended: list[str]
    """Corrected defects of the ends of episodes."""


@dataclass(frozen=True)
class Ends:
    """Wrong ends of a recording's episodes: numbers of rows."""

    unmarked: Array
    """After which an episode ends without a mark."""
    shifted: Array
    """After which an episode ends whose mark is in the next row."""
    idle: Array
    """In which nothing happens but a reset."""
    late: Array
    """Whose successor was recorded after the reset: it is the first state of the next episode."""
    disorder: float
    """Share of rows whose successor is not the next row's observation."""

    def lines(self, row_name: Callable[[int], str]) -> Iterator[str]:
        """Yield a line for each kind of defect; `row_name` is what a row is called."""
        if self.disorder > 0.5:
            yield f"{self.disorder:.0%} of the successors are not the next row's observation"
        for rows, what in (
            (self.unmarked, "an episode ends without a mark in"),
            (self.shifted, "the mark of an episode's end is a row late after"),
            (self.idle, "nothing but the environment's reset is recorded in"),
            (self.late, "the successor is recorded after the reset in"),
        ):
            if len(rows):
                more = f" and {len(rows) - SHOWN:,} more" if len(rows) > SHOWN else ""
                yield f"{what} {', '.join(map(row_name, rows[:SHOWN]))}{more}"


def with_remedy(ends: Ends, row_name: Callable[[int], str]) -> list[str]:
    """Return a line for each kind of defect, with what to do about it."""
    order = ends.disorder > 0.5
    remedy = "write the rows in order of time" if order else "convert or import it with --mend ends, or record it again"
    return [f"{line}; {remedy}" for line in ends.lines(row_name)]


def record_of(
    where: object, rows: Rows, ends: Ends, row_name: Callable[[int], str], remarks: list[str], mending: bool
) -> Recording:
    """Return what is stored of rows, their `ends` mended where they are wrong and that is wanted.

    Raises:
        UserError: where ends are wrong and are not to be mended, or cannot be.

    """
    if (not mending or ends.disorder > 0.5) and (defects := with_remedy(ends, row_name)):
        raise UserError(f"{where}: {defects[0]}")
    columns_kept, returns = columns(*mend(rows, ends))
    return Recording(columns_kept, returns, remarks, list(ends.lines(row_name)))


def find_ends(rows: Rows, genuine: bool = True) -> Ends:
    """Return what is wrong with the ends of episodes.

    Where successors differ from the next row's observation, an episode has ended. Where there are none, or they are
    but the next row's observation (`genuine` false: as in Minari's episodes), a reset is a step that no other step of
    the recording resembles (`jumps`), or an unusual one at the environment's limit.
    """
    none, inside = np.zeros(0, np.int64), ~rows.last[:-1]
    differs = _differs(rows)
    disorder = float(differs[inside].mean()) if inside.any() else 0.0
    if disorder > 0.5:
        return Ends(none, none, none, none, disorder)
    idle = _idle(rows, inside, differs)
    kept = np.delete(np.arange(len(rows.last)), idle)  # the rest is as if they had not been recorded
    rest = rows.take(kept)
    differs, inside = _differs(rest), ~rest.last[:-1]
    joined, unmarked, late, shifted = np.flatnonzero(~inside & ~differs), differs & inside, none, none
    hidden = not genuine or not differs.any()
    if hidden or len(joined):
        jump, unusual = jumps(rest)
        if rows.successors is not None and len(joined):
            late = joined if np.median(unusual[joined]) > JUMP else joined[jump[joined]]
            if len(late) == (~inside).sum() and (rest.terminals | rest.timeouts)[-1]:
                late = np.append(late, len(inside))  # nothing follows the last row that would tell it
        unmarked |= (jump | _at_limit(rest, jump, unusual)) & inside & hidden
        follows = np.setdiff1d(joined[~jump[joined]], late) - 1  # marks within a trajectory
        shifted = follows[unmarked[follows] & (follows >= 0)]
        unmarked[shifted] = False
    return Ends(kept[np.flatnonzero(unmarked)], kept[shifted], idle, kept[late], disorder)


def _differs(rows: Rows) -> Array:
    """Return which rows' successors are not the next row's observation, (N - 1,) bool; none if there are none."""
    differs = np.zeros(len(rows.last) - 1, bool)
    if rows.successors is not None:
        near = 1e-4 * rows.observations.std(axis=0, dtype=np.float64) + 1e-6
        for at in range(0, len(differs), PART):
            part = slice(at, min(at + PART, len(differs)))
            follows = rows.observations[part.start + 1 : part.stop + 1]
            differs[part] = ~np.isclose(rows.successors[part], follows, rtol=1e-4, atol=near).all(axis=1)
    return differs


def _idle(rows: Rows, inside: Array, differs: Array) -> Array:
    """Return the rows after an end that go on from it, earn exactly 0, and lead far away: next-step autoreset."""
    after = 1 + np.flatnonzero(~inside & ~differs)
    after = after[rows.rewards[after] == 0]
    final = after[after == len(inside)]  # nothing follows it that would tell; it is as the others
    after = after[np.append(inside, False)[after]]
    others = inside.copy()
    others[after] = False
    steps = np.flatnonzero(others)
    if not len(after) or len(steps) < 2 * PER_NUMBER:
        return np.zeros(0, np.int64)
    unusual = _unusual(rows, steps)
    resets = (unusual[after] > JUMP) & (unusual[after] > unusual[after - 1])
    return np.append(after, final) if resets.mean() > 0.5 else after[resets]


def mend(rows: Rows, ends: Ends) -> tuple[Rows, Array]:
    """Mark ends, as time-outs where no mark is left, and leave rows out that are but resets.

    Returns:
        The rows, and (N,) bool: whose successor is unknown.

    """
    terminals, timeouts, last = rows.terminals.copy(), rows.timeouts.copy(), rows.last.copy()
    unknown, new_ends = np.zeros(len(last), bool), np.append(ends.unmarked, ends.shifted)
    for marks in (terminals, timeouts, last):
        marks[ends.shifted] = marks[ends.shifted + 1]
        marks[ends.shifted + 1] = False
    timeouts[ends.unmarked] = last[ends.unmarked] = True
    unknown[ends.late] = True
    unknown[new_ends[~_differs(rows)[new_ends]]] = True
    kept = np.ones(len(last), bool)
    kept[ends.idle] = False
    return replace(rows, terminals=terminals, timeouts=timeouts, last=last).take(kept), unknown[kept]


def jumps(rows: Rows) -> tuple[Array, Array]:
    """Return which steps no other step of the recording resembles, (N - 1,) bool, and how unusual each is.

    A step is predicted by a linear function of the observation and the action, fitted to steps within episodes; how
    unusual it is, is the length of what is left, in standard deviations (Mahalanobis). A reset is unusual, and leads
    to where known episodes begin; where episodes begin anywhere, it has to be far more unusual than any known step.
    """
    inside = np.flatnonzero(~rows.last[:-1])
    if len(inside) < 2 * PER_NUMBER:
        return np.zeros(len(rows.last) - 1, bool), np.zeros(len(rows.last) - 1)
    unusual = _unusual(rows, inside)
    scale = rows.observations.std(axis=0, dtype=np.float64) + 1e-9
    ends = np.flatnonzero(rows.last[:-1])
    starts = np.append(0, 1 + ends)
    centre = rows.observations[starts].mean(axis=0, dtype=np.float64)
    away = np.sqrt((((rows.observations - centre) / scale) ** 2).mean(axis=1))
    # A state is as far again from the mean of n starts as they are themselves, by sqrt((n + 1) / (n - 1)).
    near = away <= 1.6 * away[starts].max() * np.sqrt((len(starts) + 1) / max(1, len(starts) - 1))
    if len(ends) and near[inside].mean() < 0.05:
        return (unusual > JUMP) & near[1:] & ~near[:-1], unusual
    far = 0.2 * np.median(unusual[ends]) if len(ends) else 4 * np.quantile(unusual[inside], 0.999)
    return unusual > max(FAR, far), unusual


def _at_limit(rows: Rows, jump: Array, unusual: Array) -> Array:
    """Return which steps are unusual and follow as many steps as the environment's limit, (N - 1,) bool.

    So few steps are looked at that one in a thousand is unusual enough, where `jumps` may know no end to compare with.
    An environment that goes on beyond the limit, as its recorder may have raised it, takes ordinary steps there: none
    counts unless most of the steps at the limit are unusual.
    """
    if rows.limit is None:
        return np.zeros_like(jump)
    ended = rows.last[:-1] | jump
    starts = np.append(0, 1 + np.flatnonzero(ended))
    step = np.arange(1, len(rows.last) + 1) - np.repeat(starts, np.diff(starts, append=len(rows.last)))
    full = step[:-1] % rows.limit == 0
    others = unusual[~full & ~ended]
    looked = full & ~ended
    ends_there: Array = looked & (unusual > max(JUMP, np.quantile(others, 0.999) if len(others) else np.inf))
    return ends_there if 2 * ends_there.sum() > looked.sum() else np.zeros_like(jump)


def _unusual(rows: Rows, inside: Array) -> Array:
    """Return how unusual each step is, (N - 1,)."""
    steps = inside[:: -(-len(inside) // FIT)]
    scale = rows.observations.std(axis=0, dtype=np.float64)
    # Entries that rarely change, such as the forces of rare contacts, would make each of their changes a reset.
    lively = np.median(np.abs(rows.observations[steps + 1] - rows.observations[steps]), axis=0) > 1e-3 * scale
    if not lively.any():
        return np.zeros(len(rows.last) - 1)
    rows, scale, states = replace(rows, observations=rows.observations[:, lively]), scale[lively], int(lively.sum())
    predicted = len(steps) >= PER_NUMBER * (states + rows.actions.shape[1])

    def inputs(which: Any) -> Array:
        ones = np.ones((len(rows.actions[:-1][which]), 1))
        parts = (rows.observations[:-1][which], rows.actions[:-1][which]) if predicted else ()
        return np.concatenate([ones, *parts], axis=1, dtype=np.float64)

    def changes(which: Any) -> Array:
        change: Array = rows.observations[1:][which].astype(np.float64) - rows.observations[:-1][which]
        return change

    def measure(which: Any, weights: Array, inverse: Array) -> Array:
        left = changes(which) - inputs(which) @ weights
        lengths: Array = np.sqrt(((left @ inverse) * left).sum(axis=1).clip(0) / states)
        return lengths

    floor = np.diag((1e-3 * scale) ** 2)
    for _ in range(4):  # again without the worst: resets that have no mark
        weights = np.linalg.lstsq(inputs(steps), changes(steps), rcond=None)[0]
        left = changes(steps) - inputs(steps) @ weights
        spread = left.T @ left / len(left)
        inverse = np.linalg.inv((spread if predicted else np.diag(np.diag(spread))) + floor)
        distances = measure(steps, weights, inverse)
        steps = steps[distances <= 6 * np.median(distances)]
    parts = [slice(at, at + PART) for at in range(0, len(rows.last) - 1, PART)]
    return np.concatenate([measure(part, weights, inverse) for part in parts])


def columns(rows: Rows, unknown: Array) -> tuple[dict[str, Array], Array]:
    """Return the columns and returns of a `Recording`; `unknown`, (N,) bool: whose successor is unknown.

    A row whose successor is not known is left out, unless it is terminal: its successor is masked in every target, and
    stands as the row's own observation.
    """
    if rows.successors is None:
        successors = np.concatenate([rows.observations[1:], rows.observations[-1:]])
        unknown = unknown | rows.last
    else:
        successors = rows.successors.copy()
    successors[unknown] = rows.observations[unknown]
    kept = ~unknown | rows.terminals
    starts = np.flatnonzero(np.concatenate([[True], rows.last[:-1]]))
    step = np.arange(len(kept)) - np.repeat(starts, np.diff(starts, append=len(kept)))
    table = {
        "observation": rows.observations,
        "action": rows.actions,
        "reward": rows.rewards,
        "next_observation": successors,
        "terminal": rows.terminals,
        "timeout": rows.timeouts,
        "episode": np.repeat(np.arange(len(starts)), np.diff(starts, append=len(kept))),
        "step": step.astype(np.int32),
    }
    table = {name: column[kept] for name, column in table.items()}
    # An episode of one row that is left out leaves nothing.
    table["episode"] = np.cumsum(np.diff(table["episode"], prepend=table["episode"][:1]) != 0).astype(np.int32)
    returns = np.add.reduceat(rows.rewards.astype(np.float64), starts)
    marked = (rows.terminals | rows.timeouts)[np.append(starts[1:], len(kept)) - 1]
    return {name: table[name] for name in COLUMNS}, returns[marked]
