"""Packs the contents of tables into a bundle, and unpacks a bundle into a storage.

What a bundle holds is found from a plan of its tables. A run that came in one has `bundle` in its `result.json` (`id`,
`packed`, `host`, `device`), as have combinations and measurements in their files; so what is trained or measured here
again, which replaces the file, no longer says that it was sent. `bundles/<id>.json` keeps what the manifest says, for
people: no command reads it.
"""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from retable.platform.config import View, fingerprint, override
from retable.platform.errors import UserError
from retable.platform.execute.ensembles import output_folder
from retable.platform.execute.scoring import shards_of, weights_digest
from retable.platform.plan.plan import (
    Plan,
    Scoring,
    Training,
    compile_plan,
    data_digest,
    start_of,
    timings_at,
)
from retable.platform.report.write import Request, read_request, request_of, request_slug, table_of
from retable.platform.spec import task as tasks
from retable.platform.spec.task import find_loadable
from retable.platform.store import lease, provenance
from retable.platform.store.bundle import Bundle, Member, damaged, kind_of, read_bundle, replay, write_bundle
from retable.platform.store.records import Malformed, check_content
from retable.platform.store.run import SHARDS, RunFolder, sha256, weights_path
from retable.platform.store.storage import Record, Storage
from retable.platform.text import and_more, plain

Reader = Callable[[], bytes]
LAST = ("combination", "result")
"""Kinds that make the files beside them count: they are written after all others."""
_MARKED = ("result", "combination", "measurement")
"""Kinds of files that say which bundle they came in."""
WRITERS = 16
"""Files that are written at once: most of the time is waiting for a disk or bucket."""
LOOK = 10.0
"""Seconds between two checks whether another command has begun a run whose files are written."""
HELD = 64 << 20
"""Bytes of them, after which no more are read until they are written."""


@dataclass
class Packed:
    """The contents of a new bundle."""

    file: Path
    size: int = 0
    """Bytes of the bundle."""
    tables: list[str] = field(default_factory=list)
    runs: int = 0
    """Finished runs."""
    unfinished: int = 0
    combinations: int = 0
    measurements: int = 0
    left: list[str] = field(default_factory=list)
    """Runs that were left out, as they are of other data than those that are here."""
    corrupt: list[str] = field(default_factory=list)
    """Files that are damaged, a line each: their runs were left out."""

    def lines(self) -> list[str]:
        """Return what was packed, and what was not, in words."""
        counts = {"unfinished runs": self.unfinished, "combinations": self.combinations}
        parts = counted(self.runs, counts | {"measurements": self.measurements})
        lines = [f"{self.file}: {parts}; {self.size / 1e6:.2f} MB", f"tables: {', '.join(self.tables)}"]
        lines += [f"left out, of other data than those here: {and_more(self.left, 6)}"] if self.left else []
        return lines + [f"left out, corrupt: {line}" for line in self.corrupt]


def counted(runs: int, counts: Mapping[str, int]) -> str:
    """Return a number of finished runs, and of other things that there are, in words."""
    return ", ".join([f"{runs} finished runs", *(f"{count} {what}" for what, count in counts.items() if count)])


@dataclass
class Unpacked:
    """The contents taken from a bundle, and those left out."""

    id: str
    about: Record = field(repr=False)
    """The manifest without its list of members."""
    runs: list[str] = field(default_factory=list)
    """Finished runs that were taken, by fingerprint."""
    resumed: list[str] = field(default_factory=list)
    """Unfinished runs that were taken."""
    combinations: int = 0
    measurements: int = 0
    kept: list[str] = field(default_factory=list)
    """Contents that exist here already and were left as they are: `run <fingerprint>`, or a path."""
    other_data: list[str] = field(default_factory=list)
    """Runs that were taken, and do not count: the dataset here has another digest."""
    other_version: list[str] = field(default_factory=list)
    """Runs, and tables' files, that were not taken: of another version of their task, or of a task that is not here."""

    def lines(self) -> list[str]:
        """Return what was taken, and what was not, in words."""
        about, requested = self.about, [request for request in self.about["tables"] if isinstance(request, dict)]
        tables = list(dict.fromkeys(f"{request.get('table')} at scale {request.get('scale')}" for request in requested))
        counts = {"unfinished runs": len(self.resumed), "combinations": self.combinations}
        parts = counted(len(self.runs), counts | {"measurements": self.measurements})
        skipped = {
            "kept, as they are here already": self.kept,
            "taken, but of other data than those here, so they count as not there": self.other_data,
            "not taken, as their task is of another version or not here": self.other_version,
        }
        return [
            f"bundle {self.id[:16]}, packed {about['packed']} on {about['host']} ({about['device']})",
            f"taken: {parts}, of {and_more(tables, 6)}",
            *(f"{what} ({len(names)}): {and_more(names, 4)}" for what, names in skipped.items() if names),
        ]


