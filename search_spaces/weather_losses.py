"""Losses and optimisers of the paper (section 2.1) against each other, each scored at its best threshold."""

from ray import tune

TASK = "weather"
SPACE = {
    "loss": tune.grid_search(["bce", "soft_iou", "dice_focal"]),
    "optimizer": tune.grid_search(["adamw", "adabelief"]),
}
METRIC, MODE = "iou", "max"
VIEW = {"split": "validation", "threshold": "tuned"}
SEARCH = "grid"
SAMPLES = 1
ASHA = False
SET: dict[str, object] = {}
