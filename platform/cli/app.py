"""The command `retable`."""

from __future__ import annotations

import importlib
import json
import os
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid
from rich.text import Text

import retable
from retable.platform.cli import jobs, runs
from retable.platform.cli.filled import FEW, print_section, print_summary, say
from retable.platform.cli.groups import MARKUP, Commands, commands_of, entry
from retable.platform.cli.runs import Rows, ScaleName, Set
from retable.platform.commit import code_root
from retable.platform.config import parse_set, set_line
from retable.platform.console import Overwrite, Where, console, errors, print_lines, progress_bar, spread
from retable.platform.errors import UserError
from retable.platform.spec import task as tasks
from retable.platform.spec.resources import Resources, summary
from retable.platform.spec.space import describe_space, spaces
from retable.platform.spec.table import hidden, split_view
from retable.platform.store.storage import Record, Storage, check_target
from retable.platform.text import and_more, clock, grouped, plural, seconds_of

if TYPE_CHECKING:
    from retable.platform.execute.sweep import SweepResult
    from retable.platform.plan.cluster_spec import Cluster, Prices
    from retable.platform.plan.plan import Plan

app = typer.Typer(
    name="retable",
    help="Re-run the tables of published systems, sweep them, and serve the best models, on Ray.\n\n"
    "Set RAY_ADDRESS, or use `retable submit`, to run on a cluster.\n\n"
    "Example: `retable reproduce rl/table1` fills a paper's table, measured beside published; the same command again "
    "trains nothing.",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
    pretty_exceptions_show_locals=False,
)
app.add_typer(runs.app)
app.add_typer(jobs.app)

GPU = code_root().parent / "benchmarks" / "results" / "gpu.json"
"""Results of `python -m benchmarks gpu`, in a checkout where it was run."""

Tables = Annotated[
    list[str] | None,
    typer.Argument(help="Table names such as rl/table1; a task name selects all its tables (default: all)."),
]
TaskName = Annotated[str, typer.Argument(metavar="TASK", help="A task; see `retable list`.")]
Workers = Annotated[
    int | None,
    typer.Option(help="Workers of each training (default: as its task says); several form a Ray Train group.", min=1),
]
Cpus = Annotated[
    int | None,
    typer.Option(help="CPUs and torch threads of a training with one worker (default: as its task says).", min=1),
]
Gpus = Annotated[
    float | None,
    typer.Option(help="GPUs of each worker; 0.25 lets four trainings share one (default: as its task says).", min=0),
]
Every = Annotated[
    int, typer.Option(help="Steps between checkpoints within an epoch; 0 writes one about every half minute.", min=0)
]
Stack = Annotated[
    int,
    typer.Option(
        help="Maximum trainings per stack; 0 chooses automatically: 1 on CPUs, as many as fit on GPUs.", min=0
    ),
]

On = Annotated[
    str,
    typer.Option(metavar="WORD", help="Run measurements on a node that has this custom resource or accelerator type."),
]
Deadline = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        help="Start no training or measurement after this time (2h, 90m); those that decide a claim come first.",
    ),
]
Retry = Annotated[bool, typer.Option("--retry-diverged", help="Retry the trainings that diverged.")]
Track = Annotated[
    str, typer.Option(metavar="NAME", help="Log each training to an experiment tracker: mlflow, wandb or tensorboard.")
]
Stream = Annotated[bool, typer.Option("--stream/--no-stream", help="Stream the data even if they fit in memory.")]


ReadAhead = Annotated[
    float,
    typer.Option(metavar="GB", help="Shared memory that a stream may read ahead; 0 uses half of Ray's.", min=0),
]


def _show_version(wanted: bool) -> None:
    """Print the version and exit, where that is wanted."""
    if wanted:
        console.print(retable.__version__)
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")]


