"""Learning rates of the straight line, drawn by Optuna."""

from ray import tune

from retable.platform.spec.space import Space

SPACE = Space(
    task="line",
    domains={"rate": tune.loguniform(1e-3, 1.0)},
    metric="rmse",
    mode="min",
    overrides={"epochs": 2},
    search="optuna",
    samples=4,
    scheduler="asha",
)
