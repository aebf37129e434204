"""Optimisers of the paper (section 2.1) against each other over the same learning rates."""

from ray import tune

from retable.platform.spec.space import Space

SPACE = Space(
    task="weather",
    domains={
        "optimizer": tune.grid_search(["adamw", "adabelief"]),
        "optimizer.learning_rate": tune.grid_search([1e-4, 3e-4, 1e-3, 3e-3]),
    },
    metric="iou",
    mode="max",
    view={"split": "validation", "threshold": "tuned"},
)