@app.callback()
def options(version: Version = False) -> None:
    """Handle the options before a command."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Options for the resources of trainings."""

    workers: Workers = None
    cpus_per_run: Cpus = None
    gpus_per_run: Gpus = None
    checkpoint_every: Every = 0
    stream: Stream = False
    read_ahead: ReadAhead = 0.0
    stack: Stack = 0
    measure_on: On = ""
    track: Track = ""
    deadline: Deadline = ""

    def resources(self) -> Resources:
        """Return the resources that the options ask for."""
        from retable.platform.train import trackers

        trackers.prepare(self.track)
        return Resources(
            workers=self.workers,
            cpus=self.cpus_per_run,
            gpus=self.gpus_per_run,
            checkpoint_every=self.checkpoint_every,
            stream=self.stream,
            read_ahead=self.read_ahead,
            stack=self.stack,
            measure_on=self.measure_on,
            track=self.track,
            **({"deadline": seconds_of(self.deadline, "--deadline")} if self.deadline else {}),
        )


@app.command("list")
def list_all(as_json: runs.Json = False) -> None:
    """Show tasks, their tables, scales and search spaces.

    Example: `retable list --json`
    """
    listed = {name: entry(name) for name in tasks.names()}
    lacking = {name for name, record in listed.items() if "missing" in record}
    searched = {name: describe_space(name) for name in spaces() if name.partition("_")[0] not in lacking}
    if as_json:
        with_commands = {
            name: record if name in lacking else record | commands_of(name) for name, record in listed.items()
        }
        runs.print_json({"tasks": with_commands, "spaces": searched, "scales": tasks.SCALES})
        return
    for name, record in listed.items():
        if name in lacking:
            console.print(f"[bold]{name}[/]  [dim]{escape(record['missing'])}[/]")
            continue
        tables = {f"{name}/{table}": title for table, title in record["tables"].items()}
        scales = {f"--scale {scale}": about for scale, about in record["scales"].items()}
        _print_entries(f"[bold]{name}[/]  {escape(record['about'])}", tables | scales)
    _print_entries("[bold]scales[/]", tasks.SCALES)
    _print_entries("[bold]search spaces[/]", searched)


def _print_entries(title: str, entries: Mapping[str, str]) -> None:
    console.print(title)
    for name, about in entries.items():
        console.print(f"  {name}  [dim]{escape(about)}[/]")


@app.command()
def plan(
    tables: Tables = None,
    scale: ScaleName = tasks.DEFAULT_SCALE,
    set: Set = None,
    rows: Rows = None,
    storage: Where = "results",
    cluster: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="Cluster file of Ray's launcher or of KubeRay: print nodes, money and time there."
        ),
    ] = "",
    prices: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="Prices of its machines (default: ./prices.toml, else examples of the package)."
        ),
    ] = "",
    configs: Annotated[
        bool, typer.Option("--configs", help="Also print each row: its fields, view, parent, data, cost and runs.")
    ] = False,
    graph: Annotated[
        Literal["text", "dot"] | None,
        typer.Option(help="Print the dependency graph instead: as text, or as DOT for Graphviz."),
    ] = None,
    as_json: runs.Json = False,
) -> None:
    """Print what filling tables takes, without starting anything; with --cluster also nodes, money and time.

    Costs come from finished runs of this scale and kind of machine on the storage, if there are any, else from each
    task's estimate; with --cluster, from the task's estimate or the measured step times of the GPU.

    Examples: `retable plan rl/figure1 rl/figure2 --scale paper` · `retable plan --scale paper --cluster cluster.yaml`
    · `retable plan rl/figure1 --rows dense --rows 'SNIP 9*' --set view.policy=bc --configs`
    · `retable plan weather/table1 --graph dot | dot -Tsvg > plan.svg`
    """
    from retable.platform.plan import audit as auditing
    from retable.platform.plan import cost
    from retable.platform.plan.cluster_spec import SHIPPED, prices_file, read_cluster, read_prices
    from retable.platform.plan.graph import as_dot, as_text, build

    modes = {"--graph": graph, "--configs": graph and configs, "--cluster": cluster, "--json": as_json}
    if len(given := [option for option, value in modes.items() if value]) > 1:
        raise UserError(f"{' and '.join(given)} are mutually exclusive; leave one out")
    prices = prices or prices_file()
    costs = read_prices(prices) if cluster else None
    nodes = read_cluster(cluster, costs) if costs else None
    if cluster and Path(prices).resolve() == SHIPPED.resolve():
        errors.print(f"prices: examples of {SHIPPED}; name a file with your own: --prices FILE", markup=False)
    work = retable.plan(*tables or (), scale=scale, set=parse_set(set or []), rows=rows or (), storage=storage)
    if graph:
        for line in (as_text if graph == "text" else as_dot)(build(work)):
            typer.echo(line)
        return
    audited = auditing.audit(work, calibration := cost.learn(work), _gpu_rates()[1]) if configs or as_json else []
    if as_json:
        summary = auditing.summary(work, calibration, cost.core_seconds(work, calibration))
        runs.print_json({**summary, "rows": audited} if configs else summary)
        return
    print_plan(work)
    for line in auditing.lines(audited):
        console.print(line, markup=False)
    if costs and nodes:
        _print_cost(work, nodes, costs)


