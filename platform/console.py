"""Live progress: bars in a terminal, one line an event in a pipe."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar, get_type_hints

import typer
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from retable.platform.errors import UserError
from retable.platform.text import clock

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Download without asking.")]
Into = Annotated[
    Path | None, typer.Option("--folder", help="Download folder (default: downloads/TASK of a local storage).")
]
Mirror = Annotated[
    str, typer.Option(help="Address that holds the files below their host and path, e.g. http://mirror.example.")
]
Where = Annotated[
    str,
    typer.Option("--storage", envvar="RETABLE_STORAGE", help="Where data, runs and reports lie: a folder or a URI."),
]
Run = Annotated[str, typer.Argument(help="A run: its first digits, `latest`, or TABLE/ROW.")]
Epoch = Annotated[int, typer.Option(help="A kept epoch; 0 is the last one.", min=0)]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:1 (default: a GPU if there is one).")]
Licence = Annotated[str, typer.Option(help="Terms of use to store in the file.")]
Limit = Annotated[str, typer.Option("--limit", metavar="TIME", help="Stop downloading after this time, e.g. 2h.")]
Replace = Annotated[bool, typer.Option("--replace", help="Replace a data set of that name.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a file that exists.")]
"""Options of the commands of several tasks."""

T = TypeVar("T")
Show = Callable[[int, int], None]
"""Is told how many of how many are done."""
EVERY = 10.0
"""Seconds between two lines of progress where there is no terminal."""
ROWS = 8
"""Most running pieces of work that are shown."""
FIRST = 0.05
"""Share of the work that is done before the rest is guessed at: the first few pieces are no measure of the others."""


def new_console(**options: Any) -> Console:
    """Return a console; where NO_COLOR is set, it writes neither colors nor bold or dim text."""
    system: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return Console(highlight=False, soft_wrap=True, color_system=system, **options)


def spread(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that makes options of a command's parameters that are dataclasses, one of each field.

    Fields named in `without`, or like one of the command's own options, keep their defaults.
    """
    return functools.partial(_spread, without=without)


def _spread(command: Callable[..., None], without: Sequence[str]) -> Callable[..., None]:
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)}
    parameters, owner = [], {}
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        inner = get_type_hints(groups[name], include_extras=True)
        for one in dataclasses.fields(groups[name]):
            if one.name not in (*hints, *without):
                owner[one.name] = name
                how: dict[str, Any] = {"default": one.default, "annotation": inner[one.name]}
                parameters.append(inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, **how))

    @functools.wraps(command)
    def called(**values: Any) -> None:
        rest = {name: value for name, value in values.items() if name not in owner}
        made = {
            group: kind(**{name: values[name] for name, of in owner.items() if of == group})
            for group, kind in groups.items()
        }
        command(**rest, **made)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del called.__wrapped__
    return called


class Advance(Protocol):
    """Moves a bar: the work so far and in all (0: unknown), and what is being done, in place of the bar's title."""

    def __call__(self, done: float, total: int, text: str = "", /) -> None:
        """Move it."""


for _name in ("stdin", "stdout", "stderr"):
    if getattr(sys, _name) is None:  # closed, as some supervisors start a command
        setattr(sys, _name, open(os.devnull, "r" if _name == "stdin" else "w"))
if sys.stdout.isatty():
    console = new_console()
else:  # FORCE_COLOR asks for colours in a pipe, not for lines that are drawn over
    console = new_console(width=160, force_interactive=False)
errors = new_console(stderr=True)


@contextmanager
def quiet(loggers: Iterable[str], level: int) -> Iterator[None]:
    """Silence some loggers below a level inside the block."""
    silenced = [logging.getLogger(name) for name in loggers]
    before = [logger.level for logger in silenced]
    for logger in silenced:
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, own in zip(silenced, before, strict=True):
            logger.setLevel(own)


