"""A grid of learning rates."""

from ray import tune

TASK = "line"
SPACE = {"rate": tune.grid_search([0.001, 0.1])}
METRIC, MODE = "rmse", "min"
VIEW: dict[str, object] = {}
SEARCH = "grid"
SAMPLES = 1
ASHA = False
SET: dict[str, object] = {}
