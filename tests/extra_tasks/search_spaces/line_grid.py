"""A grid of learning rates."""

from ray import tune

from retable.platform.spec.space import Space

SPACE = Space(
    task="line",
    domains={"rate": tune.grid_search([0.001, 0.1])},
    metric="rmse",
    mode="min",
)
