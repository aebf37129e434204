"""Version 1's choices (sections V.B-D): backbone, loss, optimizer and start.

Backbones are untrained, so that nothing is downloaded; `imagenet` in place of `random` takes torchvision's.
"""

from ray import tune

TASK = "style"
SPACE = {
    "method.backbone": tune.grid_search(["vgg19", "alexnet"]),
    "method.backbone.weights": tune.grid_search(["random"]),  # here, as choosing a backbone sets its fields back
    "method.backbone.normalise": tune.grid_search([False]),
    "method.objective.criterion": tune.grid_search(["mse", "l1", "smooth_l1", "huber"]),
    "method.optimizer": tune.grid_search(["lbfgs", "adam", "sgd"]),
    "method.start": tune.grid_search(["content", "style", "noise"]),
}
METRIC, MODE = "style_error", "min"
VIEW: dict[str, object] = {}
SEARCH = "grid"
SAMPLES = 1
ASHA = False
SET: dict[str, object] = {
    "data": "generated",
    "style": ["starry_night"],
    "method": "optimise_image",
    "method.size": 64,
    "method.objective.convention": "relative",
    "method.objective.style_weight": 50.0,
    "epochs": 10,
    "steps": 5,
}
