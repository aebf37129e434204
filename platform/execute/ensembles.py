"""Ensembles and selections, after training: Ray actors that join the members' predictions shard by shard.

An actor takes one shard of one row at a time (a region and year, a block of queries). It streams the members'
predictions of that shard from storage; a machine that is lost costs the shard it was at, begun again elsewhere.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from retable.platform.config import Config, View
from retable.platform.console import ProgressBoard
from retable.platform.errors import one_line
from retable.platform.execute.scoring import report_result, shards_of, training_metrics, weights_digest
from retable.platform.execute.session import possible_resources
from retable.platform.plan.plan import Combining, Plan, Scoring, name_of_combining
from retable.platform.spec.arrays import Arrays
from retable.platform.spec.task import Source, find
from retable.platform.store.lease import DEATHS
from retable.platform.store.run import read_arrays, sha256, write_arrays
from retable.platform.store.storage import Storage


@dataclass(frozen=True)
class StoredMember:
    """One member of a combination, for one shard: its row, its scores, and where its predictions lie."""

    label: str
    view: View
    metrics: Mapping[str, float]
    place: Storage
    shard: str

    def load(self) -> Arrays:
        """Read the predictions."""
        return read_arrays(self.place, f"{self.shard}/predictions.npz")


@dataclass(frozen=True)
class Shard:
    """One shard of one combination. Small and picklable."""

    task: str
    config: Config
    read: View
    """The first member's view that this shard belongs to."""
    where: str
    storage: Storage
    combine: Any
    shard: str
    members: tuple[StoredMember, ...]
    place: Storage

    @property
    def done(self) -> bool:
        """Whether the shard was joined before."""
        return self.place.exists(f"{self.shard}/summary.npz")

    def run(self) -> str | None:
        """Combine the members' predictions and write the result with its summary; return why it failed, or None."""
        task = find(self.task)
        try:
            joined = self.combine(self.shard, self.members)
            source = Source.of(self.storage, self.where)
            summary = task.summarise(self.config, self.read, joined, source, self.shard)
            write_arrays(self.place, f"{self.shard}/summary.npz", summary)
        except Exception as error:
            return one_line(error)
        return None


class _Combiner:
    """The actor: combines one shard after another."""

    def run(self, piece: Shard) -> str | None:
        """Combine a shard; return why it failed, or None."""
        return piece.run()


class Ensembler:
    """Combines the members of rows, shard by shard; a row is scored after its last shard.

    Shards of an interrupted call are used.
    """

    def __init__(self, plan: Plan) -> None:
        self.storage = plan.storage
        self.board = ProgressBoard("combinations", 0)
        self.actors = Actors()
        self.rows: dict[str, Combining] = {}
        """By the folder of their shards."""
        self.left: Counter[str] = Counter()
        """Folder -> shards still to be joined."""
        self.failures: dict[str, str] = {}

    def start(self, combining: Combining) -> None:
        """Start combining a row whose members are predicted and scored."""
        root = output_folder(combining, self.storage).root
        self.rows[root] = combining
        self.board.add()
        try:
            pieces = [piece for piece in combination_shards(combining, self.storage) if not piece.done]
        except Exception as error:
            pieces, self.failures[root] = [], one_line(error)
        self.left[root] = len(pieces)
        self.actors.add(pieces)
        if not pieces:
            self._close(root)

    def poll(self, seconds: float | None = 0) -> None:
        """Process combined shards; block up to `seconds` for the first one (None: without limit)."""
        for piece, failure in self.actors.ended(seconds):
            root = piece.place.root
            self.left[root] -= 1
            if failure:
                self.failures[root] = failure
            if not self.left[root]:
                self._close(root)

    def finish(self) -> dict[str, str]:
        """Wait for all that was begun, and return the failures."""
        try:
            with self.board.show():
                while self.actors.busy:
                    self.poll(None)
        finally:
            self.actors.close()
        return self.board.failures

    def _close(self, root: str) -> None:
        """Score a row whose shards are all combined, and report it."""
        combining = self.rows[root]
        report_result(
            self.board, name_of_combining(combining), self.failures.get(root) or score(combining, self.storage)
        )


def output_folder(combining: Combining, storage: Storage) -> Storage:
    """Return the output folder of a combination, keyed by a hash of its input digests."""
    return storage / f"{combining.place}/{sha256(json.dumps(combining.inputs()).encode())[:16]}"


