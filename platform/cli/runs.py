"""The commands `runs`, `show`, `tables`, `diff` and `gc`. All but `gc` work without any task's code."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table as Grid
from rich.text import Text
from typer.core import TyperGroup

import retable
from retable.platform import text as texts
from retable.platform.cli.groups import entry
from retable.platform.config import describe, parse_set
from retable.platform.console import Overwrite, Where, console, errors, print_lines, progress_bar
from retable.platform.errors import HIDDEN, SECRET, UserError, nearest, redact
from retable.platform.spec.task import names as names_of_tasks
from retable.platform.store.storage import Storage, check_target
from retable.platform.text import age, clock, plural, size

app = typer.Typer()

ScaleName = Annotated[
    str, typer.Option("--scale", "-s", help="Size of the experiment: smoke, quick, small or paper (`retable list`).")
]
Set = Annotated[list[str] | None, typer.Option("--set", help="Change a config field: path=value. May be repeated.")]
Rows = Annotated[
    list[str] | None,
    typer.Option("--rows", metavar="LABEL", help="Choose rows by their label; `*` stands for any text. Repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TableNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TABLE]...", help="Show these in full, e.g. rl/table1 (default: list all)."),
]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run: its first digits, `latest`, or TABLE/ROW.")]

COLOURS = {"finished": "green", "running": "cyan", "failed": "red", "corrupt": "red", "diverged": "yellow"}
MOST = 40
"""Most runs that are shown where nobody says how many."""


LAST = 12
"""Last lines that are shown of a traceback."""


def plain(text: object) -> str:
    """Return a text as one line without control characters: names on a storage are not trusted."""
    return texts.plain(redact(str(text)), most=sys.maxsize)


def print_json(value: object) -> None:
    """Print dataclasses and plain data as JSON."""
    typer.echo(json.dumps(_as_json(value, cache(redact)), indent=2, allow_nan=False))


def answered(value: object, as_json: bool) -> bool:
    """Print a value as JSON if that is asked for; return whether it was."""
    if as_json:
        print_json(value)
    return as_json


def _as_json(value: object, redacted: Callable[[str], str]) -> object:
    """Return what JSON can hold of a value: texts without secrets, and null for numbers that are not finite.

    Each text is redacted by itself: in encoded JSON a secret may hold an escaped quote.
    """
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        hidden = {key for key, text in value.items() if isinstance(text, str) and re.fullmatch(SECRET, str(key), re.I)}
        return {
            redacted(key) if isinstance(key, str) else key: HIDDEN if key in hidden else _as_json(item, redacted)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_as_json(item, redacted) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (int, type(None))) else redacted(str(value))


def grid(titles: Sequence[str], rows: Iterable[Sequence[object]], right: str = "") -> Grid:
    """Return rows under titles, each in one line; the last column is cut where there is no room.

    Args:
        titles: of the columns.
        rows: what is in them.
        right: titles of the columns whose numbers are aligned.
    """
    cells = [[cell if isinstance(cell, Text) else Text(plain(cell)) for cell in row] for row in rows]
    table = Grid(box=None, padding=(0, 1), pad_edge=False, show_header=any(titles), expand=True)
    for column, title in enumerate(titles):
        last = column == len(titles) - 1
        width = min(60, max([len(title), *(row[column].cell_len for row in cells)]))
        justify: Any = "right" if title and title in right.split() else "left"
        fit: Any = {"ratio": 1} if last else {"width": width}
        table.add_column(title, justify=justify, no_wrap=True, overflow="ellipsis", **fit)
    for row in cells:
        table.add_row(*row)
    return table


def show(table: Grid) -> None:
    """Print a table: as wide as the terminal."""
    console.print(table, soft_wrap=False)


class RunsGroup(TyperGroup):
    """The commands of `runs`; words that name none of them are those of the listing, `retable runs rl`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `list` before words that begin with no command; `--help` as the first word is the group's."""
        return super().parse_args(ctx, args if args[:1] == ["--help"] else self._named(args))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that words name, else the listing."""
        return super().resolve_command(ctx, self._named(args))

    def _named(self, args: list[str]) -> list[str]:
        return args if args and args[0] in self.commands else ["list", *args]


runs_app = typer.Typer(
    cls=RunsGroup,
    help="List the runs on a storage (`retable runs [TASK]`), pack what fills tables into a bundle, unpack one.\n\n"
    "`retable runs` alone is `retable runs list`; `retable runs list --help` explains its options.\n\n"
    "Examples: `retable runs` · `retable runs rl --state failed`",
)
app.add_typer(runs_app, name="runs")


@runs_app.command("list")
def runs(
    task: Annotated[str, typer.Argument(metavar="[TASK]", help="A task (default: all).")] = "",
    where: Annotated[
        list[str] | None,
        typer.Option("--where", help="Only runs with field=value, a field of the config or of the listing."),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(help="Only this state: finished, diverged, running, stale, incomplete, failed or corrupt."),
    ] = None,
    sort: Annotated[
        str, typer.Option(help="Order by age, size, seconds, epoch or any field; -size puts the largest first.")
    ] = "age",
    limit: Annotated[
        int | None,
        typer.Option(help=f"Maximum number of runs; 0 shows all (default: {MOST}, with --json all).", min=0),
    ] = None,
    storage: Where = "results",
    as_json: Json = False,
) -> None:
    """List the runs on a storage: state, epochs, age, size, and their differences from most.

    Examples: `retable runs rl --where prune=snip --sort -size` · `retable runs list --state failed --state stale`
    """
    from retable.platform.store.query import differs, list_runs, select, usual

    opened = Storage.open(storage)
    title = f"{opened}: reading what is not in the index"
    with progress_bar(title) if console.is_interactive else nullcontext() as report:
        every = list_runs(opened, task, report)
    selected = select(every, parse_set(where or [], "--where"), state or (), sort)
    most = limit if limit is not None else 0 if as_json else MOST
    shown = selected[:most] if most else selected
    if answered(shown, as_json):
        return
    base = usual(every)
    rows = []
    for run in shown:
        about = run.why or differs(run, base.get(run.task, {}))
        how = Text(
            run.state + (f" {clock(run.silent)}" if run.state == "stale" else ", bundle" if run.bundle else ""),
            COLOURS.get(run.state, "dim"),
        )
        epochs = f"{run.epoch}/{run.epochs}"
        rows.append((run.run[:8], run.task, how, epochs, age(run.changed), size(run.size), run.attempts, about))
    if rows:
        show(grid(("run", "task", "state", "epochs", "age", "size", "tries", "differs"), rows, "epochs age size tries"))
    rest = f", {len(shown)} shown (--limit 0: all)" if len(shown) < len(selected) else ""
    console.print(
        f"{len(selected)} of {len(every)} runs{rest}; {size(sum(run.size for run in selected))}", markup=False
    )


@runs_app.command()
def pack(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            help="Table names such as rl/table1; a task name selects all its tables (default: all that were requested)."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", dir_okay=False, help="Write the bundle here.")
    ] = Path("results.bundle"),
    scale: ScaleName = "small",
    set: Set = None,
    rows: Rows = None,
    weights: Annotated[bool, typer.Option("--weights", help="Also pack the weights that were kept.")] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Also pack what unfinished runs need to resume elsewhere: checkpoints, weights of parents."
        ),
    ] = False,
    overwrite: Overwrite = False,
    storage: Where = "results",
    as_json: Json = False,
) -> None:
    """Pack the finished runs, combinations and measurements that fill tables into one file, without weights.

    Examples: `retable runs pack rl/figure1 --scale small --out rl.bundle` · `retable runs pack --scale paper --resume`
    """
    check_target(out, overwrite)
    packed = retable.pack(
        *tables or (),
        scale=scale,
        set=parse_set(set or []),
        rows=rows or (),
        storage=storage,
        out=out,
        weights=weights,
        resume=resume,
    )
    if not answered(packed, as_json):
        print_lines(map(plain, packed.lines()))


@runs_app.command()
def unpack(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A file that `retable runs pack` wrote.")],
    storage: Where = "results",
    as_json: Json = False,
) -> None:
    """Unpack a bundle into a storage. Existing runs are kept; nothing in a bundle is run.

    Example: `retable runs unpack rl.bundle`, then `retable report`, or `retable reproduce rl/figure1 --no-train`
    """
    unpacked = retable.unpack(bundle, storage=storage)
    if not answered(unpacked, as_json):
        print_lines(map(plain, unpacked.lines()))


@app.command()
def verify(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A file that `retable runs pack` wrote.")],
    sample: Annotated[int, typer.Option(help="Number of runs to train again.", min=1)] = 5,
    seed: Annotated[int, typer.Option(help="Draw the sample with this seed.", min=0)] = 0,
    tolerance: Annotated[
        float, typer.Option(help="Relative tolerance on another device, other versions or other code.", min=0)
    ] = 0.02,
    keep: Annotated[
        str, typer.Option(metavar="STORAGE", help="Train in this storage and keep it (default: a temporary folder).")
    ] = "",
    storage: Where = "results",
    as_json: Json = False,
) -> None:
    """Train a random sample of a bundle's runs again and compare metrics and scores; status 1 if any differs.

    Datasets are read from --storage if they are there, else made; nothing is written there. If --storage is a bucket
    that holds them, --keep must name it too.

    Examples: `retable verify rl.bundle` · `retable verify rl.bundle --sample 20 --seed 1`
    """
    with redirect_stdout(sys.stderr) if as_json else nullcontext():  # of progress
        checked = retable.verify(bundle, sample=sample, seed=seed, tolerance=tolerance, keep=keep, storage=storage)
    if not answered(checked, as_json):
        for run in checked:
            console.print(plain(run.line()), markup=False)
            print_lines(map(plain, run.details()), "  ")
    states = [run.verdict for run in checked]
    if "differs" in states or all(verdict == "not comparable" for verdict in states):
        raise typer.Exit(1)


@app.command("show")
def show_run(run: RunName, storage: Where = "results", as_json: Json = False) -> None:
    """Show a run: its config, last metrics, provenance, attempts, last traceback, views with scores, files.

    Examples: `retable show latest --json` · `retable show rl/figure1/dense`
    """
    from retable.platform.report.describe import describe_run, find_run, last_tracebacks
    from retable.platform.store.provenance import name_of

    folder = find_run(Storage.open(storage), run)
    description = describe_run(folder)
    if answered(description, as_json):
        return
    state = f"{description['state']}" + (f": {description['why']}" if description["why"] else "")
    console.print(f"run {description['run']} of {plain(description['task'])}, {plain(state)}", markup=False)
    made = description["provenance"]
    facts = {
        "epochs": f"{description['epoch']} of {description['epochs']}",
        "trained": f"{clock(description['seconds'])}, attempts: {len(description['attempts']) or 1}",
        "begun": f"{made.get('started', '?')} on {made.get('host', '?')} ({made.get('device', '?')})",
        "commit": name_of(made, 12).removeprefix("commit ") or "not recorded",
        "code": _code_words(**description["code"]),
        "command": made.get("command", "?"),
        "data": str(description["result"].get("data", (made.get("data") or {}).get("digest", "?")))[:16],
        "files": f"{len(description['files'])}, {size(description['size'])}, in {folder.folder}",
    }
    if isinstance(bundle := description["result"].get("bundle"), dict):
        where = f"{bundle.get('host', '?')} ({bundle.get('device', '?')})"
        facts["bundle"] = f"{str(bundle.get('id', '?'))[:16]}, packed {bundle.get('packed', '?')} on {where}"
    used = description["result"].get("used")
    if isinstance(used, dict):
        cpu, gpu, memory = (used.get(name) or 0 for name in ("cpu_seconds", "gpu_seconds", "peak_memory"))
        on = f", {clock(gpu)} of GPUs" if gpu else ""
        facts["took"] = f"{clock(cpu)} of CPU cores{on}, {size(memory)} of memory at most"
    facts |= {f"note {number}": note for number, note in enumerate(description["notes"], 1)}
    show(grid(("", ""), facts.items()))
    for path, text in last_tracebacks(description).items():
        lines = text.splitlines()
        about = f"all {len(lines)} lines" if len(lines) > LAST else "also"
        console.print(f"\ntraceback ({about} in {plain(folder.folder)}/{plain(path)})", style="bold", markup=False)
        for line in lines[-LAST:]:
            indent = len(line) - len(line.lstrip(" "))
            console.print(f"{' ' * indent}{plain(line)}", markup=False, highlight=False)
    section("config", description["config"])
    section("last metrics", description["metrics"])
    for view in description["views"].values():
        settings = ", ".join(f"{path}={value}" for path, value in (view.get("view") or {}).items())
        section(f"scores ({settings})", view.get("metrics") or {})


def _code_words(differs: Sequence[str] | None, changed: Sequence[str]) -> str:
    """Return in words which parts of a run's code differ from the code that shows it, and changed while it trained."""
    if differs is None:
        return "not recorded"
    verb = "differs" if len(differs) == 1 else "differ"
    words = f"{', '.join(differs)} {verb} from the code here" if differs else "the same as now"
    return words + (f"; an attempt went on with another {', '.join(changed)}" if changed else "")


