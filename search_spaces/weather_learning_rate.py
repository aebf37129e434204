"""Learning rate, weight decay and the weight of rainy pixels, by Optuna; weak points stop early (ASHA)."""

from ray import tune

TASK = "weather"
SPACE = {
    "optimizer.learning_rate": tune.loguniform(1e-5, 1e-2),
    "optimizer.weight_decay": tune.loguniform(1e-4, 1e-1),
    "loss.positive_weight": tune.uniform(1.0, 15.0),
}
METRIC, MODE = "iou", "max"
VIEW = {"split": "validation", "threshold": "tuned"}
SEARCH = "optuna"
SAMPLES = 20
ASHA = True
SET: dict[str, object] = {}
