"""The baseline's improvements (section 2.2), each on and off."""

from ray import tune

TASK = "weather"
SPACE = {
    "model.attention": tune.grid_search([False, True]),
    "model.activation": tune.grid_search(["relu", "rrelu"]),
    "model.normalization": tune.grid_search(["batch", "instance"]),
    "model.upsampling": tune.grid_search(["transposed", "resize"]),
}
METRIC, MODE = "iou", "max"
VIEW = {"split": "validation", "threshold": "tuned"}
SEARCH = "grid"
SAMPLES = 1
ASHA = False
SET: dict[str, object] = {}
