"""Sparsity from 10 to 95 % by pruning method, on one environment; other environments, seeds by `--set`."""

from ray import tune

from retable.platform.spec.space import Space

SPACE = Space(
    task="rl",
    domains={
        "prune": tune.grid_search(["snip", "grasp"]),
        "prune.sparsity": tune.grid_search([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95]),
    },
    metric="return",
    mode="max",
    # No table plays these episodes: what a sweep chooses is judged by others.
    view={"policy": "bcq", "samples": 10, "episodes": 2, "seed": 1_000_000},
)
