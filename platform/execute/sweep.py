"""Sweeps: run a search space, or go on with it.

Points that are known beforehand (a grid, random draws) are a plan like a table's rows: each config is trained once,
every view of it is scored, and what is on the storage is used. Points that a searcher draws, or that a scheduler may
stop, are trials of Ray Tune that report their score after each epoch; a journal tells what was tried.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from retable.platform.config import (
    Config,
    View,
    describe,
    fingerprint,
    flatten,
    override,
    parent,
    plain_value,
    set_line,
)
from retable.platform.console import ProgressBoard
from retable.platform.errors import UserError, nearest
from retable.platform.execute.callback import FAILURE, Report, RunProgress, Spec, TrialCallback
from retable.platform.execute.datasets import DatasetCache
from retable.platform.execute.run import execute, prepare_data
from retable.platform.execute.scheduler import POLL_SECONDS
from retable.platform.execute.scoring import predict_and_score, weights_digest
from retable.platform.execute.session import check_nodes, possible_resources, ray_cluster
from retable.platform.execute.trials import Job, Launch, check, concurrent, fit, reported, require, run_job
from retable.platform.plan.plan import ENDED, Plan, compile_configs, data_digest, name_of, name_of_view, status
from retable.platform.spec.resources import Requirements, Resources
from retable.platform.spec.space import SAMPLES, Space, find_space, point_config, point_view
from retable.platform.spec.table import resolve, split_view
from retable.platform.spec.task import Task, config_at, find
from retable.platform.store import lease, provenance
from retable.platform.store.lease import LeaseLost
from retable.platform.store.run import RunFolder, sha256, view_key
from retable.platform.store.storage import Record, Storage
from retable.platform.train import trackers as track

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


@dataclass
class Point:
    """One point of a sweep."""

    overrides: dict[str, object]
    """Changes to the config, and `view.<field>`: how the run is scored."""
    fingerprint: str
    """Of the run that the point trains; points that differ in the view alone share it."""
    value: float | None = None
    """The metric at the last epoch it reached; None where there is no finite one."""
    epochs: int = 0
    ended: bool = False
    """Finished, or stopped early by the scheduler; else it failed or was interrupted."""
    note: str = ""
    """Reason why there is no value: `diverged`, or what failed."""

    @property
    def key(self) -> str:
        """The point's name: its run, and the fields of the view that it sets."""
        view = split_view(self.overrides)[1]
        return f"{self.fingerprint} {json.dumps(view, sort_keys=True)}" if view else self.fingerprint


