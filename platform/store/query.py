"""State of the runs on a storage, without Ray and without the tasks' code.

A finished run is told from the index (`cache.py`) as long as its folder has not changed; of the others the files are
read. On a local disk a folder's own time says whether it has changed; on a bucket, one listing of all files does.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, get_args

from retable.platform.config import describe
from retable.platform.errors import Unreachable, UserError, disk_errors, nearest
from retable.platform.store.cache import Entry, Index, Snapshot, is_text, listed
from retable.platform.store.lease import STALE_SECONDS
from retable.platform.store.records import LARGEST
from retable.platform.store.run import RunFolder, outcome_of
from retable.platform.store.storage import Record, Storage

State = Literal["finished", "diverged", "running", "stale", "incomplete", "failed", "corrupt"]
"""`stale`: in training, with a heartbeat older than two minutes. `incomplete`: unfinished, and no process owns it."""
_FORMER_STATES = {"silent": "stale", "stopped": "incomplete", "damaged": "corrupt"}
"""Words of earlier versions, which `--state` still accepts."""
READERS = 16
"""Files that are read at once: a bucket's time is waiting."""
_KEPT = ("started", "host", "scale", "commit", "dirty", "device")
"""Entries of `provenance.json` that the index keeps."""
Files = Mapping[str, tuple[int, int]]
"""Of a run: path in its folder -> size and time (ns)."""


@dataclass(slots=True)
class Run:
    """One run on a storage."""

    run: str
    """The fingerprint."""
    task: str
    state: State
    why: str = ""
    """The cause, of a run that failed, diverged or is corrupt."""
    epoch: int = 0
    epochs: int = 0
    changed: float = 0.0
    """Time of the last write to one of its files (of a finished run: to its result), seconds since 1970."""
    size: int = 0
    """Bytes of all its files, as they were listed last."""
    attempts: int = 1
    host: str = ""
    seconds: float = 0.0
    """Of training; 0 while it is not finished."""
    silent: float = 0.0
    """Seconds since its last heartbeat, while a process owns it."""
    scale: str = ""
    commit: str = ""
    bundle: str = ""
    """First digits of the bundle that it came in; empty for a run that was trained here."""
    config: Record = field(default_factory=dict)

    def value(self, name: str) -> object:
        """Return one of these fields, or of the config's, by its path; None where the run has none such."""
        return getattr(self, name) if name in FIELDS else self.config.get(name)


FIELDS = tuple(name for name in Run.__slots__ if name != "config")
"""Fields that runs are filtered and sorted by, besides those of their configs."""


def list_runs(storage: Storage, task: str = "", done: Callable[[int, int], None] | None = None) -> list[Run]:
    """Return the runs on a storage, the newest first.

    Args:
        storage: where.
        task: only this task's; all, where it is empty.
        done: hears how many runs were read, of how many.

    Raises:
        UserError: where the storage holds no such task's runs, or none at all.
    """
    tasks = [name for name in storage.folders("runs") if task in ("", name)]
    if not tasks:
        present = storage.folders("runs")
        raise UserError(f"{storage}: no runs of {task or 'any task'}{nearest(task, present) if task else ''}")
    taken = Snapshot(storage.filesystem, storage.root)
    listed: list[Run] = []
    names: dict[str, set[str]] = {}
    for name in tasks:
        runs, names[name] = _runs_of(storage, name, taken, done)
        listed += runs
    with suppress(UserError, OSError):  # a storage for reading only has no index
        taken.keep_index(storage.write, alive=names)
    return sorted(listed, key=lambda run: (-run.changed, run.task, run.run))


def _runs_of(
    storage: Storage, task: str, taken: Snapshot, done: Callable[[int, int], None] | None
) -> tuple[list[Run], set[str]]:
    """Return a task's runs, and the names of their folders."""
    index, folder = taken.index(task), f"runs/{task}"
    times = _folder_times(storage, folder) if storage.is_local else dict.fromkeys(taken.names(folder), 0)
    runs: list[Run] = []
    changed: dict[str, Files | None] = {}
    for run, when in times.items():
        entry = index.entry(run)
        files = None if storage.is_local else taken.below(f"{folder}/{run}")
        indexed = _from_index(task, run, entry) if holds(entry, when, files) else None
        if indexed is None:
            changed[run] = files
        else:
            indexed.size = sum(size for size, _ in files.values()) if files else indexed.size
            runs.append(indexed)
    for run in [run for run, files in changed.items() if files is None]:
        try:
            changed[run] = _files_of(storage / f"{folder}/{run}")
        except Unreachable:
            raise
        except UserError as error:  # another user's, perhaps; the others are listed
            del changed[run]
            runs.append(Run(run, task, "corrupt", str(error), changed=times[run] / 1e9))
    now = max([time.time(), *(when / 1e9 for files in changed.values() for _, when in (files or {}).values() if when)])
    with ThreadPoolExecutor(READERS) as readers:
        looks = [(RunFolder(storage, task, run), files or {}, index, times[run], now) for run, files in changed.items()]
        for count, seen in enumerate(readers.map(lambda look: look_at(*look), looks), 1):
            runs.append(seen)
            if done and not count % 100:
                done(count, len(looks))
    return runs, set(times)


