"""Losses of the paper (section 2.1) against each other, each at three learning rates and at its best threshold."""

from ray import tune

TASK = "weather"
SPACE = {
    "loss": tune.grid_search(["bce", "soft_iou", "dice_focal"]),
    "optimizer.learning_rate": tune.grid_search([3e-4, 1e-3, 3e-3]),
}
METRIC, MODE = "iou", "max"
VIEW = {"split": "validation", "threshold": "tuned"}
SEARCH = "grid"
SAMPLES = 1
ASHA = False
SET: dict[str, object] = {}
