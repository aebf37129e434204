"""Version 1's choices (sections V.B-D): backbone, loss, optimizer and start.

Backbones are untrained, so that nothing is downloaded; `--set method.backbone.weights=imagenet` takes torchvision's.
"""

from ray import tune

from retable.platform.spec.space import Space

SPACE = Space(
    task="style",
    domains={
        "method.backbone": tune.grid_search(["vgg19", "alexnet"]),
        "method.objective.criterion": tune.grid_search(["mse", "l1", "smooth_l1", "huber"]),
        "method.optimizer": tune.grid_search(["lbfgs", "adam", "sgd"]),
        "method.start": tune.grid_search(["content", "style", "noise"]),
    },
    metric="style_error",
    mode="min",
    overrides={
        "data": "generated",
        "style": ["starry_night"],
        "method": "optimise_image",
        "method.size": 64,
        "method.backbone.weights": "random",
        "method.backbone.normalise": False,
        "method.objective.convention": "relative",
        "method.objective.style_weight": 50.0,
        "epochs": 10,
        "steps": 5,
    },
)
