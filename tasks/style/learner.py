"""Training of a style: version 2's network, or version 1's single image. Runs with plain PyTorch."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retable.platform.config import flatten
from retable.platform.errors import UserError
from retable.platform.runs import sample_path
from retable.platform.worker import Worker
from retable.tasks.style import images, losses
from retable.tasks.style.backbones import BackboneNetwork, build
from retable.tasks.style.config import Config, OptimiseImage, TrainNetwork
from retable.tasks.style.optimise import ImageOptimisation
from retable.tasks.style.transformer import untrained

VALIDATION = 4
"""Test photographs on which the losses are looked at with every checkpoint."""


def build_learner(configs: Sequence[Config], data: Any, worker: Worker) -> ImageLearner | NetworkLearner:
    """Return the learner of a config's version."""
    (config,) = configs
    return (ImageLearner if isinstance(config.method, OptimiseImage) else NetworkLearner)(config, data, worker)


class ImageLearner:
    """Version 1: a step is one evaluation of the losses, and the weights are the image and its loss history."""

    def __init__(self, config: Config, data: Any, worker: Worker) -> None:
        assert isinstance(config.method, OptimiseImage)
        network = build(config.method.backbone, config.seed, data.storage).to(worker.device)
        paintings = [data.painting(name) for name in config.style]
        content = data.photograph(config.method.content)
        self.optimisation = ImageOptimisation(config, content, paintings, network, worker.device)
        self.worker = worker

    def step(self, batch: None) -> dict[str, Tensor]:
        """Evaluate the losses once and move the image; return `loss`, `content_loss` and `style_loss`, shape (1,)."""
        found = self.optimisation.step()
        return {"loss": found.total, "content_loss": found.content, "style_loss": found.style}

    def validate(self) -> dict[str, float]:
        """Return the losses of the last evaluation that a line search did not reject, and keep a picture."""
        total, content, style = self.optimisation.loss.tolist()
        picture = images.encode_png(images.to_pixels(self.optimisation.image))
        self.worker.save(sample_path(len(self.optimisation.losses)), picture)
        return {"final_loss": total, "final_content_loss": content, "final_style_loss": style}

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the image and its losses, and what the optimiser knows."""
        weights = {"image": self.optimisation.image, "losses": self.optimisation.losses}
        return [{"weights": weights, "optimisation": self.optimisation.state_dict()}]

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Continue from such a state."""
        self.optimisation.load_state_dict(states[0]["optimisation"])


