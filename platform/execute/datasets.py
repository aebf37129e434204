"""Dataset cache: prepares missing datasets, loads them into Ray's object store, releases them after their last user.

Ray tasks prepare and read them on any node with room, while trainings that do not need them run. Trials get their
references from one small actor, because a launch is sent to the workers before any dataset is loaded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from retable.platform.config import Config
from retable.platform.console import ProgressBoard
from retable.platform.errors import UserError, one_line
from retable.platform.execute.scoring import task_error
from retable.platform.execute.session import alive_nodes
from retable.platform.spec.arrays import Arrays
from retable.platform.spec.task import Task, find, has_commands
from retable.platform.store import lease
from retable.platform.store.lease import DEATHS
from retable.platform.store.storage import Storage

_ROOM = 0.3
"""Share of a node's object store for datasets: each node that trains holds all of them."""
_AGAIN = "make or convert the data set again"


class RefHolder:
    """The actor from which trials get dataset references. It holds references, no data."""

    def __init__(self) -> None:
        self.held: dict[str, Any] = {}

    def put(self, where: str, arrays: list[object]) -> None:
        """Keep the reference to a dataset, in a list so that Ray does not fetch it."""
        self.held[where] = arrays

    def drop(self, where: str) -> None:
        """Drop the reference to a dataset."""
        self.held.pop(where, None)

    def get(self, where: str) -> list[Any]:
        """Return the reference in a list; an empty list if the dataset is to be streamed."""
        return list(self.held.get(where, []))


@dataclass
class Entry:
    """A dataset that trainings need."""

    task: Task
    config: Config
    """The config of any of them; it determines the dataset."""
    size: int = 0
    """Bytes in the object store, as far as known."""
    pending: Any = None
    """The Ray task that prepares or reads it; its first return value is its error, or None."""
    arrays: Any = None
    """The second return value of the task that reads."""
    ready: bool = False
    failure: str = ""
    users: int = 0
    """Number of trials that use it."""


