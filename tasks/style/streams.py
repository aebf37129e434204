"""The task's random streams: each use has its own name, so that no two draw related numbers."""

from __future__ import annotations

import torch

from retable.platform.train.seeds import sequence

ORDER, CROPS = "style.order", "style.crops"
"""The order of training pictures, and the place of each crop."""
NETWORK, BACKBONE = "style.network", "style.backbone"
"""Initial weights of a transformation network, and of an untrained loss network."""
STEP, SAMPLE = "style.step", "style.sample"
"""Random streams: of the draws of a training step, and of the picture of a batch that is shown."""
START = "style.start"
"""The noise that an optimisation starts from."""


def torch_seed(seed: int, stream: str) -> int:
    """Return the seed of a PyTorch generator of a stream."""
    return int(sequence(seed, stream).generate_state(1, "u8")[0])


def torch_generator(seed: int, stream: str) -> torch.Generator:
    """Return PyTorch's generator of a stream, on the CPU."""
    return torch.Generator().manual_seed(torch_seed(seed, stream))