# Packing ---------------------------------------------------------------------------------------------------------


def pack(
    tables: Sequence[str],
    scale: str,
    changes: Mapping[str, object],
    storage: Storage,
    out: Path,
    weights: bool = False,
    resume: bool = False,
    rows: Sequence[str] = (),
) -> Packed:
    """Pack the contents of tables into one file.

    Args:
        tables: full names; none: the tables that were asked for at this scale, else all that have any run.
        scale: the tables'.
        changes: the user's own (`--set`).
        rows: labels of the rows to pack, as a plan takes them; none: all.
        storage: where the runs lie.
        out: the file.
        weights: whether weights that were kept go along.
        resume: whether what an unfinished campaign needs goes along: checkpoints of unfinished runs, weights that runs
            start from, predictions that are still to be combined.

    Raises:
        UserError: if there is nothing to pack, or a file is damaged.
    """
    if not storage.exists():
        raise UserError(f"{storage}: there is nothing here; name a --storage where tables were reproduced")
    packer = _Packer(storage, Packed(out), weights, resume)
    with storage.snapshot():
        for name, request in requests(tables, scale, changes, storage, rows).items():
            packer.add(name, request)
        if not (packer.result.runs or packer.result.unfinished or packer.result.measurements):
            raise UserError(f"{storage}: no finished run of these tables at scale {scale}; `retable runs` lists all")
        packer.result.size = write_bundle(out, packer.about(), packer.ordered())
    return packer.result


def requests(
    tables: Sequence[str], scale: str, changes: Mapping[str, object], storage: Storage, rows: Sequence[str] = ()
) -> dict[str, Request]:
    """Return the requests that are packed, by file name."""
    if not tables:
        every = {file: read_request(storage, f"tables/{file}") for file in storage.list("tables")}
        kept = {
            file: request
            for file, request in every.items()
            if request["scale"] == scale and (not changes or request["set"] == changes)
        }
        if kept or changes:
            return kept
        loadable = [task for task in map(find_loadable, tasks.names()) if task and scale in task.scales()]
        tables = [f"{task.name}/{table}" for task in loadable for table in task.tables()]
    return {
        f"{request_slug(requested)}.json": requested
        for requested in (request_of(name, scale, changes, rows) for name in tables)
    }


def plan_of(request: Request, storage: Storage) -> Plan:
    """Compile the table that a request names."""
    tables = {request["table"]: table_of(request)}
    return compile_plan(tables, storage, request["scale"], request["set"], request.get("rows", ()))


