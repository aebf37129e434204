"""Everything that a plan trains, in one flow: a run begins once the one that it starts from is done."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retable.platform.config import parent
from retable.platform.console import Board, console
from retable.platform.execute.after import After
from retable.platform.execute.datasets import Shelf
from retable.platform.execute.session import possible_resources
from retable.platform.execute.trials import Job, Launch, check, concurrent, fit
from retable.platform.execute.watch import FAILURE, LATE, TAKEN, Piece, Watch
from retable.platform.plan.plan import Plan, Shared, Training, name_of, stacks
from retable.platform.spec.resources import Needs, largest
from retable.platform.store.lease import Silence
from retable.platform.store.run import RunFolder
from retable.platform.text import plural

STACK = 128
"""Most members of a stack, where nobody says how many."""
LOOK = 2.0
"""Seconds between two looks at what has ended, at how large the cluster is, and at runs that are another command's."""
PENDING = 200
"""Trials that may wait for machines at least: what waits is what makes a cluster grow."""


def train_all(plan: Plan, launch: Launch, after: After | None = None) -> dict[str, str]:
    """Train what a plan lacks, each run once its data set and its parent are there; return the failures, run -> line.

    `after` hears of each run that is done, while others still train.
    """
    todo = plan.missing
    gpus = possible_resources().get("GPU", 0.0)
    resources = launch.resources
    jobs: list[Sequence[Training]] = []
    for group in plan.groups.values():
        needs = largest(resources.needs(each.task, each.config, gpus) for each in group)
        jobs += stacks([group], stack_size(needs, gpus, resources.stack, len(todo)))
    jobs.sort(key=lambda stack: min(map(plan.turn, stack)))
    takes = [largest(resources.needs(each.task, each.config, gpus) for each in stack) for stack in jobs]
    known = {needs: needs for needs in takes}  # one object each: what trials are asked for is sent with each
    takes = [known[needs] for needs in takes]
    for needs in known:
        check(needs)
    with Board("training", len(todo), sum(t.task.cost(t.config) for t in todo)).show() as board:
        shelf = Shelf(launch.storage, resources.stream, board)
        made = [job_of(stack, needs) for stack, needs in zip(jobs, takes, strict=True)]
        launch = dataclasses.replace(launch, jobs=made, lender=shelf.lender, gpus=gpus)
        flow = Flow(jobs, launch, shelf, after, plan.shared)
        watch = Watch(board, flow.pieces, ended=flow.ended, look=flow.look)
        if resources.late:
            flow.stop()
        else:
            fit(
                {},
                launch,
                watch,
                lambda spec: takes[spec["job"]],
                reuse=all(needs.workers == 1 for needs in known),
                search_alg=flow.searcher(),
                num_samples=-1,
                max_concurrent_trials=max(PENDING, int(1.1 * possible_resources().get("CPU", 1))),
            )
        if flow.late:
            console.print(f"deadline: {plural(flow.late, 'training')} not begun; the same command goes on with them")
        return board.failures


def job_of(stack: Sequence[Training], needs: Needs | None = None) -> Job:
    """Return what the trial of a stack trains."""
    retry = any(training.status == "to be retried" for training in stack)
    configs, keep = tuple(t.config for t in stack), tuple(t.keep for t in stack)
    return Job(stack[0].task.name, configs, keep, retry=retry, needs=needs or Needs())


