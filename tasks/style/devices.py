"""Which device computes where nobody says."""

from __future__ import annotations

import torch


def best_device() -> str:
    """Return a GPU of NVIDIA's where there is one, else Apple's, else the CPU."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
