"""Numbers, times, lists and foreign text as people read and write them."""

from __future__ import annotations

import re
import time
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

from retable.platform.errors import UserError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, both in their order."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def seconds_of(text: str, option: str) -> float:
    """Return the seconds in a text such as `2h`, `90m`, `1h30m` or `45s`.

    Raises:
        UserError: naming the option, where it is no such text, or no time at all.
    """
    match = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text.replace(" ", ""))
    total = (
        sum(int(amount or 0) * unit for amount, unit in zip(match.groups(), (86400, 3600, 60, 1), strict=True))
        if match
        else 0
    )
    if not total:
        raise UserError(f"{option} {text}: write a time such as 2h, 90m, 1h30m or 45s")
    return float(total)


def clock(seconds: float) -> str:
    """Write a time as people say it: `42 s`, `3 min 05 s`, `2 h 10 min`, `93 days`."""
    seconds = max(0, round(seconds))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    if seconds < 48 * 3600:
        return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
    return f"{seconds / 86400:.1f} days"


def is_number(value: object) -> bool:
    """Return whether a value of JSON is a number, NaN and infinities too."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def plural(number: int, noun: str) -> str:
    """Return a number and its noun."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def and_more(words: Sequence[str], most: int, separator: str = ", ") -> str:
    """Join the first words, and say how many there are beyond `most`."""
    return separator.join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def size(amount: float) -> str:
    """Write bytes as people read them: `4.2 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 999.5:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 99.95 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def cut(text: str, most: int) -> str:
    """Return a text, cut where it is longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def plain(text: object, most: int = 200) -> str:
    """Return foreign text as one line without control characters, cut where long."""
    shown = " ".join(str(text).split())
    return cut("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in shown), most)


def age(moment: float) -> str:
    """Write how long ago something was."""
    return clock(time.time() - moment) if moment else ""
