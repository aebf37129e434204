"""Papers: the filled tables of each in order, as sections, and a line a paper that sums many tables up."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retable.platform.report import render as forms
from retable.platform.report.results import FilledClaim, FilledRow, FilledTable, slug_of
from retable.platform.spec import task as tasks
from retable.platform.spec.claims import NOT_JUDGED, UNTESTED, Status
from retable.platform.text import plural

PAPERS = ("weather", "style", "audio", "rl")
"""In this order; tasks of others come after them."""
SCALES = tuple(reversed(tasks.SCALES))
PUBLISHED = re.compile(r"(table|figure)(\d+)")
"""Pattern of the names of a paper's own tables and figures."""
SILENT = (UNTESTED, NOT_JUDGED)
"""Verdicts that say nothing."""


@dataclass(frozen=True)
class Section:
    """A table or figure as the page shows it: at one scale, and beside that at a smaller one."""

    part: FilledTable
    here: FilledTable | None = None
    """The same at a smaller scale: `quick` where `part` came along, measured at `small`."""

    @property
    def claims(self) -> list[tuple[FilledClaim, str]]:
        """The claims, each with its scale: judged at the larger one, at the smaller where it is tested there alone."""
        smaller = {claim.text: claim for claim in self.here.claims} if self.here else {}
        pairs = []
        for claim in forms.in_order(self.part.claims):
            other = smaller.get(claim.text)
            turned = other is not None and claim.status in SILENT and other.status not in SILENT
            pairs.append((other, self.here.scale) if turned and other and self.here else (claim, self.part.scale))
        return pairs

    def split(self, index: int) -> list[str]:
        """Return what a column is split into: `here` where there is a smaller scale, then as `render.parts_of`."""
        subcolumns = forms.parts_of(self.part, index)
        return ["here", *subcolumns] if self.here else subcolumns

    def title(self, what: str) -> str:
        """Return the header of one part of a column."""
        if what == "here" and self.here:
            return self.here.scale
        return {"measured": self.part.scale if self.here else "here", "published": "paper", "difference": "Δ"}[what]

    def row_here(self, label: str) -> tuple[int, FilledRow] | None:
        """Return the row of the smaller scale and its place, where it has results."""
        rows = enumerate(self.here.rows if self.here else ())
        return next(((index, row) for index, row in rows if row.label == label and row.replicates), None)


@dataclass(frozen=True)
class Paper:
    """A task, and the sections that were filled of it."""

    name: str
    parts: Sequence[FilledTable]

    @property
    def sections(self) -> list[Section]:
        """The parts, those of one table at two scales joined."""
        return join(self.parts)

    @property
    def anchors(self) -> dict[str, str]:
        """The anchor of each table on the page."""
        return {section.part.name: slug_of(section.part) for section in reversed(self.sections)}

    @property
    def headline(self) -> FilledTable:
        """The section that stands for the paper, where it has results; at the largest scale."""
        return min(self.parts, key=self._rank)

    @staticmethod
    def _rank(part: FilledTable) -> tuple[bool, bool, bool, int]:
        return not part.shown, part.scale == tasks.SMOKE, not part.telling, rank(part.scale)

    @property
    def scales(self) -> list[str]:
        """The scales at which anything is filled, the largest first."""
        return sorted({part.scale for part in self.parts if part.filled}, key=rank)

    @property
    def left_out(self) -> list[FilledTable]:
        """The tables that are left out of every scale that was asked for."""
        shown = {part.name for part in self.parts if not part.left_out}
        return list({part.name: part for part in self.parts if part.name not in shown}.values())

    @property
    def results(self) -> list[FilledTable]:
        """The sections with meaningful numbers; all, if none has."""
        return [part for part in self.parts if part.scale != tasks.SMOKE] or list(self.parts)

    @property
    def counts(self) -> Mapping[Status, int]:
        """Number of claims by verdict."""
        return forms.counts([claim for section in join(self.results) for claim, _ in section.claims])

    @property
    def data(self) -> list[str]:
        """The datasets, each once."""
        return list(dict.fromkeys(text for part in self.results for text in part.data))

    @property
    def full(self) -> dict[str, float]:
        """The cost of all tables at the published setting; runs that tables share count for each."""
        counted: Counter[str] = Counter()
        for part in {part.name: part for part in self.parts}.values():
            counted.update({key: int(value) for key, value in part.full.items()})
        return dict(counted)


