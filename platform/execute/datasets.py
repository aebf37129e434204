"""Data sets while trainings want them: made where they are missing, in the object store, dropped after the last.

Ray tasks make and read them, on any node that has room, while what does not wait for them is trained. Trials borrow
them of one small actor: what a launch shares is sent before any data set is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from retable.platform.config import Config
from retable.platform.console import Board
from retable.platform.errors import UserError, one_line
from retable.platform.execute.scoring import ended
from retable.platform.execute.session import switches
from retable.platform.spec.task import Task, find
from retable.platform.store.lease import DEATHS
from retable.platform.store.storage import Storage

ROOM = 0.3
"""Part of a node's object store that data sets may take: each node that trains holds all of them."""
AGAIN = "make or convert the data set again"


class Lender:
    """The actor that trials borrow data sets of. It holds references, no data."""

    def __init__(self) -> None:
        self.held: dict[str, Any] = {}

    def hold(self, where: str, arrays: list[Any]) -> None:
        """Keep the reference to a data set, in a list so that Ray does not fetch it."""
        self.held[where] = arrays

    def drop(self, where: str) -> None:
        """Forget a data set."""
        self.held.pop(where, None)

    def borrow(self, where: str) -> list[Any]:
        """Return the reference in a list; an empty one where the data set is to be read as a stream."""
        return list(self.held.get(where, []))


@dataclass
class Loan:
    """A data set that trainings want."""

    task: Task
    config: Config
    """Of any of them: it says how the data are made."""
    size: int = 0
    """Bytes that it takes in the object store, as far as is known."""
    pending: Any = None
    """The Ray task that makes or reads it: its first return value is why it failed, or None."""
    arrays: Any = None
    """The second one of the task that reads."""
    ready: bool = False
    failure: str = ""
    users: int = 0
    """Trainings that may begin, or have."""


