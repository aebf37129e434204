"""What a search found, for people: lines, and a page whose players begin where the hit is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from retable.platform.store.storage import Storage
from retable.tasks.audio.search.null import verdict
from retable.tasks.audio.search.search import Hit, Index


def lines(hits: Sequence[Hit]) -> list[str]:
    """Return a line for each hit: score, the second at which it begins, file; and one for each other place of it."""
    found = []
    for hit in hits:
        found.append(f"{hit.score:6.3f}  {clock(hit.offset):>9}  {hit.file}")
        found += [f"{'also':>17}  {other}" for other in hit.also]
    return found


def told(index: Index, hits: Sequence[Hit], p: float | None, words: bool = True) -> str:
    """Say how much a query's hits are to be trusted; empty where they are.

    Args:
        index: which was searched.
        hits: best first.
        p: of `search.p_value`.
        words: whether the query was words alone; what sounds like a recording is not judged.
    """
    if not (words and hits):
        return ""
    if p is None:
        again = f"retable audio index {index.folder} --out {index.out}"
        return f"how unusual this is, an index of before does not say; bring it up to date: {again}"
    best = f"{hits[0].file}, {hits[0].score:.3f}"
    if verdict(p) == "nothing":
        return f"nothing here sounds like that (best: {best}; words at random find as much in {p:.0%} of cases)"
    return f"doubtful: words at random find as much in {p:.0%} of cases" if verdict(p) == "doubtful" else ""


def judged(hits: Sequence[Hit], p: float | None) -> dict[str, object]:
    """Return what programs are told: `p`, `verdict` (found, doubtful, nothing; null where it is not known)."""
    return {"p": None if p is None else round(p, 4), "verdict": verdict(p) if hits and p is not None else None}


def clock(seconds: float) -> str:
    """Write a second as a player shows it, to the tenth where it is no whole one: `0:00`, `12:30.4`, `1:02:05`."""
    whole, tenth = divmod(round(10 * seconds), 10)
    minutes, rest = divmod(whole, 60)
    shown = f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
    return f"{shown}.{tenth}" if tenth else shown


def write_page(
    path: Path, index: Index, words: str, like: Path | None, hits: Sequence[Hit], said: str = "", shown: bool = True
) -> None:
    """Write a static page with a player for each hit; recordings are named relative to it, and stay where they are.

    Args:
        path: of the page.
        index: which was searched.
        words: that were searched for.
        like: the recording that was searched for.
        hits: best first.
        said: of `told`.
        shown: whether the hits are seen at once; else behind a button.

    Raises:
        UserError: where it cannot be written.
    """
    from jinja2 import Environment, FileSystemLoader

    from retable.platform.report.html import FOLDER

    beside = path.absolute().parent

    def address(file: str) -> str:
        return quote(Path(os.path.relpath(index.folder / file, beside)).as_posix())

    place = FileSystemLoader([Path(__file__).parent, FOLDER])
    template = Environment(loader=place, autoescape=True, trim_blocks=True, lstrip_blocks=True).get_template(
        "hits.html.j2"
    )
    query = " and ".join(part for part in (words, f"like {like.name}" if like else "") if part)
    page = template.render(
        css=(FOLDER / "report.css").read_text(),
        query=query,
        words=words,
        index=index.out.name,
        recordings=index.info["recordings"],
        segment=index.info["segment"],
        hits=hits,
        said=said,
        shown=shown,
        clock=clock,
        address=address,
    )
    Storage.open(beside).write(path.name, page)
