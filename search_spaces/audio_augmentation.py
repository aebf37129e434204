"""Probability that a caption is replaced by a rewritten form (the paper: 0.3), on Clotho, at three learning rates.

Training starts from nothing; `--set init=weights --set init.sha256=...` starts from weights of one's own.
"""

from ray import tune

from retable.platform.spec.space import Space

SPACE = Space(
    task="audio",
    domains={
        "augmentation": tune.grid_search([0.0, 0.15, 0.3, 0.6, 1.0]),
        "learning_rate": tune.grid_search([3e-4, 1e-3, 3e-3]),
    },
    metric="map10",
    mode="max",
    view={"split": "validation"},
    overrides={"corpora": ["clotho"]},
)
