"""Cost of a plan: core seconds as finished runs took them; on a cluster node hours, money, wall-clock time and bytes.

Work is counted in seconds of one CPU core, by the tasks' own estimates, or in hours of a GPU where
`python -m benchmarks gpu` measured the training's rate on the very GPU of the cluster. A run that several tables want
is counted in the first of them.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table as Grid

from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.plan.cluster_spec import Cluster, NodeType, Prices
from retable.platform.plan.graph import build, critical_path, train_key
from retable.platform.plan.plan import READERS, Plan, Prediction, Training
from retable.platform.store.provenance import device_name
from retable.platform.store.query import Run, list_runs
from retable.platform.store.run import RunFolder, view_key
from retable.platform.store.storage import Storage
from retable.platform.text import clock

if TYPE_CHECKING:
    from retable.platform.spec.task import Task

Hours = dict[str, float]
"""Node type -> hours of nodes, 0 where there are none."""

_NOT_KNOWN = "not known: no run of this plan is finished on the storage"

LEAST, MOST = 3, 40
"""Fewer finished runs say nothing; of more, the newest are asked."""
SHORT = 0.1
"""Of the longest training's estimate: what is shorter says nothing of it, as starting is most of its time."""


@dataclass(frozen=True)
class Learnt:
    """Duration of a task's trainings, relative to the task's own estimate."""

    factor: float
    """Seconds of a core that were measured for each that the task estimates: the median of runs."""
    runs: int


def learn(plan: Plan) -> dict[str, Learnt]:
    """Return task -> calibration by its finished runs, if the storage has a few of this scale and device.

    Only tasks that have something left to train are asked about.
    """
    learnt = {}
    for task in {training.task.name: training.task for training in plan.missing}.values():
        longest = max(task.cost(training.config) for training in plan.missing if training.task.name == task.name)
        ratios = list(_ratios(plan.storage, task, plan.scale, SHORT * longest))
        if len(ratios) >= LEAST:
            learnt[task.name] = Learnt(statistics.median(ratios), len(ratios))
    return learnt


def core_seconds(plan: Plan, calibration: Mapping[str, Learnt]) -> float:
    """Return the seconds of one CPU core that a plan takes: trainings as was learnt, the rest as tasks estimate."""
    estimated = sum(training.task.cost(training.config) for training in plan.missing)
    learnt = sum(training_cost(training.task, training.config, calibration) for training in plan.missing)
    return plan.cost - estimated + learnt


def training_cost(task: Task, config: object, calibration: Mapping[str, Learnt]) -> float:
    """Return the seconds of one CPU core that a training takes: as was learnt, else as its task estimates."""
    return task.cost(config) * (calibration[task.name].factor if task.name in calibration else 1.0)


def learnt_line(calibration: Mapping[str, Learnt]) -> str:
    """Return a line about the calibration."""
    parts = (
        f"{name} {learnt.factor:.2g} of its estimate, by {learnt.runs} runs" for name, learnt in calibration.items()
    )
    return f"trainings as measured at this scale on such a machine: {'; '.join(parts)}" if calibration else ""


def _ratios(storage: Storage, task: Task, scale: str, least: float) -> Iterator[float]:
    """Yield, of each finished run of this task, version, scale and device, measured by estimated seconds.

    Runs are left out that take less than `least` seconds of a core by the task's estimate.
    """
    try:
        runs = [run for run in list_runs(storage, task.name) if run.state == "finished" and run.scale in ("", scale)]
    except UserError:  # there are none
        return
    device = device_name()
    costs = ((run, _cost(task, run)) for run in runs)
    long = [(run, cost) for run, cost in costs if cost and cost >= least][:MOST]
    with ThreadPoolExecutor(READERS) as readers:
        taken = readers.map(lambda of: _seconds(storage, task, of[0], device), long)
        yield from (seconds / cost for seconds, (_, cost) in zip(taken, long, strict=True) if seconds)


def _cost(task: Task, run: Run) -> float | None:
    """Return the seconds of a core that a task estimates for a run; None where its config is of another version."""
    try:
        return task.cost(override(task.config(), run.config))
    except (UserError, KeyError, TypeError, ValueError, AttributeError):
        return None