def _gpu_rates() -> tuple[str, Mapping[str, float]]:
    """Return the GPU that was measured, and its units a second; none where that was only tried."""
    measured: Record = json.loads(GPU.read_text()) if GPU.exists() else {"tiny": True}
    return ("", {}) if measured["tiny"] else (measured["machine"]["device"], measured["rates"])


def _print_cost(work: Plan, nodes: Cluster, prices: Prices) -> None:
    """Print the cost of a plan on a cluster, table by table."""
    from retable.platform.plan.cost import Rates, estimate, grid, remarks

    device, measured = _gpu_rates()
    estimated = estimate(work, nodes, prices, Rates(device, measured) if measured else Rates())
    if not estimated.nodes:
        console.print("  nothing is left to do on a cluster")
        return
    console.print()
    console.print(grid(estimated))
    notes = Grid(box=None, show_header=False, padding=(0, 2))
    for word, text in remarks(estimated):
        notes.add_row(word, Text(text))
    console.print(notes)


def print_plan(work: Plan, wanted: Resources | None = None) -> None:
    """Print a plan's counts and cost, and the resources of its trainings (`wanted`: the user's overrides)."""
    from retable.platform.plan import cost
    from retable.platform.plan.plan import left_out

    rows = sum(not hidden(row) for _, table in work.tables.values() for row in table.rows)
    cells = sum(len(replicates) for rows in work.replicates.values() for replicates in rows.values())
    grid = Grid(box=None, show_header=False, padding=(0, 2))
    states = Counter(training.status for training in work.trainings.values())
    shown = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    chosen = f" (--rows {' '.join(map(shlex.quote, work.rows))})" if work.rows else ""
    grid.add_row("tables", Text(f"{len(work.tables)} with {rows} rows, {cells} replicates{chosen}"))
    grid.add_row("unique trainings", f"{len(work.trainings)} ({shown})" if shown else "0")
    waves = len({training.wave for training in work.missing})
    grid.add_row("groups to train", f"{len(work.groups)} stackable, in {waves} wave{'s' if waves != 1 else ''}")
    remarks = {"a training takes": summary(work, wanted), "from a bundle": sent_notes(work), "data": work.data_notes()}
    for title, lines in remarks.items():
        for number, line in enumerate(lines):
            grid.add_row("" if number else title, Text(line))
    grid.add_row("evaluations", f"{len(work.scorings)} ({len(work.unscored)} to do)")
    if work.combinings:
        combinations = len({combining.path for combining in work.combinings})
        grid.add_row("combinations", f"{combinations} ({len(work.uncombined)} to do)")
    grid.add_row("measurements", f"{len(work.timings)} ({len(work.unmeasured)} to do)")
    calibration = cost.learn(work)
    grid.add_row("estimated cost", f"{clock(cost.core_seconds(work, calibration))} of one CPU core (rough)")
    if calibration:
        grid.add_row("", cost.learnt_line(calibration))
    device, measured = _gpu_rates()
    if work.missing and measured:
        hours, untimed = work.gpu_hours(measured)
    if work.missing and measured and hours * 60 >= 1:  # below a minute it is the starting that takes time
        more = f", and {untimed} trainings that were not timed" if untimed else ""
        grid.add_row("", f"{clock(3600 * hours)} of one {device}{more} (as measured; trainings alone)")
    console.print(grid)
    for line in work.corrupt.values():
        say(f"left out, corrupt: {line}")
    _print_absent(work)
    for name in work.tables:
        for why, labels in left_out(work, name).items():
            say(f"{name}: left out, {why}: {and_more(labels, 6, '; ')}")


