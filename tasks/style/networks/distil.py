"""A small backbone that sees as a large one does: fewer filters, trained on the large one's features.

Optimisation (version 1) spends its time in the backbone, and VGG-19's weights are a download of half a gigabyte. A
network of the same layers with half the filters takes a quarter of the work, and its file is small enough to come with
the task. Each of its layers learns features from which a matrix makes the large one's (linear embedding: Wang et al.
2020, *Collaborative Distillation for Ultra-Resolution Universal Style Transfer*, section 3.2). The matrices are
dropped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import scipy.linalg
import torch
from torch import Tensor, nn
from torch.nn import functional

from retable.platform.errors import UserError
from retable.platform.store import weights as files
from retable.platform.store.storage import Storage
from retable.tasks.style.config import Vgg19
from retable.tasks.style.files import images
from retable.tasks.style.networks import weights
from retable.tasks.style.networks.backbones import BackboneNetwork, build
from retable.tasks.style.networks.weights import Weights

LAYERS = ("relu1_1", "relu1_2", "relu2_1", "relu2_2", "relu3_1")
"""What is learnt from; the small network ends there."""
FILTERS = (32, 32, 64, 64, 128)
"""Of its convolutions: a half of VGG-19's."""
BATCH, CROP = 8, 112
BEGIN = 2
"""Batches that the first filters are chosen on."""
NOISE = 0.05
"""Of the standard deviation of noise in a crop, at most: an image in the making is no photograph."""
RATE = 1e-3


class Student(nn.Module):
    """The small network in training: convolutions, and the matrices that make the large one's features."""

    def __init__(self, teacher: BackboneNetwork, wanted: Sequence[int], deviation: float) -> None:
        """Draw weights; `deviation` is the standard deviation of what the large one's first layer is given."""
        super().__init__()
        widths = (3, *FILTERS)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(inputs, outputs, 3, padding=1, padding_mode="reflect")
            for inputs, outputs in zip(widths, FILTERS, strict=False)
        )
        self.heads = nn.ModuleList(nn.Conv2d(own, other, 1) for own, other in zip(FILTERS, wanted, strict=True))
        self.prepare, self.deviation = teacher.prepare, deviation

    @torch.no_grad()
    def begin(self, teacher: BackboneNetwork, image: Tensor) -> None:
        """Begin with those of the large one's filters that say most of the others, on features that stand for its own.

        A layer after the first sees what the matrix makes of the layer before, so matrix and kernel are one product.
        """
        wanted = teacher(image, LAYERS)
        theirs = [layer for layer in teacher.features if isinstance(layer, nn.Conv2d)]
        before, offset = torch.eye(3) * self.deviation, torch.zeros(3)
        for index, large in enumerate(theirs[: len(LAYERS)]):
            convolution, head = self.convolutions[index], self.heads[index]
            assert isinstance(convolution, nn.Conv2d) and isinstance(head, nn.Conv2d)
            seen = rows(wanted[LAYERS[index]])
            order = scipy.linalg.qr((seen - seen.mean(0)).numpy(), mode="r", pivoting=True, check_finite=False)[1]
            chosen = torch.from_numpy(np.sort(order[: FILTERS[index]]).astype(np.int64))
            kernel = large.weight[chosen]
            assert large.bias is not None and convolution.bias is not None and head.bias is not None
            convolution.weight.copy_(torch.einsum("ochw, ci -> oihw", kernel, before))
            convolution.bias.copy_(large.bias[chosen] + torch.einsum("ochw, c -> o", kernel, offset))
            solution = least_squares(rows(self.features(image)[index]), seen)
            before, offset = solution[:-1].T.float(), solution[-1].float()
            head.weight.copy_(before[:, :, None, None])
            head.bias.copy_(offset)

    def features(self, image: Tensor) -> list[Tensor]:
        """Give each layer's features."""
        features, found = self.prepare(image) / self.deviation, []
        for name, convolution in zip(LAYERS, self.convolutions, strict=True):
            if name in ("relu2_1", "relu3_1"):
                features = functional.avg_pool2d(features, 2)
            features = torch.relu(convolution(features))
            found.append(features)
        return found

    def forward(self, image: Tensor) -> list[Tensor]:
        """Give what the matrices make of each layer, in order."""
        return [head(features) for head, features in zip(self.heads, self.features(image), strict=True)]


def rows(features: Tensor) -> Tensor:
    """Return the features of each position as a row, in float64."""
    return features.permute(0, 2, 3, 1).flatten(0, 2).double()


