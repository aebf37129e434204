"""Weight of the style loss in version 1, the content's being 1: the higher, the less of the photograph is left.

The backbone is untrained, so that nothing is downloaded; `--set method.backbone.weights=imagenet` takes torchvision's.
"""

from ray import tune

from retable.platform.spec.space import Space

SPACE = Space(
    task="style",
    domains={"method.objective.style_weight": tune.grid_search([0.1, 1.0, 1e1, 1e2, 1e3, 1e4])},
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
        "epochs": 10,
        "steps": 5,
    },
)
