"""Learning rate and temperature, which may be learnt or fixed, by Optuna; weak points stop early (ASHA)."""

from ray import tune

from retable.platform.spec.space import Space

SPACE = Space(
    task="audio",
    domains={
        "learning_rate": tune.loguniform(1e-5, 1e-2),
        "temperature": tune.loguniform(0.01, 0.2),
        "learn_temperature": tune.choice([True, False]),
    },
    metric="map10",
    mode="max",
    view={"split": "validation"},
    search="optuna",
    samples=20,
    scheduler="asha",
)
