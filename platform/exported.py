"""What the one file that is served says of itself, alike for every task: which run it holds, and where that is from."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from retable.platform.config import flatten
from retable.platform.errors import UserError
from retable.platform.runs import contiguous

if TYPE_CHECKING:
    from torch import Tensor

    from retable.platform.api import TrainedRun

LARGEST = 1 << 32
"""Bytes of a file that is read, at most."""
MADE = ("command", "commit", "versions", "started")
"""What is taken over from a run's provenance."""
DEFAULT_SCALE = "smoke"
"""What `retable train`, `sweep` and `reproduce` run at where they name none."""


def about(run: TrainedRun, epoch: int = 0, **more: Any) -> dict[str, Any]:
    """Return what an exported file says of its run: flat, and all of it JSON.

    Args:
        run: a finished run.
        epoch: whose weights the file holds; 0: the last.
        **more: what else is to be said; nothing is said of what is empty.

    Returns:
        `task`, `version`, `fingerprint`, `epoch`, `scale` (empty where it is not known), `data` (the data set's name),
        `data_digest`, `data_description`, `config` (field path -> value), `metrics` (of the last epoch), and `command`,
        `commit`, `versions` and `started` of the run's provenance, as far as they are known.

    Raises:
        UserError: where the run is not finished.
    """
    made = provenance(run)
    info = made["data"] if "data" in made else run.source.info
    return {
        "task": run.task.name,
        "version": run.task.version,
        "fingerprint": run.fingerprint,
        "epoch": epoch or run.config.epochs,
        "scale": scale_of(made),
        "data": str(info.get("name", "")),
        "data_digest": str(run.result["data"]),
        "data_description": run.task.dataset.describe(info),
        "config": flatten(run.config),
        "metrics": {name: value for name, value in run.metrics.items() if finite(value)},
        **{name: made[name] for name in MADE if name in made},
        **{name: value for name, value in more.items() if value not in ("", None, {})},
    }


def finite(value: object) -> bool:
    """Say whether JSON can hold a metric."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def provenance(run: TrainedRun) -> dict[str, Any]:
    """Return a run's `provenance.json`; nothing where it has none."""
    folder = run.folder.folder
    return dict(folder.read_record("provenance.json", {})) if folder.exists("provenance.json") else {}


def scale_of(made: Mapping[str, Any]) -> str:
    """Return the scale that a run's command names; empty where it was started by no command of ours."""
    words = str(made.get("command", "")).replace("--scale=", "--scale ").split()
    if not {"train", "sweep", "reproduce"} & set(words):
        return ""
    named = [after for word, after in itertools.pairwise(words) if word == "--scale"]
    return named[-1] if named else DEFAULT_SCALE


def sealed(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return a safetensors file; the same content gives the same file, as safetensors alone does not."""
    from safetensors.torch import save

    data: bytes = save(contiguous(tensors), dict(metadata))
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # tensors begin at multiples of 8 bytes
    return len(header).to_bytes(8, "little") + header + data[end:]


def read_json(metadata: Mapping[str, str], key: str, name: str, remedy: str) -> dict[str, Any]:
    """Return the JSON object that a file's metadata hold under a key.

    Raises:
        UserError: where there is none; `name` is what it calls the file, `remedy` how it ends.
    """
    try:
        found = json.loads(metadata[key])
        if isinstance(found, dict):
            return found
    except (KeyError, ValueError, RecursionError):
        pass
    raise UserError(f"{name}: its metadata `{key}` are missing or no JSON object; {remedy}")


def check_size(data: bytes, name: str) -> None:
    """Refuse a file that is larger than any of ours.

    Raises:
        UserError: naming its size.
    """
    if len(data) > LARGEST:
        raise UserError(f"{name}: {len(data):,} bytes; no exported file is larger than {LARGEST:,}")
