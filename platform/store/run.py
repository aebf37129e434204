"""The folder of one run: `runs/<task>/<fingerprint>/`.

    config.json        every field of the config, and the task's version
    provenance.json    commit, versions, machine, command, data
    metrics.jsonl      one line an epoch
    tensorboard/       the same for TensorBoard
    samples/           PNG pictures by step of how far it was, where the task makes any
    checkpoint-<step>/ the newest two: model.safetensors, state.pt, manifest.json (written last)
    attempts/<n>/      who trains or trained it (`lease.py`); the highest number is whose run it is
    failure.json       why it last failed, until it is begun again
    weights/epoch-<n>.safetensors    the weights that views ask for
    views/<key>/       scores.json of one view, or the traceback.txt of what failed;
                       <weights>/<shard>/summary.npz, and predictions.npz where they are joined
    result.json        written last: the run is finished; `bundle` says which bundle it came in (`packing.py`)

Nothing here is ever unpickled but `state.pt`, with `weights_only=True`, whose tensors and plain values are ours.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import struct
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retable.platform.config import Config, View, choice_name, fingerprint, flatten, naming, override
from retable.platform.errors import UserError
from retable.platform.store.storage import Record, Storage

if TYPE_CHECKING:
    from torch import Tensor

    from retable.platform.spec.task import C, State, Task


_CHECKPOINT = ("model.safetensors", "state.pt")
"""Files of a checkpoint, besides its manifest."""

SHARDS = "shards.json"
"""Names the shards of a view, or of a combination, that came in a bundle."""


def sha256(data: bytes) -> str:
    """Return the SHA-256 of some bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def file_digest(path: Path, kind: str = "sha256") -> str:
    """Return a digest of a file, in hexadecimal; `kind` is `hashlib`'s name of it."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, kind).hexdigest()


@dataclass(frozen=True)
class RunFolder:
    """One run on storage. Small and picklable; it reads and writes, and holds nothing."""

    storage: Storage
    task: str
    fingerprint: str

    @staticmethod
    def of(storage: Storage, task: Task, config: Config) -> RunFolder:
        """Return the folder of a config's run, which may not exist yet."""
        return RunFolder(storage, task.name, fingerprint(task.name, task.version, config))

    @property
    def path(self) -> str:
        """The folder, relative to the storage."""
        return f"runs/{self.task}/{self.fingerprint}"

    @property
    def folder(self) -> Storage:
        """The folder as a storage of its own."""
        return self.storage / self.path

    def begin(self, config: Config, version: int, provenance: Mapping[str, object]) -> None:
        """Write a run's config and provenance before it starts; a resumed run keeps its first provenance."""
        if not self.folder.exists("config.json"):
            self.folder.write_json("config.json", {"task": self.task, "version": version, "config": flatten(config)})
        if not self.folder.exists("provenance.json"):
            self.folder.write_json("provenance.json", provenance)
        self.folder.remove("failure.json")

    def fail(self, why: str) -> None:
        """Record why the run failed."""
        self.folder.write_json("failure.json", {"why": why, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})

    def result(self) -> Record | None:
        """Return `result.json`, or None while the run is not finished.

        Raises:
            UserError: where the file is damaged.
        """
        entries: dict[str, type] = {"data": str, "metrics": dict, "weights": dict}
        try:
            record = self.folder.read_record("result.json", entries, self._again)
        except FileNotFoundError:
            return None
        check_numbers(f"{self.folder}/result.json", record["metrics"], self._again)
        return record

    def outcome(self) -> Record | None:
        """Return `result.json` but its metrics, and the epoch it ended at: all that a plan asks for.

        Raises:
            UserError: where the file is damaged.
        """
        return self.folder.read_indexed("result.json", lambda: outcome_of(self.result()))

    def provenance(self) -> Record:
        """Return what was recorded when the run began; nothing where that is not there, as a bundle may lack it."""
        return self.folder.read_record("provenance.json", {}) if self.folder.exists("provenance.json") else {}

    def bundle(self) -> Record:
        """Return which bundle the run came in (`id`, `packed`, `host`, `device`); empty for a run trained here."""
        origin = (self.outcome() or {}).get("bundle")
        return origin if isinstance(origin, dict) else {}

    def lacks(self, epoch: int) -> bool:
        """Return whether the run came in a bundle that left out the weights of an epoch."""
        return bool(self.bundle()) and not self.folder.exists(weights_path(epoch))

    def config(self, task: Task[C]) -> C:
        """Return the run's config.

        Raises:
            UserError: where the file is missing, damaged, or of fields that the task does not have.
        """
        try:
            record = self.folder.read_record("config.json", {"config": dict}, self._again)
        except FileNotFoundError as error:
            raise UserError(f"{self.folder}/config.json is missing; {self._again}") from error
        try:
            return override(task.config(), record["config"])
        except (UserError, TypeError, ValueError) as error:
            raise UserError(f"{self.folder}/config.json: {error}; {self._again}") from error

    def history(self) -> list[Record]:
        """Return the lines of `metrics.jsonl`, one an epoch.

        A last line that is half written is left out while the run is not finished: such a run goes on from its
        checkpoint, and trains an epoch that the log lacks again.

        Raises:
            UserError: where another line is damaged.
        """
        return list(self.folder.memoize("metrics.jsonl", "rows", self._history))

    def _history(self) -> list[Record]:
        try:
            lines = self.folder.read("metrics.jsonl").splitlines()
        except FileNotFoundError:
            return []
        rows = []
        for number, line in enumerate(lines, 1):
            row = epoch_row(line)
            if row is None and number == len(lines) and self.result() is None:
                break
            if row is None:
                raise UserError(f"{self.folder}/metrics.jsonl: line {number} is no epoch's; {self._again}")
            rows.append(row)
        return rows

    def write_history(self, rows: Sequence[Record], ended: bool = True, saved: bool = True) -> None:
        """Write the log whole, for people and for TensorBoard: object stores cannot append.

        TensorBoard's file holds pictures, so while a run goes on it is not written at each epoch, but whenever the log
        has grown by an eighth at most: 1,000 epochs write it 64 times and not 1,000.

        Args:
            rows: all epochs so far. A picture `samples/<step>.png` is shown with the row of its step.
            ended: whether no more will come.
            saved: whether a checkpoint follows; TensorBoard's file is written with one.
        """
        self.folder.write("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        if not ended and (not saved or len(rows) % (1 << max(0, len(rows).bit_length() - 4))):
            return
        written = {f"samples/{name}" for name in self.folder.list("samples")}
        paths = {row["step"]: sample_path(row["step"]) for row in rows}
        samples = {step: self.folder.read(path) for step, path in paths.items() if path in written}
        with suppress(ImportError):  # where there is plain PyTorch only, the log alone is written
            self.folder.write("tensorboard/events.out.tfevents.0.retable", tensorboard_events(rows, samples))

    def checkpoints(self) -> list[int]:
        """Return the steps at which a whole checkpoint lies, ascending."""
        steps = [int(match[1]) for name in self.folder.list() if (match := re.fullmatch(r"checkpoint-(\d+)", name))]
        return sorted(step for step in steps if self.folder.exists(f"checkpoint-{step:08d}/manifest.json"))

    def save_checkpoint(self, step: int, state: Mapping[str, Any]) -> None:
        """Write a checkpoint; it counts once its manifest exists."""
        import torch
        from safetensors.torch import save

        rest = io.BytesIO()
        torch.save({name: value for name, value in state.items() if name != "weights"}, rest)
        files = dict(zip(_CHECKPOINT, (save(contiguous(state["weights"])), rest.getvalue()), strict=True))
        for name, data in files.items():
            self.folder.write(f"checkpoint-{step:08d}/{name}", data)
        manifest = {name: sha256(data) for name, data in files.items()}
        self.folder.write_json(f"checkpoint-{step:08d}/manifest.json", manifest)

    def load_checkpoint(self, step: int) -> State:
        """Read a checkpoint.

        Raises:
            UserError: if a file is missing, its content is not what was written, or it is more than tensors and values.
        """
        import pickle

        import torch
        from safetensors.torch import load

        folder = f"checkpoint-{step:08d}"
        manifest = self.folder.read_record(f"{folder}/manifest.json", dict.fromkeys(_CHECKPOINT, str))
        files = {name: self._verified(f"{folder}/{name}", manifest[name]) for name in _CHECKPOINT}
        try:
            rest = torch.load(io.BytesIO(files["state.pt"]), weights_only=True, map_location="cpu")
            return {"weights": load(files["model.safetensors"]), **rest}
        except pickle.UnpicklingError as error:
            raise UserError(f"{self.folder}/{folder}/state.pt holds code, which is never run; remove it") from error
        except Exception as error:  # its digests are its own: what came in a bundle may be anything
            raise UserError(f"{self.folder}/{folder} is no checkpoint ({type(error).__name__}); remove it") from error

    def remove_checkpoints(self, keep: int | None = None) -> None:
        """Remove the rolling checkpoints, or all but that of a step and the newest before it, should it be damaged.

        The manifest goes first, so that none is left half.
        """
        names = [name for name in self.folder.list() if re.fullmatch(r"checkpoint-\d+", name)]
        last = "" if keep is None else f"checkpoint-{keep:08d}"
        kept = {last, max((name for name in names if name < last), default="")}
        for name in names:
            if name not in kept:
                self.folder.remove(f"{name}/manifest.json")
                self.folder.remove(name)

    def save_weights(self, epoch: int, weights: Mapping[str, Tensor]) -> str:
        """Keep an epoch's weights for the views that name it; return their digest."""
        from safetensors.torch import save

        data = save(contiguous(weights))
        self.folder.write(weights_path(epoch), data)
        return sha256(data)

    def weights(self, epoch: int) -> dict[str, Tensor]:
        """Return the weights that were kept of an epoch.

        Raises:
            UserError: if they were not kept or the file is damaged.
        """
        from safetensors.torch import load

        result = self.result()
        digest = (result or {}).get("weights", {}).get(str(epoch))
        if digest is None:
            remedy = f"train the run again with --keep {epoch}"  # else it is there, and nothing is trained
            raise UserError(f"{self.folder}: the weights of epoch {epoch} were not kept; {remedy}")
        if self.lacks(epoch):
            raise UserError(f"{self.folder}: it came in a bundle without the weights of epoch {epoch}; {self._again}")
        return load(self._verified(weights_path(epoch), digest))

    def scores(self, view: View, weights: str) -> Record | None:
        """Return a view's scores if they were taken from exactly these weights (by digest).

        Raises:
            UserError: where the file is damaged.
        """
        record = self._scores(f"views/{view_key(view)}/scores.json")
        return record if record.get("weights") == weights else None

    def scored(self, view: View, weights: str) -> bool:
        """Return whether a view's scores exist for exactly these weights.

        Raises:
            UserError: where the file is damaged.
        """
        path = f"views/{view_key(view)}/scores.json"
        return self.folder.read_indexed(path, lambda: self._scores(path).get("weights")) == weights

    def _scores(self, path: str) -> Record:
        """Return the scores in a file; nothing where there are none."""
        try:
            record = self.folder.read_record(path, {"weights": str, "metrics": dict})
        except FileNotFoundError:
            return {}
        check_numbers(f"{self.folder}/{path}", record["metrics"], "remove it and run again")
        return record

    def scored_views(self) -> list[str]:
        """Return the names of the folders of views that have scores."""
        return [key for key in self.folder.list("views") if self.folder.exists(f"views/{key}/scores.json")]

    def save_scores(self, view: View, weights: str, metrics: Mapping[str, float], seconds: float) -> None:
        """Keep a view's scores."""
        record = {"view": flatten(view), "weights": weights, "metrics": dict(metrics), "seconds": seconds}
        self.folder.write_json(f"views/{view_key(view)}/scores.json", record)

    def artifacts(self, view: View, weights: str) -> Storage:
        """Return the folder of a view's predictions from exactly these weights, with a folder for each shard."""
        return self.folder / f"views/{view_key(view)}/{weights[:16]}"

    def _verified(self, path: str, digest: str) -> bytes:
        try:
            data = self.folder.read(path)
        except FileNotFoundError:
            data = b""
        if sha256(data) != digest:
            raise UserError(f"{self.folder}/{path} is damaged or missing; {self._again}")
        return data

    @property
    def _again(self) -> str:
        return f"remove {self.folder if self.storage.is_local else self.path} to train this run again"


def outcome_of(result: Record | None) -> Record | None:
    """Return a result but its metrics, with the epoch it ended at."""
    if result is None:
        return None
    return {name: value for name, value in result.items() if name != "metrics"} | {
        "epoch": result["metrics"].get("epoch")
    }


def epoch_row(line: bytes) -> Record | None:
    """Return a line of a log, or None where it is not an epoch's."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    numbers = isinstance(row, dict) and isinstance(row.get("epoch"), int) and isinstance(row.get("step"), int)
    return row if numbers and isinstance(row.get("time"), (int, float)) else None


def check_numbers(file: str, metrics: Mapping[str, object], remedy: str) -> None:
    """Refuse metrics that are not numbers.

    Raises:
        UserError: naming the file and the metric.
    """
    for name, value in metrics.items():
        if not isinstance(value, (int, float, type(None))):
            raise UserError(f"{file}: the metric {name!r} is no number; {remedy}")


def listed_shards(folder: Storage) -> list[str] | None:
    """Return the shards that a bundle listed; None where none did.

    Raises:
        UserError: if the list is damaged.
    """
    if not folder.exists(SHARDS):
        return None
    shards = folder.read_json(SHARDS)
    if not is_shards(shards):
        raise UserError(f"{folder}/{SHARDS}: no list of shards; remove it and unpack the bundle again")
    return list(shards)


def is_shards(value: object) -> bool:
    """Return whether a value is a list of shards, none of which is a path that leaves its folder."""
    return isinstance(value, list) and all(isinstance(shard, str) and safe(shard) for shard in value)


def safe(path: str) -> bool:
    """Return whether a relative path stays in its folder, on any file system, and names nothing hidden."""
    parts = path.split("/")
    return len(path) <= 400 and all(
        0 < len(part) <= 200 and part[0] != "." and part.isprintable() and not {"\\", ":"} & set(part) for part in parts
    )


def weights_path(epoch: int) -> str:
    """Return where the weights of an epoch lie in a run's folder."""
    return f"weights/epoch-{epoch:04d}.safetensors"


def read_arrays(folder: Storage, name: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of an .npz file; code in it is never run.

    Raises:
        UserError: where it is missing, damaged (its arrays have checksums) or holds code.
    """
    try:
        with np.load(io.BytesIO(folder.read(name))) as archive:
            return dict(archive)
    except UserError:
        raise
    except Exception as error:  # a broken file raises almost anything
        above = Storage(folder.filesystem, folder.root.rsplit("/", 1)[0])  # with the scores made of it
        raise UserError(f"{folder}/{name} is damaged or missing; remove {above} and run again") from error


def write_arrays(folder: Storage, name: str, arrays: Mapping[str, Any]) -> None:
    """Write arrays as a compressed .npz file."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    folder.write(name, buffer.getvalue())


def contiguous(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as safetensors wants them: on the CPU, contiguous, sharing no memory."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}


_named: dict[int, tuple[object, str]] = {}
"""Identity of a view -> the view, and its name: a table's rows share a few, and ask for their names again and again."""


def view_key(view: object) -> str:
    """Return the name of a view's folder: its class and a hash of its fields."""
    cached = _named.get(id(view))  # a view never changes, and one that is held shares its identity with no other
    if cached is None:
        text = json.dumps(naming(view), sort_keys=True)
        cached = (view, f"{choice_name(type(view))}-{sha256(text.encode())[:12]}")
        if len(_named) >= 1000:
            _named.clear()
        _named[id(view)] = cached
    return cached[1]


def sample_path(step: int) -> str:
    """Return the name of the picture that shows how far a run was at a step."""
    return f"samples/{step:08d}.png"


def tensorboard_events(rows: Sequence[Record], samples: Mapping[int, bytes]) -> bytes:
    """Return a TensorBoard event file of a log and PNG pictures by step.

    It is a pure function of them, so that a longer log only appends.
    """
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.record_writer import RecordWriter

    start = float(rows[0]["time"]) if rows else time.time()
    events = [Event(wall_time=start, file_version="brain.Event:2")]
    for row in rows:
        values = [
            Summary.Value(tag=name, simple_value=float(value))
            for name, value in row.items()
            if isinstance(value, (int, float)) and name not in ("time", "step")
        ]
        if row["step"] in samples:
            png = samples[row["step"]]
            width, height = struct.unpack(">II", png[16:24])  # PNG's first chunk begins with them
            picture = Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=png)
            values.append(Summary.Value(tag="sample", image=picture))
        events.append(Event(wall_time=float(row["time"]), step=int(row["step"]), summary=Summary(value=values)))
    with tempfile.NamedTemporaryFile(prefix="retable-events-") as file:
        writer = RecordWriter(file.name)
        for event in events:
            writer.write(event.SerializeToString())
        writer.close()
        return file.read()
