"""Config of a style run: version 1 optimises an image, version 2 trains a network. Defaults follow the paper.

Source: Shen and Wang, *Style Transfer of Images and Videos*, section IV. The paper prints no weights, learning rates,
iteration counts or batch sizes; what it leaves open follows Gatys et al. 2016 and the PyTorch tutorial (version 1) and
Johnson et al. 2016 and the PyTorch example (version 2), and is a field.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from retable.platform.config import Parent, Scratch, Weights, check

Convention = Literal["gatys", "frobenius", "mean", "sum", "relative"]
"""Scaling of layer losses; G = F F^T over M positions of N filters, C H W = N M.

gatys: equations (1)-(4), half the sum of squares for content, 1/(4 N^2 M^2) for style (each Gram by its own M, so that
    sizes may differ; the same where they agree). frobenius: equations (5)-(6), mean over C H W, and ||G - A||^2.
mean: G/(N M) and means (the PyTorch tutorial). sum: G/(N M), the sum for style, the mean for content (Johnson's).
relative: each layer's loss
    divided by its target's own sum: what untrained networks need (He, Wang and Hopcroft 2016).
"""
Criterion = Literal["mse", "l1", "smooth_l1", "huber"]


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """Fields that all backbones share."""

    weights: str = "imagenet"
    """imagenet: torchvision's; small: half the filters up to relu3_1, trained to see as VGG-19 does, a file that comes
    with the task (of AlexNet too, up to relu3); random: He initialisation by the run's seed; or the SHA-256 that
    `retable style weights FILE` prints for a file of one's own."""
    pooling: Literal["average", "max"] = "average"
    normalise: bool = True
    """Whether each filter's mean activation over images and positions is set to one."""

    def __post_init__(self) -> None:
        if self.weights == "small" and not isinstance(self, (Vgg19, Alexnet)):
            raise ValueError(f"weights small are of vgg19 and alexnet, not of {type(self).__name__.lower()}")


@dataclass(frozen=True, kw_only=True)
class Vgg19(Classifier):
    """VGG-19 (Simonyan and Zisserman 2015): the paper's backbone of version 1."""


@dataclass(frozen=True, kw_only=True)
class Vgg16(Classifier):
    """VGG-16: the paper's loss network of version 2, and the backbone of its optimizers' comparison."""


@dataclass(frozen=True, kw_only=True)
class Alexnet(Classifier):
    """AlexNet (Krizhevsky 2014): five convolutions, a stage each."""


@dataclass(frozen=True, kw_only=True)
class Squeezenet(Classifier):
    """SqueezeNet 1.0 (Iandola et al. 2016)."""


Backbone = Vgg19 | Vgg16 | Alexnet | Squeezenet


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Objective: content, style and total-variation losses on a backbone's layers."""

    content_layers: tuple[str, ...] = ("stage4",)
    """`stage1` .. `stage5`, or a layer by name, such as `relu3_3` or `conv4_2`."""
    style_layers: tuple[str, ...] = ("stage1", "stage2", "stage3", "stage4", "stage5")
    layer_weights: tuple[float, ...] = ()
    """Weight of each style layer (w_l of equation 2); none: 1 over their number in `gatys`, else 1."""
    criterion: Criterion = "mse"
    convention: Convention = "gatys"
    content_weight: float = 1.0
    style_weight: float = 1e6
    variation_weight: float = 0.0
    """Weight of the total variation."""
    variation: Literal["mean_square", "johnson"] = "mean_square"
    """mean_square (ours): squared differences of neighbouring pixels, summed over channels and both directions, per
    pixel, so that one weight serves every size. johnson: half the sum of squares over all pixels but the last row and
    column, as the code of Johnson et al. 2016 takes its gradient; here of values in [0, 1]."""
    octaves: int = 1
    """Sizes at which the style is compared: the image's, a half, a quarter and so on (Snelgrove 2017). Early layers
    then see large motifs too."""
    content_octave: int = 0
    """Size at which the content is compared: 0 the image's, 1 a half of it, and so on."""

    def __post_init__(self) -> None:
        check(self, "content_weight", "style_weight", "variation_weight", least=0)
        if self.layer_weights:
            check(self, "layer_weights", least=0)
            if len(self.layer_weights) != len(self.style_layers):
                raise ValueError(f"{len(self.layer_weights)} layer_weights for {len(self.style_layers)} style_layers")
        if not 1 <= self.octaves <= 6:
            raise ValueError(f"octaves {self.octaves} is outside [1, 6]")
        if not 0 <= self.content_octave <= 5:
            raise ValueError(f"content_octave {self.content_octave} is outside [0, 5]")


@dataclass(frozen=True, kw_only=True)
class Lbfgs:
    """L-BFGS, one evaluation per step. The paper names it, and none of its settings."""

    learning_rate: float = 1.0
    line_search: Literal["backtracking", "strong_wolfe", "none"] = "backtracking"
    """backtracking: moves are bounded, and halved where the loss rises. strong_wolfe: PyTorch's search, whose step
    takes up to 25 evaluations of the loss more. none: PyTorch's default and its tutorial's; with the paper's normalised
    filters the loss leaps to hundreds of times its start, and ends above Adam's."""
    history: int = 20
    """Pairs of vectors kept: 2 * history * pixels * 3 floats."""

    def __post_init__(self) -> None:
        check(self, "history")
        check(self, "learning_rate", least=0, above=True)


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam on pixels in [0, 1]."""

    learning_rate: float = 0.02

    def __post_init__(self) -> None:
        check(self, "learning_rate", least=0, above=True)


@dataclass(frozen=True, kw_only=True)
class Sgd:
    """Plain gradient descent: at the paper's style weights it diverges, as the paper shows."""

    learning_rate: float = 1.0
    normalise_gradient: bool = False
    """Whether each step's gradient is divided by its mean magnitude, with which it works."""

    def __post_init__(self) -> None:
        check(self, "learning_rate", least=0, above=True)


@dataclass(frozen=True, kw_only=True)
class OptimiseImage:
    """Version 1 (Gatys et al. 2016): the pixels of one image are optimised."""

    content: str = "mountain"
    """A photograph of the data set, by name."""
    size: int = 512
    """Length of the image's longer side, in pixels."""
    shape: Literal["square", "keep"] = "square"
    """square: content and style are cropped to the same square, as the paper's; keep: the content's own shape."""
    start: Literal["content", "style", "noise"] = "content"
    scales: tuple[int, ...] = ()
    """Smaller sizes to begin with, e.g. [128, 256] (coarse to fine); the evaluations are shared equally."""
    style_scale: float = 1.0
    """Size of the style image over that of the content image."""
    backbone: Backbone = field(default_factory=Vgg19)
    objective: Objective = field(default_factory=Objective)
    optimizer: Lbfgs | Adam | Sgd = field(default_factory=Lbfgs)

    def __post_init__(self) -> None:
        if self.size < 16 or any(scale < 16 for scale in self.scales):
            raise ValueError(f"size {min(self.size, *self.scales, self.size)} is below 16 pixels")
        check(self, "style_scale", least=0, above=True)


@dataclass(frozen=True, kw_only=True)
class NoTexture:
    """The backbone alone says what the style is."""


@dataclass(frozen=True, kw_only=True)
class Texture:
    """A second loss network for what is fine: a part of each image goes through it."""

    backbone: Backbone = field(default_factory=lambda: Vgg19(normalise=False))
    style_layers: tuple[str, ...] = ("relu1_1", "relu2_1", "relu3_1")
    style_weight: float = 1.0
    """Times the loss of these layers, by the objective's convention and criterion."""
    crop: int = 128
    """Side of the part, in pixels; its place is drawn anew for each step."""

    def __post_init__(self) -> None:
        check(self, "style_weight", least=0)


@dataclass(frozen=True, kw_only=True)
class TrainNetwork:
    """Version 2 (Johnson et al. 2016): a network is trained to stylise any image in one pass."""

    filters: int = 32
    """Filters of the first convolution; the next ones have two and four times as many."""
    upsampling: Literal["transposed", "resize"] = "transposed"
    """transposed: the paper's deconvolutions; resize: nearest neighbour and a convolution, with no checkerboard."""
    output: Literal["tanh", "raw"] = "tanh"
    """tanh: the last layer's values are squashed to levels (Johnson et al. 2016); raw: they are levels."""
    calm_start: bool = False
    """Whether residual blocks start as identities (Goyal et al. 2017) and the last layer at a tenth of its usual size:
    colours then do not saturate before anything is learnt."""
    size: int = 256
    """Side of the square training images."""
    crop: Literal["centre", "random"] = "centre"
    batch: int = 4
    """Images of a step, over all workers together."""
    learning_rate: float = 1e-3
    schedule: Literal["constant", "cosine"] = "constant"
    """cosine: the learning rate falls to zero over the whole training, along half a cosine."""
    conditional: bool = False
    """Whether each painting is a style of its own, told apart by the scales and shifts of the normalisations (Dumoulin
    et al. 2017), which can be blended afterwards; else several paintings make one style."""
    new_styles: int = 0
    """So many of the last paintings are new to the network that `init` names, whose own come first, in its order: their
    scales and shifts alone are learnt, and the others' styles stay as they were. 0: everything is learnt."""
    shift: int = 0
    """Losses look at images from a place that is drawn anew for each step, less than so many pixels from the corner:
    the loss network's poolings then leave no lattice."""
    steady_weight: float = 0.0
    """Weight of the mean square by which the result of a moved, noisy image differs from the moved result."""
    saturation_weight: float = 0.0
    """Weight of what the last layer says beyond the range of colours (`tanh` of more than 1 in magnitude), a mean over
    pixels: there the loss has no gradient, and spots that have burnt out would stay."""
    lattice_weight: float = 0.0
    """Weight of the result's power at periods of 2 and 4 pixels, where layers that double the resolution leave a grid:
    squared amplitudes, of a range of values of one."""
    tone_weight: float = 0.0
    """Weight of 1 minus the correlation of result and photograph in luma, at a sixteenth of their size."""
    spike_weight: float = 0.0
    """Weight of values of residual layers that lie more than 8 standard deviations from their channel's mean: networks
    learn to govern instance normalisation by such, and they show as slivers of other colors."""
    gradient_norm: float = 0.0
    """Norm that a step's gradient is cut to; 0: none. Gram matrices' losses grow with the fourth power of features, so
    that single pictures can throw a small network far off."""
    texture: NoTexture | Texture = field(default_factory=NoTexture)
    style_size: int = 0
    """Length of the painting's longer side; 0: its own."""
    backbone: Backbone = field(default_factory=lambda: Vgg16(normalise=False, pooling="max"))
    objective: Objective = field(
        default_factory=lambda: Objective(
            content_layers=("relu2_2",),
            style_layers=("relu1_2", "relu2_2", "relu3_3", "relu4_3"),
            convention="mean",
            content_weight=1e5,
            style_weight=1e10,
        )
    )

    def __post_init__(self) -> None:
        check(self, "filters", "batch")
        check(self, "learning_rate", least=0, above=True)
        check(self, "new_styles", "gradient_norm", "style_size", least=0)
        check(self, "steady_weight", "saturation_weight", "lattice_weight", "tone_weight", "spike_weight", least=0)
        if self.size < 32:
            raise ValueError(f"size {self.size} is below 32 pixels")
        if not 0 <= self.shift <= self.size - 32:
            raise ValueError(f"shift {self.shift} leaves fewer than 32 of {self.size} pixels")
        if self.new_styles and not self.conditional:
            raise ValueError("new_styles are learnt by a network of several styles; set method.conditional=true")
        if isinstance(self.texture, Texture) and not 32 <= self.texture.crop <= self.size - self.shift:
            raise ValueError(f"texture.crop {self.texture.crop} is outside [32, {self.size - self.shift}]")


@dataclass(frozen=True, kw_only=True)
class ZooNetwork:
    """Version 2 by a network that comes with the task: nothing is trained, so that a first look takes seconds."""

    name: str = "great_wave"
    """As `retable zoo style` lists it."""
    digest: str = ""
    """SHA-256 of its file: another file is another run. Empty: whatever file there is."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """One style transfer: an image (version 1) or a network (version 2)."""

    data: str = "coco2017"
    """The data set: a folder below `data/style/`. `generated` is what `retable data make style` writes."""
    style: tuple[str, ...] = ("great_wave",)
    """One painting of the data set or several, by name."""
    blend: tuple[float, ...] = ()
    """Weight of each painting; none: equal."""
    method: OptimiseImage | TrainNetwork | ZooNetwork = field(default_factory=TrainNetwork)
    init: Scratch | Weights | Parent = field(default_factory=Scratch)
    """Version 2: what the network starts from, e.g. a network of another painting; it need not have the same losses."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the networks; Gram matrices and losses are always in float32."""
    compile: bool = False
    """Whether torch.compile is used: it pays on GPUs."""
    epochs: int = 59
    """An epoch ends with a checkpoint, a line of the log and a sample picture."""
    steps: int = 500
    """Batches of an epoch (version 2: the paper looks every 500), or evaluations (version 1). 59 x 500 batches of four
    are COCO 2017 once; version 1's rows set 30 x 10 evaluations, as the PyTorch tutorial does."""
    seed: int = 0

    def __post_init__(self) -> None:
        check(self, "epochs", "steps")
        check(self, "seed", least=0)
        if not self.style:
            raise ValueError("style names no painting")
        shares = sum(self.blend)
        if self.blend and (len(self.blend) != len(self.style) or min(self.blend) < 0 or not 0 < shares < math.inf):
            raise ValueError(f"blend {list(self.blend)} should hold {len(self.style)} weights, not negative")
        if self.blend and isinstance(self.method, TrainNetwork) and self.method.conditional:
            raise ValueError("blend: a conditional network learns each painting by itself; blend them at `style image`")
        if isinstance(self.method, OptimiseImage) and not isinstance(self.init, Scratch):
            raise ValueError("method=optimise_image starts from an image (method.start), not from weights")
        if isinstance(self.method, ZooNetwork) and not isinstance(self.init, Scratch):
            raise ValueError("method=zoo_network is trained already; leave init out")
        if isinstance(self.method, TrainNetwork) and self.method.new_styles:
            if not 0 < self.method.new_styles < len(self.style):
                raise ValueError(
                    f"new_styles {self.method.new_styles} leaves none of {len(self.style)} paintings known"
                )
            if isinstance(self.init, Scratch):
                raise ValueError("new_styles are added to a trained network; name it by init=parent or init=weights")


@dataclass(frozen=True, kw_only=True)
class View:
    """View of a trained run: which photographs a network stylises, and how its result is judged."""

    epoch: int = 0
    """The epoch whose weights (or image) are read, counted from 1; 0 is the last."""
    content: tuple[str, ...] = ()
    """Photographs of the data set, by name; none: all of its test photographs. Version 1 has but its own."""
    size: int = 256
    """Length of their longer side; 0: their own."""
    painting: str = ""
    """Painting, among its own, whose style a conditional network gives; none: the first."""
    original_colours: bool = False
    """Whether the result takes the photograph's colours (its chroma)."""
    strength: float = 1.0
    """Share of the stylised image in the result; the rest is the photograph."""
    judge: Backbone = field(default_factory=lambda: Squeezenet(weights="random", normalise=False))
    """The network by which results are scored: another one than was trained with."""

    def __post_init__(self) -> None:
        check(self, "size", "epoch", least=0)
        if not 0 <= self.strength <= 1:
            raise ValueError(f"strength {self.strength} is outside [0, 1]")
