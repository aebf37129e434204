"""Options of `retable style image`, grouped: each field is an option with its help and what of the config it sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from retable.platform.console import Device, items, whole

PAINTINGS = "For paintings"
LOSS = "For paintings: the loss"
NETWORK = "For paintings: the network that looks"
OPTIMISER = "For paintings: the optimiser"

STYLE_SCALE = "method.style_scale"
"""The one field of an optimisation that networks know too."""

Precision = Annotated[
    Literal["auto", "float32", "bfloat16"],
    typer.Option(
        help="bfloat16 is off by a level or two of 255; auto uses it for networks where it is fast (GPU, AMX)."
    ),
]
Like = Literal["gatys", "johnson", "paper"]


@dataclass(frozen=True)
class Sets:
    """The field of the config that an option sets; `kind` reads an item of a list."""

    path: str
    kind: Callable[[str], object] | None = None


def panel(name: str, help: str, **more: Any) -> Any:
    """Describe an option of a group."""
    return typer.Option(help=help, rich_help_panel=name, **more)


@dataclass(frozen=True, kw_only=True)
class Result:
    """Options of a result, by a network or a painting."""

    size: Annotated[
        int | None,
        typer.Option(
            help="Pixels of the longer side; 0 keeps the photograph's (default: 0; for paintings 512).", min=0
        ),
    ] = None
    strength: Annotated[float, typer.Option(help="Share of the stylized picture in the result.", min=0, max=1)] = 1.0
    original_colours: Annotated[bool, typer.Option("--original-colours", help="Keep the photograph's colors.")] = False
    mask: Annotated[
        Path | None,
        typer.Option(help="Mask: white is stylized, black is not; or regions, with --style NAME@COLOUR."),
    ] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace results that exist.")] = False
    precision: Precision = "auto"
    device: Device = ""
    tile: Annotated[
        int,
        typer.Option(
            help="For networks: side of tiles in pixels (same result); 0 takes tiles only where a GPU's memory asks.",
            min=0,
        ),
    ] = 0
    ray: Annotated[bool, typer.Option("--ray", help="Distribute the pictures over the Ray cluster.")] = False


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """Options of an optimisation (version 1); none: the preset's value, or the config's default."""

    like: Annotated[
        Like | None,
        panel(PAINTINGS, "Start from a paper's settings; other options change them (default: our fast settings)."),
    ] = None
    blend: Annotated[str, Sets("blend", float), panel(PAINTINGS, "Weight of each painting: 0.7,0.3.")] = ""
    start: Annotated[
        Literal["content", "style", "noise"] | None, Sets("method.start"), panel(PAINTINGS, "Starting picture.")
    ] = None
    style_scale: Annotated[
        float | None,
        Sets(STYLE_SCALE),
        typer.Option(help="Size of the strokes: 2 is twice as large; a network then works at half the size.", min=0.05),
    ] = None
    scales: Annotated[str, Sets("method.scales", whole), panel(PAINTINGS, "Sizes to work at, coarse to fine.")] = ""
    evaluations: Annotated[
        int | None,
        Sets("steps"),
        panel(PAINTINGS, "Evaluations of the loss (default: 300; 500 with --like gatys or johnson).", min=1),
    ] = None
    seed: Annotated[int | None, Sets("seed"), panel(PAINTINGS, "Seed of noise and of random weights.", min=0)] = None
    history: Annotated[Path | None, panel(PAINTINGS, "Write each evaluation's losses to this CSV file.")] = None

    style_weight: Annotated[
        float | None,
        Sets("method.objective.style_weight"),
        panel(LOSS, "Weight of the painting's style; more is freer.", min=0),
    ] = None
    content_weight: Annotated[
        float | None,
        Sets("method.objective.content_weight"),
        panel(LOSS, "Weight of the photograph's content (default: 1; 0.001 with --like gatys).", min=0),
    ] = None
    variation_weight: Annotated[
        float | None,
        Sets("method.objective.variation_weight"),
        panel(LOSS, "Weight of total variation, which smooths.", min=0),
    ] = None
    variation: Annotated[
        Literal["mean_square", "johnson"] | None,
        Sets("method.objective.variation"),
        panel(LOSS, "Total variation: mean_square is per pixel, johnson a sum (default: mean_square)."),
    ] = None
    criterion: Annotated[
        Literal["mse", "l1", "smooth_l1", "huber"] | None,
        Sets("method.objective.criterion"),
        panel(LOSS, "Loss of each difference (default: mse)."),
    ] = None
    convention: Annotated[
        Literal["gatys", "frobenius", "mean", "sum", "relative"] | None,
        Sets("method.objective.convention"),
        panel(LOSS, "Scale of layers' losses; relative divides by the painting's own."),
    ] = None
    content_layers: Annotated[
        str,
        Sets("method.objective.content_layers", str),
        panel(LOSS, "Layers of the content: stage4, or names such as relu3_1."),
    ] = ""
    style_layers: Annotated[
        str,
        Sets("method.objective.style_layers", str),
        panel(LOSS, "Layers of the style: stage1,stage2,..., or names."),
    ] = ""
    layer_weights: Annotated[
        str, Sets("method.objective.layer_weights", float), panel(LOSS, "Weight of each style layer: 1,1,0.5.")
    ] = ""
    octaves: Annotated[
        int | None,
        Sets("method.objective.octaves"),
        panel(LOSS, "Number of sizes at which the style is compared: 1, a half, a quarter ...", min=1, max=6),
    ] = None
    content_octave: Annotated[
        int | None,
        Sets("method.objective.content_octave"),
        panel(LOSS, "Size at which the content is compared: 0 is the whole, 1 a half ...", min=0, max=5),
    ] = None

    backbone: Annotated[
        Literal["vgg19", "vgg16", "alexnet", "squeezenet"] | None,
        Sets("method.backbone"),
        panel(NETWORK, "Backbone network."),
    ] = None
    weights: Annotated[
        str | None,
        Sets("method.backbone.weights"),
        panel(NETWORK, "small (shipped), imagenet, random, a file, or what `retable style weights` prints."),
    ] = None
    pooling: Annotated[
        Literal["average", "max"] | None,
        Sets("method.backbone.pooling"),
        panel(NETWORK, "Pooling (default: average; max with --like johnson)."),
    ] = None
    normalise: Annotated[
        bool | None, Sets("method.backbone.normalise"), panel(NETWORK, "Bring filters to a mean activation of one.")
    ] = None

    optimizer: Annotated[
        Literal["lbfgs", "adam", "sgd"] | None,
        Sets("method.optimizer"),
        panel(OPTIMISER, "Optimizer (default: lbfgs)."),
    ] = None
    learning_rate: Annotated[
        float | None, Sets("method.optimizer.learning_rate"), panel(OPTIMISER, "Learning rate of the optimizer.", min=0)
    ] = None
    line_search: Annotated[
        Literal["backtracking", "strong_wolfe", "none"] | None,
        Sets("method.optimizer.line_search"),
        panel(OPTIMISER, "Line search of L-BFGS."),
    ] = None

    def changes(self) -> dict[str, object]:
        """Return fields of the config and the values that the options ask for.

        Raises:
            UserError: where a list holds no numbers.
        """
        given: dict[str, object] = {}
        for name, hint in get_type_hints(Knobs, include_extras=True).items():
            target = next((mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Sets)), None)
            value = getattr(self, name)
            if target is None or value in (None, ""):
                continue
            option = f"--{name.replace('_', '-')}"
            given[target.path] = value if target.kind is None else items(option, value, target.kind)
        return given
