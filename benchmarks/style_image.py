"""Seconds per evaluation of version 1, against the loop of PyTorch's tutorial *Neural Transfer Using PyTorch*.

The reference is written as the tutorial is: a chain of VGG-19's modules, with max pooling, into which layers are put
that compute content and style losses as the image passes; L-BFGS with its defaults (a history of 100), and a closure
that clamps the image. Layers (the paper's), weights of the losses, convention and pictures are the same in both;
VGG-19's weights are random, its filters rescaled to mean activations of one, without which L-BFGS jumps about. Ours
pools by the mean, as the paper does; `max` is timed too, with which both minimise the same function: for that one, also
how much sooner it reaches the lowest loss that the tutorial's loop comes to, at full size throughout and from coarse to
fine.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from retable.tasks.style.apply.optimise import ImageOptimisation
from retable.tasks.style.config import Config, Lbfgs, Objective, OptimiseImage, Vgg19
from retable.tasks.style.files.assets import paintings, photographs
from retable.tasks.style.files.images import read, square, to_tensor
from retable.tasks.style.networks.backbones import BackboneNetwork, build

SIZE, EVALUATIONS, BURST = 256, 40, 5
"""Side of the image; evaluations of each loop, by turns of a few."""
LENGTHS = (20, 40, 60, 80)
"""Evaluations of runs from coarse to fine, half of them at half the size."""
CONTENT, STYLE = "relu4_2", ("relu1_1", "relu2_1", "relu3_1", "relu4_1", "relu5_1")
CONTENT_WEIGHT, STYLE_WEIGHT = 1.0, 1e6
"""The tutorial's."""


def gram_matrix(x: Tensor) -> Tensor:
    """Compute the tutorial's Gram matrix, of one image."""
    a, b, c, d = x.size()
    features = x.view(a * b, c * d)
    return torch.mm(features, features.t()).div(a * b * c * d)


class ContentLoss(nn.Module):
    """Keeps the content loss of what passes through."""

    def __init__(self, target: Tensor) -> None:
        super().__init__()
        self.target = target.detach()

    def forward(self, x: Tensor) -> Tensor:
        """Compute the loss; give the input on."""
        self.loss = functional.mse_loss(x, self.target)
        return x


class StyleLoss(nn.Module):
    """Keeps the style loss of what passes through."""

    def __init__(self, target: Tensor) -> None:
        super().__init__()
        self.target = gram_matrix(target).detach()

    def forward(self, x: Tensor) -> Tensor:
        """Compute the loss; give the input on."""
        self.loss = functional.mse_loss(gram_matrix(x), self.target)
        return x


class Normalization(nn.Module):
    """Standardises colours."""

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.mean, self.std = mean, std

    def forward(self, x: Tensor) -> Tensor:
        """Standardise."""
        return (x - self.mean) / self.std


def model_and_losses(network: BackboneNetwork, style: Tensor, content: Tensor) -> tuple[nn.Sequential, Any, Any]:
    """Put loss layers into the chain of modules, behind the layers named above, and cut off what follows the last."""
    model = nn.Sequential(Normalization(network.mean, network.std))
    contents, styles = [], []
    for name, layer in zip(network.layers, network.features, strict=True):
        pool = isinstance(layer, nn.AvgPool2d | nn.MaxPool2d)
        model.add_module(name, nn.MaxPool2d(2) if pool else layer)
        if name == CONTENT:
            contents.append(ContentLoss(model(content)))
            model.add_module(f"content_loss_{name}", contents[-1])
        if name in STYLE:
            styles.append(StyleLoss(model(style)))
            model.add_module(f"style_loss_{name}", styles[-1])
        if len(styles) == len(STYLE):
            break
    return model.eval().requires_grad_(False), contents, styles


