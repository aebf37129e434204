"""The paper's table and figures as data, with published values; the claims are in `claims.py`.

Source: Shen and Wang, Table I, Figures 1-8, sections V and VI. The paper compares by eye on one photograph; our rows
are repeated over three, so that a claim rests on an interval. Version 1 reads no training pictures: its rows need only
the photographs and paintings that are in every data set, so they name the one that can be made everywhere.

The paper gives no rates and says nothing of a line search, so its rows have the default optimizers, L-BFGS with a line
search. PyTorch's L-BFGS (`method.optimizer.line_search=none`), whose loss leaps with the paper's normalised filters and
ends above Adam's, would contradict figures 2 and 5. SGD has the rate 1, with which it diverges as in figure 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from retable.platform.spec.table import Column, Figure, Measurement, Row, Table
from retable.tasks.style import figures
from retable.tasks.style.apply.measurements import seconds_of_4k, seconds_of_criteria, seconds_of_versions
from retable.tasks.style.figures import CRITERIA, TIMED_CRITERIA, VERSION1, VERSION2, of_photograph
from retable.tasks.style.files import assets

PHOTOGRAPHS = ("mountain", "astronaut", "coffee")
"""Photographs that are stylised; the paper shows the mountain alone."""
IMAGE: Mapping[str, object] = {"method": "optimise_image", "data": "generated", "epochs": 30, "steps": 10}
"""Version 1, as the PyTorch tutorial runs it: 300 evaluations of the loss."""
STARRY: Mapping[str, object] = {**IMAGE, "style": ["starry_night"], "method.backbone": "vgg19"}
WAVE: Mapping[str, object] = {**STARRY, "style": ["great_wave"]}
NETWORK: Mapping[str, object] = {"method": "train_network", "style": ["great_wave"]}
UNTRAINED: Mapping[str, object] = {
    "method.backbone.weights": "random",
    "method.backbone.normalise": False,
    "method.objective.convention": "relative",
}
"""A backbone that needs no file: untrained ones work with relative losses (He, Wang and Hopcroft 2016). It takes the
same seconds as a trained one."""
TIMED: Mapping[str, object] = {**STARRY, **UNTRAINED, "method.content": "mountain"}
OVER: Mapping[str, tuple[object, ...]] = {"method.content": PHOTOGRAPHS}


OPTIMIZERS: Mapping[str, Mapping[str, object]] = {
    "L-BFGS": {"method.optimizer": "lbfgs"},
    "Adam": {"method.optimizer": "adam"},
    "SGD": {"method.optimizer": "sgd"},
    "SGD, normalised gradient": {
        "method.optimizer": "sgd",
        "method.optimizer.normalise_gradient": True,
        "method.optimizer.learning_rate": 0.01,
    },
}


def image(label: str, overrides: Mapping[str, object]) -> Row:
    """Return a row of version 1."""
    return Row(label=label, overrides=overrides, view={})


def speed(size: int, alexnet: float, vgg: float, network: float, low: float, high: float) -> Measurement:
    """Return a line of Table I: seconds of the three systems on a square, and the two speed-ups."""
    header = [column.header for column in COLUMNS[:5]]
    return Measurement(
        label=f"{size} x {size}",
        measure=seconds_of_versions,
        arguments={"photographs": 100},
        reads_data=True,
        overrides={**IMAGE, "data": "coco2017", "style": ["great_wave"], "method.size": size, **UNTRAINED},
        published=dict(zip(header, (alexnet, vgg, network, low, high), strict=True)),
    )


COLUMNS = [
    Column(header="Version 1 AlexNet, s", metric="alexnet_seconds", format=".4g"),
    Column(header="Version 1 VGG-19, s", metric="vgg_seconds", format=".4g"),
    Column(header="Version 2, s", metric="network_seconds", format=".3g"),
    Column(header="Speed-up over AlexNet", metric="speedup_alexnet", format=".0f"),
    Column(header="Speed-up over VGG-19", metric="speedup_vgg", format=".0f"),
    Column(header="Photographs", metric="photographs", format=".0f"),
]

SPEEDS = {
    256: speed(256, 9.15, 23.0, 0.020, 457, 1150),
    512: speed(512, 16.0, 78.8, 0.070, 228, 1126),
    1024: speed(1024, 51.4, 285.0, 0.172, 299, 1657),
}
"""Pixels of a side -> row."""
UHD = Measurement(label="4032 x 2480", measure=seconds_of_4k, overrides=NETWORK)
TABLE1 = Table(
    title="Seconds to stylise one image (Table I)",
    rows=[*SPEEDS.values(), UHD],
    columns=COLUMNS,
    note="Version 1: seconds of one evaluation of the loss times the 300 evaluations of a run, not 300 "
    "evaluations timed, on one photograph; the paper does not say how many it made. Version 2: passes of the network, "
    "in float32, over the data set's first 100 test photographs, or so many passes over the shipped ones where it has "
    "fewer; the last column says how many different ones there were. 4032 x 2480: the shipped ones. Medians; files are "
    "neither read nor written. Brackets are intervals of the medians, four of which hold together in 95 % of cases; "
    "of a speed-up, the lower end of one time over the upper one of the other, and the reverse. They are of repeats "
    "within one session; sessions differ by more. Backbones have random weights, which take the same time. Paper: "
    "Colab's GPU, averages over 100 photographs; for 4K the text "
    "says 2 to 3 seconds. Its VGG is taken for VGG-19, as in section V.",
)

STYLISED1 = [
    image(of_photograph(VERSION1, name), {**WAVE, "method.content": name, "method.shape": "keep"})
    for name in PHOTOGRAPHS
]
STYLISED2 = [
    Row(label=of_photograph(VERSION2, name), overrides=NETWORK, view={"content": [name], "size": 512})
    for name in PHOTOGRAPHS
]
FIGURE1 = Figure(
    title="Version 1 and version 2: photographs in the style of The Great Wave (figure 1)",
    rows=[*STYLISED1, *STYLISED2],
    draw=figures.draw_versions,
    note="Both versions keep the photograph's shape; the longer side has the same length in both. Above each result: "
    "relative style and content error under a network that neither was made with. The paper shows the mountain.",
)

VGG19 = image("VGG-19", STARRY)
ALEXNET = image("AlexNet", {**STARRY, "method.backbone": "alexnet"})
BACKBONES = [VGG19, ALEXNET]

FIGURE2 = Figure(
    title="Loss of version 1 by backbone (figure 2)",
    rows=BACKBONES,
    draw=partial(figures.draw_losses, relative=True),
    over=OVER,
    note="The Starry Night, L-BFGS, MSE. Losses of different networks have different units, so each is drawn relative "
    "to its first value. Thick: the mountain, the paper's photograph; thin: other photographs.",
)

FIGURE3 = Figure(
    title="Pictures of version 1 by backbone (figure 3)",
    rows=BACKBONES,
    draw=figures.draw_pictures,
    over=OVER,
    note="The runs of figure 2. Above each result: relative style and content error under a third network.",
)

TIMES = Measurement(label=TIMED_CRITERIA, measure=seconds_of_criteria, overrides=TIMED)
LOSSES = {name: image(name, {**STARRY, "method.objective.criterion": key}) for name, key in CRITERIA.items()}
FIGURE4 = Figure(
    title="Seconds of one evaluation by loss function (figure 4)",
    rows=[TIMES, *LOSSES.values()],
    draw=figures.draw_criteria,
    over=OVER,
    note="VGG-19, L-BFGS, The Starry Night. Left: medians with their 95 % intervals, of evaluations with each loss in "
    "turn. Right: where runs with each loss end, judged by another network, as their own losses are different "
    "functions; a point is a photograph. Each loss stands in place of the square, with the same weights. "
    "Huber with delta 1 and smooth L1 with "
    "beta 1 are the same function. Timed with random weights and relative losses.",
)

OPTIMIZED = {
    name: image(name, {**STARRY, "method.backbone": "vgg16", **changes}) for name, changes in OPTIMIZERS.items()
}

FIGURE5 = Figure(
    title="Loss of version 1 by optimizer (figure 5)",
    rows=[*OPTIMIZED.values()],
    draw=partial(figures.draw_losses, relative=False),
    over=OVER,
    note="VGG-16, MSE, The Starry Night; one evaluation a step. The paper gives no learning rates: L-BFGS has a line "
    "search here, SGD the rate 1, and the fourth line divides each gradient by its mean magnitude (not in the paper). "
    "Thick: the mountain, the paper's photograph; thin: other photographs.",
)

FIGURE6 = Figure(
    title="Pictures of version 1 by optimizer (figure 6)",
    rows=[*OPTIMIZED.values()],
    draw=figures.draw_pictures,
    over=OVER,
    note="The runs of figure 5. Above each result: relative style and content error under another network.",
)

FIGURE7 = Figure(
    title="Version 1: a mountain in three styles (figure 7)",
    rows=[
        image(label, {**STARRY, "style": [style], "method.content": "mountain"})
        for label, style in (
            ("The Starry Night", "starry_night"),
            ("The Scream", "the_scream"),
            ("The Great Wave off Kanagawa", "great_wave"),
        )
    ],
    draw=figures.draw_paintings,
    note="VGG-19, L-BFGS, MSE; photograph and paintings are cropped to the same square.",
)

LARGE = Row(label=VERSION2, overrides=NETWORK, view={"content": [assets.LARGE], "size": 3082})
FIGURE8 = Figure(
    title="Version 2: a large photograph in the style of The Great Wave (figure 8)",
    rows=[LARGE],
    draw=figures.draw_large,
    note="Reduced, with a piece at full size. The paper's photograph, 4,032 x 2,480 from a telephone, is not public: "
    "ours is 3,082 x 2,048, as its camera took it (Kaede Fujisaki, CC BY-SA 4.0).",
)

STARTED = {
    label: image(label, {**STARRY, "method.start": start})
    for label, start in (("the photograph", "content"), ("the painting", "style"), ("noise", "noise"))
}
STARTS = Figure(
    title="Version 1 begun with the photograph, the painting and noise (ours)",
    rows=[*STARTED.values()],
    draw=figures.draw_pictures,
    over=OVER,
    note="VGG-19, L-BFGS, MSE, The Starry Night. The paper names the three and shows none. "
    "Above each result: relative style and content error under another network.",
)

TABLES: dict[str, Any] = {
    "table1": TABLE1,
    "figure1": FIGURE1,
    "figure2": FIGURE2,
    "figure3": FIGURE3,
    "figure4": FIGURE4,
    "figure5": FIGURE5,
    "figure6": FIGURE6,
    "figure7": FIGURE7,
    "figure8": FIGURE8,
    "starts": STARTS,
}
