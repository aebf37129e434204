"""Try again, with growing pauses, what a disk or bucket does not answer."""

from __future__ import annotations

import functools
import os
import random
import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar, cast

from retable.platform.errors import Denied, Unreachable, UserError

PATIENCE = "RETABLE_PATIENCE"
"""Name of the variable that says for how many seconds a storage that does not answer is tried again; else 300."""
_answered: set[str] = set()
"""Roots that have answered this process: credentials that were good may be renewed, wrong ones are told at once."""


class Rooted(Protocol):
    """What reads and writes below one folder."""

    @property
    def root(self) -> str:
        """Return the folder."""


S = TypeVar("S", bound=Rooted)
P = ParamSpec("P")
T = TypeVar("T")


def patient(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Let a method be tried again while the disk or bucket does not answer; at last it raises.

    A bucket that denies access is waited for only if it has granted it before: credentials expire, and are renewed.
    """

    @functools.wraps(method)
    def trying(self: S, *arguments: P.args, **named: P.kwargs) -> T:
        end, pause = time.monotonic() + patience(), 0.5
        while True:
            try:
                found = method(self, *arguments, **named)
            except Unreachable as error:
                denied = isinstance(error, Denied) and not has_answered(self.root)
                if denied or time.monotonic() + pause > end:
                    raise
                time.sleep(pause * random.uniform(0.5, 1))  # so that workers do not all come back at once
                pause = min(30.0, 2 * pause)
            else:
                note_answer(self.root)
                return found

    return cast("Callable[Concatenate[S, P], T]", trying)


def has_answered(root: str) -> bool:
    """Say whether a folder, or one above it, has answered this process."""
    return root in _answered or any(root.startswith(f"{above}/") for above in _answered)


def note_answer(root: str) -> None:
    """Keep that a folder has answered."""
    if not has_answered(root):
        _answered.add(root)


def patience() -> float:
    """Return for how many seconds a storage that does not answer is tried again.

    Raises:
        UserError: where the variable is no number.
    """
    text = os.environ.get(PATIENCE, "300")
    try:
        return float(text)
    except ValueError as error:
        raise UserError(f"{PATIENCE}={text!r} is no number of seconds; unset it, or write 300") from error
