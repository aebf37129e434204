"""A grid of learning rates and of limits, which need no training of their own."""

from ray import tune

TASK = "halves"
SPACE = {"rate": tune.grid_search([0.001, 0.1]), "view.limit": tune.grid_search([0.1, 0.5, 2.5])}
METRIC, MODE = "hits", "max"
VIEW: dict[str, object] = {"split": "validation"}
SEARCH = "grid"
SAMPLES = 1
ASHA = False
SET: dict[str, object] = {}
