"""Search spaces of sweeps, as values that are checked when they are made."""

from __future__ import annotations

import ast
import importlib
import os
import pkgutil
import runpy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from retable.platform.config import C, convert, flatten, override, plain_value
from retable.platform.errors import UserError, nearest, one_line
from retable.platform.spec.table import split_view
from retable.platform.spec.task import Task, find

SAMPLES = 20
"""Points drawn where a space does not say how many."""

_UNFIT = {
    **dict.fromkeys(("pbt", "pbt_replay", "pb2"), "copies weights between trials, and a run here is its config alone"),
    **dict.fromkeys(("hyperband", "hb_bohb"), "pauses trials until others catch up; 'asha' does the same without"),
    "resource_changing": "changes what a running trial gets",
}
"""Schedulers of Ray Tune that cannot be used here, and why."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """The fields of a task's config or view that a sweep searches, and the metric that ranks the points.

    Raises:
        UserError: on a word that does not exist or does not fit, naming the field and the nearest valid word.
    """

    task: str
    """Name of the task."""
    domains: Mapping[str, Any]
    """Field -> `tune.grid_search([...])`, or, to draw, a Tune domain (`tune.uniform`, `tune.choice`, ...).

    `view.<field>` is a field of the view: such points share one training.
    """
    metric: str
    """A score of the view, or a metric of the training's log, at the last epoch (with early stopping: the best)."""
    mode: Literal["min", "max"]
    view: Mapping[str, object] = field(default_factory=dict)
    """View by which runs are scored, as differences from the task's default view."""
    overrides: Mapping[str, object] = field(default_factory=dict)
    """Changes to every point's config."""
    search: str = "grid"
    """`grid` (every combination), `random`, or a searcher of Ray Tune by name: `optuna`, `hyperopt`, ..."""
    samples: int | None = None
    """Points that are drawn, by default 20; a grid has none."""
    scheduler: str | None = None
    """Scheduler of Ray Tune that stops weak points early, by name: `asha` or `median_stopping_rule`."""

    def __post_init__(self) -> None:
        """Check every word, alone and together, and the points against the task's config and view."""
        task = find(self.task)
        convert(self.mode, Literal["min", "max"], "mode")
        if task.metrics and self.metric.split("/")[0] not in task.metrics:
            raise UserError(f"metric: {self.metric!r} is no metric of {task.name}{nearest(self.metric, task.metrics)}")
        self._check_search()
        self._check_domains()
        self._check_together()
        self._check_fields(task)

    @property
    def axes(self) -> set[str]:
        """Fields of the view that differ between points."""
        return set(split_view(self.domains)[1])

    def points(self) -> list[dict[str, object]]:
        """Return the points of a grid or a random search, which are known beforehand; a searcher's are not: none."""
        from ray.tune.search.variant_generator import generate_variants

        if self.search == "grid":
            return [spec for _, spec in generate_variants(dict(self.domains))]
        return self._draw(self.samples or SAMPLES) if self.search == "random" else []

    def searcher(self, **options: object) -> Any:
        """Return a new searcher of Ray Tune; `options`: its keyword arguments, of which it gets those that it accepts.

        Raises:
            UserError: if its package is not installed, or it cannot search these domains.
        """
        from ray.tune.search import create_searcher

        try:
            if self.search == "optuna":
                import optuna

                optuna.logging.set_verbosity(optuna.logging.WARNING)  # "A new study created" says nothing to anyone
            settings = {"metric": self.metric, "mode": self.mode, "budget": self.samples or SAMPLES}
            create_searcher(self.search, **settings).set_search_properties(None, None, dict(self.domains))
            return create_searcher(self.search, **settings, **options)
        except (AssertionError, ImportError, TypeError, ValueError) as error:
            raise UserError(f"search {self.search!r}: {' '.join(str(error).split())}") from error

    def stopper(self, epochs: int) -> Any:
        """Return a new scheduler of Ray Tune, which stops weak points early, or never."""
        from ray.tune.schedulers import create_scheduler

        name = "fifo" if epochs < 2 or self.scheduler is None else self.scheduler
        settings = {"metric": self.metric, "mode": self.mode, "time_attr": "epoch", "max_t": epochs, "grace_period": 1}
        return create_scheduler({"asha": "async_hyperband"}.get(name, name), **settings)

    @property
    def trains_apart(self) -> bool:
        """Whether points drawn side by side train runs of their own: a real number is not drawn twice."""
        from ray.tune.search.sample import Float, Quantized

        reals = [domain for domain in self.domains.values() if isinstance(domain, Float)]
        return any(not isinstance(domain.sampler, Quantized) for domain in reals)

    def _draw(self, count: int) -> list[dict[str, object]]:
        state = np.random.RandomState(0)
        drawn = (
            {path: domain.sample(random_state=state) for path, domain in self.domains.items()} for _ in range(count)
        )
        return [{path: plain_value(value) for path, value in point.items()} for point in drawn]

    def _check_search(self) -> None:
        from ray.tune.schedulers import SCHEDULER_IMPORT
        from ray.tune.search import SEARCH_ALG_IMPORT

        searches = {"grid", "random", *SEARCH_ALG_IMPORT} - {"variant_generator", "bohb"}  # bohb needs hb_bohb
        if self.search not in searches:
            raise UserError(f"search: there is no {self.search!r}{nearest(self.search, searches)}")
        schedulers = {"asha", *SCHEDULER_IMPORT} - {*_UNFIT}
        if self.scheduler in _UNFIT:
            raise UserError(f"scheduler: {self.scheduler!r} {_UNFIT[self.scheduler]}; choose asha")
        if self.scheduler is not None and self.scheduler not in schedulers:
            raise UserError(f"scheduler: there is no {self.scheduler!r}{nearest(self.scheduler, schedulers)}")
        if self.samples is not None and self.search == "grid":
            raise UserError("samples: a grid is run whole; leave it out, or choose search='random'")
        if self.samples is not None and self.samples < 1:
            raise UserError(f"samples: {self.samples} is less than 1")

    def _check_domains(self) -> None:
        from ray.tune.search.sample import Domain, Function

        if not self.domains:
            raise UserError("domains: there is nothing to search; name a field, {'seed': tune.grid_search([0, 1])}")
        for path, domain in self.domains.items():
            listed = isinstance(domain, Mapping) and set(domain) == {"grid_search"}
            drawn = isinstance(domain, Domain) and not isinstance(domain, Function)
            if not listed and not drawn:
                raise UserError(
                    f"domains: {path}: {domain!r} is no Tune domain, such as tune.grid_search([0.1, 1.0]) or "
                    "tune.uniform(0.1, 1.0); one value for all points belongs in overrides"
                )
            if listed and self.search != "grid":
                raise UserError(f"domains: {path}: search {self.search!r} draws; write tune.choice, not grid_search")
            if drawn and self.search == "grid":
                raise UserError(f"domains: {path}: a grid takes tune.grid_search([...]); to draw, set search='random'")
            if listed and not domain["grid_search"]:
                raise UserError(f"domains: {path}: grid_search has no values")

    def _check_together(self) -> None:
        if "epoch" in {*self.axes, *self.view}:
            raise UserError("view.epoch: a sweep scores the last epoch; search or set the field epochs instead")
        if "epochs" in self.domains and self.scheduler:
            raise UserError(
                f"scheduler: {self.scheduler!r} compares trainings of one length, and epochs are searched; leave it out"
            )
        if self.axes and self.scheduler:
            raise UserError(
                f"scheduler: {self.scheduler!r} stops trainings, and the points of view.{min(self.axes)} share theirs; "
                "leave the scheduler out"
            )
        if self.axes and self.search not in ("grid", "random"):
            raise UserError(
                f"search: {self.search!r} learns from one value a training, and the points of view.{min(self.axes)} "
                "share theirs; choose 'grid' or 'random'"
            )

    def _check_fields(self, task: Task) -> None:
        points = self.points()
        if not points:
            self.searcher()
            points = self._draw(3)
        with _mistakes_in("overrides"):
            base = override(task.config(), self.overrides)
        with _mistakes_in("view"):
            view = override(task.view(), self.view)
        for point in points:
            with _mistakes_in("domains"):
                point_config(base, self.overrides, point)
            with _mistakes_in("domains: view"):
                point_view(view, point)


