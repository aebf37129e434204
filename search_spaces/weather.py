"""Thresholds from 0.2 to 0.7 on the validation set: one training, many views."""

from ray import tune

from retable.platform.spec.space import Space

SPACE = Space(
    task="weather",
    domains={"view.threshold": tune.grid_search([0.2, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7])},
    metric="iou",
    mode="max",
    view={"split": "validation"},
)
