"""How a trained run is read: rollouts in the simulator, scores, and the cheap metrics of a network's shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.task import Source
from retable.tasks.rl.acting import acting, player
from retable.tasks.rl.compact import pack, unpack
from retable.tasks.rl.config import Bc, Bcq, Config, Pruning, SmallDense, View
from retable.tasks.rl.data import some_observations
from retable.tasks.rl.evaluate import check_environment, rollout
from retable.tasks.rl.inference import Act
from retable.tasks.rl.learner import OfflineLearner
from retable.tasks.rl.metrics import normalised_score
from retable.tasks.rl.model import bc_action, bcq_action
from retable.tasks.rl.prune import diagnose
from retable.tasks.rl.sparse import every_size
from retable.tasks.rl.training_sparse import SPARSE_BELOW

Array = np.ndarray[Any, Any]

OBSERVATIONS = 500
"""At which exact and rounded actions are compared."""
ARCHIVED_FROM = 1000
"""Updates of a training from which on its dense files are given to xz and zstd: a shorter one takes less than that."""


def validate(learner: OfflineLearner, data: Any) -> list[dict[str, float]]:
    """Return each member's kept weights by layer and connectivity and, at the end of the training, its bytes in files.

    `zero_scores/<network>`, the share of scores that were exactly 0, is that of the pruning (SNIP, GraSP, magnitude).
    """
    found = []
    for state, zeros in zip(learner.state_dict(), learner.zero_scores, strict=True):
        networks: dict[str, dict[str, Tensor]] = {}
        for name, tensor in state["weights"].items():
            network, parameter = name.split(".", 1)
            networks.setdefault(network, {})[parameter] = tensor
        found.append({key: value for name, tensors in networks.items() for key, value in shape(name, tensors).items()})
        found[-1] |= {f"zero_scores/{name}": share for name, share in zeros.items()}
        if learner.updates >= learner.configs[0].epochs * learner.configs[0].updates:  # as costly as several updates
            found[-1] |= every_size(state["weights"], archives=learner.updates >= ARCHIVED_FROM)
    return found


def shape(network: str, tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """Return what one network's weights say of its size: `kept/...`, `density/...` and connectivity."""
    masks = {name.removesuffix(".weight"): tensor != 0 for name, tensor in tensors.items() if tensor.dim() == 2}
    seen = diagnose(masks)
    total = sum(mask.numel() for mask in masks.values())
    return {
        **{f"kept/{network}/{layer}": float(mask.sum()) for layer, mask in masks.items()},
        **{f"density/{network}/{layer}": share for layer, share in seen.density.items()},
        f"sparsity/{network}": 1 - seen.weights / total,
        f"effective/{network}": float(seen.effective),
        f"unconnected/{network}": float(seen.unconnected),
        f"lost_layers/{network}": float(len(seen.lost)),
        f"lowest_density/{network}": min(seen.density.values()),
    }


def check(config: Config, view: View) -> None:
    """Refuse to score the policy of networks that are not trained, or in an environment that is none.

    Raises:
        UserError: where the policy is BCQ's but only the VAE is trained, or as `evaluate.make`.
    """
    if view.policy == "bcq" and isinstance(config.algorithm, Bc):
        raise UserError("view.policy=bcq needs algorithm=bcq; algorithm=bc trains the VAE alone (use view.policy=bc)")
    check_environment(f"{config.environment}-{config.simulator}")


def predict(config: Config, view: View, weights: Mapping[str, Tensor], source: Source, shard: str) -> dict[str, Array]:
    """Play `view.episodes` episodes with a trained policy; return `returns` and `lengths`, shape (episodes,).

    Rounded weights give `moved` too, shape (observations,): see `action_differences`.

    Raises:
        UserError: where the policy is BCQ's but only the VAE was trained, or a weight is beyond `view.precision`.
    """
    check(config, view)
    info, act, more = source.info, acting(config, source.info, weights, view.policy), {}
    if view.precision != "float32":  # a float32 file gives back every bit
        exact, act = act, acting(config, info, unpack(pack(weights, view.precision), "weights"), view.policy)
        if "parts" in info:  # what a policy's file says of its data are not the data
            more["moved"] = action_differences(exact, act, view, source)
    latent = 2 * info["actions"]
    candidates = view.episodes * (view.samples if view.policy == "bcq" else 1)
    choose = player(act, candidates, latent, view.seed)
    return rollout(choose, f"{config.environment}-{config.simulator}", view.episodes, view.seed) | more


@torch.no_grad()
def action_differences(exact: Act, rounded: Act, view: View, source: Source) -> Array:
    """Return how far a rounded policy's actions are from the exact one's at observations of the data, (observations,).

    It is the mean of |difference| over an action's entries, which are in [-1, 1]; both policies draw the same noise.
    Returns tell less: an episode is chaotic, and a rounding error in its first steps makes it another one.
    """
    observations = torch.tensor(some_observations(source.folder, source.info, OBSERVATIONS))
    candidates = len(observations) * (view.samples if view.policy == "bcq" else 1)
    noise = torch.randn(candidates, 2 * source.info["actions"], generator=torch.Generator().manual_seed(view.seed))
    found: Array = (exact(observations, noise) - rounded(observations, noise)).abs().mean(1).numpy()
    return found


