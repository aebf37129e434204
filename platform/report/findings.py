"""Findings: sentences about a paper, written by hand in `results/findings.md` of its task, beside the bundle.

Each number links to its cell: `[0.144](<rl/table1 | SNIP 95 % | Actor>)`. A test compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from retable.platform.report.render import number
from retable.platform.report.results import FilledTable
from retable.platform.spec.task import folder, names

CITED = re.compile(r"\[([^\]]+)\]\(<([^|>]+) \| ([^|>]+) \| ([^>]+)>\)")


@dataclass(frozen=True)
class Cited:
    """A number of a sentence, and the cell that it is from."""

    text: str
    table: str
    row: str
    column: str


def findings(task: str) -> list[str | Cited]:
    """Return a task's findings as text and cited numbers, in order; nothing where it has none, or is not installed."""
    if task not in names() or not (file := folder(task) / "results" / "findings.md").is_file():
        return []
    pieces = CITED.split(" ".join(file.read_text().split()))  # text, the four groups of a number, text, ...
    found: list[str | Cited] = [pieces[0]]
    for start in range(1, len(pieces), 5):
        found += [Cited(*pieces[start : start + 4]), pieces[start + 4]]
    return found


def as_text(pieces: Iterable[str | Cited]) -> str:
    """Return findings as plain text."""
    return "".join(piece if isinstance(piece, str) else piece.text for piece in pieces)


def wrong(pieces: Iterable[str | Cited], parts: Sequence[FilledTable]) -> list[str]:
    """Return a line for each cited number that differs from its cell, or whose cell is not in these tables."""
    lines = []
    for cited in pieces:
        if isinstance(cited, str):
            continue
        cells = [
            number(part.cell(cited.row, cited.column).mean, column.format)
            for part in parts
            if part.name == cited.table and any(row.label == cited.row for row in part.rows)
            for column in part.columns
            if column.header == cited.column
        ]
        if cited.text not in cells:
            where = f"{cited.table} | {cited.row} | {cited.column}"
            lines.append(f"{cited.text}: {where} says {', '.join(cells) or 'nothing'}")
    return lines