@dataclass(frozen=True, kw_only=True, repr=False)
class SweepResult:
    """The result of a sweep."""

    name: str
    space: Space
    scale: str
    changes: Mapping[str, object]
    """Changes to every point that the caller made."""
    points: Sequence[Point]
    """Best first; then those without a value."""
    files: str = ""
    """Location of its files, without the suffixes `.json`, `.csv` and `.png`."""

    @property
    def best(self) -> Point:
        """The best point; of several equally good ones, the first.

        Raises:
            UserError: if no point has a value, saying why.
        """
        if not self.points or self.points[0].value is None:
            notes = Counter(point.note or "not finished" for point in self.points)
            why = "; ".join(f"{count} x {note}" for note, count in notes.most_common(3))
            raise UserError(f"sweep {self.name}: none of {len(self.points)} points has a value: {why}")
        return self.points[0]

    @property
    def ties(self) -> list[Point]:
        """The points whose value equals the best one's, including the best."""
        return [point for point in self.points if point.value is not None and point.value == self.best.value]

    def command(self, point: Point) -> str:
        """Return the line that trains a point's run and none else, or loads it where no such line is shorter."""
        changes = {**self.space.overrides, **self.changes, **split_view(point.overrides)[0]}
        task = find(self.space.task)
        config = config_at(task, self.scale, changes)
        if fingerprint(task.name, task.version, config) != point.fingerprint:  # --set changes a parent, too
            return f"retable score {point.fingerprint}"
        return f"retable train {task.name} --scale {self.scale} {set_line(changes)}".strip()

    def frame(self) -> DataFrame:
        """Return one line a point: its place, each axis, the metric, epochs, the run and a note."""
        from pandas import DataFrame

        values = [point.value for point in self.points]
        lines = [
            {
                "place": None if point.value is None else values.index(point.value) + 1,
                **{path: point.overrides.get(path) for path in self.space.domains},
                self.space.metric: point.value,
                "epochs": point.epochs,
                "run": point.fingerprint,
                "note": point.note,
            }
            for point in self.points
        ]
        return DataFrame(lines).astype({"place": "Int64", self.space.metric: float})

    def csv(self) -> str:
        """Return the frame as CSV."""
        text: str = self.frame().to_csv(index=False)
        return text

    def figure(self) -> Figure:
        """Draw the metric over each axis, a panel an axis; the best point and its ties are marked."""
        from matplotlib.figure import Figure

        axes = list(self.space.domains)
        drawing = Figure(figsize=(3.2 * len(axes), 3.2), layout="constrained")
        for panel, path in zip(drawing.subplots(1, len(axes), sharey=True, squeeze=False)[0], axes, strict=True):
            self._draw(panel, path)
        lost = sum(point.value is None for point in self.points)
        drawing.suptitle(f"sweep {self.name}" + (f" ({lost} without a value)" if lost else ""))
        drawing.supylabel(f"{self.space.metric} ({self.space.mode})")
        return drawing

    def _draw(self, panel: Any, path: str) -> None:
        valued = [point for point in self.points if point.value is not None]
        xs = [point.overrides[path] for point in valued]
        if all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in xs):
            if _is_logarithmic(self.space.domains[path], xs):
                panel.set_xscale("log")
        else:
            names = list(dict.fromkeys(describe({"": x})[1:] for x in xs))
            xs = [names.index(describe({"": x})[1:]) for x in xs]
            panel.set_xticks(range(len(names)), names, rotation=30 if len(names) > 3 else 0)
            panel.margins(x=0.2)
        panel.set_xlabel(path)
        panel.scatter(xs, [point.value for point in valued], s=18, color="0.4")
        if valued:
            best = [x for x, point in zip(xs, valued, strict=True) if point.value == self.best.value]
            panel.scatter(best[1:], [self.best.value] * (len(best) - 1), s=60, facecolors="none", edgecolors="C3")
            panel.scatter(best[:1], [self.best.value], s=90, marker="*", color="C3", zorder=3)

    def write(self, storage: Storage, path: str) -> None:
        """Write the result as `<path>.json`, `.csv` and `.png`."""
        _write_points(storage, f"{path}.json", self.points)
        storage.write(f"{path}.csv", self.csv())
        buffer = io.BytesIO()
        self.figure().savefig(buffer, dpi=120)
        storage.write(f"{path}.png", buffer.getvalue())


def _is_logarithmic(domain: Any, places: Sequence[Any]) -> bool:
    """Return whether an axis is logarithmic: the domain is drawn so, or a grid's values span a hundredfold."""
    if isinstance(domain, Mapping):
        return bool(places) and min(places) > 0 and max(places) / min(places) >= 100
    sampler = getattr(domain.sampler, "sampler", domain.sampler)  # a quantized one holds the other
    return "Log" in type(sampler).__name__


def _write_points(storage: Storage, path: str, points: Sequence[Point]) -> None:
    """Write a sweep's points: the journal that the same command reads and goes on from.

    What another command has written there meanwhile stays, but for the same points that are over here and not there.
    """
    kept = {point.key: point for point in read_points(storage, path)}
    kept |= {point.key: point for point in points if point.ended or not (point.key in kept and kept[point.key].ended)}
    storage.write_json(path, [asdict(point) for point in kept.values()])