@contextmanager
def progress_bar(title: str, unit: str = "") -> Iterator[Advance]:
    """Show a bar while the block runs, which the function given to the block moves.

    Args:
        title: what is done; empty: nothing until `advance` says it.
        unit: what is counted, such as `files`: then the bar says how many are done each second, and where there is no
            terminal a line does every `EVERY` seconds.
    """
    if title and not console.is_interactive:
        console.print(title, markup=False)
    rate = [_RateColumn(unit)] if unit else []
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    started = printed = time.monotonic()
    with Progress(*columns, *rate, console=console, transient=True, disable=not console.is_interactive) as bar:
        job = bar.add_task(title, total=None)

        def advance(done: float, total: int, text: str = "", /) -> None:
            nonlocal printed
            bar.update(job, completed=done, total=total or None, description=text or title)
            now = time.monotonic()
            if unit and bar.disable and now - printed >= EVERY:
                printed, speed = now, max(done, 1) / max(now - started, 1e-9)
                left = f", about {clock((total - done) / speed)} left" if total else ""
                line = f"{text or title}: {done:.0f}/{total or '?'} {unit}, {speed:.1f} {unit}/s{left}"
                console.print(line, markup=False)

        yield advance


def items(option: str, text: str, kind: Callable[[str], T], noun: str = "number", example: str = "1,2") -> list[T]:
    """Read a list with commas between its items.

    Args:
        option: what the list is of, for errors.
        text: the list; "" is empty.
        kind: makes an item of its text: str, float or `whole`.
        noun: what an item is called in errors.
        example: a list that would be right.

    Raises:
        UserError: naming the option and the item that is not of that kind.
    """
    values = []
    words = [word.strip() for word in text.split(",")] if text else []
    for word in words[:-1] if words[1:] and not words[-1] else words:  # a comma may end the list
        try:
            if not word:
                raise ValueError
            values.append(kind(word))
        except ValueError as error:
            raise UserError(f"{option} {text}: {word!r} is no {noun}; write {example}") from error
    return values


def whole(word: str) -> int:
    """Return a whole number from 0 on, for `items`. Raises ValueError."""
    if not (word.isascii() and word.isdecimal()):
        raise ValueError(f"{word!r} is no whole number")
    return int(word)


def consent(question: str, yes: bool) -> None:
    """Ask before something costs time, disk or traffic.

    Raises:
        UserError: where the user declines, or nobody is there to ask.
    """
    console.print(question, markup=False)
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError("downloading needs your consent; add --yes")
    if not typer.confirm("download?"):
        raise UserError("nothing was downloaded")


def print_lines(lines: Iterable[object], before: str = "", to: Console = console) -> None:
    """Print each of some lines as it is, behind a word that all of them have."""
    for line in lines:
        to.print(f"{before}{line}", markup=False)


def show_defects(checked: Iterable[tuple[object, Sequence[str]]]) -> None:
    """Print the defects of each checked item, a line each, or that it is fine.

    Raises:
        typer.Exit: with status 1 where anything is wrong.
    """
    bad = False
    for name, defects in checked:
        bad |= bool(defects)
        print_lines(defects or [f"{name}: fine"])
    if bad:
        raise typer.Exit(1)


def show_checked(folders: Iterable[T], check: Callable[[T, Show], Sequence[str]]) -> None:
    """Check folders, each with a bar that `check` moves, and print their defects (`show_defects`)."""
    results = []
    for folder in folders:
        with progress_bar(f"checking {folder}") as show:
            results.append((folder, check(folder, show)))
    show_defects(results)


def counted(items: Iterable[T], show: Show, total: int) -> Iterator[T]:
    """Yield items, and after each call `show` with how many are done, and the total."""
    for done, item in enumerate(items, 1):
        yield item
        show(done, total)


