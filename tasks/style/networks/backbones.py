"""Backbones: trained classifiers' convolutional parts, whose features say what an image shows and in which style.

VGG-16, VGG-19 (Simonyan and Zisserman 2015), AlexNet (Krizhevsky 2014) and SqueezeNet 1.0 (Iandola et al. 2016), with
the two changes of Gatys et al. 2016 that the paper makes in section IV: average pooling in place of max pooling, and
filters rescaled so that the mean activation of each is one.
"""

from __future__ import annotations

import re
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.tasks.style.config import Alexnet, Backbone, Squeezenet, Vgg16, Vgg19
from retable.tasks.style.files.assets import calibration
from retable.tasks.style.networks import weights, winograd

NETWORKS = {Vgg16: "vgg16", Vgg19: "vgg19", Alexnet: "alexnet", Squeezenet: "squeezenet1_0"}
"""torchvision's names."""
RARE = 0.05
"""Mean activations are taken as at least this share of their layer's median: a filter that hardly ever fires would
otherwise be blown up and rule the loss."""
SQUEEZENET_STAGES = {1: "relu1", 2: "fire2", 3: "fire3", 4: "fire6", 5: "fire9"}

Image = Float[Tensor, "batch 3 height width"]
Features = Float[Tensor, "batch filter row column"]


class BackboneNetwork(nn.Module):
    """A frozen network that gives the features of its layers.

    `layers` are their names, in order: VGG has `conv1_1`, `relu1_1`, ..., `pool1`, `conv2_1`, ...; AlexNet `conv1`,
    `relu1`, `pool1`, ...; SqueezeNet `conv1`, `relu1`, `pool1`, `fire2`, ... (after both expanding ReLUs), a pool named
    after the layer before it.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: str, features: nn.Sequential, mean: weights.Colour, std: weights.Colour) -> None:
        super().__init__()
        self.network, self.features = network, features
        self.layers = names(network, features)
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1))
        self._frozen: dict[nn.Module, winograd.Frozen] = {}
        self.eval()

    def forward(self, image: Image, layers: tuple[str, ...]) -> dict[str, Features]:
        """Return the features of some layers, as `resolve` names them, of RGB images in [0, 1].

        Nothing deeper than the deepest of them is computed.

        Raises:
            UserError: where the image is too small to reach the layer.
        """
        depth = max((self.layers.index(layer) + 1 for layer in layers), default=0)
        outputs: dict[str, Tensor] = {}
        features, last = self.prepare(image), ""
        for name, module in zip(self.layers[:depth], self.features, strict=False):
            if min(features.shape[-2:]) < smallest(module):
                height, width = image.shape[-2:]
                raise UserError(f"{height} x {width} pixels are too few for {name}; take a larger size")
            if isinstance(module, nn.ReLU) and last.startswith("conv") and last not in outputs:
                features = features.relu_()  # of a convolution's output, which nothing else needs
            else:
                features = self._apply_layer(module, features)
            last = name
            if name in layers:
                outputs[name] = features
        return {layer: outputs[layer] for layer in layers}

    def prepare(self, image: Image) -> Image:
        """Normalize an image for the first convolution; on a CPU channels last in memory, which is faster."""
        prepared: Tensor = (image - self.mean) / self.std
        return prepared.contiguous(memory_format=torch.channels_last) if image.device.type == "cpu" else prepared

    def _apply_layer(self, module: nn.Module, features: Features) -> Features:
        """Apply a layer, its convolution by Winograd's algorithm where that is faster."""
        if not winograd.suits(module, features):
            result: Tensor = module(features)
            return result
        if module not in self._frozen:
            self._frozen[module] = winograd.Frozen(module)
        return self._frozen[module](features)

    def resolve(self, layer: str, role: Literal["content", "style"]) -> str:
        """Return the layer that `stage1` .. `stage5` stands for, or a layer's own name unchanged.

        VGG: `relu{k}_1` for style (Gatys et al. 2016); `relu{k}_2` for content, or `relu{k}_1` where the weights end
        there: stage 4 is Gatys' conv4_2, after its ReLU as in his code. AlexNet: `relu{k}`. SqueezeNet: `relu1`,
        `fire2`, `fire3` (content: `fire4`), `fire6` and `fire9`.

        Raises:
            UserError: where the network has no such layer, or its weights do not reach it.
        """
        stage = re.fullmatch(r"stage([1-5])", layer)
        name = self._stage(int(stage[1]), role) if stage else layer
        if name not in self.layers:
            choices = ", ".join(name for name in self.layers if not name.startswith(("conv", "pool")))
            meant = "" if name == layer else f" ({name})"
            raise UserError(
                f"{role}_layers: {layer}{meant} is not among the layers of these weights of {self.network}: {choices}; "
                "or conv.., pool.. of the same numbers, and stage1 .. stage5"
            )
        return name

    def _stage(self, stage: int, role: Literal["content", "style"]) -> str:
        if self.network == "alexnet":
            return f"relu{stage}"
        if self.network == "squeezenet1_0":
            return "fire4" if (stage, role) == (3, "content") else SQUEEZENET_STAGES[stage]
        second = f"relu{stage}_2"
        return second if role == "content" and second in self.layers else f"relu{stage}_1"


