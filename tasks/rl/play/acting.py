"""Acting of a trained policy: one function for scores and for serving."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from retable.platform.spec.arrays import Array
from retable.tasks.rl.config import Config
from retable.tasks.rl.model import bc_action, bcq_action, build, generator, load
from retable.tasks.rl.play.states import Standard, by_network
from retable.tasks.rl.sparse import inference
from retable.tasks.rl.sparse.inference import Act

Policy = Literal["bcq", "bc"]
NOISE = "rl.noise.acting"
"""Stream of the latents that a policy acts with in an episode."""


def acting(config: Config, info: Mapping[str, Any], weights: Mapping[str, Tensor], policy: Policy) -> Act:
    """Return a policy of trained networks, for states as the simulator gives them.

    They are standardized here where the weights hold statistics, and nowhere else on the way.

    It acts sparsely where the weights are few enough for that to be faster, else with the dense stack of one. So dense
    runs are played bit for bit as they always were; what may differ for sparse ones, `inference` says.

    Args:
        config: the run's.
        info: `dataset.json` of its data: `states`, `actions` and `max_action`.
        weights: all of the run's; those that the policy does not use may be 0.
        policy: whose.

    Raises:
        ValueError: if the weights of a run on standardized states lack their statistics, or raw ones have them.
    """
    standard = Standard.of_weights(weights)
    if (standard is not None) != (config.states == "standardized"):
        raise ValueError(f"a run on {config.states} states whose weights do not say so")
    act = _acting(config, info, weights, policy)
    return act if standard is None else lambda observations, noise: act(standard(observations), noise)


def _acting(config: Config, info: Mapping[str, Any], weights: Mapping[str, Tensor], policy: Policy) -> Act:
    networks = build([config], info["states"], info["actions"], info["max_action"])
    parts = by_network(weights)
    for name, network in networks.named_children():
        load(network, 0, parts.get(name, {}))
    if not inference.wins(weights, policy):
        dense = bcq_action if policy == "bcq" else bc_action
        return lambda observations, noise: dense(networks, observations[None], noise[None])[0]
    if policy == "bc":
        return inference.bc(weights, networks.vae.max_action)
    assert networks.actor is not None
    return inference.bcq(weights, networks.vae.max_action, networks.actor.perturbation)


def player(act: Act, candidates: int, latent: int, seed: int) -> Callable[[Array], Array]:
    """Return a policy as the simulator asks it: observations (n, states) float32 in, actions (n, actions) out.

    It draws noise (candidates, latent) by the seed, the next with each call.
    """
    drawing = generator(seed, NOISE)

    def choose(observations: Array) -> Array:
        noise = torch.randn(candidates, latent, generator=drawing)
        return act(torch.from_numpy(observations), noise).numpy()

    return choose