def _seconds(storage: Storage, task: Task, run: Run, device: str) -> float | None:
    """Return the seconds of a core that a run took; None of one on another device, in a stack, or that is not whole."""
    folder = RunFolder(storage, task.name, run.run).folder
    try:
        made, result = folder.read_record("provenance.json", {}), folder.read_record("result.json", {})
        if made.get("device") != device or made.get("stack", 1) != 1:
            return None
        return float((result.get("used") or {}).get("cpu_seconds") or result["seconds"])
    except (UserError, OSError, KeyError, TypeError, ValueError, AttributeError):
        return None


@dataclass(frozen=True)
class Rates:
    """Step times that were measured, of `gpu.json`."""

    device: str = ""
    """The GPU they count for, by PyTorch's name."""
    units: Mapping[str, float] = field(default_factory=dict)
    """Rate named by a task's `gpu_work` -> units a second."""


@dataclass
class TableWork:
    """The work of one table that no earlier table includes."""

    trainings: int = 0
    evaluations: int = 0
    hours: Hours = field(default_factory=lambda: defaultdict(float))
    """Node type -> hours of a node that is busy all over."""


@dataclass
class Estimate:
    """The cost of a plan on a cluster."""

    cluster: Cluster
    prices: Prices
    tables: dict[str, TableWork]
    nodes: dict[str, int] = field(default_factory=dict)
    """Node type -> most nodes at once."""
    measured: int = 0
    """Trainings on a GPU whose step time was measured there."""
    guessed: int = 0
    """Trainings on a GPU whose time is a guess."""
    longest: float = 0.0
    """Hours from a run's first ancestor to its last score: no cluster is faster."""
    name: str = ""
    """Name of that run."""
    wall: float = 0.0
    """Hours that it takes at least, with that many nodes."""
    idle: Hours = field(default_factory=lambda: defaultdict(float))
    """Node type -> hours of nodes that wait: those always there, and the last ones before they are stopped."""
    storage: tuple[float, list[str]] = (0.0, [])
    """Bytes of all runs, by the finished ones of this plan, and the tasks that have none of those."""
    unmeasured: int = 0
    """Measurements, which run on the machine of the command and are not counted."""

    def money(self, hours: Mapping[str, float]) -> float:
        """Return the price of some hours of nodes, by type."""
        prices = {kind.name: kind.hour for kind in (self.cluster.head, *self.cluster.workers)}
        return sum(prices[name] * amount for name, amount in hours.items())

    @property
    def busy(self) -> Hours:
        """Node type -> hours of nodes, of all tables."""
        return _summed(*(work.hours for work in self.tables.values()))

    @property
    def total(self) -> float:
        """Money for all of it."""
        return self.money(self.busy) + self.money(self.idle) + self.cluster.head.hour * self.wall


@dataclass(frozen=True)
class Place:
    """Node type of one kind of work, and the pieces that a node does at once."""

    kind: NodeType
    slots: float

    def add(self, hours: Hours, pieces: Hours, amount: float) -> None:
        """Count a piece of work, in hours of one of a node's GPUs or CPUs."""
        hours[self.kind.name] += amount / self.slots
        pieces[self.kind.name] += 1 / self.slots


def estimate(plan: Plan, cluster: Cluster, prices: Prices, rates: Rates) -> Estimate:
    """Estimate the missing work of a plan. Starts nothing and asks no cloud.

    Trainings and predictions that ask for a GPU go to the node type with GPUs that costs least for its work, if there
    is one, and count as if each had its GPU alone; all else goes to the cheapest CPUs.
    """
    estimated = Estimate(cluster, prices, {name: TableWork() for name in plan.tables}, unmeasured=len(plan.unmeasured))
    gpu, cpu = _gpu_place(cluster), _cpu_place(cluster)
    pieces: Hours = defaultdict(float)
    taken: dict[str, float] = {}  # hours of a node of the plan's graph, by key
    for training in plan.missing:
        work = estimated.tables[plan.first[training.folder.path]]
        on = gpu if training.task.needs(training.config, "train").gpus else None
        hours = taken[train_key(training.folder.path)] = _training(training, on, rates, estimated)
        (on or cpu).add(work.hours, pieces, hours)
        work.trainings += 1
    for key, scoring in plan.scorings.items():
        estimated.tables[plan.first[key]].evaluations += not scoring.done
    for name, key, prediction in predictions(plan):
        workers = gpu if gpu is not None and prediction.task.predicts_on_gpu(prediction.config) else cpu
        hours = prediction.task.view_cost(prediction.config, prediction.view) / 3600
        hours /= workers.kind.gpu_cores if workers is gpu else 1.0
        workers.add(estimated.tables[name].hours, pieces, hours)
        taken[f"predict {key}"] = hours
    estimated.longest, estimated.name = _longest(plan, taken)
    _add_time(estimated, pieces)
    estimated.storage = run_bytes(plan)
    return estimated


