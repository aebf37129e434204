"""Masks that a file need not hold: random and ERK ones are drawn again from a seed, a method and the layers' shapes.

At 95 % the places of a random mask are a sixth of a run's compact file, and near a half where the weights are int8. The
price is that the reader must draw as the writer did: a checksum tells where another PyTorch does not.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retable.tasks.rl.config import Config, Erk, Random
from retable.tasks.rl.formats.compact import LARGEST
from retable.tasks.rl.model import NETWORKS, build, layers
from retable.tasks.rl.prune.prune import draw

METHODS: dict[str, type[Random] | type[Erk]] = {"random": Random, "erk": Erk}


def describe(config: Config, info: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what `masks` draws a run's masks from, as JSON holds it; None: its masks are not drawn, or it has none.

    `info` is `dataset.json` of the run's data: `states` and `actions` are read.
    """
    method = config.prune
    if not isinstance(method, Random | Erk):
        return None
    networks = build([config], int(info["states"]), int(info["actions"]), 1.0)
    pruned = [name for name in NETWORKS if method.networks in ("all", name) and getattr(networks, name) is not None]
    shapes = {
        name: [[layer, *module.weight.shape[1:]] for layer, module in layers(getattr(networks, name)).items()]
        for name in pruned
    }
    word = next(word for word, kind in METHODS.items() if isinstance(method, kind))
    recipe = {"method": word, "sparsity": method.sparsity, "seed": config.seed, "layers": shapes}
    return recipe | {"checksum": checksum(_drawn(recipe))}


def masks(recipe: Any) -> dict[str, Tensor]:
    """Draw masks, `vae.e1.weight` -> (out, in), True where a weight is kept, from what `describe` returned.

    Raises:
        ValueError: where it makes no masks, or others than the writer's.
    """
    match recipe:
        case {"method": "random" | "erk", "sparsity": float(sparsity), "seed": int(), "layers": dict(networks)} if (
            0 <= sparsity < 1 and networks.keys() <= set(NETWORKS) and all(map(_layers, networks.values()))
        ):
            pass
        case _:
            raise ValueError("its masks are described as nothing that can be drawn")
    if sum(rows * columns for parts in networks.values() for _, rows, columns in parts) > LARGEST:
        raise ValueError(f"its masks are of more than {LARGEST:,} numbers")
    drawn = _drawn(recipe)
    if checksum(drawn) != recipe.get("checksum"):
        raise ValueError(f"this program draws other masks than the one that wrote it (PyTorch {torch.__version__})")
    return drawn


def checksum(drawn: Mapping[str, Tensor]) -> int:
    """Return a number that other masks hardly share."""
    return zlib.crc32(b"".join(np.packbits(drawn[name].numpy()).tobytes() for name in sorted(drawn)))


def _layers(parts: Any) -> bool:
    def whole(part: Any) -> bool:
        match part:
            case [str(), int(rows), int(columns)]:
                return 0 < rows <= LARGEST and 0 < columns <= LARGEST
        return False

    return isinstance(parts, list) and bool(parts) and all(map(whole, parts))


def _drawn(recipe: Mapping[str, Any]) -> dict[str, Tensor]:
    method, drawn = METHODS[recipe["method"]](sparsity=recipe["sparsity"]), {}
    for network, parts in recipe["layers"].items():
        shapes = [(rows, columns) for _, rows, columns in parts]
        flat = draw(method, shapes, recipe["seed"], network)
        for (layer, *_), shape, part in zip(parts, shapes, torch.split(flat, [*map(math.prod, shapes)]), strict=True):
            drawn[f"{network}.{layer}.weight"] = part.view(shape)
    return drawn