def read_points(storage: Storage, path: str) -> list[Point]:
    """Read a sweep's points; none where there is no journal.

    Raises:
        UserError: where the file holds something else.
    """
    entries = storage.read_json(path) if storage.exists(path) else []
    try:
        if isinstance(entries, list):
            return [Point(**entry) for entry in entries]
    except TypeError:
        pass
    raise UserError(f"{storage}/{path}: no sweep's points; mend or remove it first")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A search space with the changes that its points apply."""

    name: str
    space: Space
    scale: str
    changes: Mapping[str, object]
    """The caller's changes to every point."""
    storage: Storage

    @property
    def task(self) -> Task:
        """The task."""
        return find(self.space.task)

    @property
    def fixed(self) -> dict[str, object]:
        """The changes of the scale that every point has."""
        return {**self.space.overrides, **self.changes}

    @property
    def changed(self) -> dict[str, object]:
        """The changes that are fixed, and the fields that are searched."""
        return {**self.fixed, **self.space.domains}

    @property
    def base(self) -> Any:
        """The config that points change."""
        return config_at(self.task, self.scale, self.fixed)

    def config(self, point: Mapping[str, object]) -> Any:
        """Return the config of a point."""
        return point_config(self.base, self.fixed, point)

    def view(self, point: Mapping[str, object]) -> Any:
        """Return how a point's run is scored, at its last epoch."""
        return resolve(point_view(override(self.task.view(), self.space.view), point), self.config(point))

    def folder(self, point: Mapping[str, object]) -> RunFolder:
        """Return the folder of a point's run."""
        return RunFolder.of(self.storage, self.task, self.config(point))

    def plan(self, configs: Sequence[Config], views: Sequence[View] = ()) -> Plan:
        """Return the plan that trains points, and scores their views if there are any."""
        return compile_configs(self.task, configs, self.storage, views, scale=self.scale, changes=self.changed)

    def path(self, configs: Sequence[Config]) -> str:
        """Return where the sweep's files lie, without suffix: named by all that its points and values depend on."""
        space, task = self.space, self.task
        digests = sorted({str(data_digest(self.storage, task.dataset.where(config))) for config in configs})
        how = [space.metric, space.mode, space.search, space.scheduler, space.domains]
        parts = [task.version, *how, digests, flatten(self.base), flatten(self.view({}))]
        text = json.dumps(parts, sort_keys=True, default=_named)
        return f"sweeps/{self.name}-{sha256(text.encode())[:8]}"


def _named(value: object) -> object:
    """Return what names a sweep of a value that JSON does not hold: a number of NumPy's, or a domain."""
    return plain if (plain := plain_value(value)) is not value else [type(value).__name__, vars(value)]


@dataclass(frozen=True, kw_only=True)
class SweepLaunch(Launch):
    """The settings that all trials of a sweep share."""

    sweep: Sweep
    points: Sequence[Mapping[str, object]] = ()
    """Points that trials name by number; the others draw theirs."""

    def point(self, spec: Spec) -> dict[str, object]:
        """Return the point that a trial's spec names or is."""
        point = self.points[spec["point"]] if self.points else spec
        return {path: plain_value(value) for path, value in point.items()}

    def needs(self, spec: Mapping[str, object]) -> Requirements:
        """Return the resources of a trial."""
        return self.needs_of(self.sweep.config(self.point(spec)))

    def needs_of(self, config: Config) -> Requirements:
        """Return the resources of a config's training."""
        return self.resources.needs(self.sweep.task, config, self.gpus)