@dataclass
class _Packer:
    """Gathers the files of a bundle."""

    storage: Storage
    result: Packed
    weights: bool
    resume: bool
    files: dict[str, Reader] = field(default_factory=dict)
    """Path on the storage -> reads what is packed of it."""
    requests: list[Request] = field(default_factory=list)
    data: dict[str, Record] = field(default_factory=dict)
    """Folder of a dataset -> what its `dataset.json` says."""

    def about(self) -> dict[str, object]:
        """Return what the manifest says besides its members."""
        made = provenance.collect()
        names = ("host", "device", "system", "commit", "dirty", "versions")
        about: dict[str, object] = {name: made[name] for name in names if name in made}
        what = {"tables": self.requests, "weights": self.weights, "resume": self.resume, "data": self.data}
        return {**about, **what, "packed": made["started"]}

    def ordered(self) -> dict[str, Reader]:
        """Return the files, those of a kind together: they are alike, so that they compress well."""
        kinds: list[str] = ["request", "config", "provenance", "log", "scores", "shards"]

        def key(path: str) -> tuple[object, ...]:
            kind = kind_of(path) or ""
            return kind in LAST, kinds.index(kind) if kind in kinds else len(kinds), kind, path

        return {path: partial(self._checked, path) for path in sorted(self.files, key=key)}

    def add(self, name: str, request: Request) -> None:
        """Add what fills one table; nothing of a table that has no run at all."""
        plan = plan_of(request, self.storage)
        self.result.corrupt += [line for line in plan.corrupt.values() if line not in self.result.corrupt]
        before = len(self.files)
        for training in plan.trainings.values():
            self._add_run(plan, training)
        for scoring in plan.scorings.values():
            if scoring.done and scoring.folder.path not in plan.corrupt and scoring.folder.outcome() is not None:
                self._add_summaries(scoring)
        self._add_combinations(plan)
        for timing in plan.timings.values():
            for path in timings_at(self.storage, timing.stem):
                self._file(path, partial(self._stripped, path))
        self.result.measurements = sum(path.startswith("measurements/") for path in self.files)
        if self.resume:
            self._add_unfinished(plan)
        if len(self.files) > before or any(
            f"{t.folder.path}/config.json" in self.files for t in plan.trainings.values()
        ):
            self.requests.append(request)
            self.result.tables.append(request["table"])
            self._file(f"tables/{name}", lambda: json.dumps(dict(request), indent=2, sort_keys=True).encode())

    def _file(self, path: str, read: Reader | None = None) -> bool:
        """Add a file that is there; return whether it was not added before."""
        new = path not in self.files
        self.files.setdefault(path, read or partial(self.storage.read, path))
        return new

    def _checked(self, path: str) -> bytes:
        """Return the packed content of a file, checked as the one who unpacks it will check it."""
        data, kind = self.files[path](), kind_of(path)
        if kind is None:
            raise UserError(f"{self.storage}/{path}: its name cannot be packed; rename or remove it")
        try:
            check_content(Member(path, kind, len(data), ""), data)
        except Malformed as error:
            raise UserError(f"{self.storage}/{path}: {error}; remove it and run again") from error
        return data

    def _stripped(self, path: str) -> bytes:
        """Return a JSON file without the entry of a bundle that it came in."""
        record = self.storage.read_record(path, {})
        return json.dumps({k: v for k, v in record.items() if k != "bundle"}, indent=2, sort_keys=True).encode()

    def _placeless(self, path: str) -> bytes:
        """Return a run's provenance without the storage that its command names."""
        record = provenance.placeless(self.storage.read_record(path, {}))
        return json.dumps(record, indent=2, sort_keys=True).encode()

    def _add_run(self, plan: Plan, training: Training) -> None:
        folder = training.folder
        result = None if folder.path in plan.corrupt else folder.outcome()
        if result is None or training.status == "data changed":
            self.result.left += [folder.fingerprint] if result and folder.fingerprint not in self.result.left else []
            return
        if not self._file(f"{folder.path}/result.json", partial(self._stripped, f"{folder.path}/result.json")):
            return
        self.result.runs += 1
        self._add_about(training)
        for key in folder.scored_views():
            self._file(f"{folder.path}/views/{key}/scores.json")
        for epoch in result["weights"] if self.weights else ():
            self._add_weights(folder, int(epoch))

    def _add_about(self, training: Training) -> None:
        """Add what a run says of itself, and what its data are."""
        folder = training.folder
        for name in ("config.json", "metrics.jsonl"):
            if folder.folder.exists(name):
                self._file(f"{folder.path}/{name}")
        if folder.folder.exists("provenance.json"):
            self._file(f"{folder.path}/provenance.json", partial(self._placeless, f"{folder.path}/provenance.json"))
        self.data.setdefault(training.task.dataset.where(training.config), folder.provenance().get("data") or {})

    def _add_weights(self, folder: RunFolder, epoch: int) -> None:
        if folder.folder.exists(weights_path(epoch)):
            self._file(f"{folder.path}/{weights_path(epoch)}")

    def _add_summaries(self, scoring: Scoring) -> None:
        """Add what the scores of a view were computed from, which claims and figures read."""
        for view in scoring.reads:
            artifacts = scoring.folder.artifacts(view, weights_digest(scoring.folder, view))
            self._add_shards(scoring, [view], artifacts, "summary.npz")

    def _add_shards(self, scoring: Scoring, views: Sequence[View], artifacts: Storage, name: str) -> None:
        """Add a file of each shard, and their list, if all are there."""
        path = artifacts.root[len(self.storage.root) + 1 :]
        if f"{path}/{SHARDS}" in self.files and name == "summary.npz":
            return
        try:
            shards = shards_of(scoring.task, scoring.config, views, self.storage, artifacts)
        except (UserError, FileNotFoundError):  # neither the data nor a list of shards: they cannot be read here either
            return
        if all(artifacts.exists(f"{shard}/{name}") for shard in shards):
            for shard in shards:
                self._file(f"{path}/{shard}/{name}")
            self._file(f"{path}/{SHARDS}", lambda: json.dumps(shards).encode())

    def _add_combinations(self, plan: Plan) -> None:
        for combining in plan.combinings:
            if plan.whole(combining) and combining.scores(self.storage) is not None:
                self.result.combinations += self._file(combining.path, partial(self._stripped, combining.path))
                reads = combining.task.reads(combining.view)
                self._add_shards(combining.members[0], reads, output_folder(combining, self.storage), "summary.npz")

    def _add_unfinished(self, plan: Plan) -> None:
        """Add what going on elsewhere needs, besides the data."""
        for training in plan.missing:
            for path, epoch in start_of(plan, training):
                self._add_weights(plan.trainings[path].folder, epoch)
            steps = training.folder.checkpoints()
            if training.folder.outcome() is None and steps:
                self.result.unfinished += self._file(f"{training.folder.path}/config.json")
                self._add_about(training)
                for name in ("model.safetensors", "state.pt", "manifest.json"):
                    self._file(f"{training.folder.path}/checkpoint-{steps[-1]:08d}/{name}")
                for name in training.folder.folder.list("weights"):
                    self._file(f"{training.folder.path}/weights/{name}")
        for scoring in plan.unscored:
            if scoring.folder.outcome() is not None:
                self._add_weights(scoring.folder, scoring.view.epoch)
        for combining in plan.uncombined:
            for member in combining.members:
                for view in combining.reads(member) if member.folder.outcome() is not None else ():
                    artifacts = member.folder.artifacts(view, weights_digest(member.folder, view))
                    self._add_shards(member, [view], artifacts, "predictions.npz")
                    self._add_weights(member.folder, view.epoch)


