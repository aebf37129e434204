"""Notice to leave: what trains writes a checkpoint before its process ends.

Notice is SIGTERM to a trial's process (a command that is stopped sends it, as do Slurm, and a machine that shuts down)
and the word of Ray that a node is to go (a spot machine's notice, an autoscaler). The training goes on all the while;
it is the loop that asks, after each step, whether a checkpoint is wanted.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from retable.platform import ray_compat
from retable.platform.store import lease as attempts
from retable.platform.store.lease import Attempt
from retable.platform.store.run import RunFolder

GRACE = 10.0
"""Seconds that a process which was told to end waits for its checkpoint; a step may take so long."""
LOOK = 5.0
"""Seconds between two looks for what is not told by a signal."""
MARK = "leave"
"""File in an attempt's folder by which a trial passes the notice on to the workers of its Train group."""


class Notice:
    """What was told to this process. There is one of a process, as signals are to processes."""

    def __init__(self) -> None:
        self.asked, self.saved = threading.Event(), threading.Event()
        self.members: Sequence[Attempt] = ()
        """What this process trains now."""
        self.relayed = False
        """Whether the workers of a Train group train it, in other processes."""
        self.ending = False

    def answer(self) -> None:
        """Take note that a checkpoint was written: one is enough for each notice."""
        if self.asked.is_set():
            self.asked.clear()
            self.saved.set()

    def wait(self) -> None:
        """Wait until what trains here has a checkpoint of now, but not for long; then let go of it."""
        if self.members and self.relayed:
            for attempt in self.members:
                attempt.folder.folder.write(f"{attempt.path}/{MARK}", b"")
            first, end = self.members[0], time.monotonic() + GRACE + LOOK
            while first.folder.folder.exists(f"{first.path}/{MARK}") and time.monotonic() < end:
                time.sleep(0.2)
        elif self.members:
            self.saved.wait(GRACE)
        for attempt in self.members:
            attempt.tell("released", -1)


NOTICE = Notice()


class Listens:
    """Joined to the class that Tune makes of a trial's function: its `setup` runs in the process's main thread."""

    def setup(self, config: Any, **more: Any) -> None:
        """Heed SIGTERM, and let Ray's own handler have its way once a checkpoint is written."""
        before = signal.getsignal(signal.SIGTERM)

        def leave(signum: int, frame: Any) -> None:
            if not NOTICE.asked.is_set() and not NOTICE.ending:
                NOTICE.asked.set()
                threading.Thread(target=end, daemon=True, name="leave").start()
            elif NOTICE.ending and callable(before):
                before(signum, frame)

        signal.signal(signal.SIGTERM, leave)
        super().setup(config, **more)  # type: ignore[misc]


def end() -> None:
    """End this process as SIGTERM would have, after its checkpoint."""
    with suppress(Exception):  # a storage that is away
        NOTICE.wait()
    NOTICE.ending = True
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
    os._exit(143)  # the main thread hears nothing


@contextmanager
def heeded(members: Sequence[Attempt], relayed: bool = False) -> Iterator[None]:
    """Know what this process trains, while the block runs, and look whether its node is to go."""
    NOTICE.members, NOTICE.relayed = members, relayed
    NOTICE.saved.clear()
    try:
        with looking(going):
            yield
    finally:
        NOTICE.members = ()
        NOTICE.saved.set()


@contextmanager
def looking(look: Callable[[], bool]) -> Iterator[None]:
    """Ask for a checkpoint once `look` says so, while the block runs."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK):
            with suppress(Exception):  # Ray or a storage that is away tells nothing
                if look():
                    NOTICE.asked.set()
                    return

    thread = threading.Thread(target=watch, daemon=True, name="notice")
    thread.start()
    try:
        yield
    finally:
        over.set()


def going() -> bool:
    """Say whether this node is to go: Ray lets nothing more begin on it."""
    import ray

    return ray.get_runtime_context().get_node_id() in ray_compat.draining_nodes()


@contextmanager
def passed_on(members: Sequence[Attempt], rank: int) -> Iterator[Callable[[], None]]:
    """Heed notice in a worker of a Train group; yield what it calls when a checkpoint is written."""
    first = members[0]

    def told() -> bool:
        return going() or (rank == 0 and first.folder.folder.exists(f"{first.path}/{MARK}"))

    def answer() -> None:
        NOTICE.answer()
        if rank == 0 and NOTICE.saved.is_set():
            for attempt in members:
                attempt.folder.folder.remove(f"{attempt.path}/{MARK}")
            NOTICE.saved.clear()

    with looking(told):
        yield answer


def give_notice(folders: Sequence[RunFolder], wait: float = GRACE) -> None:
    """Tell the processes that train some runs to end, on whichever nodes they are, and wait for their checkpoints."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

    alive_runs = [(folder, attempts.read(folder, attempts.newest(folder))) for folder in folders]
    alive_runs = [(folder, record) for folder, record in alive_runs if not attempts.over(record)]
    processes = [(record["place"], record["pid"], record["born"]) for _, record in alive_runs]
    if not processes:
        return
    tell(processes)
    others = [each for each in processes if each[0] != attempts.place()]
    alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]] if others else []  # type: ignore[no-untyped-call]
    for node in alive:
        ray.remote(num_cpus=0, max_retries=0)(tell).options(scheduling_strategy=On(node, soft=False)).remote(others)
    over = time.monotonic() + wait
    while time.monotonic() < over:
        alive_runs = [(folder, record) for folder, record in alive_runs if not attempts.over(now(folder))]
        if not alive_runs:
            return
        time.sleep(0.1)


def now(folder: RunFolder) -> dict[str, Any]:
    """Return what the newest attempt at a run says of itself now."""
    return attempts.read(folder, attempts.newest(folder))


def tell(processes: Sequence[tuple[str, int, float]]) -> None:
    """Send SIGTERM to those of some processes that run where this one does: (place, pid, when it was born)."""
    here = attempts.place()
    for place, pid, born in processes:
        if place == here and not attempts.over({"place": place, "pid": pid, "born": born}):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
