"""Retries with growing pauses for a disk or bucket that does not answer."""

from __future__ import annotations

import functools
import math
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from retable.platform.console import errors as console
from retable.platform.errors import Denied, Unreachable, UserError

PATIENCE = "RETABLE_PATIENCE"
"""Name of the variable that says for how many seconds a storage that does not answer is tried again; else 300."""
_WRITING = ("write", "claim", "remove")
"""Methods that need leave to write."""
FIRST = 0.5
"""Seconds of the first pause."""
_AGAIN = 60.0
"""Seconds in which a storage that does not answer is told once."""
_most: ContextVar[float] = ContextVar("most", default=math.inf)
"""Seconds that this context waits at most."""
_told: dict[str, float] = {}
"""Root -> when that was last told."""
_answered: set[tuple[str, bool]] = set()
"""Roots that have answered this process, and whether to writing: credentials that were good may be renewed, wrong ones
are told at once."""


F = TypeVar("F", bound=Callable[..., Any])


def patient(method: F) -> F:
    """Decorate a method of what has a `root` to retry while the disk or bucket does not answer; at last it raises.

    A bucket that denies access is waited for only if it has granted it before, to read or to write as now: credentials
    expire, and are renewed.
    """
    writes = getattr(method, "__name__", "") in _WRITING

    @functools.wraps(method)
    def trying(self: Any, *arguments: Any, **named: Any) -> Any:
        end, pause = time.monotonic() + patience(), FIRST
        while True:
            try:
                result = method(self, *arguments, **named)
            except Unreachable as error:
                denied = isinstance(error, Denied) and not has_answered(self.root, writes)
                if denied or time.monotonic() + pause > end:
                    raise
                if pause == FIRST:
                    _tell(self.root, error)
                time.sleep(pause * random.uniform(0.5, 1))  # so that workers do not all come back at once
                pause = min(30.0, 2 * pause)
            else:
                note_answer(self.root, writes)
                return result

    return cast("F", trying)


def has_answered(root: str, writes: bool = False) -> bool:
    """Return whether a folder, or one above it, has answered this process, to writing where `writes`."""
    parts = root.split("/")
    above = ("/".join(parts[:count]) for count in range(len(parts), 0, -1))  # a process of many runs has many folders
    return any((folder, True) in _answered or (not writes and (folder, False) in _answered) for folder in above)


def _tell(root: str, error: Exception) -> None:
    """Print that a storage does not answer, once a minute of all that wait for it. The error names it."""
    now = time.monotonic()
    if now - _told.get(root, -_AGAIN) >= _AGAIN:
        _told[root] = now
        console.print(f"note: {error}; tried again for {patience():.0f} s", markup=False)


def note_answer(root: str, writes: bool = False) -> None:
    """Keep that a folder has answered."""
    if not has_answered(root, writes):
        _answered.add((root, writes))


def patience() -> float:
    """Return for how many seconds a storage that does not answer is tried again.

    Raises:
        UserError: where the variable is no number.
    """
    text = os.environ.get(PATIENCE, "300")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise UserError(f"{PATIENCE}={text!r} is no number of seconds; unset it, or write 300")
    return min(seconds, _most.get())


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Wait no longer than this for a storage while the block runs: somebody waits for an answer."""
    before = _most.set(seconds)
    try:
        yield
    finally:
        _most.reset(before)