# Unpacking -------------------------------------------------------------------------------------------------------


def unpack(file: Path, storage: Storage) -> Unpacked:
    """Unpack a bundle into a storage. All of it is verified before anything is written.

    Raises:
        UserError: if the file is damaged or no bundle, or the storage cannot be written.
    """
    sent: dict[tuple[str, str], _Sent] = defaultdict(_Sent)

    def check(member: Member, data: bytes) -> None:
        try:
            check_content(member, data)
        except Malformed as error:
            raise damaged(file, f"{member.path}: {error}") from error
        if member.kind == "config":
            sent[member.task, member.run].data = _data_of(member, json.loads(data))
        elif member.kind == "result":
            sent[member.task, member.run].outcome = _digests(json.loads(data))

    bundle = read_bundle(file, check)
    taker = _Taker(storage, bundle, Unpacked(bundle.id, bundle.about))
    with storage.snapshot():
        taker.choose(sent)
    taker.write()
    return taker.result


@dataclass
class _Sent:
    """The facts about a run that are kept while a bundle is verified: few, however long its files are."""

    data: str | None = None
    """Folder of its dataset; None where its config is of another version of its task, or not the run's own."""
    outcome: tuple[str, str] | None = None
    """Digests of its result's entries; None where it is unfinished."""


def _data_of(member: Member, record: Record) -> str | None:
    """Return the folder of the dataset that a run's config names; see `_Sent.data`."""
    task = find_loadable(member.task)
    if task is None or record["version"] != task.version:
        return None
    try:
        config = override(task.config(), record["config"])
        own = fingerprint(task.name, task.version, config) == member.run
    except (UserError, TypeError, ValueError):
        return None
    return task.dataset.where(config) if own else None


def _digests(result: Mapping[str, object]) -> tuple[str, str]:
    """Return digests of which data a result is of, and of which weights."""
    data, weights = (sha256(json.dumps(result[name], sort_keys=True).encode()) for name in ("data", "weights"))
    return data, weights


