"""The commands `status` and `submit`, for this machine and for a cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from retable.platform.cli.runs import COLOURS, MOST, Json, answered, grid, print_json, show
from retable.platform.console import Where, console
from retable.platform.store.storage import Record, Storage
from retable.platform.text import age, clock

app = typer.Typer()

Address = Annotated[
    str,
    typer.Option(
        help="Address of Ray's dashboard, http://HEAD:8265 (default: RAY_API_SERVER_ADDRESS, else this machine's 8265)."
    ),
]


@app.command()
def status(
    storage: Where = "results",
    address: Annotated[
        str, typer.Option(help="Show this Ray cluster too: address of its dashboard, http://HEAD:8265.")
    ] = "",
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every 10 seconds, until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """Show running trainings by host with progress, failures with their cause, and stale runs.

    It reads the storage alone, from any machine. --address adds the nodes of a Ray cluster, and the resources that
    tasks wait for.

    Examples: `retable status --storage s3://bucket/retable --watch` · `retable status --address http://HEAD:8265`
    """
    from retable.platform.execute.jobs import dashboard
    from retable.platform.execute.status import of_cluster, of_storage

    where = Storage.open(storage)

    def look() -> Record:
        parts: Record = {}
        if where.exists("runs") or not address:
            parts["storage"] = of_storage(where)
        return parts | ({"cluster": of_cluster(dashboard(address))} if address else {})

    summary = look()
    if answered(summary, as_json):
        return
    if not watch or not console.is_terminal:
        show(_status_grid(summary))
        return
    with Live(_status_grid(summary), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(10)
            live.update(_status_grid(look()), refresh=True)


def _status_grid(summary: Record) -> Grid:
    """Return a status as a grid."""
    outer = Grid.grid()
    if "storage" in summary:
        counts = ", ".join(f"{count} {state}" for state, count in summary["storage"]["states"].items())
        outer.add_row(Text(f"runs: {counts}"))
        rows = []
        for run in summary["storage"]["active"]:
            left = run["seconds_left"]
            text = f"{clock(left)} left" if left is not None else f"for {clock(run['silent'])}" if run["silent"] else ""
            how = Text(run["state"], COLOURS.get(run["state"], "dim"))
            rows.append(
                (run["host"], how, run["run"][:8], run["task"], f"{run['epoch']}/{run['epochs']}", run["why"] or text)
            )
        if rows:
            outer.add_row(grid(("host", "state", "run", "task", "epochs", ""), rows[:MOST], "epochs"))
        if len(rows) > MOST:
            outer.add_row(Text(f"and {len(rows) - MOST} more: --json shows all", "dim"))
    if "cluster" in summary:
        nodes = summary["cluster"]["nodes"]
        cells = [(n["address"], n["state"].lower(), f"{n.get('CPU', 0):g}", f"{n.get('GPU', 0):g}") for n in nodes]
        outer.add_row(grid(("node", "state", "CPU", "GPU"), cells, "CPU GPU"))
        waits = summary["cluster"]["waiting"]
        lines = [f"waits: {count} x {what}" for what, count in waits.items()] or ["nothing waits for resources"]
        outer.add_row(Text("\n".join(lines)))
    return outer


@app.command(context_settings={"ignore_unknown_options": True})
def submit(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND...", help="A command of retable, such as reproduce rl.")
    ] = None,
    address: Address = "",
    storage: Where = "results",
    working_dir: Annotated[Path, typer.Option(help="Folder to upload.", exists=True, file_okay=False)] = Path(),
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Print the job's output until it ends.")] = True,
    follow_job: Annotated[str, typer.Option(metavar="JOB", help="Follow a job that was submitted before.")] = "",
    stop: Annotated[
        str, typer.Option(metavar="JOB", help="Stop a job; the same command, submitted again, resumes it.")
    ] = "",
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
    from retable.platform.execute import jobs

    if fetch is not None:
        jobs.fetch(Storage.open(storage), fetch)
        console.print(f"report: {fetch}/index.html", markup=False)
        return
    where = jobs.dashboard(address)
    if stop:
        console.print(jobs.stop(where, stop), markup=False)
        return
    if list_:
        _show_jobs(jobs.jobs(where), as_json)
        return
    if not follow_job:
        command, storage = jobs.split_storage(words or [], storage)
        follow_job = jobs.submit(where, command, storage, working_dir)
        console.print(f"job {follow_job}", markup=False)
    if follow and not jobs.follow(where, follow_job):
        raise typer.Exit(1)


def _show_jobs(entries: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print jobs."""
    if as_json:
        print_json(entries)
    elif entries:
        show(
            grid(
                ("job", "state", "age", "command"),
                [(j["job"], j["state"], age(j["started"]), j["command"]) for j in entries],
            )
        )
    else:
        console.print("no jobs")
