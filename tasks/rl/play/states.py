"""Standardized states: networks see observations whose mean is 0 and whose deviation is 1 over the training data.

SNIP and GraSP score a weight by its gradient, which grows with the scale of its input. HalfCheetah's joint angles have
a standard deviation of 0.1 to 0.6, its velocities of 1 to 11: on raw states all weights of some angles are pruned.

The paper does not say what its networks see. Its first author's later code standardizes, by the mean and the standard
deviation + 1e-3 of the training data, as TD3+BC (Fujimoto and Gu 2021), CORL and d3rlpy do; its BCQ code does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from retable.platform.spec.arrays import Array

MEAN, DEVIATION = "states.mean", "states.deviation"
FLOOR = 1e-3
"""Added to the standard deviation, so that an entry that never changes does not divide by 0."""


@dataclass(frozen=True, eq=False)
class Standard:
    """Mean and deviation that standardize observations, once, before any network sees them, in training and acting."""

    mean: Float[Tensor, " state"]
    deviation: Float[Tensor, " state"]
    """Standard deviation + `FLOOR`."""

    @staticmethod
    def of(observations: Array) -> Standard:
        """Return the statistics of a data set's observations (transitions, states)."""
        mean = observations.mean(axis=0, dtype=np.float64)
        deviation = observations.std(axis=0, dtype=np.float64) + FLOOR
        return Standard(torch.from_numpy(mean.astype(np.float32)), torch.from_numpy(deviation.astype(np.float32)))

    @staticmethod
    def of_weights(weights: Mapping[str, Tensor]) -> Standard | None:
        """Return the statistics that a run's weights hold; None if the run was trained on raw states."""
        return Standard(weights[MEAN], weights[DEVIATION]) if MEAN in weights else None

    def tensors(self) -> dict[str, Tensor]:
        """Return the statistics as they stand among a run's weights."""
        return {MEAN: self.mean, DEVIATION: self.deviation}

    def __call__(self, observations: Float[Tensor, "*batch state"]) -> Float[Tensor, "*batch state"]:
        """Return standardized observations."""
        return (observations - self.mean) / self.deviation


def networks_of(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a run's weights without the statistics of its states."""
    return {name: value for name, value in weights.items() if name not in (MEAN, DEVIATION)}


def by_network(weights: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return a run's weights by network, without the statistics of its states: `vae` -> `e1.weight` -> tensor."""
    networks: dict[str, dict[str, Tensor]] = {}
    for name, value in networks_of(weights).items():
        network, parameter = name.split(".", 1)
        networks.setdefault(network, {})[parameter] = value
    return networks