def _print_absent(work: Plan) -> None:
    """Print which rows a plan's scale leaves out, and why; of many tables, how many rows."""
    absent = grouped(
        ((name, row.absent), row.label)
        for name, (_, table) in work.tables.items()
        for row in table.rows
        if row.absent and not hidden(row)
    )
    if len(work.tables) > FEW and absent:
        count = sum(map(len, absent.values()))
        say(f"{plural(count, 'row')} not at scale {work.scale}; retable plan TABLE --scale {work.scale} names them")
        return
    for (name, why), labels in absent.items():
        say(f"{name}: absent, {why}: {and_more(labels, 6, '; ')}")


def sent_notes(work: Plan) -> list[str]:
    """Return how many runs of a plan came in a bundle, and which of them are to be trained again."""
    from retable.platform.plan.plan import name_of

    intact = [training for training in work.trainings.values() if training.folder.path not in work.corrupt]
    sent = [training for training in intact if training.folder.bundle()]
    again = [name_of(training, work.shared) for training in sent if training.status == "weights not sent"]
    lines = [f"{len(sent)} runs"] if sent else []
    if again:
        lines.append(
            f"{len(again)} to train again, as weights are needed that were not sent: {and_more(again, 3, '; ')}"
        )
    return lines


@app.command()
@spread()
def reproduce(
    tables: Tables = None,
    scale: ScaleName = tasks.DEFAULT_SCALE,
    set: Set = None,
    rows: Rows = None,
    storage: Where = "results",
    *,
    needs: Needs,
    retry_diverged: Retry = False,
    train: Annotated[
        bool, typer.Option("--train/--no-train", help="Train what is missing, or fill from finished runs alone.")
    ] = True,
) -> None:
    """Fill tables and figures, measured beside published, and write the report.

    Runs that are finished are used; what was interrupted goes on. With --no-train nothing is trained or measured: rows
    without finished runs are named and stay empty. --set also takes replicate axes (`seed=[0,1,2]`) and fields of the
    view (`view.policy=bc`).

    Examples: `retable reproduce rl` · `retable reproduce rl/figure1 --scale small --rows dense --rows 'SNIP 9*' --set
    environment=HalfCheetah --set view.policy=bc`
    """
    request = {"scale": scale, "set": parse_set(set or []), "rows": rows or (), "storage": storage}
    if retry_diverged and not train:
        raise UserError("--retry-diverged and --no-train are mutually exclusive; leave one out")
    _fill_tables(tables or (), request, needs.resources(), retry_diverged, train)


def _fill_tables(
    names: Sequence[str],
    request: Mapping[str, Any],
    wanted: Resources,
    retry_diverged: bool = False,
    train: bool = True,
) -> None:
    """Fill tables, print them, and write the report.

    Raises:
        UserError: where runs failed.
    """
    from retable.platform import api

    failures: dict[str, str] = {}
    filled = {} if retry_diverged else api.complete(*names, **request)
    if filled:
        console.print("nothing to do: all is there, as it was filled before")
    else:
        work = api.plan(*names, **request, retry_diverged=retry_diverged, train=train)
        print_plan(work, wanted)
        filled, failures = api.carry_out(work, wanted)
    if len(filled) > FEW:
        print_summary(filled, Storage.open(request["storage"]))
    else:
        for part in filled.values():
            print_section(part)
        console.print(f"report: {Storage.open(request['storage'])}/report/index.html", markup=False)
    if failures:
        raise UserError(f"failed: {len(failures)} (see above); mend the cause and run the same command again")


