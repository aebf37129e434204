"""Sweeps: a search space of `search_spaces/<name>.py` run through Ray Tune, and continued by the same command.

A space is a module with these names:

    TASK = "rl"                        the task
    SPACE = {"learning_rate": tune.loguniform(1e-4, 1e-2)}     field path -> Tune domain; `view.<field>`: of the view
    METRIC, MODE = "score", "max"      at a run's last epoch
    VIEW = {"policy": "bcq"}           how each epoch is scored, where the point does not say it
    SEARCH = "grid" | "random" | "optuna"
    SAMPLES = 30                       points drawn (a grid is run whole)
    ASHA = True | False                stop weak points early
    SET = {"epochs": 4}                changes to every point
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from retable.platform import provenance
from retable.platform.api import prepare_data
from retable.platform.board import Board
from retable.platform.cluster import ray_cluster
from retable.platform.config import describe, fingerprint, flatten, override
from retable.platform.errors import UserError, nearest
from retable.platform.launch import Context, Job, Resources, Watch, drawn, fit, load_arrays, standing
from retable.platform.plan import compile_configs, data_digest
from retable.platform.runs import RunFolder, sha256
from retable.platform.stages import is_predicted
from retable.platform.storage import Storage
from retable.platform.table import split_view
from retable.platform.task import Task, config_at, find


@dataclass
class Point:
    """One point of a sweep."""

    overrides: dict[str, object]
    """Changes to the config, and `view.<field>`: how the run is scored."""
    fingerprint: str
    """Of the run that the point trains; points that differ in the view alone share it."""
    value: float | None = None
    """The metric at the last epoch it reached."""
    epochs: int = 0
    ended: bool = False
    """Finished, or stopped early by the scheduler; else it was interrupted."""

    @property
    def key(self) -> str:
        """The point's name in the journal: its run, and the fields of the view that it sets."""
        view = split_view(self.overrides)[1]
        return f"{self.fingerprint} {json.dumps(view, sort_keys=True)}" if view else self.fingerprint


@dataclass
class Journal:
    """What a sweep has tried, written at every change: the same command reads it and goes on."""

    storage: Storage
    path: str
    metric: str
    points: dict[str, Point]
    """By key."""

    @staticmethod
    def open(storage: Storage, path: str, metric: str) -> Journal:
        """Read a sweep's journal, or begin one."""
        points = [Point(**entry) for entry in storage.read_json(path)] if storage.exists(path) else []
        return Journal(storage, path, metric, {point.key: point for point in points})

    def write(self) -> None:
        """Write the journal, whole."""
        self.storage.write_json(self.path, [asdict(point) for point in self.points.values()])

    def best(self, mode: str) -> list[Point]:
        """Return the points that have a value, best first."""
        valued = [point for point in self.points.values() if point.value is not None]
        return sorted(valued, key=lambda point: point.value or 0.0, reverse=mode == "max")


def spaces() -> list[str]:
    """Return the names of all search spaces."""
    import retable.search_spaces

    return sorted(module.name for module in pkgutil.iter_modules(retable.search_spaces.__path__))


def find_space(name: str) -> ModuleType:
    """Return a search space by name.

    Raises:
        UserError: if there is none of that name.
    """
    if name not in spaces():
        raise UserError(f"no search space {name!r}{nearest(name, spaces())}")
    return importlib.import_module(f"retable.search_spaces.{name}")


def fixed_points(space: ModuleType, samples: int) -> list[dict[str, object]]:
    """Return the points of a grid, or of a random search: known before anything runs. Optuna's are not; none."""
    from ray.tune.search.variant_generator import generate_variants

    if space.SEARCH == "grid":
        return [spec for _, spec in generate_variants(dict(space.SPACE))]
    if space.SEARCH == "random":
        state = np.random.RandomState(0)
        return [
            {path: plain(domain.sample(random_state=state)) for path, domain in space.SPACE.items()}
            for _ in range(samples)
        ]
    return []


def check_space(space: ModuleType, points: Sequence[Mapping[str, object]]) -> None:
    """Refuse a space that asks for what a sweep cannot do.

    Raises:
        UserError: naming it.
    """
    fields = {path for point in [space.SPACE, *points] for path in split_view(point)[1]}
    if "epoch" in {*fields, *space.VIEW}:
        raise UserError(
            "search space: view.epoch cannot be searched; a sweep scores the last epoch (set epochs instead)"
        )
    if fields and space.ASHA and space.SEARCH != "optuna":
        raise UserError("search space: ASHA stops trainings, and points of view fields share theirs; set ASHA = False")


def plain(value: Any) -> Any:
    """Return a NumPy scalar as a plain Python value, which is what configs hold."""
    return value.item() if isinstance(value, np.generic) else value


