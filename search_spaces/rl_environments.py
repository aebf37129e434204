"""The paper's claims over environments, policies and seeds: each pruning method at 95 % (figures 1 and 2)."""

from ray import tune

from retable.platform.spec.space import Space

SPACE = Space(
    task="rl",
    domains={
        "environment": tune.grid_search(["HalfCheetah", "Hopper", "Walker2d"]),
        "prune": tune.grid_search(["snip", "grasp"]),
        "seed": tune.grid_search([0, 1, 2, 3, 4]),
        "view.policy": tune.grid_search(["bcq", "bc"]),  # one training plays as both: BC is BCQ's own VAE
    },
    metric="behaviour_share",
    mode="max",
    # No table plays these episodes: what a sweep chooses is judged by others.
    view={"samples": 10, "episodes": 2, "seed": 1_000_000},
)
