"""Run leases: attempts at a run are numbered, and the highest number owns the run (a fencing token).

runs/<task>/<fingerprint>/attempts/<0001>/<name>.json, note.txt, traceback.txt

Two commands, or a machine that was given up but still computes, may want to write to one run. Each process that trains
first acquires the next number in one step that only one of them can make, and checks before each lasting write that its
number is still the highest. The owner writes a heartbeat every 20 seconds. A lease is stale when its heartbeat has not
changed for 120 seconds on the observer's monotonic clock, or when its process is gone from the observer's own machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from retable.platform.console import errors
from retable.platform.errors import TRACEBACK, Unreachable, UserError, one_line, traceback_of
from retable.platform.store.patience import at_most
from retable.platform.store.provenance import code_ran
from retable.platform.store.run import RunFolder, sha256
from retable.platform.store.storage import Record, Storage

HEARTBEAT_SECONDS = 20.0
"""Seconds between the heartbeats of a lease."""
STALE_SECONDS = 120.0
"""Seconds without a heartbeat after which a lease is stale."""
DEATHS = 3
"""Give up after this many crashes of the same work item at the same step."""
MAKING = ".making"
"""Folder of the storage with the leases of data sets."""
POLL_SECONDS = 1.0
"""Between two looks at what another command makes."""


class LeaseLost(Exception):
    """Another attempt owns these runs, or has taken them since; they are left to it."""

    def __init__(self, folders: Sequence[RunFolder]) -> None:
        super().__init__(*folders)
        self.folders = tuple(folders)


class Died(UserError):
    """The process of a run died too often at one step."""


@dataclass(frozen=True)
class Lease:
    """One attempt at a run. Small and picklable: another process may write with it."""

    folder: RunFolder
    number: int
    name: str
    facts: Mapping[str, object] = field(default_factory=dict)
    """The record of the attempt, besides its state and heartbeat."""

    @property
    def path(self) -> str:
        """Its folder, relative to the run's."""
        return f"attempts/{self.number:04d}"

    def owns(self) -> bool:
        """Return whether this attempt, and no later one, owns the run."""
        return newest_number(self.folder) == self.number

    def note(self, text: str) -> None:
        """Keep a line about an event with the attempt."""
        self.folder.folder.write(f"{self.path}/note.txt", text)

    def fail(self, error: BaseException) -> None:
        """Keep why the run failed, in a line, and the traceback where it is no user's mistake."""
        self.folder.fail(one_line(error))
        if text := traceback_of(error):
            self.folder.folder.write(f"{self.path}/{TRACEBACK}", text)

    def write_state(self, state: str, beat: int) -> None:
        """Write the attempt's state (`running`, `released`) and its heartbeat count."""
        self.folder.folder.write(f"{self.path}/{self.name}.json", _record(self.facts, state, beat))


def newest_number(folder: RunFolder) -> int:
    """Return the number of the newest attempt at a run; 0 where there is none."""
    return max((int(name) for name in folder.folder.list("attempts") if name.isdigit()), default=0)


def read(folder: RunFolder, number: int) -> Record:
    """Return the record of an attempt; empty if it was never written completely."""
    for name in folder.folder.list(f"attempts/{number:04d}"):
        if name.endswith(".json"):
            try:
                record = folder.folder.read_json(f"attempts/{number:04d}/{name}")
            except (FileNotFoundError, UserError):
                continue
            if isinstance(record, dict):
                return record
    return {}


def acquire(folder: RunFolder, work: str, step: int, dead: int = 0) -> Lease:
    """Acquire the lease of a run.

    Args:
        folder: of the run.
        work: names the piece of work: an earlier attempt at the same one is over, as Ray has begun it again.
        step: of the checkpoint that this attempt goes on from.
        dead: attempts up to this number are known to be dead.

    Raises:
        LeaseLost: if another attempt owns it.
        Died: where the same piece of work died too often at this step.
    """
    last = newest_number(folder)
    before = read(folder, last) if last > dead else {}
    if last > dead and not is_over(before, work):
        raise LeaseLost([folder])
    if all(_died(folder, number, work, step) for number in range(last, last - DEATHS, -1)):
        raise Died(f"its process died {DEATHS} times at step {step}; it may need more memory than there is")
    name = os.urandom(8).hex()
    attempt = Lease(
        folder,
        last + 1,
        name,
        {"id": name, **_self(), **code_ran(folder.task), "work": work, "step": step, "started": _now()},
    )
    if not folder.folder.claim(attempt.path, f"{name}.json", _record(attempt.facts, "running", 0)):
        raise LeaseLost([folder])
    return attempt


