"""Size and family of the sentence encoder, with random weights: larger ones should win (section 3)."""

from ray import tune

TASK = "audio"
SPACE = {
    "text.family": tune.grid_search(["bert", "roberta"]),
    "text.width": tune.grid_search([32, 64, 128]),
    "text.depth": tune.grid_search([1, 2, 4]),
}
METRIC, MODE = "map10", "max"
VIEW = {"split": "validation"}
SEARCH = "grid"
SAMPLES = 1
ASHA = False
SET: dict[str, object] = {"text": "untrained"}
