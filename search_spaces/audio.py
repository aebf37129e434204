"""PaSST's input (section 2.1): overlap of patches, length of a segment, rows and columns left out in training."""

from ray import tune

from retable.platform.spec.space import Space

SPACE = Space(
    task="audio",
    domains={
        "audio.stride": tune.grid_search([16, 10]),
        "segment": tune.grid_search([1.0, 1.5, 3.0]),
        "audio.patchout_frequency": tune.grid_search([0, 2]),
        "audio.patchout_time": tune.grid_search([0, 1]),
    },
    metric="map10",
    mode="max",
    view={"split": "validation"},
)