def is_free(folder: RunFolder, work: str) -> bool:
    """Return whether no attempt but those at the same piece of work owns a run."""
    number = newest_number(folder)
    return not number or is_over(read(folder, number), work)


def _died(folder: RunFolder, number: int, work: str, step: int) -> bool:
    """Return whether an attempt stopped at the same work and step without releasing its lease."""
    record = read(folder, number) if number > 0 else {}
    return (record.get("work"), record.get("step"), record.get("state")) == (work, step, "running")


def is_over(record: Record, work: str = "") -> bool:
    """Return whether an attempt has ended: it released its lease, Ray restarted its work, or its process is gone."""
    if record.get("state") == "released" or (work and record.get("work") == work):
        return True
    if record.get("place") != process_namespace():
        return False
    try:
        return bool(abs(_born(record["pid"]) - record["born"]) > 1)
    except (psutil.NoSuchProcess, KeyError, TypeError):
        return True
    except psutil.Error:
        return False


def _born(pid: int) -> float:
    """Return when a process started: on Linux in ticks since the machine did, as its clock may be set meanwhile.

    Raises:
        psutil.Error: where there is no such process, or it cannot be asked.
    """
    try:
        return float(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return float(psutil.Process(pid).create_time())


def process_namespace() -> str:
    """Return an identifier of the processes visible from here: this boot of this machine, and its container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{platform.node()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{platform.node()} {psutil.boot_time():.0f}"


@contextlib.contextmanager
def heartbeat(attempts: Sequence[Lease]) -> Iterator[None]:
    """Write a heartbeat every few seconds while the block runs, then release the leases."""
    ended = threading.Event()

    def live() -> None:
        """Beat until the block ends."""
        beat = 0
        while not ended.wait(HEARTBEAT_SECONDS):
            beat += 1
            _write_states(attempts, "running", beat)  # a beat more or less; what matters is asked before each write

    thread = threading.Thread(target=live, daemon=True, name="beat")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        release(attempts)


def release(attempts: Sequence[Lease]) -> None:
    """Release the leases of attempts, where the storage can be written; without heartbeats they end by themselves."""
    _write_states(attempts, "released", -1)


def _write_states(attempts: Sequence[Lease], state: str, beat: int) -> None:
    """Write the state of each that can be written; a storage that is away is waited for once, not for each."""
    with contextlib.suppress(Unreachable), at_most(HEARTBEAT_SECONDS):
        for attempt in attempts:
            try:
                attempt.write_state(state, beat)
            except Unreachable:
                raise
            except Exception:
                continue


def wait(folder: RunFolder, seconds: float) -> int:
    """Look every `seconds` at another attempt's lease until it is stale or released; return the attempt's number."""
    watcher = StaleLeaseWatcher(folder)
    while not (number := watcher.poll()):
        time.sleep(seconds)
    return number


@contextlib.contextmanager
def one_maker(storage: Storage, where: str) -> Iterator[None]:
    """Make a data set in the block, which no other command does meanwhile; where one does, wait for its end first.

    Leases stay, released: by their numbers those who wait find out which of them is next.

    Args:
        storage: the root of everything that lasts.
        where: of the data set, below `data/`: `<task>/<name>`.
    """
    folder = RunFolder(storage / MAKING, where.partition("/")[0], sha256(where.encode())[:16])
    attempt, dead = None, 0
    while attempt is None:
        try:
            attempt = acquire(folder, uuid.uuid4().hex, 0, dead)
        except LeaseLost:
            errors.print(f"data {where}: another command makes it; this one waits for that", markup=False)
            dead = wait(folder, POLL_SECONDS)
    with heartbeat([attempt]):
        yield


@dataclass
class StaleLeaseWatcher:
    """Watches a lease that another attempt owns, on this machine's monotonic clock."""

    folder: RunFolder
    seen: tuple[object, ...] = ()
    since: float = 0.0

    def poll(self) -> int:
        """Return the newest attempt's number if its lease is stale or released, else 0."""
        number = newest_number(self.folder)
        record = read(self.folder, number) if number else {}
        if is_over(record) or not number:
            return max(1, number)
        seen = (number, record.get("id"), record.get("beat"))
        if seen != self.seen:
            self.seen, self.since = seen, time.monotonic()
        return number if time.monotonic() - self.since >= STALE_SECONDS else 0


def _self() -> dict[str, object]:
    return {
        "host": platform.node(),
        "place": process_namespace(),
        "pid": os.getpid(),
        "born": _born(os.getpid()),
    }


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _record(facts: Mapping[str, object], state: str, beat: int) -> bytes:
    return json.dumps({**facts, "state": state, "beat": beat, "beaten": _now()}, indent=2).encode()
