"""The report's page: papers first, then their own tables and figures in order, then ours.

What stands here is what the template needs and a filled table does not say by itself. Pictures lie beside the page;
what a click on a number shows (`details.js`) is read at the first click.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from retable.platform.commit import code_root
from retable.platform.errors import redact
from retable.platform.report import render as forms
from retable.platform.report.findings import findings
from retable.platform.report.papers import PUBLISHED, SILENT, Paper, in_order, papers_of, rank
from retable.platform.report.results import FilledRow, FilledTable, slug_of, source_line
from retable.platform.spec.claims import Status
from retable.platform.spec.task import SMOKE
from retable.platform.store.storage import Record, Storage
from retable.platform.text import and_more, clock

if TYPE_CHECKING:
    from jinja2 import Environment

_BARS = 5
"""Rows on a paper's card."""
FOLD = 15
"""Rows of a table that are seen at first."""
_DENSITY = 1.3
"""Pixels of a figure's PNG for each of the page's."""


def own(part: FilledTable) -> bool:
    """Return whether a table or figure is the paper's own."""
    return PUBLISHED.fullmatch(part.name.partition("/")[2]) is not None


def short(part: FilledTable) -> str:
    """Return the link text of a section: `Table 1`, `formats`."""
    name = part.name.partition("/")[2]
    return PUBLISHED.sub(r"\1 \2", name).capitalize() if own(part) else name


def bars(part: FilledTable) -> list[dict[str, object]]:
    """Return the largest numbers of a table's first column, as shares of the largest, and those published of them.

    Published numbers of other data or another setting are left out.
    """
    if not part.columns:
        return []
    rows = [row for row in part.rows if row.cells[0].mean is not None and row.cells[0].mean > 0]
    rows = sorted(rows, key=lambda row: -(row.cells[0].mean or 0))[:_BARS]
    shown = [(row.cells[0].mean, row.cells[0].published if row.cells[0].comparable else None) for row in rows]
    most = max([number for pair in shown for number in pair if number], default=1)
    return [
        {
            "label": row.label,
            "text": format(mean, part.columns[0].format),
            "share": 100 * (mean or 0) / most,
            "published": 100 * published / most if published else None,
        }
        for row, (mean, published) in zip(rows, shown, strict=True)
    ]


def best(part: FilledTable, index: int) -> float | None:
    """Return the best mean of a column, if the column says which numbers are better; none at the smoke scale."""
    better = part.columns[index].better
    if part.scale == SMOKE or better is None:
        return None
    means = [mean for row in part.rows if (mean := row.cells[index].mean) is not None and math.isfinite(mean)]
    return (max if better == "higher" else min)(means, default=None)


def alt(part: FilledTable) -> str:
    """Return a figure's description in words."""
    filled = [row.label for row in part.rows if row.replicates]
    axes = "".join(f", over {axis} {', '.join(map(str, values))}" for axis, values in part.axes.items())
    return f"{part.title}: {and_more(filled, 6, '; ')}{axes}"


DAY = 86400
"""Seconds."""


def glance(parts: Sequence[FilledTable], papers: Sequence[Paper]) -> list[tuple[str, str, str]]:
    """Return, of what was run here and of a full replication: scope, data, hardware, time and outcome."""
    own = [part for part in parts if not forms.sent(part)]
    runs = runs_of(own)
    rows = sum(len(part.rows) for part in {part.name: part for part in parts}.values())
    filled = sum(bool(row.replicates) for part in own for row in part.rows)
    seconds = sum(float(run.get("usage", {}).get("seconds", 0)) for run in runs.values())
    devices = Counter(str(run["provenance"].get("device", "unknown")) for run in runs.values())
    trainings = sum(paper.full.get("trainings", 0) for paper in papers)
    full = sum(paper.full.get("core_seconds", 0) for paper in papers)
    counts = (total(papers_of(in_order(some))) for some in (own, [part for part in parts if forms.sent(part)]))
    outcome, came = (", ".join(f"{status}: {count}" for status, count in some.items()) for some in counts)
    scales = ", ".join(sorted({part.scale for part in own}, key=rank))
    return [
        ("scope", f"{filled} rows of {sum(part.filled for part in own)} tables and figures, {len(runs):,} runs behind "
         f"them; scale {scales}",
         f"{rows} rows, {trainings:,.0f} trainings (those that tables share count for each)"),
        ("hardware", "; ".join(f"{name} ({count} runs)" for name, count in devices.most_common(3)) or "–",
         "GPUs: retable plan --scale paper --cluster FILE says nodes and money" if full > DAY else "a laptop"),
        ("time", f"{clock(seconds)} of training" if seconds else "–",
         f"{full / DAY:,.0f} days of one core, roughly" if full > 2 * DAY else f"{clock(full)} of one core, roughly"),
        ("outcome", outcome or "the smoke scale judges no claim", "the papers' own numbers, beside ours"),
        *([("run elsewhere", f"{came}; shown beside what was run here", "–")] if came else []),
    ]  # fmt: skip