def _files_of(folder: Storage) -> Files:
    """Return the files of a run on a local storage. Names are shared: many runs have the same ones."""
    with disk_errors(str(folder)):
        return {sys.intern(name): stamp for name, stamp in listed(folder.filesystem, folder.root)}


def _folder_times(storage: Storage, path: str) -> dict[str, int]:
    """Return the folders in a folder of a local storage, each with its own time (ns)."""
    with disk_errors(str(storage / path)), suppress(FileNotFoundError), os.scandir(f"{storage.root}/{path}") as entries:
        ours = (entry for entry in entries if entry.is_dir() and not entry.name.startswith(".") and is_text(entry.name))
        return {entry.name: entry.stat().st_mtime_ns for entry in ours}
    return {}


def holds(entry: Entry, folder: int, files: Files | None) -> bool:
    """Return whether the index entry of a run is current.

    Args:
        entry: the index's.
        folder: the time of the run's folder, ns: it changes as any file in it is replaced; where there are `files`, 0.
        files: what was listed, where that is known.
    """
    if files is None:
        return bool(folder) and entry.get("folder") == folder
    indexed = entry["files"]
    wanted = ("result.json", "config.json", "provenance.json")
    return all(name in indexed and indexed[name][:2] == list(files.get(name, ())) for name in wanted)


def _from_index(task: str, run: str, entry: Entry) -> Run | None:
    """Return a finished run as the index knows it; None where that is not whole."""
    try:
        files = entry["files"]
        result, config, made = (files[name][2] for name in ("result.json", "config.json", "provenance.json"))
        return finished(task, run, result, config, made, files["result.json"][1] / 1e9, entry.get("bytes", 0))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return None


def finished(
    task: str,
    run: str,
    result: Record,
    config: Record,
    made: Record,
    at: float,
    size: int,
) -> Run:
    """Return a finished run from its index entry."""
    why = result.get("diverged", "")
    state: State = "diverged" if "diverged" in result else "finished"
    bundle = result.get("bundle")
    return Run(
        run=run,
        task=task,
        state=state,
        why=str(why),
        epoch=_amount("epoch", result.get("epoch") or 0),
        epochs=_amount("epochs", config.get("epochs") or 0),
        changed=at,
        size=size,
        attempts=_amount("attempts", result.get("attempts", 1)),
        host=made.get("host", ""),
        seconds=_amount("seconds", result.get("seconds", 0.0)),
        scale=made.get("scale", ""),
        commit=made.get("commit", ""),
        bundle=str(bundle.get("id", ""))[:16] if isinstance(bundle, dict) else "",
        config=config,
    )


def _amount(name: str, value: object) -> Any:
    """Return a record's entry that is counted with. Raises a ValueError where it is no number of 0 or more."""
    if not isinstance(value, (int, float)) or not 0 <= value < LARGEST:
        raise ValueError(f"{name!r} is no number of 0 or more")
    return value


def look_at(folder: RunFolder, files: Files, index: Index, when: int, now: float) -> Run:
    """Return a run from its files; a finished one is noted in the index.

    Args:
        folder: the run's.
        files: what lies in it.
        index: of the task's runs.
        when: the folder's own time, ns.
        now: seconds since 1970, by the storage's clock as far as that is known.
    """
    size = sum(size for size, _ in files.values())
    changed = max((moment or 0 for _, moment in files.values()), default=when) / 1e9
    run = Run(folder.fingerprint, folder.task, "incomplete", changed=changed, size=size)
    try:
        result = outcome_of(folder.result()) if "result.json" in files else None
        config = folder.folder.read_record("config.json", {"config": dict})["config"]
        made = folder.folder.read_record("provenance.json", {}) if "provenance.json" in files else {}
        made = {name: made[name] for name in _KEPT if name in made}
        if result is None:
            return unfinished(run, folder, files, config, made, now)
        kept = {"result.json": result, "config.json": config, "provenance.json": made}
        note = {name: [*files[name], value] for name, value in kept.items() if name in files}
        index.note(folder.fingerprint, note, when, size)
        at = (files["result.json"][1] or 0) / 1e9  # some storages report no times
        return finished(folder.task, folder.fingerprint, result, config, made, at, size)
    except UserError as error:
        run.state, run.why = "corrupt", str(error)
    except FileNotFoundError:
        run.state, run.why = "corrupt", f"{folder.folder}/config.json is missing; remove the folder, it is of no use"
    except (TypeError, ValueError, AttributeError, OSError) as error:
        run.state, run.why = "corrupt", f"{folder.folder}: not a run's files ({type(error).__name__}: {error})"
    return run