class NetworkLearner:
    """Version 2: the transformation network learns to give any photograph the paintings' style (section IV.B)."""

    def __init__(self, config: Config, data: Any, worker: Worker) -> None:
        assert isinstance(config.method, TrainNetwork)
        self.config, self.method, self.data, self.worker = config, config.method, data, worker
        torch.manual_seed(config.seed)
        self.network = untrained(self.method)
        self.forward: Any = worker.wrap(self.network)
        if config.compile:
            self.forward = torch.compile(self.forward)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=self.method.learning_rate)
        self.backbone: BackboneNetwork = build(self.method.backbone, config.seed, data.storage).to(worker.device)
        paintings = [images.fit(data.painting(name), self.method.style_size) for name in config.style]
        on_device = [images.to_tensor(pixels).to(worker.device) for pixels in paintings]
        self.targets = losses.targets(self.backbone, self.method.objective, None, on_device, config.blend)
        self.last: Tensor | None = None

    def step(self, batch: Tensor) -> dict[str, Tensor]:
        """Update once on this worker's share of a batch, uint8 (batch, 3, size, size).

        Returns `loss`, `content_loss` and `style_loss`, shape (1,): means over the images.
        """
        self.last = batch
        self.network.train()
        self.optimizer.zero_grad(set_to_none=True)
        found = self._losses(batch)
        found.total.mean().backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return {
            "loss": found.total.detach().mean(0, keepdim=True),
            "content_loss": found.content.detach().mean(0, keepdim=True),
            "style_loss": found.style.detach().mean(0, keepdim=True),
        }

    def _losses(self, batch: Tensor) -> losses.Losses:
        """Return the losses of each image (equations 5 and 6), the content's target being the image itself."""
        photographs = batch.to(self.worker.device).float() / 255
        enabled = self.config.precision == "bfloat16"
        with torch.autocast(self.worker.device, torch.bfloat16, enabled=enabled):
            stylised = self.forward(photographs)
            found = losses.with_content(self.targets, self.backbone, self.method.objective, photographs)
            return losses.loss(self.backbone, self.method.objective, found, stylised.float())

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Return the losses on some test photographs; rank 0 keeps a picture of a training image and its result."""
        self.network.eval()
        if self.worker.rank == 0 and self.last is not None:
            self.worker.save(sample_path(self._steps()), self._side_by_side(self.last))
        size = self.method.size
        squares = [images.square(self.data.photograph(name), size) for name in self.data.tests[:VALIDATION]]
        batch = torch.from_numpy(np.stack(squares)).permute(0, 3, 1, 2)
        found = self._losses(batch)
        named = {"loss": found.total, "content_loss": found.content, "style_loss": found.style}
        return {f"validation_{name}": float(value.mean()) for name, value in named.items()}

    def _steps(self) -> int:
        """Return the updates so far, which the optimiser counts."""
        return int(self.optimizer.state[next(self.network.parameters())]["step"])

    def _side_by_side(self, batch: Tensor) -> bytes:
        """Return, as PNG, an image of the batch chosen at random (by the step) beside its stylised version."""
        chosen = int(np.random.default_rng([self.config.seed, self._steps()]).integers(len(batch)))
        photograph = batch[chosen : chosen + 1].to(self.worker.device).float() / 255
        stylised = images.to_pixels(self.network(photograph).cpu())
        return images.encode_png(np.concatenate([images.to_pixels(photograph.cpu()), stylised], axis=1))

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the network's weights and the optimiser's state."""
        return [{"weights": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}]

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Continue from such a state."""
        self.network.load_state_dict(states[0]["weights"])
        self.optimizer.load_state_dict(states[0]["optimizer"])

    def load_weights(self, weights: Sequence[Mapping[str, Tensor]]) -> None:
        """Start from a network's weights.

        Raises:
            UserError: where it has another shape.
        """
        try:
            self.network.load_state_dict(weights[0])
        except RuntimeError as error:
            raise UserError("init: a network of another shape (method.filters, method.upsampling)") from error


def validate(learner: ImageLearner | NetworkLearner, data: Any) -> list[dict[str, float]]:
    """Return the cheap metrics that are taken with every checkpoint, and keep a sample picture."""
    return [learner.validate()]


def keep(config: Config) -> Sequence[int]:
    """Return the epochs whose weights stay, so that checkpoints can be compared: version 2's, every one."""
    return range(1, config.epochs + 1) if isinstance(config.method, TrainNetwork) else ()


def group(config: Config) -> Hashable:
    """Return a key of its own for each config: they are not trained as stacks."""
    return tuple(flatten(config).items())


MULTIPLICATIONS = {"vgg19": 361_152, "vgg16": 278_208, "alexnet": 13_900, "squeezenet": 22_000}
"""Multiply-adds for a pixel from the image to the deepest layer that the paper uses."""
TRANSFORMER = 126_144
"""The same for version 2's network with 32 filters."""
RATE = 3e10
"""Multiply-adds a second of one CPU core, measured."""


def gpu_work(config: Config) -> tuple[str, float]:
    """Return which rate of `python -m benchmarks gpu` a training goes at, and its work in that rate's units.

    These are evaluations at 512 x 512, or images of 256 x 256.
    """
    method, steps = config.method, config.epochs * config.steps
    if isinstance(method, OptimiseImage):
        return f"style/image/{type(method.backbone).__name__.lower()}", steps * (method.size / 512) ** 2
    half = "/bfloat16" if config.precision == "bfloat16" else ""
    return f"style/network{half}", steps * method.batch * (method.size / 256) ** 2


def cost(config: Config) -> float:
    """Return seconds of one CPU core that a training takes, roughly: forward and backward passes; 5 s to begin with."""
    method = config.method
    backbone = MULTIPLICATIONS[type(method.backbone).__name__.lower()]
    steps = config.epochs * config.steps
    if isinstance(method, OptimiseImage):
        return 5 + steps * 2 * backbone * method.size**2 / RATE
    network = TRANSFORMER * (method.filters / 32) ** 2
    return 5 + steps * method.batch * 3 * (network + backbone) * method.size**2 / RATE
