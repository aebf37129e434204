"""What a search found, for people: lines, and a page whose players begin where the hit is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from retable.platform.storage import Storage
from retable.tasks.audio.search.search import Hit, Index


def lines(hits: Sequence[Hit]) -> list[str]:
    """Return a line for each hit: score, the second at which it begins, file; and one for each other place of it."""
    found = []
    for hit in hits:
        found.append(f"{hit.score:6.3f}  {clock(hit.offset):>8}  {hit.file}")
        found += [f"{'also':>16}  {other}" for other in hit.also]
    return found


def clock(seconds: float) -> str:
    """Write a second as a player shows it: `0:00`, `12:30`, `1:02:05`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def write_page(path: Path, index: Index, words: str, like: Path | None, hits: Sequence[Hit]) -> None:
    """Write a static page with a player for each hit; recordings are named relative to it, and stay where they are.

    Raises:
        UserError: where it cannot be written.
    """
    from jinja2 import Environment, FileSystemLoader

    from retable.platform.page import FOLDER

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
        clock=clock,
        address=address,
    )
    Storage.open(beside).write(path.name, page)