def combination_shards(combining: Combining, storage: Storage) -> list[Shard]:
    """Return the shards of a combination."""
    task, first = combining.task, combining.members[0]
    where = task.dataset.where(first.config)
    source = Source.of(storage, where)
    metrics = [member_metrics(member) for member in combining.members]
    reads = [combining.reads(member) for member in combining.members]
    shards = []
    for number, read in enumerate(reads[0]):
        folders = [
            member.folder.artifacts(views[number], weights_digest(member.folder, views[number]))
            for member, views in zip(combining.members, reads, strict=True)
        ]
        for shard in task.shards(first.config, read, source):
            stored = tuple(
                StoredMember(label, member.view, scores, folder, shard)
                for label, member, scores, folder in zip(
                    combining.row.of, combining.members, metrics, folders, strict=True
                )
            )
            folder = output_folder(combining, storage)
            shards.append(
                Shard(task.name, first.config, read, where, storage, combining.row.combine, shard, stored, folder)
            )
    return shards


def member_metrics(member: Scoring) -> dict[str, float]:
    """Return the metrics that a selection may use: the training's at the view's epoch, and the view's scores."""
    scores = member.folder.scores(member.view, weights_digest(member.folder, member.view)) or {"metrics": {}}
    return {**training_metrics(member.folder, member.view, member.config.epochs), **scores["metrics"]}


class Actors:
    """Runs shards on actors, one a CPU that the cluster has or may grow to.

    A shard whose actor died, or does not answer any more, goes to another one; it fails after three deaths.
    """

    def __init__(self) -> None:
        self.waiting: deque[Shard] = deque()
        self.idle: list[Any] = []
        self.running: dict[Any, tuple[Any, Shard]] = {}
        self.deaths: Counter[str] = Counter()

    @property
    def busy(self) -> bool:
        """Whether any piece is still to be done."""
        return bool(self.waiting or self.running)

    def add(self, pieces: Iterable[Shard]) -> None:
        """Add shards to the queue."""
        self.waiting.extend(pieces)
        self._start()

    def ended(self, seconds: float | None) -> list[tuple[Shard, str | None]]:
        """Return the completed shards, each with its error or None; block up to `seconds` for the first one."""
        import ray

        if not self.running:
            return []
        ready, _ = ray.wait(list(self.running), num_returns=1, timeout=seconds)
        results = [taken for ref in ready if (taken := self._take(ref)) is not None]
        self._start()
        if not self.waiting:  # an idle actor keeps a CPU that one begun again on another node may wait for
            while self.idle:
                ray.kill(self.idle.pop())
        return results

    def _start(self) -> None:
        """Assign shards to idle actors, and to new ones."""
        import ray

        room = max(1, int(possible_resources().get("CPU", 1))) if self.waiting else 0
        while self.waiting and len(self.running) < room:
            piece = self.waiting.popleft()
            actor: Any = self.idle.pop() if self.idle else ray.remote(num_cpus=1)(_Combiner).remote()
            self.running[actor.run.remote(piece)] = (actor, piece)

    def _take(self, ref: Any) -> tuple[Shard, str | None] | None:
        """Return a completed shard with its error; None if it is retried."""
        import ray

        actor, piece = self.running.pop(ref)
        try:
            failure = ray.get(ref)
            self.idle.append(actor)
        except ray.exceptions.RayError as error:
            failure = one_line(error)
            ray.kill(actor)
            path = f"{piece.place.root}/{piece.shard}"
            self.deaths[path] += 1
            if self.deaths[path] < DEATHS:
                self.waiting.append(piece)
                return None
        return piece, failure

    def close(self) -> None:
        """End all actors."""
        import ray

        for actor in [*self.idle, *(actor for actor, _ in self.running.values())]:
            ray.kill(actor)
        self.idle, self.running = [], {}


def score(combining: Combining, storage: Storage) -> str | None:
    """Score a combination from its shards' summaries; return why it failed, or None."""
    task, config = combining.task, combining.members[0].config
    try:
        source = Source.of(storage, task.dataset.where(config))
        metrics = dict(task.evaluate(config, combining.view, summaries(combining, storage), source))
        storage.write_json(combining.path, {"inputs": combining.inputs(), "metrics": metrics})
    except Exception as error:
        return one_line(error)
    return None


def summaries(combining: Combining, storage: Storage) -> dict[str, Arrays]:
    """Read what a combination is scored from: shard -> arrays."""
    task, config, folder = combining.task, combining.members[0].config, output_folder(combining, storage)
    shards = shards_of(task, config, task.reads(combining.view), storage, folder)
    return {shard: read_arrays(folder, f"{shard}/summary.npz") for shard in shards}
