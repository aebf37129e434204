"""The terms of a task: what a folder `tasks/<name>/` defines so that the platform can run it.

A task is one frozen value, `TASK`, of the folder's package. There is no registry; the platform finds a task by the
folder's name. What `retable list` shows of it is a value of its own, `DESCRIPTION`, if importing `TASK` takes seconds:
then `task.py` has `TASK`, and `__init__.py` imports it when it is asked for (`lazy_task`).
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import itertools
import pkgutil
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, cast, runtime_checkable

from typing_extensions import TypeVar

from retable.platform.config import Config, UnknownField, View, flatten, override, override_lineage
from retable.platform.errors import UserError, nearest, one_line
from retable.platform.spec import extras
from retable.platform.spec.arrays import Arrays
from retable.platform.spec.resources import Requirements, Stage
from retable.platform.spec.table import (
    AnyRow,
    AnyTable,
    Combined,
    Figure,
    Table,
    apply_overrides,
    choose_rows,
    drop_missing_members,
    matches,
    row_fields,
    split_view,
    with_claims,
)
from retable.platform.store.lease import one_maker
from retable.platform.store.storage import Storage
from retable.platform.text import clock, grouped

if TYPE_CHECKING:
    from torch import Tensor

    from retable.platform.train.worker import Worker

    State = dict[str, Any]


Info: TypeAlias = Mapping[str, Any]
"""The content of a `dataset.json`."""
SMOKE = "smoke"
"""The scale that proves the path: its numbers are shown, and mean nothing."""
SCALES = {
    SMOKE: "proves every path in seconds a row, for tests; its scores mean nothing",
    "quick": "a first look in minutes: one seed, models above the trivial baseline; no claim on scores is judged",
    "small": "a night on two cores, at most 16 core-hours a paper: the paper's claims are tested, three seeds or more",
    "paper": "the published setting",
}
"""The names that tasks give their scales, the smallest first: what each promises. A task may have fewer."""
DEFAULT_SCALE = "quick"
"""The scale of a command that names none."""


class Data(Protocol):
    """A data set opened for one training (or for several that are stacked)."""

    @property
    def steps(self) -> int:
        """Batches in an epoch."""

    @property
    def batch(self) -> int:
        """Rows of a batch, over all workers together; 1 where a step cannot be shared out."""

    def batches(self, epoch: int, start: int, rank: int, world: int) -> Iterator[Any]:
        """Yield the epoch's batches from step `start` on, this rank's rows only: a function of seed and epoch alone.

        `world` divides `batch`: the loop has seen to that.
        """


class Learner(Protocol):
    """One training, or several stacked ones ("members"). It owns its loss, backward pass and every optimiser."""

    def step(self, batch: Any) -> Mapping[str, Tensor]:
        """Update once; return each metric for every member, shape (members,)."""

    def state_dict(self) -> Sequence[State]:
        """Return a state for each member: `weights` (named tensors), and all else that resuming needs."""

    def load_state_dict(self, states: Sequence[State]) -> None:
        """Continue from such states."""


C = TypeVar("C", bound=Config, default=Any)
V = TypeVar("V", bound=View, default=Any)
D = TypeVar("D", bound=Data, default=Any)
L = TypeVar("L", bound=Learner, default=Any)
"""Config, view, data and learner of the task's own classes; the protocols say what the platform knows of them."""


@runtime_checkable
class Startable(Learner, Protocol):
    """A learner whose config has `init`: it can start from the weights of other runs, or of a file."""

    def load_weights(self, weights: Sequence[Mapping[str, Tensor]]) -> None:
        """Start from weights, one set for each member, before the first step.

        Raises:
            UserError: where they are of another model.
        """


@dataclass(frozen=True)
class Source:
    """A dataset: its folder, and the content of its `dataset.json`."""

    folder: Storage
    info: Info

    @staticmethod
    def of(storage: Storage, where: str) -> Source:
        """Return the data set at `<storage>/data/<where>`.

        Raises:
            UserError: where its `dataset.json` is damaged.
        """
        folder = storage / f"data/{where}"
        return Source(folder, folder.read_record("dataset.json", {"digest": str}, "make or convert the data set again"))

    @property
    def storage(self) -> Storage:
        """The storage that the data set lies in: above `data/<task>/`, where imported weights are too."""
        return Storage(self.folder.filesystem, self.folder.root.rsplit("/data/", 1)[0])


