"""Predictions of a trained run: rollouts in the simulator, and scores."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.platform.spec.task import Source
from retable.tasks.rl.config import Bc, Config, Pruning, View
from retable.tasks.rl.data import played_in, simulator, some_observations
from retable.tasks.rl.formats.compact import deployable, pack, unpack
from retable.tasks.rl.metrics import normalised_score
from retable.tasks.rl.model import generator
from retable.tasks.rl.play.acting import acting, player
from retable.tasks.rl.play.evaluate import rollout, spaces
from retable.tasks.rl.play.states import networks_of
from retable.tasks.rl.sparse.inference import Act
from retable.tasks.rl.sparse.training import SPARSE_BELOW

OBSERVATIONS = 500
"""At which exact and rounded actions are compared."""
COMPARING = "rl.noise.comparing"
"""Stream of the latents that both act with there."""


def check(config: Config, view: View) -> None:
    """Refuse to score the policy of networks that are not trained, or in an environment that is none.

    Raises:
        UserError: where the policy is BCQ's but only the VAE is trained, or as `evaluate.make`: nothing but the name of
            the environment and of the data is known here.
    """
    if view.policy == "bcq" and isinstance(config.algorithm, Bc):
        raise UserError("view.policy=bcq needs algorithm=bcq; algorithm=bc trains the VAE alone (use view.policy=bc)")
    recorded = "v2" if config.data.startswith("d4rl-") else "unknown"
    spaces(f"{config.environment}-{played_in(config.environment, recorded)}")


def predict(config: Config, view: View, weights: Mapping[str, Tensor], source: Source, shard: str) -> dict[str, Array]:
    """Play `view.episodes` episodes with a trained policy; return `returns` and `lengths`, shape (episodes,).

    Rounded weights give `moved` too, shape (observations,): see `action_differences`.

    Raises:
        UserError: where the policy is BCQ's but only the VAE was trained, or a weight is beyond `view.precision`.
    """
    check(config, view)
    info, act, more = source.info, acting(config, source.info, weights, view.policy), {}
    if view.precision != "float32":  # a float32 file gives back every bit
        rounded = unpack(pack(deployable(networks_of(weights), view.policy), view.precision), "weights")
        exact, act = act, acting(config, info, {**weights, **rounded}, view.policy)
        if "parts" in info:  # what a policy's file says of its data are not the data
            more["moved"] = action_differences(exact, act, view, source)
    latent = 2 * info["actions"]
    candidates = view.episodes * (view.samples if view.policy == "bcq" else 1)
    choose = player(act, candidates, latent, view.seed)
    return rollout(choose, simulator(config.environment, info), view.episodes, view.seed) | more


@torch.no_grad()
def action_differences(exact: Act, rounded: Act, view: View, source: Source) -> Array:
    """Return how far a rounded policy's actions are from the exact one's at observations of the data, (observations,).

    It is the mean of |difference| over an action's entries, which are in [-1, 1]; both policies draw the same noise.
    Returns tell less: an episode is chaotic, and a rounding error in its first steps makes it another one.
    """
    observations = torch.tensor(some_observations(source.folder, source.info, OBSERVATIONS))
    candidates = len(observations) * (view.samples if view.policy == "bcq" else 1)
    noise = torch.randn(candidates, 2 * source.info["actions"], generator=generator(view.seed, COMPARING))
    return (exact(observations, noise) - rounded(observations, noise)).abs().mean(1).numpy()


def evaluate(
    config: Config, view: View, summaries: Mapping[str, Mapping[str, Array]], source: Source
) -> dict[str, float]:
    """Return mean and spread of the return over episodes, in share of the behaviour's, and as normalised score.

    Of rounded weights also the mean `action_difference`.

    A behaviour whose return is not above 0 has no share: it would be the larger, the worse the policy.
    """
    played, info = summaries["all"], source.info
    returns = played["returns"]
    metrics = {
        "return": float(returns.mean()),
        "return_std": float(returns.std()),
        "length": float(played["lengths"].mean()),
    }
    if info["behaviour_return"] > 0:
        metrics["behaviour_share"] = float(returns.mean() / info["behaviour_return"])
    if "moved" in played:
        metrics["action_difference"] = float(played["moved"].mean())
    scores = normalised_score(config.environment, returns, info)
    return metrics if scores is None else {**metrics, "score": float(scores.mean())}


def view_cost(config: Config, view: View) -> float:
    """Return seconds of one core that a view's rollouts take, were every episode 1000 steps long."""
    weights = 1e-5 if isinstance(config.prune, Pruning) and 1 - config.prune.sparsity < SPARSE_BELOW else 3e-5
    step = weights * (view.samples if view.policy == "bcq" else 1)
    return 1000 * view.episodes * (step + 1e-4) + 0.3
