"""Whether memory holds what is to be computed, before it is begun; and the size that it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

import cv2
import psutil
import torch

from retable.platform.errors import UserError
from retable.tasks.style.config import Config, Lbfgs, OptimiseImage
from retable.tasks.style.losses import resolved
from retable.tasks.style.networks.backbones import BackboneNetwork

PROBE = 64
"""Pixels each way of the picture that a backbone's features are counted on."""
HELD, KERNELS = 3.0, 9.0
"""Memory of an evaluation over that of all features (gradients, what convolutions work in), and of transformed kernels
over the weights: measured, within a quarter."""
SHORTAGE = ("can't allocate memory", "MPS backend out of memory", "Invalid buffer size")
"""Texts in PyTorch's plain errors of allocations, on CPUs and on MPS."""
TOO_LARGE = "more memory is needed than there is; choose a smaller --size"
_CONTROL = Path("/sys/fs/cgroup")
_GROUPS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)
"""Of each version of control groups: the files of the limit and of what is used, and in `memory.stat` the cached
pages, which are given back."""
STEP = 8
"""Sizes are tried in multiples of so many pixels."""


def free_bytes(device: torch.device | None = None) -> int:
    """Return the bytes that are free: of a CUDA device its own; of any other, or of none, the host's or container's."""
    if device is not None and device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min([int(psutil.virtual_memory().available), *_left_to_container()])


def _left_to_container() -> Iterator[int]:
    """Yield what the limit of this process's control group leaves, where there is one: of version 2, else of 1."""
    for limit, used, cache in _GROUPS:
        with suppress(OSError, ValueError, KeyError):  # no such version, or `max`
            most, now = (int((_CONTROL / name).read_text()) for name in (limit, used))
            parts = dict(line.split() for line in (_CONTROL / limit).with_name("memory.stat").read_text().splitlines())
            yield max(0, most - now + int(parts[cache]))


def check_memory(
    height: int, width: int, needed: Callable[[int, int], int], device: torch.device | None = None
) -> None:
    """Refuse a picture that free memory does not hold.

    Args:
        height: the picture's.
        width: the picture's.
        needed: bytes for a height and a width.
        device: where it is computed; see `free_bytes`.

    Raises:
        UserError: with what is needed, what is free, and the size that fits.
    """
    free, bytes_ = free_bytes(device), needed(height, width)
    if bytes_ <= free:
        return
    longer = max(height, width)
    sizes = range(longer // STEP * STEP, STEP, -STEP)
    shapes = ((size, max(1, height * size // longer), max(1, width * size // longer)) for size in sizes)
    fits = next((size for size, *shape in shapes if needed(*shape) <= free), 0)
    remedy = f"--size {fits} fits" if fits else "no size fits"
    what = f"{width} x {height} pixels need {bytes_ / 1e9:.1f} GB of memory"
    raise UserError(f"{what}, {free / 1e9:.1f} are free; {remedy}")


def image_bytes(config: Config, network: BackboneNetwork, height: int, width: int) -> int:
    """Estimate the bytes that version 1 takes for a picture, at its largest stage.

    That is, features of all octaves and L-BFGS' history, or the features of a painting where that is larger.
    """
    method = config.method
    assert isinstance(method, OptimiseImage)
    objective = method.objective
    side = max((method.size, *method.scales))
    pixels = height * width * (side / method.size) ** 2
    compared = pixels * sum(4.0**-octave for octave in range(objective.octaves))
    names = {
        *resolved(network, objective.content_layers, "content"),
        *resolved(network, objective.style_layers, "style"),
    }
    history = 2 * method.optimizer.history + 4 if isinstance(method.optimizer, Lbfgs) else 6
    features, weights = values_of(network, frozenset(names))
    evaluation = HELD * compared * features + history * 3 * pixels
    return round(4 * (max(evaluation, features * (side * method.style_scale) ** 2) + KERNELS * weights))


@lru_cache(maxsize=1)  # the size that fits is looked for by asking often
@torch.no_grad()
def values_of(network: BackboneNetwork, layers: frozenset[str]) -> tuple[float, int]:
    """Return the numbers that a backbone's layers give for a pixel, to the deepest of some layers, and its weights."""
    depth = max((network.layers.index(layer) + 1 for layer in layers), default=0)
    kept = tuple(name for name in network.layers[:depth] if not name.startswith("relu"))  # computed in place
    features = network(torch.zeros(1, 3, PROBE, PROBE, device=network.mean.device), kept)
    weights = sum(parameter.numel() for module in network.features[:depth] for parameter in module.parameters())
    return sum(values.numel() for values in features.values()) / PROBE**2, weights


def is_shortage(error: BaseException) -> bool:
    """Return whether an error is an allocation that failed: on CPUs and on MPS PyTorch raises a plain RuntimeError."""
    if isinstance(error, cv2.error):
        return bool(error.code == cv2.Error.StsNoMem)
    short = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return short or (isinstance(error, RuntimeError) and any(words in str(error) for words in SHORTAGE))


@contextmanager
def shortage_told(message: str) -> Iterator[None]:
    """Raise an allocation that failed in the block as a UserError of this message.

    Raises:
        UserError: in place of that error; others are raised as they are.
    """
    try:
        yield
    except (RuntimeError, MemoryError, cv2.error) as error:
        if not is_shortage(error):
            raise
        raise UserError(message) from error