class Tutorial:
    """The tutorial's loop, with the time and the loss of each evaluation."""

    def __init__(self, network: BackboneNetwork, content: Tensor, style: Tensor) -> None:
        self.model, self.contents, self.styles = model_and_losses(network, style, content)
        self.image = content.clone().requires_grad_()
        self.optimizer = torch.optim.LBFGS([self.image])
        self.losses: list[float] = []

    def run(self, evaluations: int) -> None:
        """Go on for some evaluations; the tutorial lets L-BFGS take its 20 a call, and its history goes on as here."""
        self.optimizer.param_groups[0].update(max_iter=evaluations, max_eval=evaluations * 5 // 4)
        self.optimizer.step(self.closure)  # type: ignore[no-untyped-call]

    def closure(self) -> float:
        """Evaluate loss and gradient."""
        with torch.no_grad():
            self.image.clamp_(0, 1)
        self.optimizer.zero_grad()
        self.model(self.image)
        style_score = sum(module.loss for module in self.styles) * STYLE_WEIGHT
        content_score = sum(module.loss for module in self.contents) * CONTENT_WEIGHT
        loss = style_score + content_score
        loss.backward()
        self.losses.append(style_score.item() + content_score.item())
        return self.losses[-1]


def ours(
    network: BackboneNetwork, pictures: tuple[Any, Any], scales: tuple[int, ...] = (), evaluations: int | None = None
) -> ImageOptimisation:
    """Return version 1 with the tutorial's objective, perhaps begun at smaller sizes."""
    objective = Objective(
        content_layers=(CONTENT,),
        style_layers=STYLE,
        convention="mean",
        content_weight=CONTENT_WEIGHT,
        style_weight=STYLE_WEIGHT,
    )
    method = OptimiseImage(size=SIZE, scales=scales, objective=objective, optimizer=Lbfgs(line_search="none"))
    config = Config(method=method, epochs=1, steps=evaluations or EVALUATIONS)
    return ImageOptimisation(config, pictures[0], [pictures[1]], network, "cpu")


def vgg(pooling: Literal["average", "max"]) -> BackboneNetwork:
    """Return VGG-19 with random weights."""
    return build(Vgg19(weights="random", pooling=pooling), 0, None)


def steps(job: ImageOptimisation) -> None:
    """Do what `Tutorial.run` does for as many evaluations."""
    for _ in range(BURST):
        job.step()


def clocked(call: Callable[[], object]) -> tuple[float, float]:
    """Return the clock's and the processor's seconds of a call."""
    clock, processor = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - clock, time.process_time() - processor


def measure() -> dict[str, Any]:
    """Run the loops by turns, for as many evaluations."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    pictures = (
        square(read(photographs()["mountain"]).pixels, SIZE),
        square(read(paintings()["great_wave"]).pixels, SIZE),
    )
    tutorial = Tutorial(vgg("max"), *(to_tensor(picture) for picture in pictures))
    jobs = {f"ours, {pooling}": ours(vgg(pooling), pictures) for pooling in ("average", "max")}

    calls: dict[str, Callable[[], object]] = {"tutorial": lambda: tutorial.run(BURST)}
    calls |= {name: partial(steps, job) for name, job in jobs.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(EVALUATIONS // BURST):
        for name, call in calls.items():
            times[name].append(clocked(call))
    assert len(tutorial.losses) == EVALUATIONS  # L-BFGS did not stop early
    clock = {name: statistics.median(seconds for seconds, _ in values) / BURST for name, values in times.items()}
    processor = {name: statistics.median(seconds for _, seconds in values) / BURST for name, values in times.items()}
    results: dict[str, Any] = {"size": SIZE, "threads": torch.get_num_threads(), "evaluations": EVALUATIONS}
    for name in calls:
        results[f"{name}: s per evaluation"] = clock[name]
        results[f"{name}: times as fast"] = clock["tutorial"] / clock[name]
        results[f"{name}: times as fast, processor's time"] = processor["tutorial"] / processor[name]
    results |= equal_loss(tutorial, jobs["ours, max"], clock)
    return results | coarse_to_fine(tutorial, vgg("max"), pictures, clock["tutorial"])


def coarse_to_fine(
    tutorial: Tutorial, network: BackboneNetwork, pictures: tuple[Any, Any], clock: float
) -> dict[str, float]:
    """Return when ours, begun at half the size, reaches the tutorial's lowest loss; losses are those at full size.

    Of runs of several lengths, half of each at either size, the one that is there soonest counts; seconds are its own,
    from the first evaluation at the small size to the one that reaches the goal.
    """
    goal = min(tutorial.losses)
    needed = tutorial.losses.index(goal) + 1
    reached, soonest = float("inf"), float("inf")
    for length in LENGTHS:
        evaluations, spent = seconds_to(goal, ours(network, pictures, (SIZE // 2,), length))
        if spent < soonest:
            reached, soonest = evaluations, spent
    return {
        "ours, max, coarse to fine: evaluations to it": reached,
        "ours, max, coarse to fine: s to it": soonest,
        "ours, max, coarse to fine: times as fast to equal loss": needed * clock / soonest,
    }


def seconds_to(goal: float, job: ImageOptimisation) -> tuple[float, float]:
    """Return the evaluations and seconds that a run takes to a loss at its full size; infinite where it ends before."""
    start = time.perf_counter()
    for number in range(1, job.evaluations + 1):
        losses = job.step()
        if job.stage == len(job.sizes) - 1 and float(losses.total) <= goal:
            return float(number), time.perf_counter() - start
    return float("inf"), float("inf")


def equal_loss(tutorial: Tutorial, job: ImageOptimisation, clock: dict[str, float]) -> dict[str, float]:
    """Return when ours reaches the lowest loss of the tutorial's loop; ours may take twice as many evaluations."""
    goal = min(tutorial.losses)
    needed = tutorial.losses.index(goal) + 1
    while job.losses[:, 0].min() > goal and len(job.losses) < 2 * EVALUATIONS:
        job.step()
    losses = job.losses[:, 0].numpy()
    reached = int(np.argmax(losses <= goal)) + 1 if (losses <= goal).any() else float("inf")
    return {
        "loss of the first evaluation, ours / tutorial": float(losses[0]) / tutorial.losses[0],
        "tutorial's lowest loss": goal,
        "tutorial: evaluations to it": needed,
        "ours, max: evaluations to it": reached,
        "ours, max: times as fast to equal loss": needed * clock["tutorial"] / (reached * clock["ours, max"]),
    }
