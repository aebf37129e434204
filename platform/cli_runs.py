"""Commands about what a storage holds, and about jobs on a cluster; all but `gc` know no task's code."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from retable.platform.board import clock, console, errors, progress_bar
from retable.platform.config import parse_set
from retable.platform.errors import UserError, redact

app = typer.Typer()

Where = Annotated[
    str,
    typer.Option("--storage", envvar="RETABLE_STORAGE", help="Where data, runs and reports lie: a folder or a URI."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Address = Annotated[str, typer.Option(help="Of the dashboard, http://HEAD:8265; else RAY_API_SERVER_ADDRESS.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's first digits, or `latest`.")]

COLOURS = {"finished": "green", "running": "cyan", "failed": "red", "damaged": "red", "diverged": "yellow"}
MOST = 40
"""Most runs that are shown where nobody says how many."""


def plain(text: object) -> str:
    """Return a text in one line, without what would move a terminal's cursor: names on a storage may be anybody's."""
    shown = " ".join(redact(str(text)).split())
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in shown)


def print_json(value: Any) -> None:
    """Print plain data as JSON; numbers that JSON has no word for become null."""
    text = json.dumps(value, indent=2, default=str)
    typer.echo(redact(text))


def size(amount: float) -> str:
    """Write bytes as people read them: `4.2 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def age(moment: float) -> str:
    """Write how long ago something was."""
    return clock(time.time() - moment) if moment else ""


def grid(titles: Sequence[str], rows: Iterable[Sequence[object]], right: str = "") -> Grid:
    """Return rows under titles, each in one line; the last column is cut where there is no room.

    Args:
        titles: of the columns.
        rows: what is in them.
        right: titles of the columns whose numbers are aligned.
    """
    cells = [[cell if isinstance(cell, Text) else Text(plain(cell)) for cell in row] for row in rows]
    found = Grid(box=None, padding=(0, 1), pad_edge=False)
    for place, title in enumerate(titles):
        last = place == len(titles) - 1
        width = min(40, max([len(title), *(row[place].cell_len for row in cells)]))
        justify: Any = "right" if title and title in right.split() else "left"
        found.add_column(title, justify=justify, no_wrap=True, overflow="ellipsis", min_width=None if last else width)
    for row in cells:
        found.add_row(*row)
    return found


def show(table: Grid) -> None:
    """Print a table: as wide as the terminal."""
    console.print(table, soft_wrap=False)


@app.command()
def runs(
    task: Annotated[str, typer.Argument(metavar="[TASK]", help="A task; none: all.")] = "",
    where: Annotated[
        list[str] | None, typer.Option("--where", help="Only runs with field=value, of the config or of the listing.")
    ] = None,
    state: Annotated[
        list[str] | None, typer.Option(help="finished, diverged, running, silent, stopped, failed, damaged.")
    ] = None,
    sort: Annotated[
        str, typer.Option(help="age, size, seconds, epoch, or any field; -size: the smallest last.")
    ] = "age",
    limit: Annotated[int, typer.Option(help="Most runs to show; 0: all.", min=0)] = MOST,
    storage: Where = "results",
    as_json: Json = False,
) -> None:
    """List the runs on a storage: state, epochs, age, size, and what tells them apart from most.

    Examples: `retable runs rl --where prune=snip --sort -size` · `retable runs --state failed --state silent`
    """
    from retable.platform.listing import differs, list_runs, select, usual
    from retable.platform.storage import Storage

    with progress_bar(f"{storage}: reading what is not in the index") if console.is_terminal else quiet() as report:
        every = list_runs(Storage.open(storage), task, report)
    found = select(every, parse_set(where or [], "--where"), state or (), sort)
    if as_json:
        print_json([run.as_json() for run in found])
        return
    shown = found[:limit] if limit else found
    base = usual(every)
    rows = []
    for run in shown:
        about = run.why or differs(run, base.get(run.task, {}))
        how = Text(
            run.state + (f" {clock(run.silent)}" if run.state == "silent" else ""), COLOURS.get(run.state, "dim")
        )
        epochs = f"{run.epoch}/{run.epochs}"
        rows.append((run.run[:8], run.task, how, epochs, age(run.changed), size(run.size), run.attempts, about))
    if rows:
        show(grid(("run", "task", "state", "epochs", "age", "size", "tries", "differs"), rows, "epochs age size tries"))
    rest = f", {len(shown)} shown (--limit 0: all)" if len(shown) < len(found) else ""
    console.print(f"{len(found)} of {len(every)} runs{rest}; {size(sum(run.size for run in found))}", markup=False)


class quiet:
    """Report no progress."""

    def __enter__(self) -> None:
        """Return no function to report to."""

    def __exit__(self, *_: object) -> None:
        """End."""


@app.command("show")
def show_run(run: RunName, storage: Where = "results", as_json: Json = False) -> None:
    """Show a run: its config, last metrics, provenance, attempts, views with scores, and files.

    Examples: `retable show 93bc5ee1` · `retable show latest --json`
    """
    from retable.platform.showing import find_run, whole
    from retable.platform.storage import Storage

    folder = find_run(Storage.open(storage), run)
    found = whole(folder)
    if as_json:
        print_json(found)
        return
    state = f"{found['state']}" + (f": {found['why']}" if found["why"] else "")
    console.print(f"run {found['run']} of {plain(found['task'])}, {plain(state)}", markup=False)
    made = found["provenance"]
    facts = {
        "epochs": f"{found['epoch']} of {found['epochs']}",
        "trained": f"{clock(found['seconds'])}, attempts: {(found['attempts'] and len(found['attempts'])) or 1}",
        "begun": f"{made.get('started', '?')} on {made.get('host', '?')} ({made.get('device', '?')})",
        "commit": f"{str(made.get('commit', 'none'))[:12]}{' with changes' if made.get('dirty') else ''}",
        "command": made.get("command", "?"),
        "data": str(found["result"].get("data", (made.get("data") or {}).get("digest", "?")))[:16],
        "files": f"{len(found['files'])}, {size(found['size'])}, in {folder.folder}",
    }
    show(grid(("", ""), facts.items()))
    section("config", found["config"])
    section("last metrics", found["metrics"])
    for view in found["views"].values():
        said = ", ".join(f"{path}={value}" for path, value in (view.get("view") or {}).items())
        section(f"scores ({said})", view.get("metrics") or {})


def section(title: str, values: Mapping[str, Any], most: int = 30) -> None:
    """Print names and values under a title; of very many, the first."""
    if not values:
        return
    console.print(f"\n{plain(title)}", style="bold", markup=False)
    show(grid(("", ""), [(f"  {name}", number(value)) for name, value in list(values.items())[:most]]))
    if len(values) > most:
        console.print(f"  and {len(values) - most} more: --json shows all", style="dim", markup=False)


def number(value: Any) -> str:
    """Write a value as people read it."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@app.command()
def diff(first: RunName, second: RunName, storage: Where = "results", as_json: Json = False) -> None:
    """Show what two runs differ in: config, data, versions, machine, and their metrics and scores side by side.

    Example: `retable diff 93bc5ee1 latest`
    """
    from retable.platform.showing import compare, find_run, whole
    from retable.platform.storage import Storage

    where = Storage.open(storage)
    one, other = (whole(find_run(where, name)) for name in (first, second))
    found = compare(one, other)
    if as_json:
        print_json({"runs": [one["run"], other["run"]], **found})
        return
    if one["task"] != other["task"]:
        errors.print(f"note: a run of {plain(one['task'])} and one of {plain(other['task'])}", markup=False)
    for title, pairs in found.items():
        console.print(plain(title), style="bold", markup=False)
        rows = [(f"  {name}", number(a), number(b), gap(a, b)) for name, (a, b) in pairs.items()]
        show(grid(("", one["run"][:8], other["run"][:8], "difference" if any(row[3] for row in rows) else ""), rows))
    if not found:
        console.print("they differ in nothing")


def gap(first: Any, second: Any) -> str:
    """Return the difference of two numbers, in words; nothing of other values."""
    if any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in (first, second)):
        return ""
    return f"{second - first:+.4g}"


@app.command()
def gc(
    older_than: Annotated[
        float, typer.Option(metavar="DAYS", help="Only what has not changed for so long.", min=0)
    ] = 0.0,
    delete: Annotated[bool, typer.Option("--delete", help="Remove it. Without this, it is only listed.")] = False,
    storage: Where = "results",
    as_json: Json = False,
) -> None:
    """List, or remove, what no table at any scale and no sweep names: runs, combinations, measurements, Ray's leftovers.

    Never what is being trained or changed within the hour, nor data sets and imported weights. With --older-than also
    exported files that were served; `retable serve` makes those again.

    Examples: `retable gc` · `retable gc --older-than 30 --delete`
    """
    from retable.platform.cleaning import find_waste, remove
    from retable.platform.storage import Storage

    where = Storage.open(storage)
    if not where.exists():
        raise UserError(f"{where}: there is nothing here")
    found, notes = find_waste(where, older_than)
    if as_json:
        print_json({"delete": delete, "found": [each.as_json() for each in found], "notes": notes})
    else:
        for note in notes:
            errors.print(plain(note), markup=False)
        if found:
            show(
                grid(
                    ("size", "age", "path", ""),
                    [(size(e.size), age(e.changed), e.path, e.why) for e in found],
                    "size age",
                )
            )
        total = f"{len(found)} things of nobody, {size(sum(each.size for each in found))}"
        console.print(total + ("" if delete or not found else "; --delete removes them"), markup=False)
    if delete and found:
        with progress_bar("removing") if not as_json else quiet() as report:
            remove(where, found, report or (lambda done, total: None))
        if not as_json:
            console.print("removed")


@app.command()
def status(
    storage: Where = "results",
    address: Address = "",
    watch: Annotated[bool, typer.Option("--watch", help="Look again every 10 seconds, until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """Show what is going on: trainings by host with progress, failures with their cause, what has fallen silent.

    It reads the storage alone, from any machine. With --address also a Ray cluster's nodes, and what waits for which.

    Examples: `retable status --storage s3://bucket/retable --watch` · `retable status --address http://HEAD:8265`
    """
    from retable.platform.status import of_cluster, of_storage
    from retable.platform.storage import Storage
    from retable.platform.submit import dashboard

    where = Storage.open(storage)

    def look() -> dict[str, Any]:
        found: dict[str, Any] = {}
        if where.folders("runs") or not address:
            found["storage"] = of_storage(where)
        return found | ({"cluster": of_cluster(dashboard(address))} if address else {})

    if as_json:
        print_json(look())
        return
    if not watch or not console.is_terminal:
        show(status_grid(look()))
        return
    with Live(status_grid(look()), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(10)
            live.update(status_grid(look()), refresh=True)


def status_grid(found: Mapping[str, Any]) -> Grid:
    """Return what is drawn of a status."""
    whole = Grid.grid()
    if "storage" in found:
        counts = ", ".join(f"{count} {state}" for state, count in found["storage"]["states"].items())
        whole.add_row(Text(f"runs: {counts}"))
        rows = []
        for run in found["storage"]["active"]:
            left = run["seconds left"]
            text = f"{clock(left)} left" if left is not None else f"for {clock(run['silent'])}" if run["silent"] else ""
            how = Text(run["state"], COLOURS.get(run["state"], "dim"))
            rows.append(
                (run["host"], how, run["run"][:8], run["task"], f"{run['epoch']}/{run['epochs']}", run["why"] or text)
            )
        if rows:
            whole.add_row(grid(("host", "state", "run", "task", "epochs", ""), rows[:MOST], "epochs"))
        if len(rows) > MOST:
            whole.add_row(Text(f"and {len(rows) - MOST} more: --json shows all", "dim"))
    if "cluster" in found:
        nodes = found["cluster"]["nodes"]
        cells = [(n["address"], n["state"].lower(), f"{n.get('CPU', 0):g}", f"{n.get('GPU', 0):g}") for n in nodes]
        whole.add_row(grid(("node", "state", "CPU", "GPU"), cells, "CPU GPU"))
        waits = found["cluster"]["waiting"]
        lines = [f"waits: {count} x {what}" for what, count in waits.items()] or ["nothing waits for resources"]
        whole.add_row(Text("\n".join(lines)))
    return whole


@app.command(context_settings={"ignore_unknown_options": True})
def submit(
    words: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND...", help="Such as reproduce rl.")] = None,
    address: Address = "",
    storage: Where = "results",
    working_dir: Annotated[
        Path, typer.Option(help="The folder that is uploaded.", exists=True, file_okay=False)
    ] = Path(),
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Print what the job says until it ends.")] = True,
    follow_job: Annotated[str, typer.Option(metavar="JOB", help="Follow a job that was submitted before.")] = "",
    stop: Annotated[str, typer.Option(metavar="JOB", help="Stop a job; submitted again, it goes on.")] = "",
    list_: Annotated[bool, typer.Option("--list", help="List the cluster's jobs.")] = False,
    fetch: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Copy the storage's report to a folder here.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Send a command of retable to a Ray cluster as a job, and follow it; Ctrl-C leaves the job as it is.

    The folder is uploaded without what git ignores; the storage must be one that every node sees.

    Examples: `retable submit --storage s3://bucket/retable -- reproduce rl --scale paper` · `retable submit --stop JOB`
    """
    from retable.platform import submit as jobs
    from retable.platform.storage import Storage

    if fetch is not None:
        jobs.fetch(Storage.open(storage), fetch)
        console.print(f"report: {fetch}/index.html", markup=False)
        return
    where = jobs.dashboard(address)
    if stop:
        console.print(jobs.stop(where, stop), markup=False)
        return
    if list_:
        show_jobs(jobs.jobs(where), as_json)
        return
    if not follow_job:
        command, storage = jobs.split_storage(words or [], storage)
        follow_job = jobs.submit(where, command, storage, working_dir)
        console.print(f"job {follow_job}", markup=False)
    if follow and not jobs.follow(where, follow_job):
        raise typer.Exit(1)


def show_jobs(found: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print jobs."""
    if as_json:
        print_json(found)
    elif found:
        show(
            grid(
                ("job", "state", "age", "command"),
                [(j["job"], j["state"], age(j["started"]), j["command"]) for j in found],
            )
        )
    else:
        console.print("no jobs")
