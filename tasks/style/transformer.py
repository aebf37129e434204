"""Trained transformation networks: reading, saving and finding them; what applies them is imported here too.

A file is a safetensors file whose metadata say what the network is: `network` (its architecture), `input` ("rgb01":
images in [0, 1], red first) and `provenance`, all JSON. Published files of others are read too, see `layouts`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from retable.platform import exported, weights
from retable.platform.errors import UserError, nearest
from retable.platform.storage import Storage
from retable.platform.zoo import zoo as files
from retable.tasks.style.config import Config, TrainNetwork
from retable.tasks.style.layouts import FIRST, convert
from retable.tasks.style.network import Statistics, TransformerNetwork
from retable.tasks.style.tiling import Precision, stylise

__all__ = [  # what the network's own modules offer is had from here too
    "Precision",
    "Statistics",
    "TransformerNetwork",
    "find",
    "load",
    "read",
    "save",
    "stylise",
    "trained",
    "untrained",
    "zoo",
]


def untrained(method: TrainNetwork, paintings: int = 1) -> TransformerNetwork:
    """Make the network that a config trains after so many paintings, with fresh weights."""
    styles = paintings if method.conditional else 1
    return TransformerNetwork(method.filters, method.upsampling, method.output, styles=styles)


def trained(config: Config, weights: Mapping[str, Tensor], painting: str = "") -> TransformerNetwork:
    """Make the network of a run's weights, in evaluation mode; of a conditional one that of a painting, or its first.

    Raises:
        UserError: where the run has no such style.
    """
    assert isinstance(config.method, TrainNetwork)
    if painting and (not config.method.conditional or painting not in config.style):
        there = ", ".join(config.style) if config.method.conditional else "one alone (method.conditional=true has more)"
        raise UserError(f"{painting}: none of this run's styles: {there}")
    network = untrained(config.method, len(config.style))
    network.load_state_dict(weights)
    if network.architecture.styles > 1:
        network = network.blended([float(name == (painting or config.style[0])) for name in config.style])
    return network.eval()


def load(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> TransformerNetwork:
    """Make a network, in evaluation mode and float32, of a file's tensors and metadata.

    Raises:
        UserError: where they are no transformation network, or do not fit the architecture that they name.
    """
    if metadata and "network" in metadata:
        try:
            arguments, state = json.loads(metadata["network"]), dict(tensors)
        except ValueError as error:
            raise UserError(f"the metadata `network` are no JSON: {error}") from error
    try:
        if not metadata or "network" not in metadata:
            arguments, state = convert(tensors)
        with torch.device("meta"):  # what a file claims is built once it is known to be there
            expected = TransformerNetwork(**arguments).state_dict()
        for entry, value in state.items():
            if entry in expected and value.shape != expected[entry].shape:
                raise ValueError(f"size mismatch for {entry}: {tuple(value.shape)}, not {tuple(expected[entry].shape)}")
        network = TransformerNetwork(**arguments)
        network.load_state_dict(state)
    except (RuntimeError, TypeError, ValueError) as error:
        line = str(error).strip().splitlines()[-1].strip()
        raise UserError(f"the weights fit no transformation network: {line}") from error
    return network.eval()


def read(path: Path) -> TransformerNetwork:
    """Read a network from a safetensors file, or from a state dict that PyTorch saved.

    Raises:
        UserError: where the file cannot be read or holds no transformation network.
    """
    return read_bytes(weights.read_bytes(path), str(path))


def read_bytes(data: bytes, name: str) -> TransformerNetwork:
    """Read a network from the bytes of such a file; `name` is what errors call it.

    Raises:
        UserError: where they hold no transformation network.
    """
    tensors = weights.read_tensors(Path(name), data, "save the network's state_dict() alone", *FIRST)
    try:
        return load(tensors, weights.metadata(data))
    except UserError as error:
        raise UserError(f"{name}: {error}") from error


def save(network: TransformerNetwork, path: Path, provenance: Mapping[str, object], half: bool = False) -> None:
    """Write a network's file, atomically; see `pack`.

    Raises:
        UserError: where the file cannot be written.
    """
    Storage.open(path.absolute().parent).write(path.name, pack(network, provenance, half))


def pack(network: TransformerNetwork, provenance: Mapping[str, object], half: bool = False) -> bytes:
    """Return a network's file; with `half` in float16, half the size (3.4 MB at 32 filters).

    `provenance` says where the weights come from: whatever JSON can hold.
    """
    dtype = torch.float16 if half else torch.float32
    state = {name: value.to(dtype) for name, value in network.state_dict().items()}
    metadata = {
        "network": json.dumps(asdict(network.architecture)),
        "input": json.dumps("rgb01"),
        "provenance": json.dumps(provenance),
    }
    return exported.sealed(state, metadata)


def zoo() -> dict[str, Path]:
    """Give the trained networks that come with this package, by name."""
    return files("style")


def find(name: str) -> TransformerNetwork:
    """Read a network by its name in the zoo, or by its file's path.

    Raises:
        UserError: where there is neither.
    """
    networks = zoo()
    if name in networks:
        return read(networks[name])
    if not Path(name).exists():
        raise UserError(f"{name}: neither a file nor a network of the zoo{nearest(name, networks)}")
    return read(Path(name))
