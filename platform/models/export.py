"""Metadata stored in exported model files, the same for every task: the run, and its provenance."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from retable.platform.config import flatten
from retable.platform.console import console
from retable.platform.errors import UserError
from retable.platform.models import contract
from retable.platform.spec.task import config_at
from retable.platform.store.provenance import placeless
from retable.platform.store.run import contiguous
from retable.platform.store.storage import Record, Storage, check_target, write_file

if TYPE_CHECKING:
    from torch import Tensor

    from retable.platform.api import TrainedRun

LARGEST = 1 << 32
"""Bytes of a file that is read, at most."""
_MADE = ("command", "commit", "versions", "started")
"""Entries that are copied from a run's provenance."""
_ITS_OWN = ("data", "init")
"""Fields that a file does not carry: what a run read and started from is not there on another machine."""


def about(run: TrainedRun, epoch: int = 0, **more: object) -> Record:
    """Return the metadata of a run's exported file: flat, and all of it JSON.

    Args:
        run: a finished run.
        epoch: whose weights the file holds; 0: the last.
        **more: what else is to be said; nothing is said of what is empty.

    Returns:
        `task`, `version`, `fingerprint`, `epoch`, `scale` (empty where it is not known), `data` (the data set's name),
        `data_digest`, `data_description`, `data_caution` (empty where there is none), `config` (field path -> value),
        `metrics` (of the last epoch), and `command`, `commit`, `versions` and `started` of the run's provenance, as far
        as they are known.

    Raises:
        UserError: where the run is not finished.
    """
    made = placeless(run.folder.provenance())
    info = made["data"] if "data" in made else run.source.info
    return {
        "task": run.task.name,
        "version": run.task.version,
        "fingerprint": run.fingerprint,
        "epoch": epoch or run.config.epochs,
        "scale": scale_of(run),
        "data": str(info.get("name", "")),
        "data_digest": str(run.result["data"]),
        "data_description": run.task.dataset.describe(info),
        "data_caution": run.task.dataset.caution(info),
        "config": flatten(run.config),
        "metrics": {name: value for name, value in run.metrics.items() if finite(value)},
        **{name: made[name] for name in _MADE if name in made},
        **{name: value for name, value in more.items() if value not in ("", None, {})},
    }


def finite(value: object) -> bool:
    """Return whether JSON can hold a metric."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def scale_of(run: TrainedRun) -> str:
    """Return the scale that a run is of; empty where it is not known.

    It is the one that the run was started at, unless a change made by hand is smaller than what that scale sets: then
    it is the largest of the task's whose whole numbers (epochs, steps, widths) the run has at least.
    """
    made = run.folder.provenance()
    named, scales = str(made.get("scale", "")), run.task.scales()
    if named not in scales:
        return ""
    sizes = {field for scale in scales.values() for field in {**scale.overrides, **scale.start}}
    changed = sizes & set(made.get("changed", ()))
    if not changed or not _smaller(run, named, changed):
        return named
    return next((name for name in reversed(list(scales)) if not _smaller(run, name, sizes)), "")


def _smaller(run: TrainedRun, scale: str, fields: Iterable[str]) -> bool:
    """Return whether one of these fields is a whole number below the scale's."""
    own, wanted = flatten(run.config), flatten(config_at(run.task, scale, {}))
    pairs = [(own.get(field), wanted.get(field)) for field in fields]
    return any(type(a) is int and type(b) is int and a < b for a, b in pairs)


