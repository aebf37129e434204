"""Metrics of a run's weights after an epoch: kept and connected ones, and at the end the bytes of its files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from retable.tasks.rl.formats.sizes import every_size
from retable.tasks.rl.learner import OfflineLearner
from retable.tasks.rl.play.states import by_network, networks_of
from retable.tasks.rl.prune.prune import diagnose

ARCHIVED_FROM = 1000
"""Updates of a training from which on its dense files are given to xz and zstd: a shorter one takes less than that."""


def validate(learner: OfflineLearner, data: Any) -> list[dict[str, float]]:
    """Return each member's kept weights by layer and connectivity and, at the end of the training, its bytes in files.

    `zero_scores/<network>`, the share of scores that were exactly 0, is that of the pruning (SNIP, GraSP, magnitude).
    """
    metrics = []
    for state, zeros in zip(learner.state_dict(), learner.zero_scores, strict=True):
        weights = state["weights"]
        shapes = (shape(name, tensors, data.states) for name, tensors in by_network(weights).items())
        metrics.append({key: value for one in shapes for key, value in one.items()})
        metrics[-1] |= {f"zero_scores/{name}": share for name, share in zeros.items()}
        if learner.updates >= learner.configs[0].epochs * learner.configs[0].steps:  # as costly as several updates
            bcq = learner.networks.critic is not None  # no table has archives of the VAE alone
            metrics[-1] |= every_size(networks_of(weights), archives=bcq and learner.updates >= ARCHIVED_FROM)
    return metrics


def shape(network: str, tensors: Mapping[str, Tensor], states: int) -> dict[str, float]:
    """Return what one network's weights say of its size: `kept/...`, `density/...` and connectivity."""
    masks = {name.removesuffix(".weight"): tensor != 0 for name, tensor in tensors.items() if tensor.dim() == 2}
    seen = diagnose(masks, states)
    total = sum(mask.numel() for mask in masks.values())
    return {
        **{f"kept/{network}/{layer}": float(mask.sum()) for layer, mask in masks.items()},
        **{f"density/{network}/{layer}": share for layer, share in seen.density.items()},
        f"sparsity/{network}": 1 - seen.weights / total,
        f"effective/{network}": float(seen.effective),
        f"unconnected/{network}": float(seen.unconnected),
        f"blind/{network}": float(seen.blind),
        f"dead/{network}": float(seen.dead),
        f"lost_layers/{network}": float(len(seen.lost)),
        f"lowest_density/{network}": min(seen.density.values()),
    }
