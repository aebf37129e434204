"""Hits of a search, for people: lines, and a page whose players begin where the hit is."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.tasks.audio.tools.search.null import verdict
from retable.tasks.audio.tools.search.search import Hit, Index

UCS = re.compile(r"(?P<category>[A-Z]{2,}[a-z][A-Za-z]*)(?:-[^_]*)?_(?P<name>[^_]+)_[^_]+_[^_]+")
"""A file name of the Universal Category System without its suffix: category, name, creator, source.

A category is capitals and a capitalised word, as in DOORWood; those of cameras (IMG, VID) are capitals alone.
"""
SHOWN, COLUMNS = 10.0, 100
"""Seconds of a recording that a page draws around a hit, at most, and columns of the drawing."""


def lines(hits: Sequence[Hit]) -> list[str]:
    """Return a line for each hit: score, the second at which it begins, file; and one for each other place of it."""
    listing = []
    for hit in hits:
        label = f"  [{', '.join(tags(hit.file))}]" if tags(hit.file) else ""
        listing.append(f"{hit.score:6.3f}  {clock(hit.offset):>9}  {hit.file}{label}")
        listing += [f"{'also':>17}  {other}" for other in hit.also]
    return listing


def tags(file: str) -> tuple[str, ...]:
    """Return category and name of a file that is named by the Universal Category System; none of another one."""
    match = UCS.match(Path(file).stem)
    return (match["category"], match["name"].strip()) if match else ()


def told(index: Index, hits: Sequence[Hit], p: float | None, words: bool = True) -> str:
    """Return a note on how much a query's hits are to be trusted; empty where they are. Hits are shown in any case.

    Args:
        index: which was searched.
        hits: best first.
        p: of `search.p_value`.
        words: whether the query was one text alone; what sounds like a recording, or avoids words, is not judged.
    """
    if not (words and hits):
        return ""
    if p is None:
        again = f"retable audio index {index.folder} --out {index.out}"
        return f"how unusual this is, an index of before does not say; bring it up to date: {again}"
    return "" if verdict(p) == "found" else f"perhaps not here: words at random find as much in {p:.0%} of cases"


def judged(hits: Sequence[Hit], p: float | None) -> dict[str, object]:
    """Return what programs are told: `p`, `verdict` (found, doubtful; null where it is not known)."""
    return {"p": None if p is None else round(p, 4), "verdict": verdict(p) if hits and p is not None else None}


def to_json(index: Index, words: str, like: Path | None, hits: Sequence[Hit], p: float | None) -> str:
    """Return a search and its hits as JSON."""
    result = {"words": words, "like": str(like or ""), "folder": str(index.folder), **judged(hits, p)}
    result["hits"] = [{**vars(hit), "tags": tags(hit.file)} for hit in hits]
    return json.dumps(result, ensure_ascii=False, indent=2)


def clock(seconds: float) -> str:
    """Write a second as a player shows it, to the tenth where it is no whole one: `0:00`, `12:30.4`, `1:02:05`."""
    total, tenth = divmod(round(10 * seconds), 10)
    minutes, rest = divmod(total, 60)
    shown = f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
    return f"{shown}.{tenth}" if tenth else shown


def waveform(path: Path, offset: float, segment: float) -> str:
    """Return the seconds around a hit as the path of an SVG of 100 x 20, the hit's segment as its rectangle's x, width.

    Empty where the recording cannot be read: a page is written all the same.
    """
    from retable.tasks.audio.collect.files import decode
    from retable.tasks.audio.config import SAMPLE_RATE

    start = max(0.0, offset - max(0.0, SHOWN - segment) / 2)
    try:
        wave = np.abs(decode(path, start, max(SHOWN, segment)))
    except UserError:
        return ""
    peaks = [float(part.max(initial=0)) for part in np.array_split(wave, COLUMNS)]
    top = max(*peaks, 1e-9)
    bars = "".join(f"M{n} {10 - 9 * peak / top:.1f}V{10 + 9 * peak / top:.1f}" for n, peak in enumerate(peaks))
    scale = COLUMNS * SAMPLE_RATE / max(len(wave), 1)
    left, width = (offset - start) * scale, min(segment * scale, COLUMNS)
    return f'<rect x="{left:.1f}" width="{width:.1f}" height="20"/><path d="{bars}"/>'


def write_page(path: Path, index: Index, words: str, like: Path | None, hits: Sequence[Hit], note: str = "") -> None:
    """Write a static page with a player for each hit; recordings are named relative to it, and stay where they are.

    Args:
        path: of the page.
        index: which was searched.
        words: that were searched for.
        like: the recording that was searched for.
        hits: best first.
        note: of `told`.

    Raises:
        UserError: where it cannot be written.
    """
    from retable.platform.report.html import FOLDER, environment

    beside = path.absolute().parent

    def address(file: str) -> str:
        return quote(Path(os.path.relpath(index.folder / file, beside)).as_posix())

    template = environment(Path(__file__).parent).get_template("hits.html.j2")
    query = " and ".join(part for part in (words, f"like {like.name}" if like else "") if part)
    page = template.render(
        css=(FOLDER / "report.css").read_text(),
        query=query,
        words=words,
        index=index.out.name,
        recordings=index.info["recordings"],
        segment=index.info["segment"],
        hits=hits,
        said=note,
        clock=clock,
        address=address,
        tags=tags,
        drawn=lambda hit: waveform(index.folder / hit.file, hit.offset, float(index.info["segment"])),
        place=lambda file: str(index.folder / file),
    )
    Storage.open(beside).write(path.name, page)
