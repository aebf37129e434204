"""Whose a run is: attempts at it are numbered, and it belongs to the newest.

    runs/<task>/<fingerprint>/attempts/<0001>/<name>.json, note.txt, traceback.txt

Two commands, or a machine that was given up and still computes, may want to write to one run. Each process that trains
first makes the next number its own, in one step that only one of them can make. Whoever is not the newest any more
writes nothing more: it asks before each write that lasts. An attempt that trains says so every few seconds; one that
has been silent for two minutes, by the clock of who watches it, is dead, and so is one whose process is gone from the
watcher's own machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from retable.platform.errors import TRACEBACK, UserError, one_line, traceback_of
from retable.platform.store.provenance import code_ran
from retable.platform.store.run import RunFolder

BEAT = 20.0
"""Seconds between an attempt's signs of life."""
SILENCE = 120.0
"""Seconds without one after which an attempt counts as dead."""
DEATHS = 3
"""Attempts of one piece of work that end at one step without a word: then it is no accident."""


class Taken(Exception):
    """Runs that another attempt has, or has taken since: they are left to it."""

    def __init__(self, folders: Sequence[RunFolder]) -> None:
        super().__init__(*folders)
        self.folders = tuple(folders)


@dataclass(frozen=True)
class Attempt:
    """One attempt at a run. Small and picklable: what is written with it may be written elsewhere."""

    folder: RunFolder
    number: int
    name: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What it says of itself besides its state and its beat."""

    @property
    def path(self) -> str:
        """Its folder, relative to the run's."""
        return f"attempts/{self.number:04d}"

    def confirm(self) -> None:
        """Make sure that the run is still ours.

        Raises:
            Taken: where it is not.
        """
        if newest(self.folder) != self.number:
            raise Taken([self.folder])

    def note(self, text: str) -> None:
        """Keep a line about what happened, for whoever looks at the run's attempts."""
        self.folder.folder.write(f"{self.path}/note.txt", text)

    def fail(self, error: BaseException) -> None:
        """Keep why the run failed, in a line, and the traceback where it is no user's mistake."""
        self.folder.fail(one_line(error))
        if text := traceback_of(error):
            self.folder.folder.write(f"{self.path}/{TRACEBACK}", text)

    def tell(self, state: str, beat: int) -> None:
        """Say that we live, or that we let go."""
        self.folder.folder.write(f"{self.path}/{self.name}.json", _record(self.facts, state, beat))


def numbers(folder: RunFolder) -> list[int]:
    """Return the numbers of the attempts at a run, ascending."""
    return sorted(int(name) for name in folder.folder.list("attempts") if name.isdigit())


def newest(folder: RunFolder) -> int:
    """Return the number of the newest attempt at a run; 0 where there is none."""
    return max(numbers(folder), default=0)


def read(folder: RunFolder, number: int) -> dict[str, Any]:
    """Return what an attempt says of itself; nothing where it was never whole."""
    for name in folder.folder.list(f"attempts/{number:04d}"):
        if name.endswith(".json"):
            try:
                record = folder.folder.read_json(f"attempts/{number:04d}/{name}")
            except (FileNotFoundError, UserError):
                continue
            if isinstance(record, dict):
                return record
    return {}


def claim(folder: RunFolder, work: str, step: int, dead: int = 0) -> Attempt:
    """Make a run ours.

    Args:
        folder: of the run.
        work: names the piece of work: an earlier attempt at the same one is over, as Ray has begun it again.
        step: of the checkpoint that this attempt goes on from.
        dead: attempts up to this number are known to be dead.

    Raises:
        Taken: where another attempt has it.
        UserError: where the same piece of work died too often at this step.
    """
    last = newest(folder)
    before = read(folder, last) if last > dead else {}
    if last > dead and not over(before, work):
        raise Taken([folder])
    if all(_died(folder, number, work, step) for number in range(last, last - DEATHS, -1)):
        raise UserError(f"its process died {DEATHS} times at step {step}; it may need more memory than there is")
    name = os.urandom(8).hex()
    attempt = Attempt(
        folder,
        last + 1,
        name,
        {"id": name, **_self(), **code_ran(folder.task), "work": work, "step": step, "started": _now()},
    )
    if not folder.folder.claim(attempt.path, f"{name}.json", _record(attempt.facts, "running", 0)):
        raise Taken([folder])
    return attempt


def _died(folder: RunFolder, number: int, work: str, step: int) -> bool:
    """Say whether an attempt was at the same work and step, and did not end of itself."""
    record = read(folder, number) if number > 0 else {}
    return (record.get("work"), record.get("step"), record.get("state")) == (work, step, "running")


def over(record: Mapping[str, Any], work: str = "") -> bool:
    """Say whether an attempt is known to have ended: it says so, Ray began its work again, or its process is gone."""
    if record.get("state") == "released" or (work and record.get("work") == work):
        return True
    if record.get("place") != place():
        return False
    try:
        return bool(abs(psutil.Process(record["pid"]).create_time() - record["born"]) > 1)
    except (psutil.NoSuchProcess, KeyError, TypeError):
        return True
    except psutil.Error:
        return False


def place() -> str:
    """Name the set of processes that this one can see: this boot of this machine, and in it this container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{platform.node()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{platform.node()} {psutil.boot_time():.0f}"


@contextlib.contextmanager
def held(attempts: Sequence[Attempt]) -> Iterator[None]:
    """Say every few seconds that these attempts live, while the block runs; then that they are over."""
    ended = threading.Event()

    def live() -> None:
        """Beat until the block ends."""
        beat = 0
        while not ended.wait(BEAT):
            beat += 1
            for attempt in attempts:
                with contextlib.suppress(Exception):  # a beat more or less; what matters is asked before each write
                    attempt.tell("running", beat)

    thread = threading.Thread(target=live, daemon=True, name="beat")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for attempt in attempts:
            with contextlib.suppress(Exception):  # silence says the same, later
                attempt.tell("released", -1)


@dataclass
class Silence:
    """Watches an attempt at a run that is another's, by this machine's clock alone."""

    folder: RunFolder
    seen: tuple[Any, ...] = ()
    since: float = 0.0

    def look(self) -> int:
        """Return the number of the newest attempt if it is dead or over, else 0."""
        number = newest(self.folder)
        record = read(self.folder, number) if number else {}
        if over(record) or not number:
            return max(1, number)
        seen = (number, record.get("id"), record.get("beat"))
        if seen != self.seen:
            self.seen, self.since = seen, time.monotonic()
        return number if time.monotonic() - self.since >= SILENCE else 0


def _self() -> dict[str, Any]:
    return {"host": platform.node(), "place": place(), "pid": os.getpid(), "born": psutil.Process().create_time()}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _record(facts: Mapping[str, Any], state: str, beat: int) -> bytes:
    return json.dumps({**facts, "state": state, "beat": beat, "beaten": _now()}, indent=2).encode()
