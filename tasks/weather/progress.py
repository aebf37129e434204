"""A progress bar for long work on data; in a pipe, one line that it begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import Progress

from retable.platform.board import console


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar while the block runs; the function given to it takes the work so far and in all."""
    if not console.is_terminal:
        console.print(title)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        job = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(job, completed=done, total=total)
