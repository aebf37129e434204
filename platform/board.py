"""Live progress: a table that redraws in a terminal, one line an event in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress import Progress
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 160)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar while the block runs; the function given to it takes the work so far and in all."""
    if not console.is_terminal:
        console.print(title)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        job = bar.add_task(title, total=None)

        def advance(done: int, total: int) -> None:
            """Move the bar."""
            bar.update(job, completed=done, total=total)

        yield advance


def show_defects(checked: Iterable[tuple[object, Sequence[str]]]) -> None:
    """Print what is wrong with each thing that was checked, a line each, or that it is fine.

    Raises:
        typer.Exit: with status 1 where anything is wrong.
    """
    bad = False
    for name, defects in checked:
        bad |= bool(defects)
        for line in defects or [f"{name}: fine"]:
            console.print(line, markup=False)
    if bad:
        raise typer.Exit(1)


@dataclass
class Board:
    """What runs, what is done, what failed, and how long the rest will take."""

    title: str
    total: int
    """Pieces of work in all."""
    weight: float = 0.0
    """Their cost in all, in any unit."""
    finished: int = 0
    finished_weight: float = 0.0
    running: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    live: Live | None = None

    @contextmanager
    def show(self) -> Iterator[Board]:
        """Draw the board while the block runs."""
        self.started = time.monotonic()
        if not self.total:
            yield self
        elif console.is_terminal:
            with Live(get_renderable=self._draw, console=console, refresh_per_second=4, transient=True) as self.live:
                yield self
            self.live = None
        else:
            console.print(f"{self.title}: {self.total} to do")
            yield self
        if self.total:
            failed = f", {len(self.failures)} failed" if self.failures else ""
            console.print(f"{self.title}: {self.finished} done{failed} in {clock(time.monotonic() - self.started)}")
            for name, why in self.failures.items():
                errors.print(f"failed: {name}: {why}", markup=False)

    def start(self, name: str) -> None:
        """Note that a piece of work is running."""
        self.running[name] = ""

    def update(self, name: str, text: str) -> None:
        """Note how far a piece of work is."""
        self.running[name] = text

    def done(self, name: str, weight: float = 1.0) -> None:
        """Note that a piece of work is done."""
        self.running.pop(name, None)
        self.finished += 1
        self.finished_weight += weight
        self._line(f"done {self.finished}/{self.total}: {name}{self._eta()}")

    def fail(self, name: str, why: str) -> None:
        """Note that a piece of work failed, and why."""
        self.running.pop(name, None)
        self.failures[name] = why
        self._line(f"failed: {name}: {why}")

    def _line(self, text: str) -> None:
        if self.live is None:
            console.print(f"{self.title}: {text}", markup=False)

    def _eta(self) -> str:
        share = self.finished_weight / self.weight if self.weight else self.finished / max(self.total, 1)
        if not 0 < share < 1:
            return ""
        return f", about {clock((time.monotonic() - self.started) * (1 - share) / share)} left"

    def _draw(self) -> Group:
        head = f"{self.title}  {self.finished}/{self.total} done, {len(self.running)} running"
        head += f", {len(self.failures)} failed" if self.failures else ""
        table = Table.grid(padding=(0, 2))
        for name, text in list(self.running.items())[:8]:
            table.add_row(Text(" ", style="cyan"), Text(name), Text(text, style="dim"))
        bar = ProgressBar(total=max(self.total, 1), completed=self.finished, width=48)
        elapsed = clock(time.monotonic() - self.started)
        return Group(Text(head, style="bold"), bar, Text(f"{elapsed} so far{self._eta()}", style="dim"), table)


def clock(seconds: float) -> str:
    """Write a time as people say it: `42 s`, `3 min 05 s`, `2 h 10 min`, `93 days`."""
    seconds = max(0, round(seconds))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    if seconds < 48 * 3600:
        return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
    return f"{seconds / 86400:.1f} days"
