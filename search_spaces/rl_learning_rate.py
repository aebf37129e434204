"""A third, once and three times the published learning rate for each method, dense and pruned to 95 %, with 3 seeds."""

from ray import tune

from retable.platform.spec.space import Space

SPACE = Space(
    task="rl",
    domains={
        "learning_rate": tune.grid_search([3e-4, 1e-3, 3e-3]),
        "prune": tune.grid_search(["dense", "snip", "grasp"]),  # at its default sparsity, 95 %
        "seed": tune.grid_search([0, 1, 2]),
        "view.policy": tune.grid_search(["bcq", "bc"]),  # one training plays as both: BC is BCQ's own VAE
    },
    metric="return",
    mode="max",
    # No table plays these episodes: what a sweep chooses is judged by others.
    view={"samples": 10, "episodes": 10, "seed": 1_000_000},
)
