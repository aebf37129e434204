"""Fingerprint of a trained network: a hash of its weights and of the settings that they compute with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from retable.platform.config import naming
from retable.tasks.audio.config import Config

if TYPE_CHECKING:
    from torch import Tensor

SHAPING = ("audio", "text", "segment", "tokens", "projection")
"""Fields of a config that say what a network computes; the others say how it was trained."""
RENAMED = {"words": "tokens", "clip": "clip_seconds"}
"""Names of fields in files that version 2 wrote -> today's."""
OLD = {new: old for old, new in RENAMED.items()}
"""Fingerprints hash the old names, so that indexes of version 2 stay valid."""


def renamed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's fields by today's names."""
    return {RENAMED.get(path, path): value for path, value in fields.items()}


def fingerprint(config: Config | None, tensors: Iterable[tuple[str, str, tuple[int, ...], bytes | memoryview]]) -> str:
    """Return what tells one network from any other: a SHA-256. `lexicon.Anchors` are no part of a network.

    Args:
        config: its own; None: the tensors say all.
        tensors: name, type as torch calls it, shape and bytes of each, sorted by their names.
    """
    fields = naming(config).items() if config else ()
    shape = {OLD.get(path, path): value for path, value in fields if path.split(".")[0] in SHAPING}
    digest = hashlib.sha256(json.dumps(shape, sort_keys=True).encode())
    for name, dtype, size, data in tensors:
        digest.update(f"{name} torch.{dtype} {size}".encode())
        digest.update(data)
    return digest.hexdigest()


def weights_fingerprint(config: Config | None, weights: Mapping[str, Tensor]) -> str:
    """Return what tells one network from any other: a SHA-256; see `fingerprint`."""
    import torch  # here, as a search by words alone needs none

    def parts() -> Iterator[tuple[str, str, tuple[int, ...], memoryview]]:
        for name in sorted(weights):
            tensor = weights[name].detach().cpu().contiguous()
            data = tensor.reshape(-1).view(torch.uint8).numpy().data  # no copy: weights are gigabytes
            yield name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data

    return fingerprint(config, parts())
