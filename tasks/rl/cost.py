"""What a training and a view take, for the planner."""

from __future__ import annotations

from retable.platform.config import override
from retable.tasks.rl.config import Bcq, Config, Pruning, SmallDense, View
from retable.tasks.rl.sparse.training import SPARSE_BELOW

SAVED = {"all": 1.0, "actor": 0.05, "critic": 0.2, "vae": 0.7}
"""Of the time that pruning all networks saves, what it saves to prune one of them."""


def cost(config: Config) -> float:
    """Return seconds of one core that a training takes, as measured at (17, 6).

    An update takes 53 ms for BCQ, 37 ms with its target pass in bfloat16, 13 ms for BC; where more than three quarters
    of the weights are pruned (`sparse/training.py`), 23 ms at 90 % and 16 ms at 95 %, and 3.5 ms for BC.
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
    return config.epochs * config.steps * seconds * config.batch / 100 + 1


def gpu_work(config: Config) -> tuple[str, float]:
    """Return which rate of `python -m benchmarks gpu` a training goes at, and its network-updates, counted as BCQ's."""
    config = override(config, {"prune": "dense"})  # a GPU multiplies dense matrices
    share = cost(config) / cost(override(config, {"algorithm": "bcq"}))
    return "rl/tf32" if config.precision == "tf32" else "rl", config.epochs * config.steps * share


def view_cost(config: Config, view: View) -> float:
    """Return seconds of one core that a view's rollouts take, were every episode 1000 steps long."""
    weights = 1e-5 if isinstance(config.prune, Pruning) and 1 - config.prune.sparsity < SPARSE_BELOW else 3e-5
    step = weights * (view.samples if view.policy == "bcq" else 1)
    return 1000 * view.episodes * (step + 1e-4) + 0.3