def section(title: str, values: Mapping[str, object], most: int = 30) -> None:
    """Print names and values under a title; of very many, the first."""
    if not values:
        return
    console.print(f"\n{plain(title)}", style="bold", markup=False)
    show(grid(("", ""), [(name, number(value)) for name, value in list(values.items())[:most]]))
    if len(values) > most:
        console.print(f"  and {len(values) - most} more: --json shows all", style="dim", markup=False)


def number(value: object, most: int = 200) -> str:
    """Write a value as people read it; one that is longer is cut."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


@app.command()
def tables(names: TableNames = None, storage: Where = "results", as_json: Json = False) -> None:
    """List the tables of a storage: at which scale each was filled, how many of its rows, and its verdicts.

    Tables that are named are shown in full, as they were filled.

    Examples: `retable tables` · `retable tables rl/table1 --json` · `retable tables --storage s3://lab/results`
    """
    from retable.platform.report.describe import tables_of

    where = Storage.open(storage)
    if names:
        _show_tables(names, where, as_json)
        return
    filled_tables = tables_of(where)
    if answered(filled_tables, as_json):
        return
    if not filled_tables:
        raise UserError(f"{where}: no tables have been reproduced here; run `retable reproduce` first")
    rows = []
    for record in filled_tables:
        is_filled = record["filled"] is not None
        filled = f"{record['filled']}/{record['rows'] - record['absent']}" if is_filled else Text("none", "yellow")
        claims = ", ".join(f"{count} {status}" for status, count in record["claims"].items())
        changes = f"changed: {describe(record['set'])}" if record["set"] else ""
        chosen = f"rows: {', '.join(record['chosen'])}" if record["chosen"] else ""
        about = "; ".join(text for text in (changes, chosen, record["why"] or claims) if text)
        counts = (record["absent"], record["replicates"]) if is_filled else ("", "")
        rows.append((record["table"], record["scale"], filled, *counts, about))
    show(grid(("table", "scale", "rows", "absent", "numbers", "claims"), rows, "rows absent numbers"))
    defined = {f"{task}/{table}" for task in names_of_tasks() for table in entry(task).get("tables", ())}
    rest = sorted(defined - {record["table"] for record in filled_tables})
    console.print(
        plural(len(filled_tables), "table") + (f"; not filled here: {', '.join(rest)}" if rest else ""), markup=False
    )


def _show_tables(names: Sequence[str], storage: Storage, as_json: bool) -> None:
    """Print tables in full, as they were filled; the same table may be there at several scales.

    Raises:
        UserError: where one was not filled on the storage.
    """
    from retable.platform.cli.filled import print_section
    from retable.platform.report.describe import describe_table
    from retable.platform.report.write import kept_tables

    kept = kept_tables(storage)
    names_here = dict.fromkeys(part.name for part in kept)
    for name in names:
        if name not in names_here:
            raise UserError(f"{storage}: no table {name!r} was filled here{nearest(name, names_here)}")
    chosen = [part for name in names for part in kept if part.name == name]
    if as_json:
        print_json(list(map(describe_table, chosen)))
        return
    for part in chosen:
        print_section(part)


@app.command()
def diff(first: RunName, second: RunName, storage: Where = "results", as_json: Json = False) -> None:
    """Show where two runs differ: config, data, code, versions, machine, and metrics and scores side by side.

    Example: `retable diff rl/figure1/dense latest`
    """
    from retable.platform.report.describe import describe_run, diff_runs, find_run

    where = Storage.open(storage)
    one, other = (describe_run(find_run(where, name)) for name in (first, second))
    differences = diff_runs(one, other)
    if answered({"runs": [one["run"], other["run"]], "differences": differences}, as_json):
        return
    if one["task"] != other["task"]:
        errors.print(f"note: a run of {plain(one['task'])} and one of {plain(other['task'])}", markup=False)
    for title, pairs in differences.items():
        console.print(plain(title), style="bold", markup=False)
        rows = [(name, number(a, 28), number(b, 28), gap(a, b)) for name, (a, b) in pairs.items()]
        show(grid(("", one["run"][:8], other["run"][:8], "difference" if any(row[3] for row in rows) else ""), rows))
    if not differences:
        console.print("they differ in nothing")


def gap(first: object, second: object) -> str:
    """Return the difference of two numbers, in words; nothing of other values."""
    if isinstance(first, bool) or isinstance(second, bool):
        return ""
    return f"{second - first:+.4g}" if isinstance(first, (int, float)) and isinstance(second, (int, float)) else ""


@app.command()
def gc(
    older_than: Annotated[
        float, typer.Option(metavar="DAYS", help="Only items that have not changed for this many days.", min=0)
    ] = 0.0,
    delete: Annotated[bool, typer.Option("--delete", help="Remove the items (default: only list them).")] = False,
    storage: Where = "results",
    as_json: Json = False,
) -> None:
    """List or remove unreferenced items: runs, combinations and measurements of no table or sweep, and Ray's leftovers.

    It leaves alone what is in training or changed within the last hour, datasets, and imported weights. With
    --older-than it also lists exported files that were served; `retable serve` makes those again.

    Examples: `retable gc` · `retable gc --older-than 30 --delete`
    """
    from retable.platform.plan.gc import find_unreferenced, remove

    where = Storage.open(storage)
    if not where.exists():
        raise UserError(f"{where}: there is nothing here")
    unreferenced, notes = find_unreferenced(where, older_than)
    if not answered({"delete": delete, "found": unreferenced, "notes": notes}, as_json):
        print_lines(map(plain, notes), to=errors)
        if unreferenced:
            show(
                grid(
                    ("size", "age", "path", ""),
                    [(size(e.size), age(e.changed), e.path, e.why) for e in unreferenced],
                    "size age",
                )
            )
        total = f"{len(unreferenced)} unreferenced items, {size(sum(item.size for item in unreferenced))}"
        console.print(total + ("" if delete or not unreferenced else "; --delete removes them"), markup=False)
    if delete and unreferenced:
        with progress_bar("removing") if not as_json else nullcontext() as report:
            remove(where, unreferenced, report or (lambda done, total: None))
        if not as_json:
            console.print("removed")