@dataclass
class DatasetCache:
    """The datasets of one launch."""

    storage: Storage
    stream: bool = False
    """Stream them even if they fit in memory."""
    board: ProgressBoard = field(default_factory=lambda: ProgressBoard("data", 0))
    """Shows what is prepared and read, and failures."""
    entries: dict[str, Entry] = field(default_factory=dict)
    """By data folder."""
    wanted: Counter[str] = field(default_factory=Counter)
    """Data folder -> number of trainings that have not ended."""

    def __post_init__(self) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

        # Not soft: Ray may then take an idle node, which an autoscaler takes away, as the actor asks for nothing.
        here = On(ray.get_runtime_context().get_node_id(), soft=False)
        self.holder: Any = ray.remote(num_cpus=0, scheduling_strategy=here)(RefHolder).remote()  # type: ignore[call-overload]
        sizes = (node["Resources"].get("object_store_memory", 0) for node in alive_nodes())
        self.room = _ROOM * min(sizes, default=0)

    def reserve(self, places: Iterable[str]) -> None:
        """Count trainings still to come on these data folders; a dataset is kept until its last training has ended."""
        self.wanted.update(places)

    def ready(self, task: Task, config: Config) -> bool | None:
        """Return whether a dataset is loaded, and start loading it if not; None if it cannot be loaded."""
        where = task.dataset.where(config)
        if where not in self.entries:
            self.entries[where] = Entry(task, config)
            self._begin(where)
        entry = self.entries[where]
        return None if entry.failure else entry.ready

    def add_user(self, where: str) -> None:
        """Count a trial that uses a dataset."""
        self.entries[where].users += 1

    def release(self, where: str, trainings: int, users: int = 1) -> None:
        """Count a trial that ended, with its trainings; drop the dataset after the last training.

        Args:
            where: the data folder.
            trainings: how many ended, or will not begin.
            users: the trials that ended: 0 for trainings that never began.
        """
        if users:
            self.entries[where].users -= 1
        self.wanted[where] -= trainings
        if self.wanted[where] <= 0 and where in self.entries:
            self.holder.drop.remote(where)
            del self.entries[where]

    def fetch(self, configs: Mapping[str, tuple[Task, Config]]) -> None:
        """Load datasets, by their folders, and wait for all of them.

        Raises:
            UserError: where one cannot be had.
        """
        while not all([self.ready(task, config) for task, config in configs.values()]):
            for entry in self.entries.values():
                if entry.failure:
                    raise UserError(entry.failure)
            self.poll(None)

    def poll(self, seconds: float | None = 0.0) -> bool:
        """Process completed dataset tasks; block up to `seconds` for the first one; return whether anything changed."""
        import ray

        pending = {entry.pending: where for where, entry in self.entries.items() if entry.pending is not None}
        ready, _ = ray.wait(list(pending), timeout=seconds) if pending else ([], [])
        for ref in ready:
            self._end(pending[ref], ref)
        for where, entry in list(self.entries.items()):
            if entry.pending is None and not entry.ready and not entry.failure:
                self._begin(where)  # it waited for room
        return bool(ready)

    def _begin(self, where: str) -> None:
        """Make a data set that is missing, or read it, if there is room."""
        import ray

        entry = self.entries[where]
        if not self.storage.exists(f"data/{where}/dataset.json"):
            make = ray.remote(num_cpus=1, max_retries=DEATHS - 1)(_make_set)
            entry.pending = make.remote(entry.task.name, entry.config, self.storage)
            self.board.start(f"data {where}", "being made")
            return
        streams = entry.task.dataset.streams
        try:
            entry.size = self._size(where, entry)
        except UserError as error:
            self._fail(where, str(error))
            return
        if streams and (self.stream or entry.size > self.room):
            entry.ready, entry.size = True, 0
        elif not self._full(entry):
            read = ray.remote(num_cpus=0, num_returns=2, max_retries=DEATHS - 1)(_read_set)
            both: Any = read.remote(entry.task.name, self.storage, where)
            entry.pending, entry.arrays = both
            self.board.start(f"data {where}", "being read")

    def _size(self, where: str, entry: Entry) -> int:
        """Return the size of a dataset in bytes; 0 unless it can be streamed."""
        if not entry.task.dataset.streams:
            return 0
        size: int = self.storage.read_record(f"data/{where}/dataset.json", {"bytes": int}, _AGAIN)["bytes"]
        return size

    def _full(self, wanted: Entry) -> bool:
        """Return whether a dataset must wait until trainings release others."""
        others = [entry for entry in self.entries.values() if entry is not wanted and (entry.ready or entry.pending)]
        return sum(entry.size for entry in others) + wanted.size > self.room and any(entry.users for entry in others)

    def _end(self, where: str, ref: object) -> None:
        """Process the completed task that prepared or read a dataset."""
        import ray

        entry, failure = self.entries[where], task_error(ref)
        entry.pending = None
        self.board.stop(f"data {where}")
        if failure:
            self._fail(where, failure)
        elif entry.arrays is not None:
            ray.get(self.holder.put.remote(where, [entry.arrays]))
            entry.ready = True

    def _fail(self, where: str, why: str) -> None:
        self.entries[where].failure = why
        self.board.fail(f"data {where}", why)


def make_missing(task: Task, config: Config, storage: Storage) -> None:
    """Make a config's data set if it is not there; of several commands one does so, and the others wait for it."""
    where = task.dataset.where(config)
    if not storage.exists(f"data/{where}/dataset.json"):
        with lease.one_maker(storage, where):
            if not storage.exists(f"data/{where}/dataset.json"):
                task.dataset.prepare(config, storage)


def _make_set(task_name: str, config: Config, storage: Storage) -> str | None:
    """Prepare a dataset; return why it failed, or None."""
    task = find(task_name)
    path = f"data/{task.dataset.where(config)}/dataset.json"
    try:
        make_missing(task, config, storage)
        return None if storage.exists(path) else f"the task's `prepare` wrote no {path}, which its `where` names"
    except Exception as error:
        return one_line(error)


def _read_set(task_name: str, storage: Storage, where: str) -> tuple[str | None, Arrays | None]:
    """Read a data set, in a Ray task; return why it cannot be read, or None, and its arrays."""
    folder = storage / f"data/{where}"
    try:
        return None, dict(find(task_name).dataset.read(folder))
    except UserError as error:
        return str(error), None
    except Exception as error:  # of Arrow, or a damaged file
        remedy = f"`retable data check {task_name}` says more" if has_commands(task_name) else "mend or remove it"
        return f"{folder} cannot be read ({one_line(error)}); {remedy}", None