def _gpu_place(cluster: Cluster) -> Place | None:
    """Return the workers whose GPUs cost least for their work, if any have GPUs."""
    able = [kind for kind in cluster.workers if kind.gpus and kind.most]
    kind = min(able, key=lambda kind: kind.hour / (kind.gpus * kind.gpu_cores), default=None)
    return Place(kind, kind.gpus) if kind is not None else None


def _cpu_place(cluster: Cluster) -> Place:
    """Return the workers whose CPUs cost least; those with GPUs only where there are no others."""
    able = [kind for kind in cluster.workers if kind.cpus and kind.most]
    kind = min(able, key=lambda kind: (kind.gpus > 0, kind.hour / kind.cpus))
    return Place(kind, kind.cpus)


def _training(training: Training, gpu: Place | None, rates: Rates, estimated: Estimate) -> float:
    """Return a training's hours of one GPU, or of one CPU core where it has none; note how they are known."""
    task, config = training.task, training.config
    if gpu is None:
        return task.cost(config) / 3600
    name, units = task.gpu_work(config) or ("", 0.0)
    if name in rates.units and rates.device == gpu.kind.gpu:
        estimated.measured += 1
        return units / rates.units[name] / 3600
    estimated.guessed += 1
    return task.cost(config) / gpu.kind.gpu_cores / 3600


def predictions(plan: Plan) -> Iterator[tuple[str, str, Prediction]]:
    """Yield the first table that wants a prediction, its key and itself, of each that is still to be made."""
    wanted: dict[str, str] = {}
    for key, scoring in plan.scorings.items():
        for view in () if scoring.done else scoring.reads:
            wanted.setdefault(f"{scoring.folder.path}/{view_key(view)}", plan.first[key])
    for key, prediction in plan.predictions.items():  # what only a combined row joins is the run's first table's
        yield wanted.get(key, plan.first[prediction.folder.path]), key, prediction


def _longest(plan: Plan, hours: Mapping[str, float]) -> tuple[float, str]:
    """Return the hours of the longest chain of a plan's graph, and the name of the run at its end.

    Args:
        plan: what is done.
        hours: key of a node of the graph -> hours that it takes; none, where it is not there.
    """
    graph = {key: replace(node, cost=hours.get(key, 0.0)) for key, node in build(plan).items()}
    chain = [node for node in critical_path(graph) if node.cost]
    if not chain:
        return 0.0, ""
    kind, _, key = chain[-1].key.partition(" ")
    folder = (plan.trainings if kind == "train" else plan.predictions)[key].folder
    return sum(node.cost for node in chain), f"{folder.task} run {folder.fingerprint:.8}"


def _add_time(estimated: Estimate, pieces: Mapping[str, float]) -> None:
    """Fill in nodes, wall-clock and idle hours.

    Args:
        estimated: with the hours of each table and of the longest chain.
        pieces: node type -> nodes that all of its work would keep busy at once.
    """
    busy = estimated.busy
    limits = {k.name: min(k.most, math.ceil(pieces[k.name])) for k in estimated.cluster.workers if pieces.get(k.name)}
    estimated.nodes = dict.fromkeys(limits, 1)
    for _ in range(estimated.cluster.most - len(limits)):  # each further node goes where most work waits for it
        able = [name for name, limit in limits.items() if estimated.nodes[name] < limit]
        if not able:
            break
        estimated.nodes[max(able, key=lambda name: busy[name] / estimated.nodes[name])] += 1
    estimated.wall = max([estimated.longest, *(busy[name] / count for name, count in estimated.nodes.items())])
    for kind in estimated.cluster.workers:
        always = max(0.0, min(kind.least, kind.most) * estimated.wall - busy[kind.name])
        estimated.idle[kind.name] = always + estimated.cluster.idle * max(
            0, estimated.nodes.get(kind.name, 0) - kind.least
        )


