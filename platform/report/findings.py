"""Findings: two sentences about a paper, written by hand in `results/findings.md` of its task, beside the bundle.

Each number links to its cell, `[0.1437](<rl/table1 | SNIP 95 % | Actor>)`, or to the published value of it,
`[0.1430](<rl/table1 | SNIP 95 % | Actor | published>)`. A test compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from retable.platform.spec.task import folder, names

_CITED = re.compile(r"\[([^\]]+)\]\(<([^|>]+) \| ([^|>]+) \| ([^|>]+?)(?: \| (published))?>\)")


@dataclass(frozen=True)
class Cited:
    """A number of a sentence, and the cell that it is from."""

    text: str
    table: str
    row: str
    column: str
    published: bool = False
    """Whether it is the cell's published value, not the measured one."""


def findings(task: str) -> list[str | Cited]:
    """Return a task's findings as text and cited numbers, in order; nothing where it has none, or is not installed."""
    if task not in names() or not (file := folder(task) / "results" / "findings.md").is_file():
        return []
    pieces = _CITED.split(" ".join(file.read_text().split()))  # text, the five groups of a number, text, ...
    fragments: list[str | Cited] = [pieces[0]]
    for start in range(1, len(pieces), 6):
        shown, table, row, column, published, text = pieces[start : start + 6]
        fragments += [Cited(shown, table, row, column, published is not None), text]
    return fragments


def as_text(pieces: Iterable[str | Cited]) -> str:
    """Return findings as plain text."""
    return "".join(piece if isinstance(piece, str) else piece.text for piece in pieces)
