"""Summary of many filled tables: a line for each paper, and the number of claims by verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retable.platform.report.html import Paper, in_order, papers_of
from retable.platform.report.render import SMOKE, counts, measured, number
from retable.platform.report.results import FilledTable
from retable.platform.text import plural


@dataclass(frozen=True)
class Line:
    """One paper: what was filled here, and the number to look at first."""

    paper: str
    filled: str
    about: str = ""
    here: str = "–"
    small: str = "–"
    published: str = "–"


def lines(own: Sequence[FilledTable], shipped: Sequence[FilledTable] = ()) -> list[Line]:
    """Return a line for each paper of tables that were filled here; `shipped`: those that come along, beside them."""
    return [_line(paper, shipped) for paper in papers_of(in_order(own))]


def _line(paper: Paper, shipped: Sequence[FilledTable]) -> Line:
    own = paper.parts
    rows = sum(bool(row.replicates) for part in own for row in part.rows)
    filled = f"{plural(rows, 'row')} of {plural(sum(part.filled for part in own), 'table')}"
    key = next((part.key_number for part in own if part.key_number), None)
    if key is None:
        return Line(paper.name, filled)
    found = {"published": "–"}
    for place, parts in (("small", shipped), ("here", own)):
        for part in parts:
            if part.key_number == key and key.row in {row.label for row in part.rows}:
                form = next(column.format for column in part.columns if column.header == key.column)
                cell = part.cell(key.row, key.column)
                found |= {place: measured(cell, form), "published": number(cell.published, form)}
    return Line(paper.name, filled, key.about, **found)


def verdicts(parts: Sequence[FilledTable]) -> list[str]:
    """Return how many of the papers' claims, and of ours, have each verdict; the smoke scale judges none."""
    papers = papers_of(in_order([part for part in parts if part.scale != SMOKE]))
    claims = [claim for paper in papers for section in paper.sections for claim, _ in section.claims]
    found = []
    for whose, ours in (("of the papers:", False), ("ours:", True)):
        words = [f"{count} {status}" for status, count in counts([c for c in claims if c.ours is ours]).items()]
        found += [f"{whose} {', '.join(words)}"] if words else []
    return found
