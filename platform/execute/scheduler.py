"""Scheduler: starts each training once its dataset is loaded and its parent has ended, and what follows beside them.

`Scheduler` is the queue of trials that Tune asks; `After` predicts, scores and combines as soon as inputs exist.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from retable.platform.console import ProgressBoard, console
from retable.platform.execute.callback import FAILURE, LATE, TAKEN, Report, RunProgress, Spec, TrialCallback
from retable.platform.execute.datasets import DatasetCache
from retable.platform.execute.ensembles import Ensembler
from retable.platform.execute.scoring import ScoringTasks
from retable.platform.execute.session import possible_resources
from retable.platform.execute.trials import Job, Launch, check, concurrent, fit
from retable.platform.plan.graph import Node, Order, data_key, evaluation_nodes, train_key, train_nodes
from retable.platform.plan.plan import Plan, Prediction, Scoring, Shared, Training, data_digest, name_of, stacks, status
from retable.platform.spec.resources import Requirements, Resources, largest
from retable.platform.store.lease import StaleLeaseWatcher
from retable.platform.store.run import RunFolder
from retable.platform.text import plural

if TYPE_CHECKING:
    from ray.tune.search import Searcher

_STACK = 128
"""Maximum members of a stack, unless the user sets one."""
POLL_SECONDS = 2.0
"""Seconds between polls of completed tasks, the size of the cluster, and runs that other commands own."""
_LEAST_PENDING = 200
"""Minimum number of trials that may be pending: pending trials make a cluster grow."""


def train_all(plan: Plan, launch: Launch, after: After | None = None) -> dict[str, str]:
    """Train what a plan lacks, in order of dependencies; return the failures, run -> line.

    `after` gets each finished run while others still train.
    """
    todo = plan.missing
    gpus = possible_resources().get("GPU", 0.0)
    resources = launch.resources
    jobs: list[Sequence[Training]] = []
    for group in plan.groups.values():
        needs = largest(resources.needs(training.task, training.config, gpus) for training in group)
        jobs += stacks(group, stack_size(needs, gpus, resources.stack, len(todo)))
    jobs.sort(key=lambda stack: min(map(plan.start_order, stack)))
    takes = [largest(resources.needs(training.task, training.config, gpus) for training in stack) for stack in jobs]
    for needs in set(takes):
        check(needs)
    with ProgressBoard("training", len(todo), sum(t.task.cost(t.config) for t in todo)).show() as board:
        datasets = DatasetCache(launch.storage, resources.stream, board)
        made = [job_of(stack, needs) for stack, needs in zip(jobs, takes, strict=True)]
        launch = dataclasses.replace(launch, jobs=made, holder=datasets.holder, gpus=gpus)
        flow = Scheduler(jobs, launch, datasets, after, plan.shared)
        watch = TrialCallback(board, flow.runs_of, on_trial_end=flow.on_trial_end, poll=flow.poll)
        if resources.late:
            flow.stop()
        else:
            fit(
                {},
                launch,
                watch,
                lambda spec: takes[spec["job"]],
                reuse=all(needs.workers == 1 for needs in takes),
                search_alg=flow.searcher(),
                num_samples=-1,
                max_concurrent_trials=max(_LEAST_PENDING, int(1.1 * possible_resources().get("CPU", 1))),
            )
        if flow.not_begun:
            console.print(
                f"deadline: {plural(flow.not_begun, 'training')} not begun; the same command goes on with them"
            )
        return board.failures


def job_of(stack: Sequence[Training], needs: Requirements | None = None) -> Job:
    """Return the job that trains a stack."""
    retry = any(training.status == "to be retried" for training in stack)
    configs, keep = tuple(t.config for t in stack), tuple(t.keep for t in stack)
    return Job(stack[0].task.name, configs, keep, retry=retry, needs=needs or Requirements())


def stack_size(needs: Requirements, gpus: float, stack: int, trainings: int) -> int:
    """Return the number of trainings a stack; 1 on CPUs, where stacking gains nothing.

    Args:
        needs: the resources of one.
        gpus: of the cluster.
        stack: the user's maximum; 0: as many as keep every GPU busy.
        trainings: their number.
    """
    if stack or not needs.gpus:
        return stack or 1
    at_once = int(gpus / (needs.workers * needs.gpus))
    return min(_STACK, -(-trainings // max(1, at_once)))


@dataclass
class Scheduler:
    """The trainings still to be done and their dependencies."""

    stacks: Sequence[Sequence[Training]]
    """By the number of their job in the launch."""
    launch: Launch
    datasets: DatasetCache
    after: After | None = None
    shared: Shared = field(default_factory=dict)
    """Settings that all trainings share; names leave them out."""
    ready: list[Spec] = field(default_factory=list)
    """Specs of trials that may start, in order."""
    loading: list[Node] = field(default_factory=list)
    """Datasets that trials wait for."""
    running: int = 0
    """Number of running trials."""
    held_by_others: dict[str, tuple[Spec, StaleLeaseWatcher]] = field(default_factory=dict)
    """Runs that other commands own: path -> the spec that resumes each if its lease becomes stale."""
    polled: float = 0.0
    groups: int = 0
    """Number of running Train groups."""
    not_begun: int = 0
    """Number of trainings that did not start before the deadline."""

    def __post_init__(self) -> None:
        trainings = [training for stack in self.stacks for training in stack]
        self.readers = {data_key(training): training for training in trainings}
        """Key of a dataset -> any training that reads it."""
        self.jobs = {train_key(member.folder.path): job for job, stack in enumerate(self.stacks) for member in stack}
        """Key of a training -> its job."""
        self.blocked = {
            job: {train_key(member.folder.path) for member in stack} for job, stack in enumerate(self.stacks)
        }
        """Job -> the keys of its members that may not start yet."""
        self.order = Order(train_nodes(trainings, self.launch.storage, self.shared))
        self.parents = {need for node in self.order.nodes.values() for need in node.needs}
        """Keys that others wait for."""
        self.lost: dict[str, str] = {}
        """Key of a training that gives its children no weights -> why, in words."""
        self.datasets.reserve(member.task.dataset.where(member.config) for member in trainings)
        self.release_ready()

    def trainings(self, spec: Spec) -> list[Training]:
        """Return the trainings of a trial."""
        return [self.stacks[spec["job"]][member] for member in spec["members"]]

    def runs_of(self, spec: Mapping[str, object]) -> list[RunProgress]:
        """Return the same for the progress display."""
        return [
            RunProgress(
                name_of(training, self.shared),
                training.folder,
                training.config.epochs,
                training.task.cost(training.config),
            )
            for training in self.trainings(spec)
        ]

    def where(self, spec: Mapping[str, object]) -> str:
        """Return the data folder of a trial."""
        first = self.trainings(spec)[0]
        return first.task.dataset.where(first.config)

    def release_ready(self) -> None:
        """Enqueue the trials whose datasets are loaded and whose parents have weights."""
        self._end_loaded()
        while nodes := self.order.ready():
            for node in nodes:
                if node.kind == "train":
                    self._unblock(node.key)
                elif self._is_read(node):
                    self.loading.append(node)
                else:
                    self.order.end(node.key, failed=True)
            self._end_loaded()
        skipped, self.order.skipped = self.order.skipped, []
        for node in skipped:
            self._unblock(node.key)

    def _is_read(self, data: Node) -> bool:
        """Return whether any reader of a dataset may still begin."""
        readers = (node for node in self.order.nodes.values() if data.key in node.needs)
        return any(not self.order.failed & reader.needs for reader in readers)

    def _end_loaded(self) -> None:
        """End the nodes of datasets that are loaded, or that cannot be loaded."""
        for node in list(self.loading):
            reader = self.readers[node.key]
            available = self.datasets.ready(reader.task, reader.config)
            if available is not False:
                self.loading.remove(node)
                self.order.end(node.key, failed=available is None)

    def _unblock(self, key: str) -> None:
        """Enqueue a member's job if it waits for no other, without the members that failed."""
        job = self.jobs[key]
        if job not in self.blocked:  # after the deadline
            return
        waits = self.blocked[job]
        waits.discard(key)
        if key in self.order.failed:
            self._show_lost(key)
        if not waits:
            del self.blocked[job]
            paths = enumerate(train_key(training.folder.path) for training in self.stacks[job])
            members = [member for member, path in paths if path not in self.order.failed]
            if members:
                self.enqueue({"job": job, "members": members, "dead": [0] * len(members)})

    def _show_lost(self, key: str) -> None:
        """Show a training that is not begun as its parent has no weights; of missing data, their own line tells."""
        node = self.order.nodes[key]
        for need in node.needs & self.lost.keys():
            self.lost[key] = "was not begun"
            self.datasets.board.fail(
                node.label(), f"not begun: its parent, {self.order.nodes[need].label()}, {self.lost[need]}"
            )
            training = next(member for member in self.stacks[self.jobs[key]] if train_key(member.folder.path) == key)
            self.datasets.release(training.task.dataset.where(training.config), 1, users=0)

    def enqueue(self, spec: Spec) -> None:
        """Put a trial into the queue, in the order of the plan."""
        self.datasets.add_user(self.where(spec))
        bisect.insort(self.ready, spec, key=lambda queued: int(queued["job"]))

    def next(self) -> Spec | None:
        """Return the spec of the next trial that may start now, or None."""
        self.poll()
        if self.launch.resources.late:
            self.stop()
        if not self.ready:
            return None
        needs = self.needs(self.ready[0])
        if needs.workers > 1:
            if self.groups >= concurrent(needs):
                return None
            self.groups += 1
        self.running += 1
        return self.ready.pop(0)

    def wait_for_data(self) -> None:
        """Wait for datasets while nothing else can start or end: Tune would sleep for a second at a time."""
        while self.loading and not (self.ready or self.running or self.held_by_others or self.launch.resources.late):
            self.datasets.poll(1.0)
            self.release_ready()

    def stop(self) -> None:
        """Drop every trial that has not started."""
        left = [*self.ready, *(spec for spec, _ in self.held_by_others.values())]
        blocked = [train_key(training.folder.path) for job in self.blocked for training in self.stacks[job]]
        self.not_begun += sum(len(spec["members"]) for spec in left)
        self.not_begun += sum(key not in self.order.failed for key in blocked)
        for waiting in (self.ready, self.blocked, self.held_by_others):
            waiting.clear()

    def needs(self, spec: Spec) -> Requirements:
        """Return the resources of a trial."""
        job: Job = self.launch.jobs[spec["job"]]
        return job.needs

    @property
    def is_done(self) -> bool:
        """Whether all trials have ended."""
        return not (self.ready or self.blocked or self.running or self.held_by_others)

    def poll(self) -> None:
        """Process loaded datasets, completed tasks, and runs that other commands own."""
        if self.datasets.poll():
            self.release_ready()
        if time.monotonic() - self.polled < POLL_SECONDS:
            return
        self.polled = time.monotonic()
        if self.after is not None:
            self.after.poll()
        for path, (spec, watcher) in list(self.held_by_others.items()):
            number = watcher.poll()
            if number or watcher.folder.result() is not None:
                del self.held_by_others[path]
                self.enqueue({**spec, "dead": [number]})  # the trial finds a finished run done

    def on_trial_end(self, spec: Spec, last: Report) -> None:
        """Release what depends on a trial that ended; train the members of a failed stack one by one."""
        self.running -= 1
        self.groups -= self.needs(spec).workers > 1
        members, taken, over = self.trainings(spec), last.get(TAKEN, ()), 0
        if LATE in last:
            self.not_begun += len(members)
            self.datasets.release(self.where(spec), len(members))
            return
        if FAILURE in last and len(members) > 1:
            console.print(
                f"a stack of {len(members)} failed, its members train one by one: {last[FAILURE]}", markup=False
            )
            for member in spec["members"]:
                self.enqueue({**spec, "members": [member], "dead": [0]})
            self.datasets.release(self.where(spec), 0)
            return
        for member, training in zip(spec["members"], members, strict=True):
            if training.folder.path in taken:
                alone = {**spec, "members": [member]}
                self.held_by_others[training.folder.path] = (alone, StaleLeaseWatcher(training.folder))
                continue
            if taken and training.folder.result() is None:  # it was stopped with one that was taken
                self.enqueue({**spec, "members": [member], "dead": [0]})
                continue
            over += 1
            key = train_key(training.folder.path)
            if FAILURE in last:
                self.lost[key] = "failed"
            elif key in self.parents and "diverged" in (training.folder.result() or {}):
                self.lost[key] = "diverged"
            self.order.end(key, failed=key in self.lost)
            if FAILURE not in last and self.after is not None:
                self.after.submit(training.folder)
        self.datasets.release(self.where(spec), over)
        self.release_ready()

    def searcher(self) -> Searcher:
        """Return the Tune searcher that serves as the queue of trials."""
        from ray.tune import search

        flow = self

        class TuneQueue(search.Searcher):
            def __reduce__(self) -> tuple[type, tuple[()]]:
                """Pickle the base class: Ray writes searchers beside its state, and a terminal cannot be pickled."""
                return search.Searcher, ()

            def set_search_properties(
                self, metric: str | None, mode: str | None, config: object, **spec: object
            ) -> bool:
                return True

            def suggest(self, trial_id: str) -> Any:
                flow.wait_for_data()
                return self.FINISHED if flow.is_done else flow.next()

            def on_trial_complete(self, trial_id: str, result: object = None, error: bool = False) -> None:
                """Do nothing: `TrialCallback` reports the end."""

            def save(self, checkpoint_path: str) -> None:
                """Keep nothing: what was trained is on the storage."""

            def restore(self, checkpoint_path: str) -> None:
                """Go on from nothing."""

        return TuneQueue()