@dataclass(frozen=True, kw_only=True)
class Dataset(Generic[C, D]):
    """Source of a task's data: how they are made, prepared and read."""

    where: Callable[[C], str]
    """Config -> the data set's folder, relative to `<storage>/data/`."""
    prepare: Callable[[C, Storage], None]
    """(config, storage): make the data if they can be made here, else raise a UserError that says where to get them."""
    read: Callable[[Storage], Arrays]
    """folder -> the arrays that learners sample from; a set too large for memory is not read so, where it `streams`."""
    open: Callable[[Arrays | None, Source, Sequence[C]], D]
    """(arrays, the data set, configs of the members) -> data. No arrays: it reads the data set itself, as a stream."""
    describe: Callable[[Info], str]
    """`dataset.json` -> the words a report puts beside every number that came from these data."""
    caution: Callable[[Info], str] = lambda info: ""
    """`dataset.json` -> a sentence on what scores on these data do not show, for reports and exported models."""
    published: Callable[[Info], bool] = lambda info: False
    """`dataset.json` -> whether these are the paper's own data; on others no published number is subtracted."""
    notes: Callable[[Sequence[C], Source], Sequence[str]] = lambda configs, source: ()
    """(configs that read a data set, the data set) -> lines that a plan says of that, such as what is held back."""
    streams: bool = False
    """Whether sets that are too large for memory (`bytes` in `dataset.json`) can be read as a stream."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A named size of an experiment: its changes to a table, and a description. By default it changes nothing."""

    about: str
    minutes: float = 0
    """At most so many minutes on two cores, by the planner, take all tables of the task; 0: no promise."""
    overrides: Mapping[str, object] = field(default_factory=dict)
    """Changes to every run and its ancestors."""
    start: Mapping[str, object] = field(default_factory=dict)
    """Further changes to a run that is of no table: what `train` and `sweep` start from."""
    row: Callable[[Any], Any] = lambda row: row
    """Row or Measurement -> the same at this scale, or the reason (text) why it is left out."""
    over: Mapping[str, Sequence[object]] = field(default_factory=dict)
    """Replicate axis -> the values that are run, of those that a table has; of none of them, these in their place."""
    note: Callable[[AnyTable], str] = lambda table: ""
    """Table (unscaled) -> the settings of this scale in words."""

    def __str__(self) -> str:
        """Return its description for a list of scales."""
        return f"{self.about}; at most {clock(60 * self.minutes)} on two cores" if self.minutes else self.about


@dataclass(frozen=True)
class KeyNumber:
    """The one number of a paper to look at first: a cell of one of its tables."""

    table: str
    row: str
    column: str
    """The column's header."""
    about: str
    """Description of the number, with its unit, in a few words."""


def _own() -> Mapping[str, Any]:
    """Stand for what a task's own modules define; see `Description.__post_init__`."""
    raise NotImplementedError


def tables_of(task: str) -> Mapping[str, Table | Figure]:
    """Return a task's `tables.TABLES` with their `claims.CLAIMS`: imported now, as a training needs none of them.

    Raises:
        UserError: if they do not load, or name what is not there.
    """
    with _own_code(task):
        tables, claims = (importlib.import_module(f"retable.tasks.{task}.{name}") for name in ("tables", "claims"))
        return with_claims(task, tables.TABLES, claims.CLAIMS)


def scales_of(task: str) -> Mapping[str, Scale]:
    """Return a task's `scales.SCALES`, imported now. Raises UserError as `tables_of` does."""
    with _own_code(task):
        return cast(Mapping[str, Scale], importlib.import_module(f"retable.tasks.{task}.scales").SCALES)


@contextmanager
def _own_code(task: str) -> Iterator[None]:
    """Convert what a task's code raises while it is imported, which may be anything, into one line.

    Raises:
        UserError: naming the file and the line.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"task {task} does not load: {one_line(error, str(folder(task)))}") from error


def alone(config: object) -> Hashable:
    """Return a key that no other config has: of a task whose runs are not trained as stacks."""
    return tuple(flatten(config).items())


@dataclass(frozen=True, kw_only=True)
class Description:
    """A task's description, which needs none of the code that trains; `retable list` shows it."""

    name: str
    about: str
    paper: str = ""
    """Whose tables they are, as one cites them: authors, title, year."""
    telling: str = ""
    """The table or figure that stands for the paper on the first screen of a report; none: its first."""
    key_number: KeyNumber | None = None
    """Number that the summary of a run shows for the paper, beside the published one."""
    tables: Callable[[], Mapping[str, Table | Figure]] = _own
    """The paper's tables and figures with their claims; by default those of its modules `tables` and `claims`."""
    scales: Callable[[], Mapping[str, Scale]] = _own
    """By default those of its module `scales`."""
    model_suffix: str = ".safetensors"
    """Suffix of the files that its export writes, and its zoo holds."""

    def __post_init__(self) -> None:
        for own, read in (("tables", tables_of), ("scales", scales_of)):
            if getattr(self, own) is _own:
                object.__setattr__(self, own, partial(read, self.name))


