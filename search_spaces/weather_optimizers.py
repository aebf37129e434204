"""Optimisers of the paper (section 2.1) against each other over the same learning rates."""

from ray import tune

TASK = "weather"
SPACE = {
    "optimizer": tune.grid_search(["adamw", "adabelief"]),
    "optimizer.learning_rate": tune.grid_search([1e-4, 3e-4, 1e-3, 3e-3]),
}
METRIC, MODE = "iou", "max"
VIEW = {"split": "validation", "threshold": "tuned"}
SEARCH = "grid"
SAMPLES = 1
ASHA = False
SET: dict[str, object] = {}
