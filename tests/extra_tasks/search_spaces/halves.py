"""Limits alone, drawn by Optuna: every point reads one run."""

from ray import tune

TASK = "halves"
SPACE = {"view.limit": tune.uniform(0.0, 0.3)}
METRIC, MODE = "hits", "max"
VIEW: dict[str, object] = {}
SEARCH = "optuna"
SAMPLES = 3
ASHA = True
SET: dict[str, object] = {}
