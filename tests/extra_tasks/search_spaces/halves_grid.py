"""A grid of learning rates and of limits, which need no training of their own."""

from ray import tune

from retable.platform.spec.space import Space

SPACE = Space(
    task="halves",
    domains={"rate": tune.grid_search([0.001, 0.1]), "view.limit": tune.grid_search([0.1, 0.5, 2.5])},
    metric="hits",
    mode="max",
    view={"split": "validation"},
)
