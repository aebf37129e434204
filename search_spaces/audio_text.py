"""Size and family of the sentence encoder, with random weights: larger ones should win (section 3)."""

from ray import tune

from retable.platform.spec.space import Space

SPACE = Space(
    task="audio",
    domains={
        "text.family": tune.grid_search(["bert", "roberta"]),
        "text.width": tune.grid_search([32, 64, 128]),
        "text.depth": tune.grid_search([1, 2, 4]),
    },
    metric="map10",
    mode="max",
    view={"split": "validation"},
    overrides={"text": "untrained"},
)