def evaluate(
    config: Config, view: View, summaries: Mapping[str, Mapping[str, Array]], source: Source
) -> dict[str, float]:
    """Return mean and spread of the return over episodes, in share of the behaviour's, and as normalised score.

    Of rounded weights also the mean `action_difference`.

    A behaviour whose return is not above 0 has no share: it would be the larger, the worse the policy.
    """
    played, info = summaries["all"], source.info
    returns = played["returns"]
    found = {
        "return": float(returns.mean()),
        "return_std": float(returns.std()),
        "length": float(played["lengths"].mean()),
    }
    if info["behaviour_return"] > 0:
        found["behaviour_share"] = float(returns.mean() / info["behaviour_return"])
    if "moved" in played:
        found["action_difference"] = float(played["moved"].mean())
    scores = normalised_score(config.environment, returns)
    return found if scores is None else {**found, "score": float(scores.mean())}


SAVED = {"all": 1.0, "actor": 0.05, "critic": 0.2, "vae": 0.7}
"""Of the time that pruning all networks saves, what it saves to prune one of them."""


def cost(config: Config) -> float:
    """Return seconds of one core that a training takes, as measured at (17, 6).

    An update takes 53 ms for BCQ, 37 ms with its target pass in bfloat16, 13 ms for BC; where more than three quarters
    of the weights are pruned (`training_sparse`), 23 ms at 90 % and 16 ms at 95 %, and 3.5 ms for BC.
    """
    bcq = isinstance(config.algorithm, Bcq)
    reduced = isinstance(config.algorithm, Bcq) and config.algorithm.target_precision == "bfloat16"
    dense = seconds = 0.037 if reduced else 0.053 if bcq else 0.013
    match config.prune:
        case SmallDense(sparsity=sparsity):
            seconds = 0.003 + dense * (1 - sparsity)
        case Pruning(sparsity=sparsity, networks=networks) if 1 - sparsity < SPARSE_BELOW:
            sparse = 0.009 + 0.14 * (1 - sparsity) if bcq else 0.002 + 0.03 * (1 - sparsity)
            seconds = dense - SAVED[networks] * max(dense - sparse, 0)
    return config.epochs * config.updates * seconds * config.batch / 100 + 1


def gpu_work(config: Config) -> tuple[str, float]:
    """Return which rate of `python -m benchmarks gpu` a training goes at, and its network-updates, counted as BCQ's."""
    config = override(config, {"prune": "dense"})  # a GPU multiplies dense matrices
    share = cost(config) / cost(override(config, {"algorithm": "bcq"}))
    return "rl/tf32" if config.precision == "tf32" else "rl", config.epochs * config.updates * share


def view_cost(config: Config, view: View) -> float:
    """Return seconds of one core that a view's rollouts take, were every episode 1000 steps long."""
    weights = 1e-5 if isinstance(config.prune, Pruning) and 1 - config.prune.sparsity < SPARSE_BELOW else 3e-5
    step = weights * (view.samples if view.policy == "bcq" else 1)
    return 1000 * view.episodes * (step + 1e-4) + 0.3


def describe(info: Mapping[str, Any]) -> str:
    """Say where data are from, for the reports: a number is called D4RL only on D4RL data."""
    behaviour = info.get("behaviour", {})
    mixed = f"a mix of our {', '.join(part['name'] for part in behaviour.get('parts', ()))}"
    who = {"random": "random actions", "mixed": mixed}.get(behaviour.get("policy"), "our expert")
    source = {
        "d4rl": f"D4RL {info['name'].removeprefix('d4rl-')}",
        "minari": f"Minari {info['name'].removeprefix('minari-')}",
        "recorded": f"recorded here by {who}",
    }
    score = "" if info["behaviour_score"] is None else f" = {info['behaviour_score']:.1f} normalised"
    return (
        f"{info['environment']} {source.get(info['source'], info['name'])} ({info['transitions']:,} transitions in "
        f"{info['simulator']}, behaviour return {info['behaviour_return']:.0f}{score})"
    )


def speed(config: Config) -> dict[str, float]:
    """Measure the milliseconds of one update and of acting in one state, at HalfCheetah's size on random data."""
    import time

    from retable.platform.worker import Worker

    torch.set_num_threads(1)
    states, actions = 17, 6
    data = RandomTransitions(config, states, actions)
    learner = OfflineLearner([config], data, Worker())
    batch = {name: value[None] for name, value in data.sample(0, config.batch).items()}
    choose = bc_action if isinstance(config.algorithm, Bc) else bcq_action
    noise = torch.randn(1, 1 if isinstance(config.algorithm, Bc) else 100, 2 * actions)
    observation = torch.randn(1, 1, states)
    times: dict[str, list[float]] = {"update_ms": [], "act_ms": []}
    for _ in range(30):
        start = time.perf_counter()
        learner.step(batch)
        between = time.perf_counter()
        choose(learner.networks, observation, noise)
        times["update_ms"].append(1e3 * (between - start))
        times["act_ms"].append(1e3 * (time.perf_counter() - between))
    return {name: float(np.median(values[5:])) for name, values in times.items()}


class RandomTransitions:
    """Transitions of standard normal numbers: enough to time an update."""

    max_action = 1.0

    def __init__(self, config: Config, states: int, actions: int) -> None:
        self.states, self.actions, self.steps, self.seed = states, actions, config.updates, config.seed

    def sample(self, member: int, size: int) -> dict[str, Tensor]:
        """Return `size` transitions."""
        drawn = torch.Generator().manual_seed(self.seed)
        shapes = {"observation": self.states, "action": self.actions, "next_observation": self.states, "reward": 1}
        found = {name: torch.randn(size, width, generator=drawn) for name, width in shapes.items()}
        return {**found, "action": found["action"].tanh(), "not_done": torch.ones(size, 1)}

    def place(self, device: torch.device) -> None:
        """Do nothing: samples are drawn on the CPU."""
