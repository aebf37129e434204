"""Content, style and total-variation losses on a backbone's features (the paper's sections III and IV).

F are the features of a layer, N filters over M = H W positions; G_ij = sum_k F_ik F_jk its Gram matrix (equation 4). P
and A are the content image's features and the style image's Gram matrix, with M_a positions of its own. phi is the
criterion, applied to every entry; for `mse` it is the square, and the rows below are then the equations they cite:

| convention | content, per layer | style, per layer | source |
|---|---|---|---|
| gatys | 1/2 sum phi(F - P) | 1/(4 N^2) sum phi(G/M - A/M_a) | equations (1), (3), M = M_a |
| frobenius | mean phi(F - P) | sum phi(G - A M/M_a) | equations (5), (6), M = M_a |
| mean | mean phi(F - P) | mean phi((G/M - A/M_a)/N) | PyTorch's tutorial and example |
| sum | mean phi(F - P) | sum phi((G/M - A/M_a)/N) | Johnson et al. 2016, equations 2 and 4 |
| relative | sum phi(F - P) / sum phi(P) | sum phi(G/M - A/M_a) / sum phi(A/M_a) | He, Wang and Hopcroft 2016 |

Sizes of painting and image may differ, as each Gram matrix is divided by its own number of positions. All sums and
means are of one sample: a batch gives one loss each. Everything is computed in float32, under autocast too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from retable.tasks.style.config import Convention, Criterion, Objective
from retable.tasks.style.networks.backbones import BackboneNetwork, Features, Image

CRITERIA: dict[Criterion, Callable[..., Tensor]] = {
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "smooth_l1": functional.smooth_l1_loss,
    "huber": functional.huber_loss,
}
"""With PyTorch's defaults (beta = delta = 1), where Smooth L1 and Huber are the same function."""

LUMA = (0.299, 0.587, 0.114)
FLAT = 1e-8
"""Product of variances of luma, of a range of one, below which a tone's correlation means little."""
SPIKE = 8.0


class Targets(NamedTuple):
    """Targets of an image's losses, by layer."""

    content: Mapping[str, Features]
    """Features of one content image, or of one per sample; none: no content loss."""
    style: Mapping[str, Float[Tensor, "1 filter filter"]]
    """Gram matrices over their numbers of positions; of several paintings, their weighted mean."""


class Losses(NamedTuple):
    """Losses of each sample, times their weights; `total` is their sum."""

    content: Float[Tensor, " batch"]
    style: Float[Tensor, " batch"]
    variation: Float[Tensor, " batch"]
    total: Float[Tensor, " batch"]


def gram(features: Features) -> Float[Tensor, "batch filter filter"]:
    """Multiply each sample's features with themselves: F F^T (equation 4), not divided by anything, in float32."""
    with torch.autocast(features.device.type, enabled=False):
        product: Tensor = Gram.apply(features.float().flatten(2))
        return product


class Gram(torch.autograd.Function):
    """F F^T. Its gradient (D + D^T) F takes one product; autograd would take two, D F and D^T F, and add them."""

    @staticmethod
    def forward(context: Any, flat: Tensor) -> Tensor:
        """Multiply features (batch, filter, position) with themselves."""
        context.save_for_backward(flat)
        return flat @ flat.transpose(1, 2)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        """Return the gradient of the features."""
        (flat,), (gradient,) = context.saved_tensors, gradients
        result: Tensor = (gradient + gradient.transpose(1, 2)) @ flat
        return result


@torch.no_grad()
def targets(
    network: BackboneNetwork,
    objective: Objective,
    content: Image | None,
    paintings: Sequence[Image],
    blend: Sequence[float] = (),
) -> Targets:
    """Compute what stays the same over a run. Each painting (1, 3, H, W) may have a size of its own.

    `blend` weighs the paintings; its sum does not matter, and none means equal weights.

    Raises:
        UserError: where a layer is not there, or an image too small for it.
    """
    blend = blend or [1.0] * len(paintings)
    names = resolved(network, objective.style_layers, "style")
    style: dict[str, Tensor] = {}
    for painting, share in zip(paintings, blend, strict=True):
        for octave in range(objective.octaves):
            for name, features in network(halved(painting, octave), names).items():
                part, key = gram(features) * (share / sum(blend) / features[0, 0].numel()), at(name, octave)
                style[key] = style[key] + part if key in style else part
    aims = Targets({}, style)
    return aims if content is None else with_content(aims, network, objective, content)