@dataclass(frozen=True, kw_only=True)
class Task(Description, Generic[C, V, D, L]):
    """Everything about one published system that the platform needs to know."""

    version: int
    """Raised whenever the code's numbers change: old runs then no longer count."""
    config: type[C]
    view: type[V]
    """A frozen dataclass of what can change without training again; it has a field `epoch` (0: the last)."""
    dataset: Dataset[C, D]
    learner: Callable[[Sequence[C], D, Worker], L]
    validate: Callable[[L, D], Sequence[Mapping[str, float]]]
    """(learner, data) -> cheap metrics of each member, taken with every checkpoint; the same on every rank."""
    predict: Callable[[C, V, Mapping[str, Tensor], Source, str], Arrays]
    """(config, view, weights, data set, shard) -> predictions, the costly stage. They are kept where a combined row
    joins them; what stays of the others is their summary."""
    evaluate: Callable[[C, V, Mapping[str, Arrays], Source], Mapping[str, float]]
    """(config, view, shard -> summary, data set) -> scores; the shards of every view in `reads`."""
    shards: Callable[[C, V, Source], Sequence[str]] = lambda config, view, source: ("all",)
    """(config, view, data set) -> the names of the pieces that predictions are made, kept and combined in."""
    summarise: Callable[[C, V, Arrays, Source, str], Arrays] = lambda config, view, predictions, source, shard: (
        predictions
    )
    """(config, view, predictions, data set, shard) -> the small arrays that scores are computed from."""
    reads: Callable[[V], Sequence[V]] = lambda view: (view,)
    """View -> the views whose predictions it is scored from: those that differ in a threshold share one."""
    keep: Callable[[C], Sequence[int]] = lambda config: ()
    """Config -> epochs whose weights are kept besides the last one and those that views name."""
    early_stop: Callable[[C], tuple[str, int] | None] = lambda config: None
    """Config -> (metric of `validate` to maximise, epochs to wait for a better one), or None."""
    needs: Callable[[C, Stage], Requirements] = lambda config, stage: Requirements()
    """(config, stage) -> what its training, or the predictions of one view, take of a machine that has GPUs."""
    group: Callable[[C], Hashable] = alone
    """Configs with equal keys may be trained as one stack; by default no two are."""
    cost: Callable[[C], float]
    """Config -> seconds of one CPU core that its training takes, roughly."""
    gpu_work: Callable[[C], tuple[str, float] | None] = lambda config: None
    """Config -> (a rate of `python -m benchmarks gpu`, how many of its units a training takes), or None."""
    view_cost: Callable[[C, V], float]
    """(config, view) -> seconds of one CPU core that its predictions take, roughly."""
    check: Callable[[C, V], None] = lambda config, view: None
    """(config, view): called when both are planned; raises `UserError` where such a run cannot be scored so."""
    metrics: Sequence[str] = ()
    """Metrics, of the scores and the log, whose best a sweep may search for; `iou` also stands for `iou/...`.
    Where there are none, any word is taken."""
    settings: Sequence[str] = ()
    """Config fields in which a table's rows may differ without their labels saying so: `--set` changes all rows."""

    def __repr__(self) -> str:
        return f"<task {self.name}: {self.about}>"

    def predicts_on_gpu(self, config: C) -> bool:
        """Return whether predictions of a config's run are made on a GPU, where there is one."""
        return self.needs(config, "predict").gpus > 0


def data_folder(storage: Storage, *words: str) -> Storage:
    """Return the folder of a data set, `<storage>/data/<task>/<name>`.

    Raises:
        UserError: where a name would leave that folder.
    """
    for word in words:
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", word):
            raise UserError(f"{word!r} cannot name a data set; use letters, digits, '-', '_' and '.'")
    return storage / "/".join(("data", *words))