class After:
    """Predicts, scores and combines what a plan lacks, while trainings run."""

    def __init__(self, plan: Plan, resources: Resources | None = None, gpus: float = 0.0) -> None:
        self.plan = plan
        self.scorer, self.joiner = ScoringTasks(plan, resources or Resources(), gpus), Ensembler(plan)
        self.combinings = {f"combine {combining.path}": combining for combining in plan.uncombined}
        self.order = Order(evaluation_nodes(plan))
        self._start()

    def submit(self, folder: RunFolder) -> None:
        """Start the predictions that a finished run makes possible; of one that diverged there are none."""
        diverged = "diverged" in (folder.result() or {})
        if not diverged:
            self.scorer.expect(folder)
        self.order.end(train_key(folder.path), failed=diverged)
        self._start()

    def _start(self) -> None:
        """Start what waits for nothing any more."""
        while nodes := self.order.ready():
            for node in nodes:
                if node.kind == "combine":
                    self.joiner.start(self.combinings[node.key])
                else:
                    self.scorer.submit(node)

    def poll(self, seconds: float | None = 0) -> None:
        """Process completed tasks and start what depends on them; block up to `seconds` for the first one."""
        import ray

        # Of both kinds, as either may hold the CPUs of the other.
        pending: list[object] = [*self.scorer.pending, *self.joiner.actors.running]
        count = len(pending) if seconds == 0 else 1
        for ref in ray.wait(pending, num_returns=count, timeout=seconds)[0] if pending else []:
            if ref in self.scorer.pending:
                key, succeeded = self.scorer.finish_task(ref)
                self.order.end(key, failed=not succeeded)
        self._start()
        self.joiner.poll()

    def finish(self) -> dict[str, str]:
        """Process all finished runs, wait for every task, and return the failures."""
        runs: list[Scoring | Prediction] = [*self.plan.unscored, *self.plan.predictions.values()]
        digest = functools.cache(functools.partial(data_digest, self.plan.storage))
        for item in {item.folder.path: item for item in runs}.values():
            keep, where = self.plan.trainings[item.folder.path].keep, item.task.dataset.where(item.config)
            if status(item.folder, keep, digest(where)) in ("done", "diverged"):  # others wait to be trained again
                self.submit(item.folder)
        with self.scorer.board.show():
            while self.scorer.pending:
                self.poll(None)
        return self.scorer.board.failures | self.joiner.finish()