@dataclass
class _Taker:
    """Writes the members of a bundle that was verified to a storage."""

    storage: Storage
    bundle: Bundle
    result: Unpacked
    runs: dict[tuple[str, str], int] = field(default_factory=dict)
    """Task and fingerprint of the runs whose files are written -> the newest attempt when they were chosen."""
    added: set[tuple[str, str]] = field(default_factory=set)
    """Those that came in a bundle before: what they lack is added."""
    begun: set[tuple[str, str]] = field(default_factory=set)
    """Those of `runs` that another command has begun or finished since."""
    looked: dict[tuple[str, str], float] = field(default_factory=dict)
    """Those of `runs` -> the monotonic time when that was last checked."""

    def choose(self, every: Mapping[tuple[str, str], _Sent]) -> None:
        """Decide which runs are taken. `every`: task and fingerprint -> what the bundle has of the run."""
        for task, run in dict.fromkeys((member.task, member.run) for member in self.bundle.members if member.run):
            sent = every.get((task, run), _Sent())
            folder = RunFolder(self.storage, task, run)
            if sent.data is None:
                self.result.other_version.append(run)
                continue
            if (own := folder.outcome()) is not None:
                self._keep(folder, own, sent)
                continue
            number = lease.newest_number(folder)
            if folder.checkpoints() or (number and not lease.is_over(lease.read(folder, number))):
                self.result.kept.append(f"run {run}, which is not finished")
                continue
            self.runs[task, run] = number
            (self.result.runs if sent.outcome else self.result.resumed).append(run)
            digest = data_digest(self.storage, sent.data)
            if sent.outcome and digest is not None and sha256(json.dumps(digest).encode()) != sent.outcome[0]:
                self.result.other_data.append(run)

    def _keep(self, folder: RunFolder, own: Record, sent: _Sent) -> None:
        """Leave a finished run as it is; add what one that was sent before lacks, if it is the same."""
        self.result.kept.append(f"run {folder.fingerprint}")
        if folder.bundle() and _digests(own) == sent.outcome:
            self.added.add((folder.task, folder.fingerprint))

    def write(self) -> None:
        """Write what was chosen, many files at once; what makes a run or a combination count comes last."""
        self.storage.write_json(f"bundles/{self.bundle.id}.json", dict(self.bundle.about))
        with ThreadPoolExecutor(WRITERS) as writers:
            for last in (False, True):  # the file is read twice, as what comes last may be too much to hold
                pending: list[Future[None]] = []
                held = 0
                for member, read in replay(self.bundle):
                    if (member.kind in LAST) != last or not self._wanted(member):
                        continue
                    pending.append(writers.submit(self._write, member, read()))
                    held += member.size
                    if len(pending) >= WRITERS or held > HELD:
                        finish(pending)
                        held = 0
                finish(pending)
        for _, run in sorted(self.begun):
            for taken in (self.result.runs, self.result.resumed):
                taken[:] = [digits for digits in taken if digits != run]
            self.result.kept.append(f"run {run}, which another command began meanwhile")

    def _wanted(self, member: Member) -> bool:
        if member.run:
            key = (member.task, member.run)
            return key in self.runs or (key in self.added and not self.storage.exists(member.path))
        if member.kind not in ("combination", "measurement"):
            return not self.storage.exists(member.path)
        if self.storage.exists(member.path):
            self.result.kept.append(member.path)
            return False
        self.result.combinations += member.kind == "combination"
        self.result.measurements += member.kind == "measurement"
        return True

    def _is_begun(self, member: Member) -> bool:
        """Return whether another command has begun or finished a chosen run meanwhile; it is then kept."""
        key, folder = (member.task, member.run), RunFolder(self.storage, member.task, member.run)
        if key in self.added:
            return False
        due = member.kind in LAST or time.monotonic() - self.looked.get(key, -math.inf) > LOOK
        if due and key not in self.begun:
            self.looked[key] = time.monotonic()
            if self.runs[key] != lease.newest_number(folder) or folder.folder.exists("result.json"):
                self.begun.add(key)
        return key in self.begun

    def _write(self, member: Member, data: bytes) -> None:
        if member.run and self._is_begun(member):
            return
        if member.kind == "request" and not _has_table(json.loads(data)):
            self.result.other_version.append(member.path)
            return
        if member.kind in _MARKED:
            text = {name: plain(self.bundle.about[name]) for name in ("packed", "host", "device")}
            data = json.dumps({**json.loads(data), "bundle": {"id": self.bundle.id, **text}}, indent=2).encode()
        self.storage.write(member.path, data)


def _has_table(request: Request) -> bool:
    """Return whether this version has the table that a request names, with its changes and rows."""
    try:
        table_of(request)
    except Exception:  # a task's own functions may raise anything
        return False
    return True


def finish(pending: list[Future[None]]) -> None:
    """Wait for what was begun, raise the first error, and forget it."""
    for future in pending:
        future.result()
    pending.clear()