def unfinished(run: Run, folder: RunFolder, files: Files, config: Record, made: Record, now: float) -> Run:
    """Return an unfinished run with its progress and owner."""
    number, attempt, beaten = _newest_attempt(folder, files)
    run.config, run.epochs = config, _amount("epochs", config.get("epochs") or 0)
    run.scale, run.commit = made.get("scale", ""), made.get("commit", "")
    run.host = str(attempt.get("host", made.get("host", "")))
    run.attempts = number or 1
    if "metrics.jsonl" in files:
        log = folder.history()
        run.epoch = log[-1]["epoch"] if log else 0
    if "failure.json" in files:
        why = str(folder.folder.read_record("failure.json", {"why": str})["why"])
        run.state, run.why = "failed", " ".join(why.split())
    elif attempt.get("state") == "running":
        run.silent = max(0.0, now - beaten) if beaten else 0.0
        run.state = "stale" if run.silent > STALE_SECONDS else "running"
    elif not number and now - run.changed < STALE_SECONDS:  # of before attempts were noted: somebody writes its log
        run.state = "running"
    return run


def _newest_attempt(folder: RunFolder, files: Files) -> tuple[int, Record, float]:
    """Return the number of a run's last attempt, its record, and the time of its last write (seconds since 1970).

    Where the storage reports no times, the time is the one in the record; without one, 0.
    """
    parts = ((re.fullmatch(r"attempts/(\d+)/[^/]+\.json", path), stamp) for path, stamp in files.items())
    every = [(int(match[1]), stamp[1] or 0, match[0]) for match, stamp in parts if match]
    if not every:
        return 0, {}, 0.0
    number, when, path = max(every)
    try:
        record = folder.folder.read_record(path, {})
    except FileNotFoundError:  # it ended meanwhile
        record = {}
    if not when and "beaten" in record:
        return number, record, datetime.fromisoformat(record["beaten"]).timestamp()
    return number, record, when / 1e9


def select(runs: Sequence[Run], where: Mapping[str, object], states: Sequence[str], sort: str) -> list[Run]:
    """Return the runs that have these values and states, sorted by age or by a field (`-field`: the largest first).

    Raises:
        UserError: where no run has such a field, or there is no such state.
    """
    states = [_FORMER_STATES.get(state, state) for state in states]
    for state in states:
        if state not in get_args(State):
            raise UserError(f"--state {state}: no such state{nearest(state, get_args(State))}")
    by = sort.removeprefix("-")
    for option, name in [*(("--where", name) for name in where), *([("--sort", by)] if by != "age" else [])]:
        if name not in FIELDS and not any(name in run.config for run in runs):
            fields = {*FIELDS, "age", *(path for run in runs[:1000] for path in run.config)}
            raise UserError(f"{option}: no run here has a field {name!r}{nearest(name, fields)}")
    selected = [run for run in runs if not states or run.state in states]
    selected = [run for run in selected if all(same(run.value(name), value) for name, value in where.items())]
    if by == "age":
        return selected[::-1] if sort != by else selected
    return sorted(selected, key=lambda run: order(run.value(by)), reverse=sort != by)


def same(value: object, wanted: object) -> bool:
    """Return whether a field has a value: equal, or written so."""
    return bool(value == wanted or str(value) == str(wanted))


def order(value: object) -> tuple[int, float, str]:
    """Return a key by which any values can be sorted: none, numbers, then texts."""
    if value is None:
        return 0, 0.0, ""
    if isinstance(value, (int, float)):
        return 1, float(value), ""
    return 2, 0.0, str(value)


def usual(runs: Sequence[Run]) -> dict[str, dict[str, str]]:
    """Return task -> path -> the value that most of the runs have, as JSON; of many runs some 2,000 are looked at."""
    counts: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for run in runs[:: -(-len(runs) // 2000) or 1]:
        for path, value in run.config.items():
            counts[run.task][path][json.dumps(value)] += 1
    return {task: {path: c.most_common(1)[0][0] for path, c in paths.items()} for task, paths in counts.items()}


def differs(run: Run, base: Mapping[str, str]) -> str:
    """Describe where a run's config differs from most: the last part of each path, with its value."""
    different = {path: value for path, value in run.config.items() if base.get(path) != json.dumps(value)}
    different.pop("init.overrides", None)
    names = Counter(path.rsplit(".", 1)[-1] for path in different)
    short = {name if names[name := path.rsplit(".", 1)[-1]] == 1 else path: value for path, value in different.items()}
    return describe(short)
