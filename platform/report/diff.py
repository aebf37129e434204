"""Two reports side by side: which cells changed, by how much, and which verdicts turned."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from retable.platform.config import set_line
from retable.platform.errors import UserError, redact
from retable.platform.report.html import environment
from retable.platform.report.papers import in_order
from retable.platform.report.render import number
from retable.platform.report.results import Cell, FilledTable, slug_of
from retable.platform.store.storage import Storage


@dataclass(frozen=True)
class Change:
    """A cell that changed."""

    table: str
    row: str
    column: str
    before: float | None
    after: float | None
    format: str
    spread: float | None
    """The larger of the two standard deviations between replicates; None where there is none."""

    @property
    def difference(self) -> float | None:
        """After minus before, where there are both."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def beyond_spread(self) -> bool:
        """Whether the change exceeds the spread of the replicates."""
        return self.difference is not None and (self.spread is None or abs(self.difference) > self.spread)

    def __str__(self) -> str:
        words = f"{number(self.before, self.format)} -> {number(self.after, self.format)}"
        signed = f" ({number(self.difference, '+' + self.format)})" if self.difference is not None else ""
        return f"{self.table}: {self.row}, {self.column}: {words}{signed}"


@dataclass(frozen=True)
class Turn:
    """A claim whose verdict changed."""

    table: str
    claim: str
    before: str
    after: str
    because: str

    def __str__(self) -> str:
        return f"{self.table}: {self.claim} {self.before} -> {self.after} ({self.because})"


@dataclass(frozen=True)
class Comparison:
    """The differences of two reports."""

    changes: Sequence[Change]
    turns: Sequence[Turn]
    same: int
    """Cells that are what they were."""
    only_before: Sequence[str]
    """Sections that are only in the other report."""
    only_after: Sequence[str]

    def lines(self) -> Iterator[str]:
        """Return the differences, a line each."""
        yield f"{len(self.changes)} cells changed, {self.same} did not; {len(self.turns)} verdicts turned"
        yield from map(str, self.turns)
        yield from map(str, self.changes)
        yield from (f"only in the other: {name}" for name in self.only_before)
        yield from (f"only here: {name}" for name in self.only_after)


def report_tables(where: Storage) -> list[FilledTable]:
    """Return the tables of a report, as they were filled: of a storage, or of a report's own folder.

    Of a storage, sections whose request was removed are left out: their files stay in the report's folder.

    Raises:
        UserError: where there is no report, or only one of an older version.
    """
    folder = where / "report" if where.folders("report") or where.exists("report/index.html") else where
    storages = [where, *(where / f"measured/{name}" for name in where.list("measured"))]
    asked = {name for storage in storages for name in storage.list("tables")}
    tables = []
    for name in folder.list(""):
        if name.endswith(".json") and (folder is where or name in asked):
            try:
                tables.append(FilledTable.of_json(json.loads(folder.read(name))["table"]))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
    if not tables:
        raise UserError(
            f"{where}: no report is here that can be compared; `retable report --storage {where}` writes it"
        )
    return in_order(tables)


def changes(after: Sequence[FilledTable], before: Sequence[FilledTable]) -> Comparison:
    """Compare two reports: tables of one name, scale and `--set` options, by the labels of rows and columns."""
    new, old = ({slug_of(part): part for part in parts} for parts in (after, before))
    both = [(new[slug], old[slug]) for slug in new if slug in old]
    every = [cell for pair in both for cell in _cells(*pair)]
    changed = [cell for cell in every if _differ(cell.before, cell.after)]
    turns = [turn for pair in both for turn in _turns(*pair)]
    same = len(every) - len(changed)
    return Comparison(changed, turns, same, sorted(old.keys() - new), sorted(new.keys() - old))


def _differ(before: float | None, after: float | None) -> bool:
    """Return whether two cells differ; two that are no number do not."""
    return before != after and not (before != before and after != after)


def _cells(after: FilledTable, before: FilledTable) -> Iterator[Change]:
    """Yield every cell that either table has."""
    headers = dict.fromkeys(column.header for part in (after, before) for column in part.columns)
    labels = dict.fromkeys(row.label for part in (after, before) for row in part.rows)
    forms = {column.header: column.format for part in (before, after) for column in part.columns}
    for label, header in itertools.product(labels, headers):
        was, now = (part.by_label.get((label, header), Cell(())) for part in (before, after))
        spreads = [cell.deviation for cell in (was, now) if cell.deviation is not None]
        if was.measured or now.measured:
            yield Change(_name(after), label, header, was.mean, now.mean, forms[header], max(spreads, default=None))


def _turns(after: FilledTable, before: FilledTable) -> Iterator[Turn]:
    """Yield each claim of both tables that is judged differently."""
    old = {claim.text: claim.status for claim in before.claims}
    for claim in after.claims:
        if claim.text in old and old[claim.text] != claim.status:
            yield Turn(_name(after), claim.text, old[claim.text], claim.status, claim.because)


def _name(part: FilledTable) -> str:
    rows = (f"--rows {shlex.quote(pattern)}" for pattern in part.chosen)
    return " ".join(filter(None, (part.name, f"[{part.scale}]", set_line(part.changes), *rows)))


def write_comparison(comparison: Comparison, here: str, other: str, into: Storage) -> None:
    """Write a comparison as `compare.html` beside a report."""
    page = environment().get_template("compare.html.j2")
    css = environment().get_template("report.css").render()
    into.write(
        "compare.html", page.render(found=comparison, here=redact(here), other=redact(other), css=css, number=number)
    )