@torch.no_grad()
def with_content(aims: Targets, network: BackboneNetwork, objective: Objective, content: Image) -> Targets:
    """Return the targets with the content of other images, one for each sample or one for all."""
    small = halved(content, objective.content_octave)
    features = network(small, resolved(network, objective.content_layers, "content"))
    return aims._replace(content={name: value.float() for name, value in features.items()})


def picked(styles: Sequence[Targets], chosen: Int[Tensor, " batch"]) -> Targets:
    """Return targets with the style that is chosen for each image, of several targets without content."""
    names = styles[0].style
    return Targets({}, {name: torch.cat([targets.style[name] for targets in styles])[chosen] for name in names})


def nothing(image: Image) -> Losses:
    """Return losses of zero."""
    zero = image.new_zeros(len(image), dtype=torch.float32)
    return Losses(zero, zero, zero, zero)


def add(first: Losses, second: Losses) -> Losses:
    """Add losses, each kind to its own."""
    return Losses(*(one + other for one, other in zip(first, second, strict=True)))


def loss(network: BackboneNetwork, objective: Objective, aims: Targets, image: Image) -> Losses:
    """Compare images with their targets, and weigh (equations 1 to 6 as the objective's convention has them)."""
    content_layers = resolved(network, objective.content_layers, "content") if aims.content else ()
    style_layers = resolved(network, objective.style_layers, "style")
    weighted = tuple(zip(style_layers, layer_weights(objective), strict=True))
    content = style = image.new_zeros(len(image), dtype=torch.float32)
    how = objective.convention, objective.criterion
    for octave in range(max(objective.octaves, objective.content_octave + 1)):
        kept = content_layers if octave == objective.content_octave else ()
        styled = weighted if octave < objective.octaves else ()
        if not (kept or styled):
            continue
        features = network(halved(image, octave), tuple(dict.fromkeys((*kept, *(name for name, _ in styled)))))
        with torch.autocast(image.device.type, enabled=False):
            for name in kept:
                content = content + content_loss(features[name].float(), aims.content[name], *how)
            for name, weight in styled:
                aim = aims.style[at(name, octave)]
                style = style + weight / objective.octaves * style_loss(features[name], aim, *how)
    with torch.autocast(image.device.type, enabled=False):
        content, style = objective.content_weight * content, objective.style_weight * style
        smooth = objective.variation_weight * VARIATIONS[objective.variation](image)
    return Losses(content, style, smooth, content + style + smooth)


def halved(image: Image, octave: int) -> Image:
    """Return an image at a half of its size, so many times: means of squares of pixels."""
    return functional.avg_pool2d(image, 2**octave) if octave else image


def at(layer: str, octave: int) -> str:
    """Return the name of a layer's target at an octave."""
    return f"{layer}/{2**octave}" if octave else layer


def content_loss(
    features: Features, target: Features, convention: Convention, criterion: Criterion
) -> Float[Tensor, " batch"]:
    """Compare features with a content image's, sample by sample."""
    difference = entries(features, target, criterion)
    if convention == "gatys":
        return difference.sum(1) / 2
    if convention == "relative":
        return difference.sum(1) / magnitude(target, criterion)
    return difference.mean(1)


def style_loss(
    features: Features, target: Float[Tensor, "1 filter filter"], convention: Convention, criterion: Criterion
) -> Float[Tensor, " batch"]:
    """Compare features' Gram matrices with `target`, a Gram matrix over its number of positions, sample by sample."""
    filters, positions = features.shape[1], features[0, 0].numel()
    grams = gram(features) / positions
    match convention:
        case "gatys":
            return entries(grams, target, criterion).sum(1) / (4 * filters**2)
        case "frobenius":
            return entries(grams * positions, target * positions, criterion).sum(1)
        case "mean":
            return entries(grams / filters, target / filters, criterion).mean(1)
        case "sum":
            return entries(grams / filters, target / filters, criterion).sum(1)
        case "relative":
            return entries(grams, target, criterion).sum(1) / magnitude(target, criterion)


def entries(values: Tensor, target: Tensor, criterion: Criterion) -> Float[Tensor, "batch entry"]:
    """Apply the criterion to each entry of the difference."""
    return CRITERIA[criterion](values, target.expand_as(values), reduction="none").flatten(1)


