"""Forecasts joined of several, shard by shard: votes, means, and the best member of each region and year.

Every function takes the name of a shard, `split/year/region`, and members that load their predictions of that shard
when asked: `probability` uint8 (n, L, S, S), in steps of 1/200. Members are read one after another and dropped: memory
never holds more than about three times one member's bytes, however many there are.

Source: section 3.3 and Table 1 (ensembles).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.platform.spec.table import Member, stored_as
from retable.tasks.weather.config import STEPS
from retable.tasks.weather.metrics import cuts


def first_rain(member: Member) -> int:
    """Return the step from which on a member forecasts rain.

    Raises:
        UserError: where its threshold is tuned, so not known here.

    """
    threshold = member.view.threshold
    if isinstance(threshold, str):
        raise UserError(f"row {member.label!r}: threshold {threshold!r} is no number; combine views with a number")
    return int(cuts(threshold))


def load(member: Member, total: Array | None = None) -> Array:
    """Read a member's steps (n, L, S, S).

    Raises:
        UserError: where its shape is not that of the sum `total` of those before it.

    """
    steps = np.asarray(member.load()["probability"])
    if total is not None and steps.shape != total.shape:
        raise UserError(f"row {member.label!r}: forecasts {steps.shape}, the others {total.shape}; join like with like")
    return steps


def some(members: Sequence[Member]) -> Sequence[Member]:
    """Return the members, refusing none at all."""
    if not members:
        raise ValueError("no members to combine")
    return members


@stored_as("retable.tasks.weather.combine.majority_vote")
def majority_vote(shard: str, members: Sequence[Member]) -> dict[str, Array]:
    """Return the share of members that forecast rain, each by its own threshold, in steps rounded down.

    Half of the members is step 100: at threshold 0.5 a tie is rain, as in the authors' code. At most 255 members.

    Raises:
        UserError: where a member's threshold is tuned, or shapes differ.

    """
    if len(some(members)) > 255:
        raise ValueError(f"{len(members)} members vote; 255 can")
    votes: Array | None = None
    for member in members:
        rain = load(member, votes) >= first_rain(member)
        votes = rain.view(np.uint8) if votes is None else np.add(votes, rain, out=votes)
        del rain  # before the next member is read
    assert votes is not None
    shares = (STEPS * np.arange(len(members) + 1) // len(members)).astype(np.uint8)
    for sequence in votes:  # one by one: an index takes eight bytes
        sequence[...] = shares[sequence]
    return {"probability": votes}


@stored_as("retable.tasks.weather.combine.mean_probability")
def mean_probability(shard: str, members: Sequence[Member]) -> dict[str, Array]:
    """Return the mean of the members' steps, rounded down; at most 327 members.

    Raises:
        UserError: where shapes differ.

    """
    if len(some(members)) * STEPS > np.iinfo(np.uint16).max:
        raise ValueError(f"{len(members)} members are joined; 327 can be")
    total: Array | None = None
    for member in members:
        steps = load(member, total)
        total = steps.astype(np.uint16) if total is None else np.add(total, steps, out=total)
        del steps  # before the next member is read
    assert total is not None
    np.floor_divide(total, len(members), out=total)
    return {"probability": total.astype(np.uint8)}


@stored_as("retable.tasks.weather.combine.best_by_test")
def best_by_test(shard: str, members: Sequence[Member]) -> dict[str, Array]:
    """Return the forecast, 0 or 200 steps, of the member with the best test IoU in this region and year.

    As the paper did: it looks at the very score that the row then reports. `best_by_validation` is the honest one.
    The first of equally good ones.

    Raises:
        UserError: where a threshold is tuned, or a member has no such score.

    """
    return best(f"iou/{shard.partition('/')[2]}", members)


@stored_as("retable.tasks.weather.combine.best_by_validation")
def best_by_validation(shard: str, members: Sequence[Member]) -> dict[str, Array]:
    """Return the forecast, 0 or 200 steps, of the member with the best validation IoU in this region and year.

    Raises:
        UserError: where a threshold is tuned, or a member has no such score.

    """
    return best(f"validation_iou/{shard.partition('/')[2]}", members)


def best(metric: str, members: Sequence[Member]) -> dict[str, Array]:
    """Return the forecast, 0 or 200 steps, of the member with the highest metric; only that one is read."""
    for member in some(members):
        first_rain(member)
        if metric not in member.metrics:
            raise UserError(f"row {member.label!r}: has no score {metric!r} to be chosen by; score it first")
    chosen = max(members, key=lambda member: member.metrics[metric])
    rain = load(chosen) >= first_rain(chosen)
    return {"probability": rain.view(np.uint8) * np.uint8(STEPS)}