def run_sweep(
    space: str | Space,
    changes: Mapping[str, object],
    scale: str,
    storage: Storage,
    resources: Resources,
    samples: int | None,
    name: str = "",
) -> SweepResult:
    """Run or resume a sweep, and write its points to `sweeps/`.

    Finished runs are used as they are; interrupted ones go on from their checkpoints. The deadline of `resources` is
    for points that are known beforehand; searchers and schedulers have none.

    Raises:
        UserError: on a mistake of the user's. A point that fails or diverges has no value; the others have.
    """
    track.prepare(resources.track)
    if name and not re.fullmatch(r"\w[\w.-]*", name):
        raise UserError(f"name {name!r}: cannot name a sweep's files; use letters, digits, '-', '_' and '.'")
    chosen = find_space(space) if isinstance(space, str) else space
    if not isinstance(chosen, Space):
        raise UserError(f"space={space!r}: name a search space, or make one by retable.Space")
    chosen = replace(chosen, samples=samples) if samples is not None else chosen
    sweep = Sweep(
        name=name or (space if isinstance(space, str) else space.task),
        space=chosen,
        scale=scale,
        changes=changes,
        storage=storage,
    )
    candidates = chosen.points()
    configs = [sweep.config(point) for point in candidates] or _configs_of_data(sweep)
    storage.check_writable()
    prepare_data(sweep.plan(configs).trainings.values(), storage)
    path = sweep.path(configs)
    if candidates:  # from now on `gc` keeps their runs, and what these start from
        _write_points(
            storage,
            f"{path}.json",
            [Point(dict(candidate), sweep.folder(candidate).fingerprint) for candidate in candidates],
        )
    stops = chosen.scheduler is not None and sweep.base.epochs > 1
    if candidates and not stops:
        points = _run_plan(sweep, candidates, resources, f"{path}.json")
    else:
        points = _run_trials(sweep, candidates, configs, resources, f"{path}.json")
    valued = [point for point in points if point.value is not None]
    best_first = sorted(valued, key=lambda point: point.value or 0.0, reverse=chosen.mode == "max")
    rest = [point for point in points if point.value is None]
    ordered, files = [*best_first, *rest], str(storage / path)
    result = SweepResult(name=sweep.name, space=chosen, scale=scale, changes=changes, points=ordered, files=files)
    result.write(storage, path)
    return result


def _configs_of_data(sweep: Sweep) -> list[Config]:
    """Return a config for each data set that a searcher's points may read: choices that select the data are joined."""

    def where(path: str, value: object) -> str:
        try:
            return str(sweep.task.dataset.where(sweep.config({path: value})))
        except UserError:  # a field of a choice that another domain makes: it selects no data
            return ""

    choices = {
        path: domain.categories
        for path, domain in sweep.space.domains.items()
        if len({where(path, value) for value in getattr(domain, "categories", ())}) > 1
    }
    return [sweep.config(dict(zip(choices, values, strict=True))) for values in itertools.product(*choices.values())]


def _run_plan(sweep: Sweep, candidates: Sequence[Mapping[str, object]], resources: Resources, path: str) -> list[Point]:
    """Train each config of the points once, and score every view of it, as a table's rows are."""
    configs, views = [sweep.config(point) for point in candidates], [sweep.view(point) for point in candidates]
    plan = sweep.plan(configs, views)
    shared, failures = plan.shared, execute(plan, resources)
    plan = sweep.plan(configs, views)
    points: dict[str, Point] = {}
    for overrides, view in zip(candidates, views, strict=True):
        folder = sweep.folder(overrides)
        scoring, training = plan.scorings[f"{folder.path}/{view_key(view)}"], plan.trainings[folder.path]
        point = Point(dict(overrides), folder.fingerprint, ended=training.status in ENDED)
        pieces = [scoring, *(replace(scoring, view=read) for read in scoring.reads)]
        names = [name_of(training, shared), *(name_of_view(piece, shared) for piece in pieces)]
        failure = next(filter(None, map(failures.get, names)), None)
        metrics = measured(folder, view) if training.status == "done" and scoring.done else {}
        note_value(point, sweep, {FAILURE: failure} if failure else metrics)
        point.note = training.status if training.status == "parent diverged" else point.note
        points.setdefault(point.key, point)
    before = {point.key: point for point in read_points(sweep.storage, path) if point.ended}  # of more samples
    return list((before | points).values())


def measured(folder: RunFolder, view: View) -> Record:
    """Return the metrics of a finished run and the scores of its view."""
    result, scores = folder.result() or {}, folder.scores(view, weights_digest(folder, view)) or {}
    return {**result["metrics"], **scores["metrics"], "epoch": folder.history()[-1]["epoch"]}


