"""Losses of the paper (section 2.1) against each other, each at three learning rates and at its best threshold."""

from ray import tune

from retable.platform.spec.space import Space

SPACE = Space(
    task="weather",
    domains={
        "loss": tune.grid_search(["bce", "soft_iou", "dice_focal"]),
        "optimizer.learning_rate": tune.grid_search([3e-4, 1e-3, 3e-3]),
    },
    metric="iou",
    mode="max",
    view={"split": "validation", "threshold": "tuned"},
)
