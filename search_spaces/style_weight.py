"""Weight of the style loss in version 1, the content's being 1: the higher, the less of the photograph is left."""

from ray import tune

TASK = "style"
SPACE = {"method.objective.style_weight": tune.grid_search([1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6])}
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