def note_value(point: Point, sweep: Sweep, last: Report) -> None:
    """Set a point's value from its metrics; None if the run diverged or the value is not finite."""
    result, metric = sweep.folder(point.overrides).result() or {}, sweep.space.metric
    diverged, value = result.get("diverged"), last.get(metric)
    point.value = value if value is not None and math.isfinite(value) and not diverged else None
    point.epochs = last.get("epoch") or result.get("metrics", {}).get("epoch", 0)
    if diverged:
        point.note = f"diverged: {diverged}"
    elif FAILURE in last:
        point.note = f"failed: {last[FAILURE]}"
    elif last and value is None:
        point.note = f"no metric {metric!r}{nearest(metric, last)}"
    else:
        point.note = "diverged" if value is not None and point.value is None else ""


def _run_trials(
    sweep: Sweep, candidates: Sequence[Mapping[str, object]], configs: Sequence[Config], resources: Resources, path: str
) -> list[Point]:
    """Run points as trials of Tune: those that a scheduler may stop, and those that a searcher draws."""
    _train_parents(sweep, configs, resources)
    journal = _Journal(sweep.storage, path, {point.key: point for point in read_points(sweep.storage, path)})
    initial = candidates or [point.overrides for point in journal.points.values()]
    todo = [point for point in initial if not journal.point(sweep, point).ended]
    ended = sum(point.ended for point in journal.points.values())
    rest = 0 if candidates else (sweep.space.samples or SAMPLES) - ended - len(todo)
    if todo or rest > 0:
        nested = resources.needs(sweep.task, sweep.base, 0.0).workers > 1
        with ray_cluster(nested=nested):
            check_nodes(sweep.storage)
            datasets = DatasetCache(sweep.storage, resources.stream)
            datasets.fetch({sweep.task.dataset.where(config): (sweep.task, config) for config in configs})
            made = provenance.collect() | {"scale": sweep.scale, "changed": sorted(split_view(sweep.changed)[0])}
            launch = SweepLaunch(
                sweep.storage,
                resources,
                made,
                datasets.holder,
                possible_resources().get("GPU", 0.0),
                sweep=sweep,
                track=track.prepare(resources.track),
            )
            if todo:
                _run_known(todo, launch, journal)
            if rest > 0:
                _run_searcher(rest, launch, journal)
    return list(journal.points.values())


def _train_parents(sweep: Sweep, configs: Sequence[Config], resources: Resources) -> None:
    """Train the runs that the points start from.

    Raises:
        UserError: if one fails.
    """
    work = sweep.plan([config for config in configs if parent(config)])
    for config in configs:  # their data are there, so that the plan is not compiled anew with them
        work.trainings.pop(RunFolder.of(sweep.storage, sweep.task, config).path, None)
    for failure in execute(work, resources).values():
        raise UserError(failure)


@dataclass
class _Journal:
    """The points that a sweep has tried, written after every change; the same command reads them and continues."""

    storage: Storage
    path: str
    points: dict[str, Point]
    """By key."""

    def point(self, sweep: Sweep, overrides: Mapping[str, object]) -> Point:
        """Return the recorded point, or a new one."""
        point = Point(dict(overrides), sweep.folder(overrides).fingerprint)
        return self.points.get(point.key, point)

    def watch(self, board: ProgressBoard, launch: SweepLaunch) -> TrialCallback:
        """Return the callback that updates the progress board and the journal."""
        sweep = launch.sweep

        def pieces(spec: Mapping[str, object]) -> list[RunProgress]:
            point = launch.point(spec)
            folder = sweep.folder(point)
            return [RunProgress(f"{describe(point)} [{folder.fingerprint[:8]}]", folder, sweep.config(point).epochs)]

        def note(spec: Mapping[str, object], last: Mapping[str, object] | None = None) -> None:
            point = self.point(sweep, launch.point(spec))
            self.points[point.key] = point
            if last is not None:
                point.ended = FAILURE not in last
                note_value(point, sweep, last)
            _write_points(self.storage, self.path, list(self.points.values()))

        return TrialCallback(board, pieces, started=note, on_trial_end=note)