@dataclass
class Shelf:
    """The data sets of one launch."""

    storage: Storage
    stream: bool = False
    """Read them as streams even where they would fit in memory."""
    board: Board = field(default_factory=lambda: Board("data", 0))
    """Shows what is made and read, and what cannot be had."""
    loans: dict[str, Loan] = field(default_factory=dict)
    """By data folder."""
    wanted: Counter[str] = field(default_factory=Counter)
    """Data folder -> trainings that have not ended."""

    def __post_init__(self) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

        # Not soft: Ray may then take an idle node, which an autoscaler takes away, as the actor asks for nothing.
        here = On(ray.get_runtime_context().get_node_id(), soft=False)
        self.lender: Any = ray.remote(num_cpus=0, scheduling_strategy=here)(Lender).remote()  # type: ignore[call-overload]
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        self.room = ROOM * min((node.get("object_store_memory", 0) for node in nodes), default=0)

    def expect(self, places: Iterable[str]) -> None:
        """Note that trainings on these data folders are still to come: until the last has ended, a set is kept."""
        self.wanted.update(places)

    def ready(self, task: Task, config: Config) -> bool | None:
        """Say whether a data set is there; if not, it is on its way from now on. None: it cannot be had."""
        where = task.dataset.where(config)
        if where not in self.loans:
            self.loans[where] = Loan(task, config)
            self._begin(where)
        loan = self.loans[where]
        return None if loan.failure else loan.ready

    def take(self, where: str) -> None:
        """Note that a training on a data set may begin."""
        self.loans[where].users += 1

    def give_back(self, where: str, trainings: int) -> None:
        """Note that a trial has ended, and with it so many trainings; after the last one the data set is dropped."""
        self.loans[where].users -= 1
        self.wanted[where] -= trainings
        if self.wanted[where] <= 0:
            self.lender.drop.remote(where)
            del self.loans[where]

    def look(self) -> bool:
        """Take note of what was made and read, without waiting; return whether anything has changed."""
        return self._wait(0)

    def fetch(self, configs: Mapping[str, tuple[Task, Config]]) -> None:
        """Have data sets, by their folders, and wait for all of them.

        Raises:
            UserError: where one cannot be had.
        """
        while not all([self.ready(task, config) for task, config in configs.values()]):
            for loan in self.loans.values():
                if loan.failure:
                    raise UserError(loan.failure)
            self._wait(None)

    def _wait(self, seconds: float | None) -> bool:
        import ray

        pending = {loan.pending: where for where, loan in self.loans.items() if loan.pending is not None}
        ready, _ = ray.wait(list(pending), timeout=seconds) if pending else ([], [])
        for ref in ready:
            self._end(pending[ref], ref)
        for where, loan in list(self.loans.items()):
            if loan.pending is None and not loan.ready and not loan.failure:
                self._begin(where)  # it waited for room
        return bool(ready)

    def _begin(self, where: str) -> None:
        """Make a data set that is missing, or read it, if there is room."""
        import ray

        loan = self.loans[where]
        if not self.storage.exists(f"data/{where}/dataset.json"):
            make = ray.remote(num_cpus=1, max_retries=DEATHS - 1)(make_set)
            loan.pending = make.remote(loan.task.name, loan.config, self.storage)
            self.board.start(f"data {where}", "being made")
            return
        streams = loan.task.dataset.streams
        try:
            loan.size = self._size(where, loan)
        except UserError as error:
            self._fail(where, str(error))
            return
        if streams and (self.stream or loan.size > self.room):
            loan.ready, loan.size = True, 0
        elif not self._full(loan):
            read = ray.remote(num_cpus=0, num_returns=2, max_retries=DEATHS - 1)(read_set)
            both: Any = read.remote(loan.task.name, self.storage, where)
            loan.pending, loan.arrays = both
            self.board.start(f"data {where}", "being read")

    def _size(self, where: str, loan: Loan) -> int:
        """Return the bytes of a data set; only those that can be streamed say it."""
        if not loan.task.dataset.streams:
            return 0
        size: int = self.storage.read_record(f"data/{where}/dataset.json", {"bytes": int}, AGAIN)["bytes"]
        return size

    def _full(self, wanted: Loan) -> bool:
        """Say whether a data set is to wait until others are dropped, which trainings use that do not wait."""
        others = [loan for loan in self.loans.values() if loan is not wanted and (loan.ready or loan.pending)]
        return sum(loan.size for loan in others) + wanted.size > self.room and any(loan.users for loan in others)

    def _end(self, where: str, ref: Any) -> None:
        """Take note of the end of the task that made or read a data set."""
        import ray

        loan, failure = self.loans[where], ended(ref)
        loan.pending = None
        self.board.stop(f"data {where}")
        if failure:
            self._fail(where, failure)
        elif loan.arrays is not None:
            ray.get(self.lender.hold.remote(where, [loan.arrays]))
            loan.ready = True

    def _fail(self, where: str, why: str) -> None:
        self.loans[where].failure = why
        self.board.fail(f"data {where}", why)


def make_set(task_name: str, config: Config, storage: Storage) -> str | None:
    """Make a data set where it can be made; return why not, or None."""
    try:
        find(task_name).dataset.prepare(config, storage)
    except Exception as error:
        return one_line(error)
    return None


def read_set(task_name: str, storage: Storage, where: str) -> tuple[str | None, Any]:
    """Read a data set through Ray Data; return why it cannot be read, or None, and its arrays."""
    import pyarrow as pa
    import ray

    from retable.platform.execute.streams import raise_error

    dataset, folder = find(task_name).dataset, storage / f"data/{where}"
    try:
        with switches():  # on a Ray that the user has started
            ray.data.DataContext.get_current().enable_progress_bars = False
            tables = ray.get(dataset.read(folder).to_arrow_refs())
        for table in tables:
            raise_error(table)
        return None, dict(dataset.arrays(pa.concat_tables(tables).combine_chunks()))
    except UserError as error:
        return str(error), None
    except Exception as error:  # of Ray, Arrow, or a damaged file
        return f"{folder} cannot be read ({one_line(error)}); `retable data check {task_name}` says more", None