def run_bytes(plan: Plan) -> tuple[float, list[str]]:
    """Estimate the bytes of all runs of a plan from those that are finished; and name the tasks that have none."""
    done = {path: training.task.name for path, training in plan.trainings.items() if training.status == "done"}
    sizes: Counter[str] = Counter()
    if done:
        for name, (size, _) in plan.storage.files("runs"):
            path = "/".join(["runs", *name.split("/", 2)[:2]])
            if path in done:
                sizes[done[path]] += size
    wanted = Counter(training.task.name for training in plan.trainings.values())
    finished = Counter(done.values())
    total = sum(sizes[name] / finished[name] * wanted[name] for name in finished)
    return total, sorted(wanted.keys() - finished.keys())


def grid(estimated: Estimate) -> RenderableType:
    """Return the estimate as a table: a line for each table of the paper, then what comes on top."""
    kinds = [name for name in estimated.nodes if estimated.busy[name] or estimated.idle[name]]
    shown = Grid(box=None, padding=(0, 1))
    shown.add_column("", overflow="fold")
    for title in ("trainings", "evaluations", *(f"{name} node-h" for name in kinds), estimated.prices.currency):
        shown.add_column(title, justify="right", no_wrap=True)

    def line(name: str, counts: tuple[str, str], hours: Mapping[str, float], money: float, style: str = "") -> None:
        cells = [amount(hours.get(kind, 0.0)) for kind in kinds]
        shown.add_row(name, *counts, *cells, amount(money), style=style)

    for name, work in estimated.tables.items():
        line(name, (f"{work.trainings:,}", f"{work.evaluations:,}"), work.hours, estimated.money(work.hours))
    line("nodes that wait", ("", ""), estimated.idle, estimated.money(estimated.idle))
    line(f"head, {amount(estimated.wall)} h", ("", ""), {}, estimated.cluster.head.hour * estimated.wall)
    trainings = sum(work.trainings for work in estimated.tables.values())
    evaluations = sum(work.evaluations for work in estimated.tables.values())
    hours = _summed(estimated.busy, estimated.idle)
    line("in all", (f"{trainings:,}", f"{evaluations:,}"), hours, estimated.total, "bold")
    return shown


def remarks(estimated: Estimate) -> Iterator[tuple[str, str]]:
    """Yield what one should know of an estimate: a word, and what is to be said of it."""
    kinds = {kind.name: kind for kind in estimated.cluster.workers}
    parts = [
        f"{count} {name} ({kinds[name].instance}{', spot' if kinds[name].spot else ''})"
        for name, count in estimated.nodes.items()
    ]
    yield "nodes", f"at most {' and '.join(parts)}, beside the head ({estimated.cluster.head.instance})"
    why = f"; the longest run, {estimated.name}, takes {clock(3600 * estimated.longest)}"
    yield "wall-clock", f"{clock(3600 * estimated.wall)} or more{why}"
    yield "storage", stored(estimated)
    yield "times", times(estimated)
    if estimated.unmeasured:
        yield "not counted", f"{estimated.unmeasured} measurements: they run on the machine of the command"


def stored(estimated: Estimate) -> str:
    """Return how much the runs will take on the storage, in words."""
    size, unknown = estimated.storage
    month = f"{estimated.prices.currency} {amount(size / 1e9 * estimated.prices.gigabyte_month)} a month"
    rest = f"; of {', '.join(unknown)} not known" if unknown else ""
    written = f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
    return f"{written}, {month}, by the runs that are finished{rest}" if size else _NOT_KNOWN


def times(estimated: Estimate) -> str:
    """Return the source of the times, in words."""
    guess = "the tasks' own rough estimates of CPU time, a CPU of a node counted as one core"
    workers = _gpu_place(estimated.cluster)
    if workers is None:
        return guess
    gpu = workers.kind
    worth = f"one {gpu.gpu or 'GPU'} counted as {gpu.gpu_cores:g} cores (a guess in {estimated.prices.file})"
    if not estimated.measured:
        return f"{guess}, {worth}; no step time was measured on that GPU: `python -m benchmarks gpu`"
    more = (
        f"; of {estimated.guessed} others and of evaluations {guess}, {worth}"
        if estimated.guessed
        else f"; else {guess}"
    )
    return f"of {estimated.measured} trainings as measured on {gpu.gpu}, by themselves{more}"


def _summed(*parts: Mapping[str, float]) -> Hours:
    """Return the sum of hours, node type by node type."""
    total: Hours = defaultdict(float)
    for part in parts:
        for name, hours in part.items():
            total[name] += hours
    return total


def amount(value: float) -> str:
    """Write hours or money: two digits after the point where they matter."""
    if 0 < value < 0.005:
        return "<0.01"
    return "-" if not value else f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