def _run_known(points: Sequence[Mapping[str, object]], launch: SweepLaunch, journal: _Journal) -> None:
    """Run points side by side."""
    from ray import tune

    points = list({launch.sweep.folder(point).path: point for point in points}.values())  # two draws may be equal
    space = {"point": tune.grid_search(list(range(len(points))))}
    _run_trials_of(space, len(points), replace(launch, points=points), journal)


def _run_searcher(samples: int, launch: SweepLaunch, journal: _Journal) -> None:
    """Run points that a searcher draws; it is given those that were tried before."""
    space = launch.sweep.space
    evaluated = [point for point in journal.points.values() if point.value is not None]
    search = space.searcher(
        seed=len(evaluated),
        random_state_seed=len(evaluated),
        points_to_evaluate=[point.overrides for point in evaluated] or None,
        evaluated_rewards=[point.value for point in evaluated] or None,
    )
    if not _takes_values(search):
        samples += len(evaluated)  # it cannot be told of values: it tries the points again, which are there
    one = {} if space.trains_apart else {"max_concurrent_trials": 1}
    _run_trials_of(space.domains, samples, launch, journal, search_alg=search, num_samples=samples, **one)


def _takes_values(search: object) -> bool:
    """Return whether a searcher of Tune can be given the values of points that were evaluated before."""
    from ray.tune.search import Searcher

    added = getattr(type(search), "add_evaluated_point", Searcher.add_evaluated_point)
    return added is not Searcher.add_evaluated_point


def _run_trials_of(
    space: Mapping[str, object], count: int, launch: SweepLaunch, journal: _Journal, **settings: object
) -> None:
    """Run so many trials of a Tune experiment, and keep the board and the journal meanwhile."""
    sweep = launch.sweep
    with ProgressBoard(f"sweep {sweep.name}", count).show() as board:
        watch = journal.watch(board, launch)
        needs = launch.needs_of(sweep.base)
        check(needs)
        settings = {"max_concurrent_trials": concurrent(needs), **settings} if needs.workers > 1 else settings
        stopper = sweep.space.stopper(sweep.base.epochs)
        fit(space, launch, watch, launch.needs, try_point, needs.workers == 1, scheduler=stopper, **settings)


def try_point(spec: Mapping[str, object], launch: SweepLaunch) -> None:
    """Train one point in a trial, scored after each epoch. A finished run is only scored, another's is waited for."""
    from ray import tune

    sweep, dead = launch.sweep, 0
    with reported(**{"epoch": 0, sweep.space.metric: math.nan}):  # searchers and schedulers ask every trial for them
        point = launch.point(spec)
        config, view, folder = sweep.config(point), sweep.view(point), sweep.folder(point)
        while True:
            digest = data_digest(sweep.storage, sweep.task.dataset.where(config))
            keep = tuple(sorted({config.epochs, *sweep.task.keep(config)}))
            unscored = folder.scores(view, weights_digest(folder, view)) is None
            state = status(folder, keep, digest, weights=unscored)
            if state in ("done", "diverged"):
                nan = {"epoch": config.epochs, sweep.space.metric: math.nan}
                tune.report(nan if state == "diverged" else scored(sweep, config, view, folder))
                return
            needs = launch.needs(spec)
            job = Job(sweep.task.name, (config,), (keep,), view, sweep.space.metric, dead=(dead,), needs=needs)
            try:
                run_job(job, launch, f"{launch.id} {tune.get_context().get_trial_id()}")
                return
            except LeaseLost:
                dead = lease.wait(folder, POLL_SECONDS)


def scored(sweep: Sweep, config: Config, view: View, folder: RunFolder) -> Record:
    """Return the metrics of a finished run, which is scored where it is not yet.

    Raises:
        UserError: if the scoring fails, or the sweep's metric is not among them.
    """
    if folder.scores(view, weights_digest(folder, view)) is None:
        failure = predict_and_score(sweep.task, config, view, folder)
        if failure:
            raise UserError(failure)
    metrics = measured(folder, view)
    require(sweep.space.metric, metrics)
    return metrics