@app.command()
@spread("stack", "measure_on", "deadline")
def train(
    task: TaskName,
    scale: ScaleName = tasks.DEFAULT_SCALE,
    set: Set = None,
    storage: Where = "results",
    *,
    needs: Needs,
    keep: Annotated[list[int] | None, typer.Option(help="Keep the weights of this epoch; may be repeated.")] = None,
    retry_diverged: Retry = False,
) -> None:
    """Train one config, or resume it.

    Example: `retable train rl --set prune=snip --set prune.sparsity=0.9 --workers 2`
    """
    run = retable.train(
        task,
        parse_set(set or []),
        scale=scale,
        storage=storage,
        resources=needs.resources(),
        keep=keep or (),
        retry_diverged=retry_diverged,
    )
    if run.diverged:
        raise UserError(f"run {run.fingerprint} diverged, {run.diverged}; change its config, or use --retry-diverged")
    console.print(f"run {run.fingerprint}: {run.folder.folder}", markup=False)
    print_lines(f"  {name}  {value:.6g}" for name, value in run.metrics.items())


@app.command()
def score(
    run: Annotated[str, typer.Argument(help="A run (its first digits, `latest`, or TABLE/ROW) or a table.")],
    set: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a field of the view: split=validation; for a table as in `reproduce`."),
    ] = None,
    scale: ScaleName = tasks.DEFAULT_SCALE,
    rows: Rows = None,
    storage: Where = "results",
) -> None:
    """Score a finished run, on the test data unless its view says otherwise; a repeated command reads the stored score.

    Of a table, the finished runs of its rows are scored at --scale, and it is filled; nothing is trained.

    Examples: `retable score latest --set split=validation --set epoch=3` · `retable score rl/figure1 --scale small
    --rows 'SNIP 9*' --set view.policy=bc`
    """
    changes = parse_set(set or [])
    if run.count("/") == 1:
        request = {"scale": scale, "set": changes, "rows": rows or (), "storage": storage}
        _fill_tables([run], request, Resources(), train=False)
        return
    for option, given in (("--rows", rows), ("--scale", scale != tasks.DEFAULT_SCALE)):
        if given:
            raise UserError(f"{option} is about a table, and {run!r} is a run; leave it out")
    loaded = retable.load(run, storage)
    print_lines(f"  {name}  {value:.6g}" for name, value in loaded.score(changes).items())


@app.command()
@spread("checkpoint_every", "stack", "measure_on", "deadline")
def sweep(
    name: Annotated[str | None, typer.Argument(metavar="[SPACE]", help="A search space; see `retable list`.")] = None,
    space: Annotated[str | None, typer.Option(help="A Python file of your own that defines SPACE.")] = None,
    scale: ScaleName = tasks.DEFAULT_SCALE,
    set: Set = None,
    storage: Where = "results",
    samples: Annotated[int | None, typer.Option(help="Points to draw (default: as the space says).", min=1)] = None,
    *,
    needs: Needs,
) -> None:
    """Search a space with Ray Tune, or resume the search; print the winner as --set options.

    Examples: `retable sweep rl --set environment=Hopper` · `retable sweep --space my.py`
    """
    from retable.platform.spec.space import load_space

    if (name is None) == (space is None):
        raise UserError("name one search space (`retable list` shows them), or a file of your own: --space my.py")
    result = retable.sweep(
        load_space(space) if space else name or "",
        set=parse_set(set or []),
        scale=scale,
        storage=storage,
        resources=needs.resources(),
        samples=samples,
        name=Path(space).stem if space else "",
    )
    _print_sweep(result)