def sealed(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return a safetensors file; the same content gives the same file, as safetensors alone does not."""
    from safetensors.torch import save

    data: bytes = save(contiguous(tensors), dict(metadata))
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # tensors begin at multiples of 8 bytes
    return len(header).to_bytes(8, "little") + header + data[end:]


def described(form: str, config: object, provenance: Mapping[str, object]) -> dict[str, str]:
    """Return a file's metadata: its format, the config without the fields `_ITS_OWN`, and its run's provenance."""
    fields = {path: value for path, value in flatten(config).items() if path.split(".")[0] not in _ITS_OWN}
    return {
        "format": form,
        "config": json.dumps(fields, sort_keys=True),
        "provenance": json.dumps(provenance, sort_keys=True),
    }


def opened(data: bytes, name: str, noun: str, remedy: str, *formats: str) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return an exported file's metadata and tensors.

    Args:
        data: the file.
        name: what errors call it.
        noun: what a file of the task holds, such as `forecaster`.
        remedy: how errors end.
        *formats: of a file of the task, one of them (`described`).

    Raises:
        UserError: where it is larger than any exported file, of none of these formats, or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    from retable.platform.store import weights  # with PyTorch, which those who only list models do without

    check_size(data, name)
    metadata = weights.metadata(data) or {}
    if metadata.get("format") not in formats:
        raise UserError(f"{name}: no {noun} of this task, or not the whole file; {remedy}")
    try:
        return metadata, load(data)
    except (SafetensorError, ValueError) as error:
        raise UserError(f"{name}: a damaged {noun} ({error}); {remedy}") from error


def read_json(metadata: Mapping[str, str], key: str, name: str, remedy: str) -> Record:
    """Return the JSON object that a file's metadata hold under a key.

    Raises:
        UserError: where there is none; `name` is what it calls the file, `remedy` how it ends.
    """
    try:
        value = json.loads(metadata[key])
        if isinstance(value, dict):
            return value
    except (KeyError, ValueError, RecursionError):
        pass
    raise UserError(f"{name}: its metadata `{key}` are missing or no JSON object; {remedy}")


def check_name(file: Path, suffix: str = ".safetensors") -> None:
    """Refuse, with a UserError, a file that has another ending than files of its kind."""
    if file.suffix != suffix:
        raise UserError(f"{file}: call it {file.stem}{suffix}, so that it is known for what it is")


def export(
    task: str,
    run: str,
    storage: str,
    file: Path,
    suffix: str = ".safetensors",
    *,
    overwrite: bool,
    **options: object,
) -> TrainedRun:
    """Write a run's exported file, print its size, and return the run, as `retable TASK export` does.

    Args:
        task: the run's.
        run: its fingerprint, or the first digits.
        storage: where it is.
        file: what is written.
        suffix: how files of the task end.
        overwrite: whether a file that exists is replaced.
        **options: of the task's `write_export`.

    Raises:
        UserError: where there is no such run, or the file has another ending or exists.
    """
    from retable.platform import api

    check_name(file, suffix)
    check_target(file, overwrite)
    loaded = api.load(run, storage, task=task)
    data = contract.exporter(task).write_export(loaded, **options)
    write_file(file.expanduser(), data)
    console.print(f"{file}: {len(data):,} bytes", markup=False)
    return loaded


def place_of(task: str, digest: str) -> str:
    """Return where on a storage the exported file of a digest lies, from which servers and batches read it."""
    return f"served/{task}/{digest}"


def keep(task: str, data: bytes, storage: Storage) -> str:
    """Write an exported file to the storage, unless it exists; return its SHA-256."""
    digest = sha256(data).hexdigest()
    if not storage.exists(place_of(task, digest)):
        storage.write(place_of(task, digest), data)
    return digest


def kept(task: str, digest: str, storage: Storage) -> bytes:
    """Return an exported file by its SHA-256.

    Raises:
        UserError: where it is not there, or not the one that was kept.
    """
    path, again = place_of(task, digest), "run the same command again, which exports it"
    try:
        data = storage.read(path)
    except FileNotFoundError as error:
        raise UserError(f"{storage}/{path}: not there; {again}") from error
    if sha256(data).hexdigest() != digest:
        raise UserError(f"{storage}/{path}: not what was exported; remove it and {again}")
    return data


def check_size(data: bytes, name: str) -> None:
    """Refuse a file larger than any exported file.

    Raises:
        UserError: naming its size.
    """
    if len(data) > LARGEST:
        raise UserError(f"{name}: {len(data):,} bytes; no exported file is larger than {LARGEST:,}")