def least_squares(own: Tensor, wanted: Tensor) -> Tensor:
    """Return the matrix, its last row a constant, that makes the wanted rows of one's own best."""
    own = torch.cat((own, torch.ones(len(own), 1, dtype=own.dtype)), 1)
    solution: Tensor = torch.linalg.lstsq(own, wanted, driver="gelsd").solution
    return solution


def distil(
    photographs: Sequence[Path], teacher: str, steps: int, storage: Storage, report: Callable[[int, float], None]
) -> bytes:
    """Train a small network after the imported weights of a VGG-19; return its file.

    Args:
        photographs: pictures to learn from, of at least `CROP` pixels each way.
        teacher: SHA-256 of the weights, or `imagenet`.
        steps: batches.
        storage: where imported weights lie.
        report: told the batches done and the share of the large one's features (their variance) that is not explained.

    Raises:
        UserError: where the weights do not reach relu3_1, or no picture is large enough.
    """
    large = build(Vgg19(weights=teacher, normalise=True), 0, storage)
    for layer in LAYERS:
        large.resolve(layer, "style")
    pictures = [pixels for path in photographs if min((pixels := images.read(path).pixels).shape[:2]) >= CROP]
    if not pictures:
        raise UserError(f"no picture is of {CROP} x {CROP} pixels or more")
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    first = torch.cat([crops(pictures, rng) for _ in range(BEGIN)])
    with torch.no_grad():
        seen = large(first, LAYERS)
    scales = [seen[layer].var() for layer in LAYERS]
    student = Student(large, [seen[layer].shape[1] for layer in LAYERS], float(large.prepare(first).std()))
    student.begin(large, first)
    optimizer = torch.optim.Adam(student.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(1, steps + 1):
        batch = crops(pictures, rng)
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                wanted = large(batch, LAYERS)
            made = student(batch)
        parts = [
            functional.mse_loss(own.float(), wanted[layer].float()) / scale
            for own, layer, scale in zip(made, LAYERS, scales, strict=True)
        ]
        loss = torch.stack(parts).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        report(step, loss.item())
    return pack(student, large)


@torch.no_grad()
def unexplained(small: BackboneNetwork, large: BackboneNetwork, batch: Tensor) -> list[float]:
    """Return which share of the variance of the large one's features the best matrix on the small one's leaves.

    One number for each of `LAYERS`; least squares over all positions of a batch, with a constant.
    """
    found = []
    own, other = small(batch, LAYERS), large(batch, LAYERS)
    for layer in LAYERS:
        x, y = rows(own[layer]), rows(other[layer])
        solution = least_squares(x, y)
        left = y - x @ solution[:-1] - solution[-1]
        found.append(float(left.square().sum() / (y - y.mean(0)).square().sum()))
    return found


def crops(pictures: Sequence[images.Array], rng: np.random.Generator) -> Tensor:
    """Return random squares, (batch, 3, crop, crop) in [0, 1], with noise of random strength."""
    made = []
    for index in rng.integers(len(pictures), size=BATCH):
        pixels = pictures[index]
        top, left = (int(rng.integers(length - CROP + 1)) for length in pixels.shape[:2])
        made.append(pixels[top : top + CROP, left : left + CROP])
    batch = torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2).float() / 255
    strength = torch.from_numpy(rng.uniform(0, NOISE, BATCH) * rng.integers(2, size=BATCH)).float()
    noise = torch.from_numpy(rng.standard_normal(batch.shape, np.float32))
    return (batch + strength[:, None, None, None] * noise).clamp_(0, 1)


def pack(student: Student, teacher: BackboneNetwork) -> bytes:
    """Return the file of a small network, in 16 bits, as imported weights are kept."""
    places = [f"features.{n[:-7]}" for n, _ in weights.architecture("vgg19").named_parameters() if n.endswith("weight")]
    tensors: dict[str, Tensor] = {}
    for index, (place, layer) in enumerate(zip(places, student.convolutions, strict=False)):
        assert isinstance(layer, nn.Conv2d) and layer.bias is not None
        weight = layer.weight.detach() / (1.0 if index else student.deviation)
        tensors |= {f"{place}.weight": weight.half(), f"{place}.bias": layer.bias.detach().half()}
    mean, std = (tuple(values.flatten().tolist()) for values in (teacher.mean, teacher.std))
    found = Weights("vgg19", {}, mean, std, "reflect")
    fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(found) if field.name != "tensors"}
    return files.sealed(tensors, "backbone", fields)
