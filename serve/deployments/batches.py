"""Requests of one batch that are computed together."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def _grouped(
    requests: Sequence[T],
    key: Callable[[T], Hashable],
    size: Callable[[T], float],
    most: float,
) -> list[list[int]]:
    """Return the places of the requests that go together.

    Args:
        requests: of one batch.
        key: what those that go together have in common.
        size: of a request.
        most: of those that go together; a larger request goes alone.
    """
    groups: dict[Hashable, list[list[int]]] = {}
    for place, request in enumerate(requests):
        group = groups.setdefault(key(request), [[]])
        if group[-1] and sum(size(requests[other]) for other in (*group[-1], place)) > most:
            group.append([])
        group[-1].append(place)
    return [share for group in groups.values() for share in group]


def together(
    requests: Sequence[T],
    answer: Callable[[Sequence[T]], Iterable[R]],
    key: Callable[[T], Hashable],
    size: Callable[[T], float] = lambda _: 0,
    most: float = math.inf,
) -> list[R]:
    """Return the answers to requests, in their order; `answer` computes those that go together, see `_grouped`."""
    answers: dict[int, R] = {}
    for share in _grouped(requests, key, size, most):
        answers |= dict(zip(share, answer([requests[place] for place in share]), strict=True))
    return [answers[place] for place in range(len(requests))]
