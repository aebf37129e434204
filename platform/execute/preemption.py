"""Preemption: checkpoint on SIGTERM or node drain before the process exits.

SIGTERM comes from a stopped command, from Slurm, and from a machine that shuts down; a drain from Ray, when a spot
machine or an autoscaler takes a node away. Training continues meanwhile: after each step the loop asks whether a
checkpoint is requested.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from retable.platform import ray_compat
from retable.platform.execute.session import alive_nodes
from retable.platform.store import lease
from retable.platform.store.lease import Lease
from retable.platform.store.run import RunFolder

_GRACE = 10.0
"""Seconds that a process which has to end waits for its checkpoint; a step may take so long."""
POLL_SECONDS = 5.0
"""Seconds between polls for node drains and requests without a signal."""
_MARK = "leave"
"""File in an attempt's folder by which a trial requests a checkpoint of the workers of its Train group."""


class Notice:
    """The preemption state of this process. One object a process, as signals are delivered to processes."""

    def __init__(self) -> None:
        self.requested, self.saved = threading.Event(), threading.Event()
        self.members: Sequence[Lease] = ()
        """The attempts that this process trains."""
        self.relayed = False
        """Whether the workers of a Train group train them, in other processes."""
        self.leaving = False
        """Whether SIGTERM has come: this process ends after its checkpoint."""
        self.ending = False

    def checkpoint_written(self) -> None:
        """Record that the requested checkpoint was written; one answers each request."""
        if self.requested.is_set():
            self.requested.clear()
            self.saved.set()

    def wait(self) -> None:
        """Wait a limited time for a checkpoint of the current step, then release the leases."""
        if self.members and self.relayed:
            for attempt in self.members:
                attempt.folder.folder.write(f"{attempt.path}/{_MARK}", b"")
            first, deadline = self.members[0], time.monotonic() + _GRACE + POLL_SECONDS
            while first.folder.folder.exists(f"{first.path}/{_MARK}") and time.monotonic() < deadline:
                time.sleep(0.2)
        elif self.members:
            self.saved.wait(_GRACE)
        for attempt in self.members:
            attempt.write_state("released", -1)


NOTICE = Notice()


class SigtermMixin:
    """Mixin for the class that Tune makes of a trial function; its `setup` runs in the main thread of the process."""

    def setup(self, config: object, **more: object) -> None:
        """Handle SIGTERM: checkpoint first, then call Ray's handler."""
        before = signal.getsignal(signal.SIGTERM)

        def leave(signum: int, frame: FrameType | None) -> None:
            if not NOTICE.leaving:
                NOTICE.leaving = True
                NOTICE.saved.clear()  # of a drain before
                NOTICE.requested.set()
                threading.Thread(target=_end_process, daemon=True, name="leave").start()
            elif NOTICE.ending and callable(before):
                before(signum, frame)

        signal.signal(signal.SIGTERM, leave)
        super().setup(config, **more)  # type: ignore[misc]


def _end_process() -> None:
    """Checkpoint, then end this process as SIGTERM would."""
    with suppress(Exception):  # a storage that is away
        NOTICE.wait()
    NOTICE.ending = True
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
    os._exit(143)  # the main thread hears nothing


@contextmanager
def handle_preemption(members: Sequence[Lease], relayed: bool = False) -> Iterator[None]:
    """Request a checkpoint on preemption while the block trains these attempts."""
    NOTICE.members, NOTICE.relayed = members, relayed
    NOTICE.saved.clear()
    try:
        with _polling(node_draining):
            yield
    finally:
        NOTICE.members = ()
        NOTICE.saved.set()


@contextmanager
def _polling(*looks: Callable[[], bool]) -> Iterator[None]:
    """Request a checkpoint whenever one of `looks` begins to return true, while the block runs."""
    over = threading.Event()

    def watch() -> None:
        before = [False] * len(looks)
        while not over.wait(POLL_SECONDS):
            with suppress(Exception):  # Ray or a storage that is away tells nothing
                now = [look() for look in looks]
                if any(new and not old for new, old in zip(now, before, strict=True)):
                    NOTICE.requested.set()
                before = now

    thread = threading.Thread(target=watch, daemon=True, name="notice")
    thread.start()
    try:
        yield
    finally:
        over.set()


def node_draining() -> bool:
    """Return whether Ray drains this node."""
    import ray

    return ray.get_runtime_context().get_node_id() in ray_compat.draining_nodes()


@contextmanager
def worker_preemption(members: Sequence[Lease], rank: int) -> Iterator[Callable[[], None]]:
    """Handle preemption in a worker of a Train group; yield the function to call after a checkpoint."""
    first = members[0]

    def told() -> bool:
        return rank == 0 and first.folder.folder.exists(f"{first.path}/{_MARK}")

    def answer() -> None:
        NOTICE.checkpoint_written()
        if rank == 0 and NOTICE.saved.is_set():
            for attempt in members:
                attempt.folder.folder.remove(f"{attempt.path}/{_MARK}")
            NOTICE.saved.clear()

    with _polling(node_draining, told):
        yield answer


def give_notice(folders: Sequence[RunFolder]) -> None:
    """Send SIGTERM to the processes that train these runs, on all nodes, and wait for their checkpoints."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

    alive_runs = [(folder, _newest_record(folder)) for folder in folders]
    alive_runs = [(folder, record) for folder, record in alive_runs if record and not lease.is_over(record)]
    processes = [(record["place"], record["pid"], record["born"]) for _, record in alive_runs]
    if not processes:
        return
    _send_sigterm(processes)
    others = [process for process in processes if process[0] != lease.process_namespace()]
    for node in alive_nodes() if others else ():
        on_node = On(node["NodeID"], soft=False)
        ray.remote(num_cpus=0, max_retries=0)(_send_sigterm).options(scheduling_strategy=on_node).remote(others)
    over = time.monotonic() + _GRACE
    while time.monotonic() < over:
        alive_runs = [(folder, record) for folder, record in alive_runs if not lease.is_over(_newest_record(folder))]
        if not alive_runs:
            return
        time.sleep(0.1)


def _newest_record(folder: RunFolder) -> dict[str, Any]:
    """Return the record of the newest attempt at a run."""
    return lease.read(folder, lease.newest_number(folder))


def _send_sigterm(processes: Sequence[tuple[str, int, float]]) -> None:
    """Send SIGTERM to the processes of this namespace: (process namespace, pid, when it started)."""
    here = lease.process_namespace()
    for namespace, pid, born in processes:
        if namespace == here and not lease.is_over({"place": namespace, "pid": pid, "born": born}):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
