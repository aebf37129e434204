"""Version 1's choices (sections V.B-D): backbone, loss, optimizer and start. Backbones are those of torchvision."""

from ray import tune

TASK = "style"
SPACE = {
    "method.backbone": tune.grid_search(["vgg19", "alexnet"]),
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
    "method.size": 128,
    "epochs": 30,
    "steps": 10,
}