def magnitude(target: Tensor, criterion: Criterion) -> Float[Tensor, " batch"]:
    """Return the loss of a zero prediction, to which differences are relative; 1 if the target is zero."""
    size = entries(target, torch.zeros_like(target), criterion).sum(1)
    return size.where(size > 0, 1)


def mean_square_variation(image: Image) -> Float[Tensor, " batch"]:
    """Sum the squared differences of pixels next to each other, over both directions and all channels, per pixel."""
    image = image.float()
    height, width = image.shape[-2:]
    down = image.diff(dim=2).square().flatten(1).sum(1)
    across = image.diff(dim=3).square().flatten(1).sum(1)
    return (down + across) / (height * width)


def johnson_variation(image: Image) -> Float[Tensor, " batch"]:
    """Halve the sum of squared differences of each pixel to the one below and the one on its right.

    The last row and column have no differences. Its gradient is what the code of Johnson et al. 2016 adds
    (TotalVariation.lua); squares stand in place of the absolute differences of total variation there too.
    """
    image = image.float()
    down = image.diff(dim=2)[:, :, :, :-1].square().flatten(1).sum(1)
    across = image.diff(dim=3)[:, :, :-1].square().flatten(1).sum(1)
    return (down + across) / 2


VARIATIONS = {"mean_square": mean_square_variation, "johnson": johnson_variation}
"""Form of the total variation -> its loss of each sample."""


def lattice(image: Image) -> Float[Tensor, " batch"]:
    """Sum the squared amplitudes of what repeats every 2 or 4 pixels over the whole image, a mean over its colours.

    Of a spectrum under a Hann window, the 15 frequencies in multiples of a quarter; of noise and photographs they have
    no more than of any other, so that little but a grid is seen here. Height and width are cut to multiples of four.
    """
    height, width = (length // 4 * 4 for length in image.shape[-2:])
    rows, columns = (torch.hann_window(length, device=image.device) for length in (height, width))
    window = rows[:, None] * columns
    spectrum = torch.fft.fft2(image[..., :height, :width].float() * window)[..., :: height // 4, :: width // 4]
    power: Tensor = (spectrum / window.sum()).abs().square()
    return (power.sum((2, 3)) - power[:, :, 0, 0]).mean(1)


def tone(image: Image, photograph: Image) -> Float[Tensor, " batch"]:
    """Return 1 minus the correlation of two images' luma at a sixteenth of their size: 0 where tones are kept.

    Means and contrasts do not matter, so that a painting's own range of tones can be taken; of flat images it is 1.
    """
    first, second = (_coarse_luma(picture) for picture in (image, photograph))
    together = (first * second).mean(1)
    return 1 - together / (first.square().mean(1) * second.square().mean(1) + FLAT).sqrt()


def _coarse_luma(image: Image) -> Float[Tensor, "batch cell"]:
    """Return the luma's means over squares of 16 pixels, less their own mean."""
    with torch.autocast(image.device.type, enabled=False):
        luma = torch.einsum("bchw,c->bhw", image.float(), image.new_tensor(LUMA).float())
    cells = functional.avg_pool2d(luma[:, None], 16).flatten(1)
    return cells - cells.mean(1, keepdim=True)


def spikes(features: Features) -> Float[Tensor, " batch"]:
    """Return the squares by which values lie more than `SPIKE` standard deviations from their channel's mean.

    A mean over positions, summed over channels. Networks that normalise each channel by its own statistics learn to
    govern these by a few pixels that hold most of a channel's energy (Karras et al. 2020, section 2), which show as
    coloured slivers.
    """
    features = features.float()
    variance, mean = torch.var_mean(features, (2, 3), correction=0, keepdim=True)
    beyond = functional.relu((features - mean).abs() * torch.rsqrt(variance + 1e-5) - SPIKE)
    return beyond.square().mean((2, 3)).sum(1)


def layer_weights(objective: Objective) -> tuple[float, ...]:
    """Return w_l of equation (2): the objective's, or 1 over the number of layers for `gatys`, or ones."""
    count = len(objective.style_layers)
    return objective.layer_weights or (1 / count if count and objective.convention == "gatys" else 1.0,) * count


def resolved(network: BackboneNetwork, layers: Sequence[str], role: Literal["content", "style"]) -> tuple[str, ...]:
    """Return the names of layers; see `BackboneNetwork.resolve`."""
    return tuple(network.resolve(layer, role) for layer in layers)