def _print_sweep(result: SweepResult) -> None:
    """Print the points of a sweep, best first, which tie, and the winner.

    Raises:
        UserError: if no point has a value.
    """
    shown = Grid(box=None, padding=(0, 1))
    for title in ("", result.space.metric, "epochs", "run", "point"):
        shown.add_column(Text(title))
    frame, most = result.frame(), 20
    for rank, point in zip(frame["place"][:most], result.points, strict=False):
        value = point.note.partition(":")[0] if point.value is None else f"{point.value:.4g}"
        words = ("" if point.value is None else str(rank), value, str(point.epochs), point.fingerprint[:8])
        shown.add_row(*words, Text(_point_line(point.overrides)))
    console.print(shown)
    if len(result.points) > most:
        console.print(f"{len(result.points) - most} more points are in the CSV")
    notes = Counter(point.note for point in result.points if point.note)
    for note, count in notes.items():
        console.print(f"{count} point{'s' if count > 1 else ''} without a value: {note}", markup=False)
    if len(result.ties) > 1:
        console.print(f"{len(result.ties)} points tie at {result.best.value:.4g}; the first of them is named")
    console.print(f"winner: {_point_line(result.best.overrides)}", markup=False)
    console.print(f"its run: {result.command(result.best)}", markup=False)
    console.print(f"all points: {result.files}.csv, drawn: {result.files}.png", markup=False, soft_wrap=True)


def _point_line(overrides: Mapping[str, object]) -> str:
    """Write a point of a sweep: its config as --set options, and the fields of its view where it has some."""
    config, view = split_view(overrides)
    seen = [f"view: {', '.join(f'{path}={value}' for path, value in view.items())}"] if view else []
    return "  ".join([*([set_line(config)] if config else []), *seen])


@app.command()
def report(
    tables: Tables = None,
    scale: ScaleName = tasks.DEFAULT_SCALE,
    set: Set = None,
    rows: Rows = None,
    storage: Where = "results",
    output: Annotated[
        str | None, typer.Option(help="Folder of the report (default: the folder report of the storage).")
    ] = None,
    compare: Annotated[
        str, typer.Option(metavar="OTHER", help="Also print what changed since another storage or report folder.")
    ] = "",
    single_file: Annotated[
        bool, typer.Option("--single-file", help="Write one page that contains its pictures, to send.")
    ] = (False),
) -> None:
    """Write the report of all tables that a storage path holds: HTML, Markdown, CSV, LaTeX, PNG, SVG.

    With tables, write a report of these alone, at --scale and with --set and --rows, from the scores that are there.

    Examples: `retable report` · `retable report --single-file` · `retable report --compare s3://lab/results` · `retable
    report rl/figure1 --scale small --rows dense --rows 'SNIP 9*' --output chosen`
    """
    from retable.platform import api
    from retable.platform.report.diff import changes, report_tables, write_comparison
    from retable.platform.report.results import slug_of

    other = report_tables(Storage.open(compare)) if compare else []
    request = {"scale": scale, "set": parse_set(set or []), "rows": rows or ()}
    into, parts = api.write_report(Storage.open(storage), output, tables or (), single=single_file, **request)
    console.print(f"report: {into}/index.html", markup=False)
    if compare:
        shown = {slug_of(part) for part in parts}
        changed = changes(parts, [part for part in other if not tables or slug_of(part) in shown])
        write_comparison(changed, str(Storage.open(storage)), str(Storage.open(compare)), into)
        for line in changed.lines():
            console.print(line, markup=False)
        console.print(f"comparison: {into}/compare.html", markup=False)


@app.command()
def zoo(
    names: Annotated[list[str] | None, typer.Argument(metavar="[TASK]...", help="Tasks (default: all).")] = None,
    as_json: runs.Json = False,
) -> None:
    """List the models that come with the tasks: size, score on data they never saw, data, license, training.

    A training command is for the commit beside it; fields may have changed since. --json prints all metadata.

    Examples: `retable zoo` · `retable zoo style`, then `retable style image lake.jpg --style great_wave --out out.jpg`
    """
    from retable.platform.models.zoo import about, show, zoo

    chosen = names or tasks.names()
    if as_json:
        runs.print_json({task: {name: about(task, name) for name in zoo(task)} for task in chosen})
        return
    for name in chosen:
        lines = show(name)
        if lines or names:
            console.print(f"[bold]{name}[/]" if lines else f"{name}: no models come with it", highlight=False)
        for line in lines:
            console.print(f"  {line}", markup=False)