def stack_size(needs: Needs, gpus: float, stack: int, trainings: int) -> int:
    """Return how many of so many trainings may train as one stack; on CPUs stacking gains nothing.

    Args:
        needs: what one takes.
        gpus: how many there are.
        stack: what the user says; 0: as many as keep every GPU busy.
        trainings: how many there are.
    """
    if stack or not needs.gpus:
        return stack or 1
    at_once = int(gpus / (needs.workers * needs.gpus))
    return min(STACK, -(-trainings // max(1, at_once)))


@dataclass
class Flow:
    """What is still to be trained, and what it waits for."""

    stacks: Sequence[Sequence[Training]]
    """By number of the launch's jobs."""
    launch: Launch
    shelf: Shelf
    after: After | None = None
    shared: Shared = field(default_factory=dict)
    """What all of the trainings have in common: names leave it out."""
    ready: deque[dict[str, Any]] = field(default_factory=deque)
    """Specs of trials that may begin."""
    blocked: list[dict[str, Any]] = field(default_factory=list)
    """Specs of those whose parents or data are not there yet."""
    running: int = 0
    """Trials that were begun."""
    others: dict[str, tuple[dict[str, Any], Silence]] = field(default_factory=dict)
    """Runs that are another command's: path -> the spec that takes them up if they are left."""
    looked: float = 0.0
    groups: int = 0
    """Train groups that were begun."""
    late: int = 0
    """Trainings that did not begin, as the deadline had passed."""
    room: dict[Needs, int] = field(default_factory=dict)
    """What a Train group takes -> how many such fit the cluster, where that was asked since the last look."""

    def __post_init__(self) -> None:
        self.open = {training.folder.path for stack in self.stacks for training in stack}
        for job, stack in enumerate(self.stacks):
            members = list(range(len(stack)))
            self.blocked.append({"job": job, "members": members, "dead": [0] * len(members)})
        self.shelf.expect(self.where(spec) for spec in self.blocked for _ in spec["members"])
        self.release()

    def trainings(self, spec: Mapping[str, Any]) -> list[Training]:
        """Return what a trial trains."""
        return [self.stacks[spec["job"]][member] for member in spec["members"]]

    def pieces(self, spec: Mapping[str, Any]) -> list[Piece]:
        """Return the same as people see it."""
        return [
            Piece(name_of(each, self.shared), each.folder, each.config.epochs, each.task.cost(each.config))
            for each in self.trainings(spec)
        ]

    def where(self, spec: Mapping[str, Any]) -> str:
        """Return the folder of the data set that a trial reads."""
        first = self.trainings(spec)[0]
        return first.task.dataset.where(first.config)

    def release(self) -> None:
        """Let those begin whose data are there and whose parents have ended; whether well or not, the training says."""
        still: list[dict[str, Any]] = []
        for spec in self.blocked:
            members = self.trainings(spec)
            if any(self.parent_of(training) in self.open for training in members):
                still.append(spec)
                continue
            available = self.shelf.ready(members[0].task, members[0].config)
            if available:
                self.begin(spec)
            elif available is None:
                self.open -= {training.folder.path for training in members}
            else:
                still.append(spec)
        self.blocked = still

    def begin(self, spec: dict[str, Any]) -> None:
        """Let a trial begin."""
        self.shelf.take(self.where(spec))
        self.ready.append(spec)

    def parent_of(self, training: Training) -> str:
        """Return the path of the run that a training starts from; nothing where there is none."""
        before = parent(training.config)
        return RunFolder.of(self.launch.storage, training.task, before).path if before is not None else ""

    def next(self) -> dict[str, Any] | None:
        """Return the spec of a trial that may begin now, if there is one."""
        self.look()
        if self.launch.resources.late:
            self.stop()
        if not self.ready:
            return None
        needs = self.needs(self.ready[0])
        if needs.workers > 1:
            if needs not in self.room:
                self.room[needs] = concurrent(needs)
            if self.groups >= self.room[needs]:
                return None
            self.groups += 1
        self.running += 1
        return self.ready.popleft()

    def stop(self) -> None:
        """Let nothing more begin."""
        left = [*self.ready, *self.blocked, *(spec for spec, _ in self.others.values())]
        self.late += sum(len(spec["members"]) for spec in left)
        for waiting in (self.ready, self.blocked, self.others):
            waiting.clear()

    def needs(self, spec: Mapping[str, Any]) -> Needs:
        """Return what a trial takes."""
        job: Job = self.launch.jobs[spec["job"]]
        return job.needs

    @property
    def over(self) -> bool:
        """Whether all has ended."""
        return not (self.ready or self.blocked or self.running or self.others)

    def look(self) -> None:
        """Look which data are there now, what has ended, how large the cluster is, what became of others' runs."""
        if self.shelf.look():
            self.release()
        if time.monotonic() - self.looked < LOOK:
            return
        self.looked = time.monotonic()
        if self.after is not None:
            self.after.look()
        self.room.clear()
        for path, (spec, silence) in list(self.others.items()):
            number = silence.look()
            if number or silence.folder.result() is not None:
                del self.others[path]
                self.begin({**spec, "dead": [number]})  # the trial finds a finished run done

    def ended(self, spec: Mapping[str, Any], last: Mapping[str, Any]) -> None:
        """Take note of a trial's end: what follows it may begin, and what failed as a stack is trained apart."""
        self.running -= 1
        self.groups -= self.needs(spec).workers > 1
        members, taken, over = self.trainings(spec), last.get(TAKEN, ()), 0
        if LATE in last:
            self.late += len(members)
            self.shelf.give_back(self.where(spec), len(members))
            return
        if FAILURE in last and len(members) > 1:
            console.print(
                f"a stack of {len(members)} failed, its members train one by one: {last[FAILURE]}", markup=False
            )
            for member in spec["members"]:
                self.begin({**spec, "members": [member], "dead": [0]})
            self.shelf.give_back(self.where(spec), 0)
            return
        for member, training in zip(spec["members"], members, strict=True):
            if training.folder.path in taken:
                alone = {**spec, "members": [member]}
                self.others[training.folder.path] = (alone, Silence(training.folder))
                continue
            over += 1
            self.open.discard(training.folder.path)
            if FAILURE not in last and self.after is not None:
                self.after.submit(training.folder)
        self.shelf.give_back(self.where(spec), over)
        self.release()

    def searcher(self) -> Any:
        """Return what Tune asks for the next trial."""
        from ray.tune.search import Searcher

        flow = self

        class Queue(Searcher):
            def __reduce__(self) -> Any:
                """Pickle nothing of ours: Ray keeps searchers beside its state, and a terminal cannot be pickled."""
                return Searcher, ()

            def set_search_properties(self, metric: str | None, mode: str | None, config: Any, **spec: Any) -> bool:
                return True

            def suggest(self, trial_id: str) -> Any:
                return self.FINISHED if flow.over else flow.next()

            def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
                """Do nothing: the watch tells us."""

            def save(self, checkpoint_path: str) -> None:
                """Keep nothing: what was trained is on the storage."""

            def restore(self, checkpoint_path: str) -> None:
                """Go on from nothing."""

        return Queue()
