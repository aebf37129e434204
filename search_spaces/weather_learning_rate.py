"""Learning rate, weight decay and the weight of rainy pixels, by Optuna; weak points stop early (ASHA)."""

from ray import tune

from retable.platform.spec.space import Space

SPACE = Space(
    task="weather",
    domains={
        "optimizer.learning_rate": tune.loguniform(1e-5, 1e-2),
        "optimizer.weight_decay": tune.loguniform(1e-4, 1e-1),
        "loss.positive_weight": tune.uniform(1.0, 15.0),
    },
    metric="iou",
    mode="max",
    view={"split": "validation", "threshold": "tuned"},
    search="optuna",
    samples=20,
    scheduler="asha",
)