@app.command()
def serve(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[TASK]...", help="Tasks to serve (default: those of the papers).")
    ] = None,
    run: Annotated[
        list[str] | None,
        typer.Option(help="A run: its first digits, `latest`, or TABLE/ROW. Repeatable (default: the best runs)."),
    ] = None,
    best: Annotated[
        list[str] | None, typer.Option(metavar="TABLE[/METRIC]", help="Serve the best run of a table; may be repeated.")
    ] = None,
    zoo: Annotated[
        bool, typer.Option("--zoo", help="Serve the models that come with the tasks, even where there are runs.")
    ] = (False),
    host: Annotated[
        str, typer.Option(help="Bind address; a token is required for non-loopback addresses.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="TCP port.", min=1, max=65535)] = 8000,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also accept requests to this host name, e.g. a proxy's; may be repeated."),
    ] = None,
    name: Annotated[
        str, typer.Option(help="Serve below /NAME, beside other servers on one cluster (default: below /).")
    ] = "",
    token_file: Annotated[
        str, typer.Option(help="File with the token, mode 0600 (default: the variable RETABLE_TOKEN).")
    ] = "",
    index: Annotated[str, typer.Option(help="Audio index directory (default: the server's own).")] = "",
    anyway: Annotated[bool, typer.Option("--anyway", help="Allow smoke-scale audio models.")] = False,
    replicas: Annotated[
        list[str] | None,
        typer.Option(metavar="[TASK=]N", help="Minimum number of replicas, of one task or of all; may be repeated."),
    ] = None,
    config_out: Annotated[
        str, typer.Option(help="Write the config file for `serve deploy` here, and serve nothing.")
    ] = "",
    overwrite: Overwrite = False,
    storage: Where = "results",
) -> None:
    """Serve the best models behind one address, with a page, until Ctrl-C; on SIGHUP choose again.

    Examples: `retable serve` · `retable serve rl --run 3f2a` · `retable serve --zoo --port 8080`
    """
    if config_out:
        check_target(Path(config_out), overwrite)
    command = importlib.import_module("retable.serve.launch.command")  # a name: the platform knows nothing above it
    wanted = {"tasks": names or (), "runs": run or (), "zoo": zoo, "best": best or (), "index": index, "anyway": anyway}
    address = {"host": host, "port": port, "token_file": token_file, "allowed": allowed_host or (), "name": name}
    command.run(wanted, storage, address, replicas or (), config_out)


@app.command()
def predict(
    task: Annotated[str, typer.Argument(help="Task of the model, such as weather.")],
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT...", help="Files, folders or patterns.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the predictions.")],
    model: Annotated[
        str, typer.Option(help="A run, an exported file or a name of the zoo (default: the best run).")
    ] = "",
    set: Annotated[
        list[str] | None, typer.Option("--set", help="Set an option of the task: name=value. May be repeated.")
    ] = None,
    storage: Where = "results",
) -> None:
    """Predict for many files on Ray, without a server; a second call predicts only for new and changed files.

    rl: observations (.npy) to actions; style: photographs to paintings; audio: recordings to vectors; weather:
    satellite images (.npz, .h5) to probabilities of rain.

    Options by --set: rl: seed, samples; style: size, strength, original_colours; weather: format, region.

    Examples: `retable predict style holiday --model great_wave --set strength=0.7 --out painted` · `retable predict rl
    *.npy --model HalfCheetah-snip-95 --out actions`
    """
    from retable.platform.models import predict as batch

    with progress_bar(f"{task}: answering") as report:
        made, failures, notes = batch.predict(
            task, inputs, out, model, parse_set(set or []), Storage.open(storage), report
        )
    print_lines(notes, "note: ", to=errors)
    print_lines(failures, "failed: ", to=errors)
    console.print(f"{out}: {made} new answers" + (f", {len(failures)} failed" if failures else ""), markup=False)
    if failures:
        raise typer.Exit(1)


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the task, e.g. my_paper.")],
    table: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The paper's table as CSV; columns `set:path` hold what rows change."),
    ] = None,
) -> None:
    """Write a task of your own that runs at once: config, data, learner, the paper's table, a claim and a test.

    It is written to the first folder of RETABLE_TASKS, else to papers/; docs/extending.md goes through it.

    Examples: `retable new my_paper` · `retable new my_paper --table published.csv`
    """
    from retable.platform.cli.new import write_task

    written = write_task(name, table)
    for path in written.files:
        console.print(f"wrote {path}", markup=False)
    for header in written.joined:
        say(f"no column of numbers: {header!r}; its words are part of the labels")
    for label in written.default:
        say(f"run with the defaults: the row {label!r}; say in tables.py what it changes, or why it is `absent`")
    for label, remedy in written.unwritten.items():
        say(f"not run yet: the row {label!r}; {remedy}")
    for header in written.unmeasured:
        say(f"not measured yet: {header!r}; let `all_metrics` in metrics.py return it")
    console.print("next:")
    if not written.is_found:
        console.print(f"  export RETABLE_TASKS={shlex.quote(str(written.folder.parent.absolute()))}", markup=False)
    console.print(f"  retable reproduce {name}", markup=False)
    console.print(f"  python -m pytest {written.folder.parent}/test_{name}.py", markup=False)