def check_new(target: Storage, replace: bool) -> None:
    """Refuse to replace a data set that is there.

    Raises:
        UserError: then, unless it is to be replaced.
    """
    if not replace and target.exists("dataset.json"):
        raise UserError(f"{target}: a data set is there already; keep it, or replace it by --replace")


@contextmanager
def new_data(storage: Storage, *words: str, replace: bool) -> Iterator[Storage]:
    """Yield the folder of a new data set; the block makes it, and no other command does meanwhile.

    Raises:
        UserError: as `data_folder` and `check_new` do.
    """
    target = data_folder(storage, *words)
    with one_maker(storage, "/".join(words)):
        check_new(target, replace)
        yield target


def data_sets(storage: Storage, task: str) -> list[Storage]:
    """Return the folders of a task's data sets.

    Raises:
        UserError: where there are none.
    """
    names = storage.folders(f"data/{task}")
    if not names:
        raise UserError(f"{storage}/data/{task}: no data sets; `retable data make {task}` generates one")
    return [storage / f"data/{task}/{name}" for name in names]


def names() -> list[str]:
    """Return the names of all tasks, those of RETABLE_TASKS included."""
    import retable.tasks

    return sorted(module.name for module in pkgutil.iter_modules(retable.tasks.__path__) if module.ispkg)


def folder(name: str) -> Path:
    """Return the folder of a task's code; the task is not imported for that.

    Raises:
        UserError: if there is none of that name.
    """
    import retable.tasks

    for root in retable.tasks.__path__ if _is_a_name(name) else ():
        if Path(root, name, "__init__.py").exists():
            return Path(root, name)
    raise UserError(_unknown(name))


def _is_a_name(name: str) -> bool:
    """Return whether a task can have that name: a package's, and no longer than a file system takes."""
    return name.isidentifier() and len(name) < 100


def _unknown(name: str) -> str:
    """Return that there is no such task; where `retable new` has written one here, how it is found."""
    path = Path("papers", name)
    if _is_a_name(name) and (path / "__init__.py").is_file():
        return f"no task {name!r} yet; {path} is found after: export RETABLE_TASKS=$PWD/{path.parent}"
    return f"no task {name!r}{nearest(name, names())}"


def has_commands(name: str) -> bool:
    """Return whether a task has commands of its own, in `cli.py`; the task is not imported for that."""
    return (folder(name) / "cli.py").exists()


def find(name: str) -> Task:
    """Return a task by name.

    Raises:
        UserError: if there is none of that name, or what it needs is not installed (`extras.Missing`).
    """
    return cast(Task, _package(name).TASK)


def find_description(name: str) -> Description:
    """Return what a task says of itself: its `DESCRIPTION`, else its `TASK`, which may take seconds to import.

    Raises:
        UserError: as `find` does.
    """
    package = _package(name)
    return cast(Description, vars(package).get("DESCRIPTION") or package.TASK)