def run_sweep(
    name: str, changes: Mapping[str, object], scale: str, storage: Storage, resources: Resources, samples: int | None
) -> list[Point]:
    """Run a sweep, or go on with it; return its points, best first.

    Finished runs are used as they are (Optuna is told of them); interrupted ones go on from their checkpoints.
    """
    space = find_space(name)
    task = find(space.TASK)
    base = config_at(task, scale, {**space.SET, **changes})
    view = override(task.view(), space.VIEW)
    points = fixed_points(space, samples or space.SAMPLES)
    for point in points:
        override(view, split_view(point)[1])  # a mistake is told before anything runs
    check_space(space, points)
    configs = [override(base, split_view(point)[0]) for point in points] or [base]
    storage.check_writable()
    prepare_data(compile_configs(task, configs, storage))
    digests = sorted({str(data_digest(storage, task.dataset.where(config))) for config in configs})
    known = [task.version, space.METRIC, digests, flatten(base), flatten(view)]
    key = sha256(json.dumps(known, sort_keys=True).encode())[:8]
    journal = Journal.open(storage, f"sweeps/{name}-{key}.json", space.METRIC)
    if space.SEARCH == "optuna":
        points = [point.overrides for point in journal.points.values() if not point.ended]
    points = [point for point in points if not entry(journal, task, base, point).ended]
    rest = (samples or space.SAMPLES) - sum(p.ended for p in journal.points.values()) if space.SEARCH == "optuna" else 0
    if points or rest > 0:
        with ray_cluster(nested=resources.workers > 1):
            sources = dict.fromkeys((task.dataset.where(config) for config in configs), task)
            arrays = load_arrays(sources, storage, resources.stream)
            context = Context(storage, resources, provenance.collect(), arrays, base=base, view=view, task=task.name)
            run_points(space, points, context, journal)
            if rest > len(points):
                run_optuna(space, rest - len(points), context, journal)
    return journal.best(space.MODE)


def entry(journal: Journal, task: Task, base: Any, overrides: Mapping[str, object]) -> Point:
    """Return what the journal says of a point; a new one where it says nothing."""
    run = fingerprint(task.name, task.version, override(base, split_view(overrides)[0]))
    point = Point(dict(overrides), run)
    return journal.points.get(point.key, point)


def run_points(space: ModuleType, points: Sequence[dict[str, object]], context: Context, journal: Journal) -> None:
    """Run points that are known beforehand; those that differ in the view alone train their run once."""
    while points:
        now = at_once(points, context)
        run_together(space, now, context, journal)
        points = [point for point in points if point not in now]


def at_once(points: Sequence[dict[str, object]], context: Context) -> list[dict[str, object]]:
    """Return the points that can run side by side: of those whose run is to be trained or predicted, the first."""
    found, busy = [], []
    for point in points:
        job = drawn(point, context)
        if job.configs not in busy:
            found.append(point)
            if not is_read(job, context.storage):
                busy.append(job.configs)
    return found


def is_read(job: Job, storage: Storage) -> bool:
    """Say whether a point needs no more than scores: its run is done, and what it is scored from is there."""
    task, config = find(job.task), job.configs[0]
    view: Any = override(job.view, {"epoch": config.epochs})
    folder = RunFolder.of(storage, task, config)
    return standing(job, storage) == "done" and is_predicted(task, config, view, folder)


def run_together(space: ModuleType, points: Sequence[dict[str, object]], context: Context, journal: Journal) -> None:
    """Run points side by side."""
    from ray import tune

    jobs = [drawn(point, context) for point in points]
    with Board(f"sweep {context.task}", len(jobs)).show() as board:
        watch = watcher(board, context, journal, lambda spec: points[spec["job"]])
        space_of_jobs = {"job": tune.grid_search(list(range(len(jobs))))}
        fit(space_of_jobs, replace(context, jobs=jobs), watch, scheduler=scheduler(space, context))


def run_optuna(space: ModuleType, samples: int, context: Context, journal: Journal) -> None:
    """Let Optuna draw points, knowing what was tried before."""
    from ray.tune.search.optuna import OptunaSearch

    known = [point for point in journal.points.values() if point.ended and point.value is not None]
    search = OptunaSearch(
        metric=space.METRIC,
        mode=space.MODE,
        seed=len(known),
        points_to_evaluate=[point.overrides for point in known] or None,
        evaluated_rewards=[point.value for point in known] or None,
    )
    with Board(f"sweep {context.task}", samples).show() as board:
        watch = watcher(board, context, journal, dict)
        one = {} if trains_apart(space.SPACE) else {"max_concurrent_trials": 1}
        settings = {"search_alg": search, "num_samples": samples, "scheduler": scheduler(space, context), **one}
        fit(space.SPACE, context, watch, **settings)


def trains_apart(space: Mapping[str, Any]) -> bool:
    """Say whether points drawn side by side train runs of their own: a real number is not drawn twice."""
    from ray.tune.search.sample import Float, Quantized

    config, _ = split_view(space)
    reals = [domain for domain in config.values() if isinstance(domain, Float)]
    return any(not isinstance(domain.sampler, Quantized) for domain in reals)


def watcher(board: Board, context: Context, journal: Journal, overrides_of: Any) -> Watch:
    """Return what keeps the board and the journal while trials run."""
    task = find(context.task)

    def point_of(spec: Mapping[str, Any]) -> Point:
        overrides = {path: plain(value) for path, value in overrides_of(spec).items()}
        point = entry(journal, task, context.base, overrides)
        return journal.points.setdefault(point.key, point)

    def started(spec: Mapping[str, Any]) -> None:
        point_of(spec)
        journal.write()

    def ended(spec: Mapping[str, Any], last: Mapping[str, Any]) -> None:
        point = point_of(spec)
        point.value, point.epochs, point.ended = last.get(journal.metric), last.get("epoch", 0), "error" not in last
        journal.write()

    return Watch(
        board, lambda spec: [describe(point_of(spec).overrides)], context.base.epochs, started=started, ended=ended
    )


def scheduler(space: ModuleType, context: Context) -> Any:
    """Return the scheduler that stops weak points early, where the space asks for it."""
    from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

    if not space.ASHA or context.base.epochs < 2:
        return FIFOScheduler()  # type: ignore[no-untyped-call]
    epochs = context.base.epochs
    return ASHAScheduler(metric=space.METRIC, mode=space.MODE, time_attr="epoch", max_t=epochs, grace_period=1)