@app.command()
def doctor(storage: Where = "results") -> None:
    """Check this machine: versions, cores, GPUs, the storage, and settings that make Ray hang.

    Examples: `retable doctor` · `retable doctor --storage s3://bucket/retable`
    """
    from retable.platform.cli.doctor import checks

    bad = 0
    for line in checks(storage):
        bad += not line.good
        mark = "[red]bad[/] " if not line.good else "[dim]--[/]  " if line.optional else "[green]ok[/]  "
        console.print(f"{mark} {escape(line.text)}")
    if bad:
        raise typer.Exit(1)


def main() -> None:
    """Run the command line; a user's mistake is one line and status 2, Ctrl-C status 130, SIGTERM 143."""
    setattr(Console, "on_broken_pipe", closed)  # noqa: B010 (Rich, and Typer's help with it, would end with status 1)
    try:
        ended = app(prog_name="retable", standalone_mode=False)
        sys.stdout.flush()
        if ended == 130:  # what Typer makes of Ctrl-C
            interrupted()
        sys.exit(ended if isinstance(ended, int) else 0)
    except UserError as error:
        errors.print(f"error: {_shortened(str(error))}", markup=False)
        sys.exit(2)
    except KeyboardInterrupt:
        interrupted()
    except BrokenPipeError:
        closed()
    except SystemExit as ended:
        if ended.code in (130, 143):
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # one more would be a traceback of Python's own end
        raise
    except Exception as error:
        if not hasattr(error, "format_message"):  # a mistake that Typer found; its class is private there
            raise
        sys.exit(refuse(error))


def interrupted() -> NoReturn:
    """Exit with status 130, and say that Ctrl-C came, unless what ran has said it and how it goes on."""
    session = sys.modules.get("retable.platform.execute.session")  # which takes long to import
    if session is None or not session.Interrupt.announced:
        errors.print("interrupted; run the same command again")
    sys.exit(130)


def closed(*_: object) -> None:
    """Exit normally when the reader of the output has closed it, as `head` does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)


def refuse(error: Any) -> int:
    """Print a usage error that Typer raised as one line; return the exit status."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return 2
    message = _shortened(runs.plain(error.format_message()).rstrip("."))
    typed = shlex.join(takewhile(lambda word: not word.startswith("-"), sys.argv[1:]))  # where Click gives no context
    command = context.command_path if context else f"retable {typed}".strip()
    errors.print(f"error: {message}; see `{command} --help`", markup=False)
    return 2


def _shortened(message: str, most: int = 1200) -> str:
    """Return a refusal, and of a very long one both ends: a word of the user's may be a file's content."""
    return message if len(message) <= most else f"{message[: most // 2]} … {message[-most // 2 :]}"


if __name__ == "__main__":
    main()
