"""A trained network as one file that stylises on its own: numbers and JSON; see `transformer` for what it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load

from retable.platform.api import TrainedRun
from retable.platform.errors import UserError
from retable.platform.models import export
from retable.platform.store import weights
from retable.tasks.style.networks import transformer
from retable.tasks.style.networks.network import TransformerNetwork
from retable.tasks.style.tools.pictures.stylise import NetworkStyle, Options, check_network, run_network

REMEDY = "`retable style export RUN FILE` writes one"


@dataclass(frozen=True, eq=False)
class Exported:
    """A network out of one file: what stylises, and what the file says of it."""

    about: Mapping[str, Any]
    """See `platform.models.export.about`; and `paintings`, the names of those it was trained after, and `licence`."""
    network: TransformerNetwork
    """In evaluation mode, float32, on the CPU; of a file of several styles, its first."""

    def style(self, options: Options | None = None) -> NetworkStyle:
        """Return what stylises photographs as `retable style image` does: the network, moved to where it computes."""
        chosen = options or Options()
        return NetworkStyle(self.network.to(chosen.where), chosen)


def write_export(run: TrainedRun, epoch: int = 0, half: bool = False, painting: str = "", **more: Any) -> bytes:
    """Return the one file that is served of a run.

    Args:
        run: a finished run of this task.
        epoch: one that was kept; 0: the last.
        half: store numbers in 16 bits.
        painting: of a conditional network, the one style that the file is to have; none: all of them.
        **more: what else the file is to say of itself, such as `licence`.

    Raises:
        UserError: where the run is of version 1, the epoch was not kept, or the network has no such style.
    """
    check_network(run)
    network, paintings = run_network(run, epoch), list(run.config.style)
    if painting:
        network, paintings = transformer.chosen(network, paintings, painting, run.fingerprint), [painting]
    return transformer.pack(network, export.about(run, epoch, paintings=paintings, **more), half)


def read_export(data: bytes, name: str) -> Exported:
    """Read a file of `write_export`; never code. `name` is what errors call it.

    Raises:
        UserError: where it is no such file, or is damaged.
    """
    export.check_size(data, name)
    metadata = weights.metadata(data) or {}
    if "network" not in metadata:
        raise UserError(f"{name}: no network of this task, or not the whole file; {REMEDY}")
    about = export.read_json(metadata, "provenance", name, REMEDY) if "provenance" in metadata else {}
    return Exported(about, transformer.read_bytes(data, name, painting=None))


def served_as(style: Exported, name: str) -> tuple[str, str, dict[str, object]]:
    """Return how requests name a style: by its file, else by its paintings."""
    return name or "-".join(style.about.get("paintings", ())) or "style", "", {}


def one_of(data: bytes, painting: str) -> bytes:
    """Return, of a file of several styles, a file of one, with what the whole says of itself.

    Raises:
        UserError: where it has no such style.
    """
    about = export.read_json(weights.metadata(data) or {}, "provenance", painting, REMEDY)
    network = transformer.read_bytes(data, painting, painting)
    half = all(tensor.dtype == torch.float16 for tensor in load(data).values())
    return transformer.pack(network, {**about, "paintings": [painting]}, half)
