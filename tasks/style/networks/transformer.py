"""Trained transformation networks: reading, saving and finding them.

A file is a safetensors file whose metadata say what the network is: `network` (its architecture), `input` ("rgb01":
images in [0, 1], red first) and `provenance`, all JSON. Published files of others are read too, see `layouts`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from retable.platform.errors import UserError, nearest
from retable.platform.models import export
from retable.platform.models.zoo import names, zoo
from retable.platform.store import weights
from retable.tasks.style.config import Config, OptimiseImage, TrainNetwork, ZooNetwork
from retable.tasks.style.networks.layouts import FIRST, MANIFEST, convert, read_folder
from retable.tasks.style.networks.network import TransformerNetwork
from retable.tasks.style.networks.tiling import layers

CALM = 0.1
"""Of a calm start: the last layer's initial weights over PyTorch's."""


def untrained(method: TrainNetwork, paintings: int = 1) -> TransformerNetwork:
    """Make the network that a config trains after so many paintings, with fresh weights."""
    styles = paintings if method.conditional else 1
    network = TransformerNetwork(method.filters, method.upsampling, method.output, styles=styles)
    if method.calm_start:
        *body, last = layers(network)
        for layer in body:
            if layer.residual and layer.norm is not None:
                torch.nn.init.zeros_(layer.norm.weight)
        with torch.no_grad():
            last.convolution.weight.mul_(CALM)
    return network


def trained(config: Config, weights: Mapping[str, Tensor]) -> TransformerNetwork:
    """Make the network of a run's weights, in evaluation mode."""
    assert not isinstance(config.method, OptimiseImage)
    if isinstance(config.method, ZooNetwork):
        network = find(config.method.name)
    else:
        network = untrained(config.method, len(config.style))
    network.load_state_dict(weights)
    return network.eval()


def load(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> TransformerNetwork:
    """Make a network, in evaluation mode and float32, of a file's tensors and metadata; perhaps one of several styles.

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
        weights.check(state, expected)
        network = TransformerNetwork(**arguments)
        network.load_state_dict(state)
    except (RuntimeError, TypeError, ValueError) as error:
        line = str(error).strip().splitlines()[-1].strip()
        raise UserError(f"the weights fit no transformation network: {line}") from error
    return network.eval()


def chosen(network: TransformerNetwork, styles: Sequence[str], painting: str, name: str) -> TransformerNetwork:
    """Return one style of a network: a painting's, or the only one. Errors call the network `name`.

    Raises:
        UserError: where there is no such style, or there are several and none is named.
    """
    if network.architecture.styles == 1:
        if painting:
            raise UserError(f"{name}:{painting}: {name} has one style alone; leave :{painting} out")
        return network
    if painting not in styles:
        what = f"no style {painting!r}" if painting else "several styles"
        raise UserError(f"{name}: {what}; name one: {', '.join(f'{name}:{style}' for style in styles)}")
    return network.blended([float(style == painting) for style in styles])


@torch.no_grad()
def blend(networks: Sequence[TransformerNetwork], shares: Sequence[float]) -> TransformerNetwork:
    """Blend styles that were trained together: their scales and shifts are weighed, and all else they have in common.

    Source: Dumoulin et al. 2017, section 3.5. The shares' sum does not matter.

    Raises:
        UserError: where the networks differ elsewhere.
    """
    states = [network.state_dict() for network in networks]
    common = [name for name in states[0] if ".norm." not in name]
    architectures = {network.architecture for network in networks}
    alike = len(architectures) == 1 and all(torch.equal(states[0][n], s[n]) for s in states[1:] for n in common)
    if not alike:
        raise UserError("only styles that were trained together blend (method.conditional=true), and these were not")
    made = TransformerNetwork(**asdict(networks[0].architecture))
    total = sum(shares)
    weighed = {
        name: sum((state[name] * (share / total) for state, share in zip(states, shares, strict=True)))
        for name in states[0]
        if name not in common
    }
    made.load_state_dict(states[0] | weighed)
    return made.eval()


def read(path: Path, painting: str = "") -> TransformerNetwork:
    """Read a network from a safetensors file, a state dict that PyTorch saved, or a folder of variables (ml5's).

    `painting` is one of its styles.

    Raises:
        UserError: where the file cannot be read, holds no transformation network, or not that style.
    """
    if path.is_dir() and not is_file(str(path)):
        raise UserError(f"{path}: a folder without {MANIFEST}; a network's variables are listed in one (ml5's)")
    if not path.is_dir():
        return read_bytes(weights.read_bytes(path), str(path), painting)
    tensors = read_folder(path)
    try:
        return chosen(load(tensors), (), painting, str(path))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def read_bytes(data: bytes, name: str, painting: str | None = "") -> TransformerNetwork:
    """Read a network from the bytes of such a file; `name` is what errors call it. None: its first style.

    Raises:
        UserError: where they hold no transformation network, or not that style.
    """
    tensors = weights.read_tensors(Path(name), data, "save the network's state_dict() alone", *FIRST)
    metadata = weights.metadata(data)
    try:
        network = load(tensors, metadata)
    except UserError as error:
        raise UserError(f"{name}: {error}") from error
    paintings = styles(metadata)
    first = paintings[0] if paintings and network.architecture.styles > 1 else ""
    return chosen(network, paintings, first if painting is None else painting, name)


def styles(metadata: Mapping[str, str] | None) -> list[str]:
    """Return the paintings whose styles a file holds, as its provenance names them."""
    try:
        return [str(name) for name in json.loads((metadata or {}).get("provenance", "{}")).get("paintings", [])]
    except (ValueError, AttributeError):
        return []


def pack(network: TransformerNetwork, provenance: Mapping[str, object], half: bool = False) -> bytes:
    """Return a network's file; with `half` in float16, half the size (3.4 MB at 32 filters).

    `provenance` says where the weights come from: whatever JSON can hold.

    Raises:
        UserError: where a weight is beyond float16's range.
    """
    dtype = torch.float16 if half else torch.float32
    state = {name: value.to(dtype) for name, value in network.state_dict().items()}
    if half:
        for name, value in network.state_dict().items():
            if value.abs().max() > torch.finfo(dtype).max:
                raise UserError(f"{name} has values beyond the largest number of 16 bits; leave out --half")
    metadata = {
        "network": json.dumps(asdict(network.architecture)),
        "input": json.dumps("rgb01"),
        "provenance": json.dumps(provenance),
    }
    if network.architecture.styles > 1:
        metadata["models"] = json.dumps(styles(metadata))  # by which a zoo knows them
    return export.sealed(state, metadata)


def is_file(name: str) -> bool:
    """Return whether a path is a file, or a folder of a network's variables."""
    return Path(name).is_file() or (Path(name) / MANIFEST).is_file()


def find(name: str, painting: str = "") -> TransformerNetwork:
    """Read a network by its name in the zoo, or by its file's path.

    Raises:
        UserError: where there is neither, or it has not that style.
    """
    networks = zoo("style")
    if name in networks:
        several = names(networks[name])
        data = weights.read_bytes(networks[name])
        return read_bytes(data, name, painting or (name if len(several) > 1 else ""))
    if not Path(name).exists():
        raise UserError(f"{name}: neither a file nor a network of the zoo{nearest(name, networks)}")
    return read(Path(name), painting)