def point_config(base: C, changes: Mapping[str, object], point: Mapping[str, object]) -> C:
    """Return the config of one point; where it makes a choice, `changes` to the fields of that choice hold on.

    Where it is the choice that `base` makes, all fields hold on, such as those of a scale.
    """
    own, _ = split_view(point)
    now = flatten(base)
    fields = {**now, **changes}
    below = {
        path: fields[path]
        for path in fields
        for chosen in own
        if path.startswith(f"{chosen}.") and (path in changes or own[chosen] == now.get(chosen))
    }
    return override(base, {**below, **own})


def point_view(view: C, point: Mapping[str, object]) -> C:
    """Return the view that one point is scored under."""
    return override(view, split_view(point)[1])


def spaces() -> list[str]:
    """Return the names of all search spaces, those of RETABLE_TASKS included."""
    import retable.search_spaces

    return sorted(module.name for module in pkgutil.iter_modules(retable.search_spaces.__path__))


def describe_space(name: str) -> str:
    """Return the first line of a search space's file, which says what is searched; the file is read, not run.

    Raises:
        UserError: if it is no Python file in UTF-8.
    """
    import retable.search_spaces

    files = (Path(folder, f"{name}.py") for folder in retable.search_spaces.__path__)
    with _mistakes_in(f"search_spaces/{name}.py"):
        text = next(file for file in files if file.exists()).read_text(encoding="utf-8")
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


def find_space(name: str) -> Space:
    """Return a search space of `search_spaces/` by name.

    Raises:
        UserError: if there is none of that name, or it is not sound.
    """
    if name not in spaces():
        raise UserError(f"no search space {name!r}{nearest(name, spaces())}; a file of your own: --space my.py")
    with _mistakes_in(f"search_spaces/{name}.py"):
        return _defined(vars(importlib.import_module(f"retable.search_spaces.{name}")))


def load_space(path: str) -> Space:
    """Return the search space `SPACE` of a Python file, which is run.

    Raises:
        UserError: if there is no such file, it fails, or its space is not sound.
    """
    if not os.path.isfile(path):
        raise UserError(f"--space {path}: there is no such file")
    with _mistakes_in(path):
        return _defined(runpy.run_path(path))


def _defined(names: Mapping[str, Any]) -> Space:
    if not isinstance(names.get("SPACE"), Space):
        raise UserError("it must define SPACE = Space(task=..., domains={...}, metric=..., mode=...)")
    space: Space = names["SPACE"]
    return space


@contextmanager
def _mistakes_in(where: str) -> Iterator[None]:
    """Name the file, or the field of a space, in which a mistake is."""
    try:
        yield
    except Exception as error:
        raise UserError(f"{where}: {one_line(error)}") from error
