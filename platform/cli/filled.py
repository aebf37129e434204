"""Filled tables on the terminal: few in full, of many a line a paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table as Grid
from rich.text import Text

from retable.platform.cli.runs import plain
from retable.platform.console import console
from retable.platform.spec.claims import NOT_JUDGED
from retable.platform.spec.task import SMOKE
from retable.platform.store.storage import Storage
from retable.platform.text import and_more, plural

if TYPE_CHECKING:
    from retable.platform.report.results import FilledTable

FEW = 3
"""Tables that are printed in full when they were filled; of more, a summary."""


def print_summary(filled: Mapping[str, FilledTable], storage: Storage) -> None:
    """Print what many tables come to: a line a paper, the verdicts, where the report is, and what to do next."""
    from retable.platform.report.papers import in_order, summary_lines, verdict_lines
    from retable.platform.report.render import sent
    from retable.platform.report.write import shipped_sections

    own = list(filled.values())
    shipped = [part for part in shipped_sections(storage, storage / "report") if part.name in filled]
    scale = own[0].scale
    shown = Grid(box=None, padding=(0, 1))
    for title in ("", "filled here", "a number to look at", scale, *(["small"] if shipped else []), "published"):
        shown.add_column(title, justify="right" if title in (scale, "small", "published") else "left")
    for line in summary_lines(own, shipped):
        small = [line.small] if shipped else []
        shown.add_row(*map(Text, (line.paper, line.filled, line.about, line.here, *small, line.published)))
    console.print()
    console.print(shown)
    if scale == SMOKE:
        say("Smoke scale: this proves the path, its numbers mean nothing.")
    if shipped:
        say("small: measured earlier, shipped with the tasks; the report says when and on which machine")
    here, came = [part for part in own if not sent(part)], [*filter(sent, own), *shipped]
    scales = ", ".join(dict.fromkeys(part.scale for part in came))
    for where, parts in ((f"{scale}, run here", here), (f"{scales}, run elsewhere", came)):
        for words in verdict_lines(parts):
            say(f"claims {words.replace(':', f' ({where}):', 1)}")
    console.print(f"report: {storage}/report/index.html", markup=False)
    console.print("next: retable tables TABLE (one of them here) · retable serve (the models, on a page) · "
                  f"retable reproduce {in_order(own)[0].name} --scale small (more of it)", soft_wrap=True)  # fmt: skip


def print_section(part: FilledTable) -> None:
    """Print a filled table, and the verdicts of a table or figure."""
    from retable.platform.report.render import about, bundled, commits, grid, other_code, remarks

    console.print(f"\n[bold]{part.name}[/]  {escape(part.title)}")
    say(about(part))
    for text in (part.caution, part.apart):
        if text:
            say(text)
    if part.columns:
        header, lines = grid(part)
        shown = Grid(box=None, padding=(0, 1))
        for position, title in enumerate(header):
            shown.add_column(escape(title), justify="right" if position else "left")
        present = [line for line, row in zip(lines, part.rows, strict=True) if row.replicates or not row.absent]
        for line in present:
            shown.add_row(*map(Text, line))
        console.print(shown)
        if count := len(lines) - len(present):
            say(f"{plural(count, 'row')} not at this scale")
    for remark in filter(None, [*bundled(part), commits(part), other_code(part), *remarks(part)]):
        say(remark)
    colours = {"holds": "green", "does not hold": "red", "not separable": "yellow"}
    judged = [claim for claim in part.claims if claim.status != NOT_JUDGED]
    for claim in judged:
        whose = "ours: " if claim.ours else ""
        colour = colours.get(claim.status, "dim")
        verdict = f"  [{colour}]{claim.status}[/]  {escape(whose + claim.text)} [dim]{escape(claim.because)}[/]"
        console.print(verdict, soft_wrap=not console.is_terminal)
    if unjudged := [claim.because for claim in part.claims if claim.status == NOT_JUDGED]:
        say(f"  {plural(len(unjudged), 'claim')} not judged: {and_more(list(dict.fromkeys(unjudged)), 3, '; ')}")


def say(text: str) -> None:
    """Print a remark: broken between words in a terminal, in one line elsewhere."""
    console.print(plain(text), style="dim", markup=False, soft_wrap=not console.is_terminal)
