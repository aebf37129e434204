"""Learning rates of the straight line, drawn by Optuna."""

from ray import tune

TASK = "line"
SPACE = {"rate": tune.loguniform(1e-3, 1.0)}
METRIC, MODE = "rmse", "min"
VIEW: dict[str, object] = {}
SEARCH = "optuna"
SAMPLES = 4
ASHA = True
SET = {"epochs": 2}