def build(config: Backbone, seed: int, storage: Storage | None) -> BackboneNetwork:
    """Build the config's network on the CPU, frozen. `seed` matters to random weights alone.

    Raises:
        UserError: where its weights are not there, cannot be downloaded, or are another network's.
    """
    network = NETWORKS[type(config)]
    if config.weights == "random":
        loaded = weights.random(network, seed)
    elif config.weights == "imagenet":
        loaded = weights.imagenet(network)
    elif config.weights == "small":
        loaded = weights.small(network)
    elif re.fullmatch("[0-9a-f]{64}", config.weights):
        loaded = weights.stored(config.weights, storage)
    else:
        what = "imagenet, small, random, or the SHA-256 that `retable style weights FILE` prints"
        raise UserError(f"backbone.weights {config.weights!r} is none of {what}")
    if loaded.network != network:
        raise UserError(f"backbone.weights {config.weights[:12]} are of {loaded.network}, not of {network}")
    made = BackboneNetwork(network, weights.assemble(loaded, config.pooling), loaded.mean, loaded.std)
    if config.normalise:
        normalise(made, calibration())
    return made


def names(network: str, features: nn.Sequential) -> tuple[str, ...]:
    """Name the layers in the field's way: by stage and convolution for VGG, else by convolution or fire module."""
    from torchvision.models.squeezenet import Fire  # not above: it takes 2 s, and a trained network needs it not

    layer_names, stage, number = [], 1, 0
    for module in features:
        kind = {nn.Conv2d: "conv", nn.ReLU: "relu", Fire: "fire"}.get(type(module), "pool")
        number += kind in ("conv", "fire")
        if not network.startswith("vgg"):
            layer_names.append(f"{kind}{number}")
        elif kind == "pool":
            layer_names.append(f"pool{stage}")
            stage, number = stage + 1, 0
        else:
            layer_names.append(f"{kind}{stage}_{number}")
    return tuple(layer_names)


def smallest(module: nn.Module) -> int:
    """Return the smallest height and width that a layer accepts."""
    match module:
        case nn.Conv2d(padding_mode="reflect"):
            return int(module.padding[0]) + 1
        case nn.Conv2d():
            return module.kernel_size[0] - 2 * int(module.padding[0])
        case nn.MaxPool2d() | nn.AvgPool2d():
            kernel, stride = int(module.kernel_size), int(module.stride)  # type: ignore[arg-type]
            return kernel - stride + 1 if module.ceil_mode else kernel
    return 1


@torch.no_grad()
def normalise(network: BackboneNetwork, images: Image) -> None:
    """Rescale the network in place so that each filter's mean activation over images and positions is one.

    Gatys et al. 2016, section 2; the paper's section IV. Weights and bias of filter c are divided by its mean
    activation m_c after the ReLU, and the next convolutions' weights for channel c multiplied by it. As scaling
    commutes with ReLU and both poolings, every feature becomes F_c / m_c and nothing else changes. m_c is taken with
    the network's own pooling; it is at least `RARE` times the median over its layer's filters that fire at all, and one
    for the others.
    """
    inputs, scale = network.prepare(images), images.new_ones(3)
    for module in network.features:
        inputs, scale = _normalised(module, inputs, scale)


def _normalised(module: nn.Module, inputs: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Rescale a layer whose inputs were divided by `scale`; give its outputs and what they were divided by."""
    from torchvision.models.squeezenet import Fire

    match module:
        case nn.Conv2d(bias=nn.Parameter() as bias):
            module.weight.mul_(scale.view(1, -1, 1, 1))
            outputs = module(inputs)
            means = outputs.relu().mean((0, 2, 3), dtype=torch.float64).float()
            fires = means > 0
            means = means.clamp(min=RARE * float(means[fires].median())) if fires.any() else means
            means = means.where(fires, 1)
            module.weight.div_(means.view(-1, 1, 1, 1))
            bias.div_(means)
            return outputs / means.view(-1, 1, 1), means
        case Fire():
            squeezed, scale = _normalised(module.squeeze, inputs, scale)
            squeezed = squeezed.relu()
            narrow, scale_1 = _normalised(module.expand1x1, squeezed, scale)
            wide, scale_3 = _normalised(module.expand3x3, squeezed, scale)
            return torch.cat((narrow, wide), 1).relu(), torch.cat((scale_1, scale_3))
    return module(inputs), scale
