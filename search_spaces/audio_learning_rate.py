"""Learning rate and temperature, which may be learnt or fixed, by Optuna; weak points stop early (ASHA)."""

from ray import tune

TASK = "audio"
SPACE = {
    "learning_rate": tune.loguniform(1e-5, 1e-2),
    "temperature": tune.loguniform(0.01, 0.2),
    "learn_temperature": tune.choice([True, False]),
}
METRIC, MODE = "map10", "max"
VIEW = {"split": "validation"}
SEARCH = "optuna"
SAMPLES = 20
ASHA = True
SET: dict[str, object] = {}