class _RateColumn(ProgressColumn):
    """The rate of work, per second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        """Return it; nothing until it is known."""
        return Text(f"{task.speed:,.1f} {self._unit}/s" if task.speed else "", style="progress.data.speed")


def seconds_left(task: Task) -> float | None:
    """Return a guess at the seconds that are left, or None: nothing is known yet."""
    return task.time_remaining if task.total and task.completed >= FIRST * task.total else None


class LeftColumn(TimeRemainingColumn):
    """The estimated time left, once there is an estimate."""

    def render(self, task: Task) -> Text:
        """Return it, or dashes."""
        return Text("-:--:--", style="progress.remaining") if seconds_left(task) is None else super().render(task)


class Bars(Progress):
    """A bar for all of the work, and one for each of the first pieces that run."""

    def get_renderables(self) -> Iterator[RenderableType]:
        """Return what is drawn: never more lines than a small terminal has."""
        yield self.make_tasks_table(self.tasks[: 1 + ROWS])
        if len(self.tasks) > 1 + ROWS:
            yield Text(f"and {len(self.tasks) - 1 - ROWS} more", style="dim")


@dataclass
class ProgressBoard:
    """Progress of a command: running, finished and failed work, time left; bars in a terminal, lines in a pipe."""

    title: str
    total: int
    """Pieces of work in all."""
    weight: float = 0.0
    """Their cost in all, in any unit; 0: each costs 1."""
    finished: int = 0
    running: dict[str, TaskID] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bars = Bars(
            TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
            BarColumn(10),
            TextColumn("{task.fields[text]}", style="dim"),
            TimeElapsedColumn(),
            TextColumn("eta"),
            LeftColumn(),
            console=console,
            speed_estimate_period=float("inf"),
            transient=True,
            expand=True,
            disable=not console.is_interactive,
        )
        text, weight = f"0 of {self.total} done", self.weight or self.total
        self.whole = self.bars.add_task(self.title, total=weight, text=text, start=bool(self.total))
        self.bars.advance(self.whole, 0)  # rich measures the speed from the first advance on

    @contextmanager
    def show(self) -> Iterator[ProgressBoard]:
        """Draw the board while the block runs, if there is anything to do."""
        if not self.total:
            yield self
            return
        if self.bars.disable:
            console.print(f"{self.title}: {self.total} to do")
        with self.bars:
            yield self
        failed = f", {len(self.failures)} failed" if self.failures else ""
        taken = clock(self.bars.tasks[0].elapsed or 0)
        console.print(f"{self.title}: {self.finished} done{failed} in {taken}")
        for name, why in self.failures.items():
            errors.print(f"failed: {name}: {why}", markup=False)

    def add(self, weight: float = 1.0) -> None:
        """Expect one more piece of work: of a board that began with none."""
        if not self.total:
            self.bars.start_task(self.whole)
        self.total += 1
        self.weight += weight
        self.bars.update(self.whole, total=self.weight, text=f"{self.finished} of {self.total} done")

    def start(self, name: str, text: str = "") -> None:
        """Show a work item as running."""
        self.stop(name)
        self.running[name] = self.bars.add_task(name, total=None, text=text)

    def update(self, name: str, text: str, done: float, total: float) -> None:
        """Show the progress of a work item, in words and as a bar."""
        if name in self.running:
            self.bars.update(self.running[name], text=text, completed=done, total=total)

    def stop(self, name: str) -> None:
        """Remove a work item from the running ones."""
        if name in self.running:
            self.bars.remove_task(self.running.pop(name))

    def done(self, name: str, weight: float = 1.0) -> None:
        """Count a work item as done."""
        self.stop(name)
        self.finished += 1
        self.bars.advance(self.whole, weight)
        self.bars.update(self.whole, text=f"{self.finished} of {self.total} done")
        rest = seconds_left(self.bars.tasks[0])
        self._line(f"done {self.finished}/{self.total}: {name}" + (f", about {clock(rest)} left" if rest else ""))

    def fail(self, name: str, why: str) -> None:
        """Count a work item as failed, and print why."""
        self.stop(name)
        self.failures[name] = why
        self.bars.update(self.whole, description=f"{self.title}, {len(self.failures)} failed")
        self._line(f"failed: {name}: {why}")

    def _line(self, text: str) -> None:
        if self.bars.disable:
            console.print(f"{self.title}: {text}", markup=False)