def join(parts: Sequence[FilledTable]) -> list[Section]:
    """Return parts as sections: a table that is filled at two scales, neither of them `smoke`, is one.

    Parts are in order, so that the largest scale of a table comes first; it takes the smallest one beside it.
    """
    groups: dict[str, list[FilledTable]] = {}
    for part in parts:
        plain = part.filled and part.scale != tasks.SMOKE and not part.changes and not part.chosen
        groups.setdefault(part.name if plain else slug_of(part), []).append(part)
    sections = []
    for first, *others in groups.values():
        sections += [Section(first, others.pop() if others else None), *map(Section, others)]
    return sections


def rank(scale: str) -> int:
    """Return the place of a scale, the largest first."""
    return SCALES.index(scale) if scale in SCALES else len(SCALES)


def in_order(parts: Sequence[FilledTable]) -> list[FilledTable]:
    """Return sections by paper: its own tables and figures before ours; large scales first, changed ones last."""

    def key(part: FilledTable) -> tuple[object, ...]:
        task, _, name = part.name.partition("/")
        own = PUBLISHED.fullmatch(name)
        paper = PAPERS.index(task) if task in PAPERS else len(PAPERS)
        position = (own[1] == "figure", int(own[2]), "") if own else (True, 0, name)
        changes = bool(part.changes), json.dumps(dict(part.changes), default=str)
        return paper, task, own is None, position, rank(part.scale), *changes

    return sorted(parts, key=key)


def papers_of(parts: Sequence[FilledTable]) -> list[Paper]:
    """Return sections (in order) by paper."""
    names = dict.fromkeys(part.name.partition("/")[0] for part in parts)
    return [Paper(name, [part for part in parts if part.name.startswith(f"{name}/")]) for name in names]


@dataclass(frozen=True)
class Line:
    """One paper: what was filled here, and the number to look at first."""

    paper: str
    filled: str
    about: str = ""
    here: str = "–"
    small: str = "–"
    published: str = "–"


def summary_lines(own: Sequence[FilledTable], shipped: Sequence[FilledTable] = ()) -> list[Line]:
    """Return a line for each paper of tables that were filled here; `shipped`: those that come along, beside them."""
    return [_line(paper, shipped) for paper in papers_of(in_order(own))]


def _line(paper: Paper, shipped: Sequence[FilledTable]) -> Line:
    own = paper.parts
    rows = sum(bool(row.replicates) for part in own for row in part.rows)
    filled = f"{plural(rows, 'row')} of {plural(sum(part.filled for part in own), 'table')}"
    key = next((part.key_number for part in own if part.key_number), None)
    if key is None:
        return Line(paper.name, filled)
    numbers = {"published": "–"}
    for field, parts in (("small", shipped), ("here", own)):
        for part in parts:
            form = next((column.format for column in part.columns if column.header == key.column), None)
            if part.key_number == key and key.row in {row.label for row in part.rows} and form is not None:
                cell = part.cell(key.row, key.column)
                numbers |= {field: forms.measured(cell, form), "published": forms.number(cell.published, form)}
    return Line(paper.name, filled, key.about, **numbers)


def verdict_lines(parts: Sequence[FilledTable]) -> list[str]:
    """Return how many of the papers' claims, and of ours, have each verdict; the smoke scale judges none."""
    papers = papers_of(in_order([part for part in parts if part.scale != tasks.SMOKE]))
    claims = [claim for paper in papers for section in paper.sections for claim, _ in section.claims]
    lines = []
    for whose, ours in (("of the papers:", False), ("ours:", True)):
        words = [f"{count} {status}" for status, count in forms.counts([c for c in claims if c.ours is ours]).items()]
        lines += [f"{whose} {', '.join(words)}"] if words else []
    return lines
