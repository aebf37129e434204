"""A small backbone that sees as a trained one does: half the filters, trained on the other one's features.

Optimisation (version 1) spends its time in the backbone, and VGG-19's weights are a download of half a gigabyte. A
network of the same layers with half the filters takes a quarter of the work, and its file is small enough to come with
the task. Each of its layers learns features from which a matrix makes the teacher's (linear embedding: Wang et al.
2020, *Collaborative Distillation for Ultra-Resolution Universal Style Transfer*, section 3.2). The matrices are
dropped.

The small VGG-19 learns from VGG-19. The small AlexNet learns from SqueezeNet 1.0, which classifies as well as AlexNet
does (Iandola et al. 2016), at the layers of the same resolution: features of a trained network in AlexNet's layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
import torch
from torch import Tensor, nn
from torch.nn import functional

from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.platform.store import weights as files
from retable.platform.store.storage import Storage
from retable.platform.train.worker import autocast
from retable.tasks.style.config import Squeezenet, Vgg19
from retable.tasks.style.data import random_crop
from retable.tasks.style.files import images
from retable.tasks.style.networks import weights
from retable.tasks.style.networks.backbones import BackboneNetwork, build

LAYERS = ("relu1_1", "relu1_2", "relu2_1", "relu2_2", "relu3_1")
"""Of the small VGG-19."""
RECIPES: dict[str, tuple[type[Vgg19 | Squeezenet], Mapping[str, str]]] = {
    "vgg19": (Vgg19, dict(zip(LAYERS, LAYERS, strict=True))),
    "alexnet": (Squeezenet, {"relu1": "pool1", "relu2": "fire6", "relu3": "fire9"}),
}
"""torchvision's name of the small network -> how it is made."""
BATCH, CROP = 8, 112
BEGIN = 2
"""Batches that the first filters are chosen on."""
NOISE = 0.05
"""Of the standard deviation of noise in a crop, at most: an image in the making is no photograph."""
RATE = 1e-3