def lazy_task(package: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a task's package (PEP 562): it imports `TASK` of its `task.py` at the first use."""

    def attribute(name: str) -> Any:
        if name != "TASK":
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with _own_code(package.rpartition(".")[2]):
            return importlib.import_module(f"{package}.task").TASK

    return attribute


def _package(name: str) -> ModuleType:
    folder(name)  # `names` looks into every folder, and each trial asks
    extras.check(name)
    with _own_code(name):
        return importlib.import_module(f"retable.tasks.{name}")


def find_loadable(name: str) -> Task | None:
    """Return a task by name; None where there is none of that name, or its code does not load here."""
    try:
        return find(name) if name in names() else None
    except Exception:  # a task's own code may raise anything
        return None


def find_table(name: str) -> tuple[Task, Table | Figure]:
    """Return a table or figure by its full name, such as `rl/table1`.

    Raises:
        UserError: if there is none of that name.
    """
    task_name, _, table_name = name.partition("/")
    task = find(task_name)
    tables = task.tables()
    if table_name not in tables:
        raise UserError(f"no table {name!r}{nearest(name, [f'{task.name}/{table}' for table in tables])}")
    return task, tables[table_name]


def find_scale(task: Task, name: str) -> Scale:
    """Return a task's scale.

    Raises:
        UserError: if the task has none of that name.
    """
    scales = task.scales()
    if name not in scales:
        raise UserError(f"{task.name}: no scale {name!r}{nearest(name, scales)}")
    return scales[name]


def table_at(
    task: Task, table: AnyTable, scale: str, changes: Mapping[str, object], rows: Sequence[str] = ()
) -> AnyTable:
    """Return a table at a scale, with the user's changes and choice of rows.

    Args:
        task: whose table it is.
        table: as the task defines it.
        scale: one of the task's.
        changes: config path, or `view.` and a path of the view -> value. A replicate axis takes one value or a list.
        rows: labels, or patterns with `*`, of the rows to run; none: all.

    Raises:
        UserError: if the task has no such scale, or no such fields.
    """
    axes = {path: values for path, values in changes.items() if path in table.over and isinstance(values, list)}
    if not all(axes.values()):
        raise UserError(f"{', '.join(axes)}: a list of no values; give one at least, such as [0]")
    for values in itertools.zip_longest(*axes.values()) if axes else [()]:  # a mistake is told before anything else
        chosen = {path: axes[path][0] if value is None else value for path, value in zip(axes, values, strict=True)}
        try:
            _check_fields(task, {**changes, **chosen})
        except UserError as error:
            lists = [path for path, value in changes.items() if isinstance(value, list) and path not in table.over]
            for path in lists:
                if str(error).startswith(f"{path}: {changes[path]!r} is "):
                    where = f"{task.name}, {table.title}, is not replicated over {path}"
                    raise UserError(f"{error}; {where}: give one value, or leave the table out") from error
            raise
    named = row_fields(table) - {"seed", *task.settings}
    at_scale = scaled(table, find_scale(task, scale))
    try:
        changed = apply_overrides(at_scale, changes, task.config(), task.view(), named)
    except UserError as error:
        raise UserError(f"{task.name}, {table.title}: {error}") from error
    return choose_rows(changed, rows)


def check_rows(patterns: Sequence[str], tables: Iterable[AnyTable]) -> None:
    """Refuse patterns that match no row of any of some tables.

    Raises:
        UserError: naming the rows whose labels are nearest.
    """
    labels = list(dict.fromkeys(row.label for table in tables for row in table.rows))
    for pattern in patterns:
        if not any(matches(label, pattern) for label in labels):
            close = difflib.get_close_matches(pattern, labels, n=5, cutoff=0.4) or labels[:5]
            raise UserError(f"--rows {pattern!r} matches no row; the nearest: {', '.join(map(repr, close))}")


def _check_fields(task: Task, changes: Mapping[str, object]) -> None:
    """Refuse changes that a task's config or view does not take; of a field that other tasks have, say which.

    Raises:
        UserError: naming the field.
    """
    config, view = split_view(changes)
    override(task.view(), view, "view.")
    try:
        override(task.config(), config)
    except UnknownField as error:
        ours = task.config.__dataclass_fields__
        absent = [name for name in (path.partition(".")[0] for path in config) if name not in ours]
        others = [other for other in map(find_loadable, names()) if other] if absent else []
        having = [other.name for other in others if absent[0] in other.config.__dataclass_fields__]
        if not having:
            raise
        raise UserError(f"unknown field {absent[0]!r} of {task.name}: only {', '.join(having)} has it") from error


def scaled(table: AnyTable, scale: Scale) -> AnyTable:
    """Return a table at a scale: its rows, replicates and note. Combined rows join those members that are run."""
    rows: list[AnyRow] = []
    for row in table.rows:
        small = row if isinstance(row, Combined) or row.overrides is None else scale.row(row)
        rows.append(dataclasses.replace(row, absent=small) if isinstance(small, str) else small)
    rows = [drop_missing_members(row, rows) if isinstance(row, Combined) else row for row in rows]
    over = {axis: _kept(values, scale.over.get(axis, ())) for axis, values in table.over.items()}
    reasons = grouped((row.absent, row.label) for row in rows if row.absent)
    left_out = [f"Not at this scale, {why}: {'; '.join(labels)}." for why, labels in reasons.items()]
    note = " ".join(text for text in (table.note, scale.note(table), *left_out) if text)
    return dataclasses.replace(table, rows=rows, over=over, overrides={**table.overrides, **scale.overrides}, note=note)


def _kept(values: Sequence[object], run: Sequence[object]) -> Sequence[object]:
    return [value for value in values if value in run] or run or values


def config_at(task: Task[C], scale: str, changes: Mapping[str, object]) -> C:
    """Return the task's default config at a scale, with changes, as `train` and `sweep` use it."""
    chosen = find_scale(task, scale)
    _check_fields(task, changes)
    return override_lineage(override_lineage(task.config(), {**chosen.overrides, **chosen.start}), changes)