def total(papers: Sequence[Paper]) -> Mapping[Status, int]:
    """Return how many claims of all papers have each verdict; those of the smoke scale have none."""
    counts: Counter[Status] = Counter()
    for paper in papers:
        counts.update({} if paper.scales == [SMOKE] else paper.counts)
    return {status: counts[status] for status in forms.ORDER if counts[status]}


def runs_of(parts: Sequence[FilledTable]) -> dict[str, Record]:
    """Return every run behind a number, by fingerprint."""
    return {name: run for part in parts for name, run in part.runs.items()}


def details(parts: Sequence[FilledTable]) -> dict[str, object]:
    """Return what a click on a number shows, of every row and every run."""
    return {
        "rows": {slug_of(part): [_row_details(row) for row in part.rows] for part in parts},
        "runs": runs_of(parts),
    }


def _row_details(row: FilledRow) -> list[dict[str, object]]:
    """Return the panel contents behind a row's numbers."""
    return [
        {
            "axes": {axis: str(value) for axis, value in replicate.axes.items()},
            "source": source_line(replicate.origin),
            "runs": [member.run for member in replicate.origin.members] or [replicate.origin.run],
            "combined": replicate.origin.run if replicate.origin.members else "",
            "bundle": "; ".join(
                dict.fromkeys(filter(None, map(forms.came, (replicate.origin, *replicate.origin.members))))
            ),
            "view": dict(replicate.origin.view or {}),
            "commands": list(replicate.commands),
            "values": [cell.values[index] for cell in row.cells],
            "diverged": replicate.diverged,
            "epochs": replicate.epochs,
        }
        for index, replicate in enumerate(row.replicates)
    ]


def script(value: object) -> str:
    """Return a value as JSON that may stand in a script of a page: no text in it can end the script."""
    return (
        json.dumps(value, default=str).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    )


class Pictures:
    """The figures of a report: beside the page, or in it."""

    def __init__(self, into: Storage, single: bool) -> None:
        """Of a report's folder; `single`: whether the page holds them itself."""
        self.into, self.single = into, single

    def source(self, part: FilledTable, kind: str = "png") -> str:
        """Return what an `img` reads."""
        name = f"{slug_of(part)}.{kind}"
        if not self.single:
            return name
        return f"data:image/png;base64,{base64.b64encode(self.into.read(name)).decode()}"

    def size(self, part: FilledTable) -> tuple[int, int]:
        """Return a figure's width and height in CSS pixels, so that nothing moves when it has been read."""
        return size_of(self.into.read(f"{slug_of(part)}.png"))


def size_of(png: bytes) -> tuple[int, int]:
    """Return the width and height in CSS pixels of a PNG that `write.pictures` drew."""
    width, height = struct.unpack(">II", png[16:24])
    return round(width / _DENSITY), round(height / _DENSITY)


def render(parts: Sequence[FilledTable], storage: str, into: Storage, single: bool = False) -> tuple[str, str]:
    """Return the page, and the script with the contents of the panels.

    Args:
        parts: filled tables, in order.
        storage: what was reported on, in words.
        into: the report's folder, where the figures are.
        single: whether the page holds figures and details itself.
    """
    papers = papers_of(parts)
    call = f"retable({script(details(parts))});\n"
    page = (
        environment()
        .get_template("report.html.j2")
        .render(
            about=forms.about,
            alt=alt,
            bars=bars,
            best=best,
            clock=clock,
            counts=forms.counts,
            css=(FOLDER / "report.css").read_text(),
            details=call if single else "",
            findings=findings,
            fold=FOLD,
            forms=forms,
            glance=glance(parts, papers),
            js=(FOLDER / "report.js").read_text(),
            meta=meta([part for part in parts if not forms.sent(part)] or parts, storage),
            own=own,
            papers=papers,
            parts=parts,
            pictures=Pictures(into, single),
            short=short,
            silent=SILENT,
            slug=slug_of,
            total=total(papers),
        )
    )
    return page, call


def meta(parts: Sequence[FilledTable], storage: str) -> list[str]:
    """Return when the newest run began, the commits of the runs, and their storage: of a local folder its name."""
    provenances = [run["provenance"] for run in runs_of(parts).values()]
    days = sorted({str(provenance.get("started", ""))[:10] for provenance in provenances} - {""})
    commits = sorted({str(provenance.get("commit", ""))[:7] for provenance in provenances} - {"", "None"})
    words = [" to ".join(dict.fromkeys((days[0], days[-1])))] if days else []
    if commits:
        words.append(f"commit {and_more(commits, 3)}")
    where = redact(storage) if "://" in storage else storage.rstrip("/").rpartition("/")[2]
    return [*words, where, f"{len(provenances):,} runs"]


FOLDER = code_root() / "platform" / "report" / "templates"


@cache
def environment(*folders: Path) -> Environment:
    """Return the Jinja environment of the templates here and in other folders; all text is escaped."""
    from jinja2 import Environment, FileSystemLoader

    loader = FileSystemLoader([*folders, FOLDER])
    return Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