class Student(nn.Module):
    """The small network in training: its layers, and the matrices that make the teacher's features."""

    def __init__(self, network: str, teacher: BackboneNetwork, wanted: Sequence[int], deviation: float) -> None:
        """Draw weights; `deviation` is the standard deviation of what the first layer is given."""
        super().__init__()
        self.layers, inputs = nn.ModuleList(), 3
        for layer in weights.architecture(network):
            if isinstance(layer, nn.Conv2d):
                if len(self.convolutions()) == len(wanted):
                    break
                like: dict[str, Any] = {name: getattr(layer, name) for name in ("kernel_size", "stride", "padding")}
                self.layers.append(nn.Conv2d(inputs, layer.out_channels // 2, **like, padding_mode="reflect"))
                inputs = layer.out_channels // 2
            elif isinstance(layer, nn.MaxPool2d):
                self.layers.append(nn.AvgPool2d(layer.kernel_size, layer.stride))
            else:
                self.layers.append(nn.ReLU())
        filters = [layer.out_channels for layer in self.convolutions()]
        self.heads = nn.ModuleList(nn.Conv2d(small, other, 1) for small, other in zip(filters, wanted, strict=True))
        self.prepare, self.deviation = teacher.prepare, deviation

    def convolutions(self) -> list[nn.Conv2d]:
        """Return the convolutions in order."""
        return [layer for layer in self.layers if isinstance(layer, nn.Conv2d)]

    @torch.no_grad()
    def begin(self, teacher: BackboneNetwork, image: Tensor) -> None:
        """Start with the filters of a teacher of the same layers that say most of the others, on features like its own.

        A layer after the first sees what the matrix makes of the layer before, so matrix and kernel are one product.
        """
        wanted = teacher(image, LAYERS)
        theirs = [layer for layer in teacher.features if isinstance(layer, nn.Conv2d)]
        before, offset = torch.eye(3) * self.deviation, torch.zeros(3)
        for index, (convolution, large) in enumerate(zip(self.convolutions(), theirs, strict=False)):
            head = self.heads[index]
            assert isinstance(head, nn.Conv2d)
            seen = rows(wanted[LAYERS[index]])
            order = scipy.linalg.qr((seen - seen.mean(0)).numpy(), mode="r", pivoting=True, check_finite=False)[1]
            chosen = torch.from_numpy(np.sort(order[: convolution.out_channels]).astype(np.int64))
            kernel = large.weight[chosen]
            assert large.bias is not None and convolution.bias is not None and head.bias is not None
            convolution.weight.copy_(torch.einsum("ochw, ci -> oihw", kernel, before))
            convolution.bias.copy_(large.bias[chosen] + torch.einsum("ochw, c -> o", kernel, offset))
            solution = least_squares(rows(self.features(image)[index]), seen)
            before, offset = solution[:-1].T.float(), solution[-1].float()
            head.weight.copy_(before[:, :, None, None])
            head.bias.copy_(offset)

    def features(self, image: Tensor) -> list[Tensor]:
        """Return the features of each convolution after its ReLU."""
        features, outputs = self.prepare(image) / self.deviation, []
        for layer in self.layers:
            features = layer(features)
            if isinstance(layer, nn.ReLU):
                outputs.append(features)
        return outputs

    def forward(self, image: Tensor) -> list[Tensor]:
        """Return the teacher's features that the matrices predict from each layer, in order."""
        return [head(features) for head, features in zip(self.heads, self.features(image), strict=True)]


def aligned(small: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Cut both to the rows and columns that both have: networks differ by one at their borders."""
    height, width = (min(one, other) for one, other in zip(small.shape[2:], wanted.shape[2:], strict=True))
    return small[:, :, :height, :width], wanted[:, :, :height, :width]


def rows(features: Tensor) -> Tensor:
    """Return the features of each position as a row, in float64."""
    return features.permute(0, 2, 3, 1).flatten(0, 2).double()


def least_squares(inputs: Tensor, wanted: Tensor) -> Tensor:
    """Return the matrix, its last row a constant, that makes the wanted rows of one's own best."""
    inputs = torch.cat((inputs, torch.ones(len(inputs), 1, dtype=inputs.dtype)), 1)
    solution: Tensor = torch.linalg.lstsq(inputs, wanted, driver="gelsd").solution
    return solution


def distil(
    photographs: Sequence[Path],
    teacher: str,
    steps: int,
    storage: Storage,
    report: Callable[[int, float], None],
    network: str = "vgg19",
) -> bytes:
    """Train a small network after imported weights; return its file.

    Args:
        photographs: pictures to learn from, of at least `CROP` pixels each way.
        teacher: SHA-256 of the weights, or `imagenet`; of which network, `RECIPES` says.
        steps: batches.
        storage: where imported weights lie.
        report: told the batches done and the share of the teacher's features (their variance) that is not explained.
        network: what is made, a key of `RECIPES`.

    Raises:
        UserError: where the weights are another network's or end too early, or no picture is large enough.
    """
    kind, learnt = RECIPES[network]
    large = build(kind(weights=teacher, normalise=True), 0, storage)
    layers = tuple(large.resolve(layer, "style") for layer in learnt.values())
    pictures = [pixels for path in photographs if min((pixels := images.read(path).pixels).shape[:2]) >= CROP]
    if not pictures:
        raise UserError(f"no picture is of {CROP} x {CROP} pixels or more")
    rng = np.random.default_rng(0)  # the only stream of NumPy's here: pictures and their crops
    torch.manual_seed(0)
    first = torch.cat([crops(pictures, rng) for _ in range(BEGIN)])
    with torch.no_grad():
        seen = large(first, layers)
    scales = [seen[layer].var() for layer in layers]
    student = Student(network, large, [seen[layer].shape[1] for layer in layers], float(large.prepare(first).std()))
    if large.network == network:
        student.begin(large, first)
    optimizer = torch.optim.Adam(student.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(1, steps + 1):
        batch = crops(pictures, rng)
        with autocast("cpu", "bfloat16"):
            with torch.no_grad():
                wanted = large(batch, layers)
            made = student(batch)
        pairs = [aligned(small.float(), wanted[layer].float()) for small, layer in zip(made, layers, strict=True)]
        parts = [functional.mse_loss(*pair) / scale for pair, scale in zip(pairs, scales, strict=True)]
        loss = torch.stack(parts).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        report(step, loss.item())
    return pack(network, student, large)


def crops(pictures: Sequence[Array], rng: np.random.Generator) -> Tensor:
    """Return random squares, (batch, 3, crop, crop) in [0, 1], with noise of random strength."""
    made = [random_crop(pictures[index], CROP, rng) for index in rng.integers(len(pictures), size=BATCH)]
    batch = torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2).float() / 255
    strength = torch.from_numpy(rng.uniform(0, NOISE, BATCH) * rng.integers(2, size=BATCH)).float()
    noise = torch.from_numpy(rng.standard_normal(batch.shape, np.float32))
    return (batch + strength[:, None, None, None] * noise).clamp_(0, 1)


def pack(network: str, student: Student, teacher: BackboneNetwork) -> bytes:
    """Return the file of a small network, in 16 bits, as imported weights are kept."""
    places = [f"features.{n[:-7]}" for n, _ in weights.architecture(network).named_parameters() if n.endswith("weight")]
    tensors: dict[str, Tensor] = {}
    for index, (name, layer) in enumerate(zip(places, student.convolutions(), strict=False)):
        assert layer.bias is not None
        weight = layer.weight.detach() / (1.0 if index else student.deviation)
        tensors |= {f"{name}.weight": weight.half(), f"{name}.bias": layer.bias.detach().half()}
    mean, std = (tuple(values.flatten().tolist()) for values in (teacher.mean, teacher.std))
    fields = {"network": network, "mean": mean, "std": std, "padding": "reflect"}
    return files.sealed(tensors, "backbone", fields)
