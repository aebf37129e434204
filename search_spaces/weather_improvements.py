"""The baseline's improvements (section 2.2), each on and off."""

from ray import tune

from retable.platform.spec.space import Space

SPACE = Space(
    task="weather",
    domains={
        "model.attention": tune.grid_search([False, True]),
        "model.activation": tune.grid_search(["relu", "rrelu"]),
        "model.normalization": tune.grid_search(["batch", "instance"]),
        "model.upsampling": tune.grid_search(["transposed", "resize"]),
    },
    metric="iou",
    mode="max",
    view={"split": "validation", "threshold": "tuned"},
)
