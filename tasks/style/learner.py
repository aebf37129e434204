"""Training of a style: version 2's network, or version 1's single image. Runs with plain PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from retable.platform.config import Weights, parent
from retable.platform.errors import UserError
from retable.platform.models.zoo import digest, read, zoo
from retable.platform.store.run import sample_path
from retable.platform.store.storage import Storage
from retable.platform.store.weights import metadata
from retable.platform.train.seeds import generator
from retable.platform.train.worker import Worker, autocast
from retable.tasks.style import losses
from retable.tasks.style.apply.optimise import ImageOptimisation
from retable.tasks.style.config import Backbone, Config, Objective, OptimiseImage, Texture, TrainNetwork, ZooNetwork
from retable.tasks.style.files import images
from retable.tasks.style.networks.backbones import BackboneNetwork, build
from retable.tasks.style.networks.tiling import layers
from retable.tasks.style.networks.transformer import find, styles, untrained
from retable.tasks.style.streams import NETWORK, SAMPLE, STEP, torch_seed

VALIDATION = 4
"""Test photographs on which the losses are looked at with every checkpoint."""
MOTION, NOISE = 4, 0.02
"""Of what stands for the next frame: pixels that it is moved by at most, and its noise, of the range of values."""


def build_learner(configs: Sequence[Config], data: Any, worker: Worker) -> AnyLearner:
    """Return the learner of a config's method."""
    (config,) = configs
    match config.method:
        case OptimiseImage():
            return ImageLearner(config, data, worker)
        case TrainNetwork():
            return NetworkLearner(config, data, worker)
        case ZooNetwork():
            return ZooLearner(config.method, config.style)


class ZooLearner:
    """A network of the zoo: a run holds its weights, and no step changes them."""

    def __init__(self, method: ZooNetwork, style: Sequence[str]) -> None:
        """Read the network.

        Raises:
            UserError: where there is none of this name, its file is another one, or it paints as another painting than
                `style`, by which its pictures are scored.
        """
        if method.name in zoo("style") and [*style] != (own := styles(metadata(read("style", method.name)))):
            raise UserError(f"method.name: {method.name} paints as {', '.join(own)}; set style to that, not {style[0]}")
        if method.digest not in ("", digest("style", method.name)):
            raise UserError(f"method.digest: {method.name} of the zoo is another file by now; leave it out")
        self.network = find(method.name)

    def step(self, batch: None) -> dict[str, Tensor]:
        """Change nothing; the loss is zero."""
        return {"loss": torch.zeros(1)}

    def validate(self) -> dict[str, float]:
        """Return no metrics: nothing was trained."""
        return {}

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the network's weights."""
        return [{"weights": self.network.state_dict()}]

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Continue: nothing changes."""


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
        parts = self.optimisation.step()
        return {"loss": parts.total, "content_loss": parts.content, "style_loss": parts.style}

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
        torch.manual_seed(torch_seed(config.seed, NETWORK))
        # Channels last: a CPU's convolutions of few filters, the last layer's above all, take less time so.
        self.network = untrained(self.method, len(config.style)).to(memory_format=torch.channels_last)
        if self.method.new_styles:
            self.network.requires_grad_(False)
            for norm in self.network.norms():
                norm.requires_grad_(True)  # rows of styles that no image is given get no gradient, and stay
        self.forward: Any = worker.wrap(self.network)
        if config.compile:
            self.forward = torch.compile(self.forward)
        learnt = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.Adam(learnt, lr=self.method.learning_rate)
        paintings = [images.fit(data.painting(name), self.method.style_size) for name in config.style]
        self.judges = judges(config, [images.to_tensor(pixels) for pixels in paintings], data.storage, worker.device)
        self.last: Tensor | None = None
        self.steps = 0
        """Updates so far."""
        self.output = torch.zeros(1)
        self.network.layers[-1].convolution.register_forward_hook(self._listen)  # type: ignore[union-attr]
        self.residual: list[Tensor] = []
        for layer in layers(self.network):
            if layer.residual and layer.norm is not None and self.method.spike_weight:
                layer.norm.register_forward_pre_hook(self._listen_before)

    def _listen(self, layer: nn.Module, inputs: Any, output: Tensor) -> None:
        """Store the output of the last layer before the final activation."""
        self.output = output

    def _listen_before(self, norm: nn.Module, inputs: tuple[Tensor]) -> None:
        """Store the output of a residual layer before its normalization."""
        self.residual.append(inputs[0])

    def step(self, batch: Tensor) -> dict[str, Tensor]:
        """Update once on this worker's share of a batch, uint8 (batch, 3, size, size).

        Returns `loss`, `content_loss` and `style_loss`, shape (1,): means over the images.
        """
        self.last = batch
        self.network.train()
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self.config, self.method, self.steps)
        self.optimizer.zero_grad(set_to_none=True)
        parts = self._losses(batch, generator(self.config.seed, STEP, self.steps, self.worker.rank))
        parts.total.mean().backward()  # type: ignore[no-untyped-call]
        if self.method.gradient_norm:
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.method.gradient_norm)
        self.optimizer.step()
        self.steps += 1
        return {
            "loss": parts.total.detach().mean(0, keepdim=True),
            "content_loss": parts.content.detach().mean(0, keepdim=True),
            "style_loss": parts.style.detach().mean(0, keepdim=True),
        }

    def _losses(self, batch: Tensor, rng: np.random.Generator | None = None) -> losses.Losses:
        """Return the losses of each image (equations 5 and 6), the content's target being the image itself.

        Places that a config has drawn are drawn from `rng`; None: images are seen whole, and no other is compared.
        """
        photographs = batch.to(self.worker.device).float().contiguous(memory_format=torch.channels_last) / 255
        chosen, method = self._styles(len(batch), rng), self.method
        with autocast(self.worker.device, self.config.precision):
            self.residual.clear()
            stylised = self._stylised(photographs, chosen).float()
            parts = losses.nothing(photographs)
            for judge in self.judges:
                area = judge.place(photographs.shape[2:], rng)
                parts = losses.add(parts, judge(photographs[area], stylised[area], chosen))
            if rng is None:
                return parts
            terms: tuple[tuple[float, Callable[[], Tensor]], ...] = (
                (method.saturation_weight, lambda: functional.relu(self.output.float().abs() - 1).flatten(1).mean(1)),
                (method.lattice_weight, lambda: losses.lattice(stylised)),
                (method.tone_weight, lambda: losses.tone(stylised, photographs)),
                *((method.spike_weight, partial(losses.spikes, features)) for features in self.residual),
                (method.steady_weight, lambda: self._unsteadiness(photographs, stylised, chosen, rng)),
            )
            for weight, term in terms:
                if weight:
                    parts = parts._replace(total=parts.total + weight * term())
        return parts

    def _styles(self, count: int, rng: np.random.Generator | None) -> Tensor | None:
        """Return which painting each image of a share is to look like: in turn from one drawn, or from the first.

        Only of new ones, where there are such.
        """
        if not self.method.conditional:
            return None
        paintings = len(self.config.style)
        choice = self.method.new_styles or paintings
        first = int(rng.integers(choice)) if rng is not None else 0
        return paintings - choice + (torch.arange(count, device=self.worker.device) + first) % choice

    def _stylised(self, photographs: Tensor, chosen: Tensor | None) -> Tensor:
        if chosen is None or len(self.config.style) == 1:
            return self.forward(photographs)  # type: ignore[no-any-return]
        shares = functional.one_hot(chosen, len(self.config.style)).float()
        return self.forward(photographs, shares=shares)  # type: ignore[no-any-return]

    def _unsteadiness(
        self, photographs: Tensor, stylised: Tensor, chosen: Tensor | None, rng: np.random.Generator
    ) -> Tensor:
        """Return, of each image, by how much the result of a moved and noisy one differs from the moved result.

        As the next frame of a film: moved by at most `MOTION` pixels each way, with a camera's noise.
        """
        down, right = (int(rng.integers(-MOTION, MOTION + 1)) for _ in range(2))
        moved = torch.roll(photographs, (down, right), (2, 3))
        noise = torch.from_numpy(rng.standard_normal(tuple(moved.shape), np.float32)).to(moved.device)
        again = self._stylised((moved + NOISE * noise).clamp(0, 1), chosen).float()
        inside = (..., *(slice(2 * MOTION, -2 * MOTION),) * 2)  # what came in at the other border is no motion
        return (again - torch.roll(stylised, (down, right), (2, 3)))[inside].square().flatten(1).mean(1)

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Return the losses on some test photographs; rank 0 keeps a picture of a training image and its result."""
        self.network.eval()
        if self.worker.rank == 0 and self.last is not None:
            self.worker.save(sample_path(self.steps), self._side_by_side(self.last))
        size = self.method.size
        squares = [images.square(self.data.photograph(name), size) for name in self.data.tests[:VALIDATION]]
        batch = torch.from_numpy(np.stack(squares)).permute(0, 3, 1, 2)
        parts = self._losses(batch)
        named = {"loss": parts.total, "content_loss": parts.content, "style_loss": parts.style}
        return {f"validation_{name}": float(value.mean()) for name, value in named.items()}

    def _side_by_side(self, batch: Tensor) -> bytes:
        """Return, as PNG, an image of the batch chosen at random (by the step) beside its stylised versions."""
        chosen = int(generator(self.config.seed, SAMPLE, self.steps).integers(len(batch)))
        photograph = batch[chosen : chosen + 1].to(self.worker.device).float() / 255
        styles = torch.arange(len(self.config.style) if self.method.conditional else 1, device=photograph.device)
        shown = [photograph, *(self._stylised(photograph, style[None]) for style in styles)]
        return images.encode_png(np.concatenate([images.to_pixels(image.cpu()) for image in shown], axis=1))

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the network's weights and the optimiser's state."""
        return [{"weights": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}]

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Continue from such a state."""
        self.network.load_state_dict(states[0]["weights"])
        self.optimizer.load_state_dict(states[0]["optimizer"])
        self.steps = max((int(state["step"]) for state in self.optimizer.state.values()), default=0)

    def load_weights(self, weights: Sequence[Mapping[str, Tensor]]) -> None:
        """Start from a network's weights; styles that it does not have begin as the mean of those it has.

        Raises:
            UserError: where it has another shape, more styles, others than those that are kept, or lacks one of them.
        """
        like = self.network.state_dict()
        self._check_styles(weights[0], like)
        try:
            self.network.load_state_dict(with_styles(weights[0], like))
        except RuntimeError as error:
            raise UserError("init: a network of another shape (method.filters, method.upsampling)") from error

    def _check_styles(self, weights: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> None:
        """Refuse a network whose styles are not those that `style` begins with."""
        shared = [name for name in weights if ".norm." in name and name in like]
        norms = [name for name in shared if weights[name].shape[-1] == like[name].shape[-1]]
        own = len(self.config.style) if self.method.conditional else 1
        init_styles = min((weights[name].numel() // like[name].shape[-1] for name in norms), default=own)
        if init_styles > own:
            remedy = "name all of its paintings in style, with method.conditional=true"
            raise UserError(f"init: a network of {init_styles} styles, not {own}; {remedy}")
        if not self.method.new_styles:
            return
        kept = own - self.method.new_styles
        if init_styles < kept:
            raise UserError(
                f"init: a network of {init_styles} styles, not {kept}; set method.new_styles={own - init_styles}"
            )
        names = inherited(self.config, self.data.storage)
        if names and names[:kept] != [*self.config.style[:kept]]:
            raise UserError(f"init: a network of {', '.join(names)}; let style begin with them, in this order")


def inherited(config: Config, storage: Storage) -> list[str]:
    """Return the paintings of the network that a training starts from, in its order; none if its file names none."""
    if before := parent(config):
        return [*before.style]
    assert isinstance(config.init, Weights)
    return styles(metadata(storage.read(f"weights/{config.init.sha256}.safetensors")))


def with_styles(weights: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights extended to another network's number of styles; each new style is the mean of the old ones."""
    extended = dict(weights)
    for name, value in weights.items():
        wanted = like[name].shape if name in like else value.shape
        if ".norm." in name and len(wanted) == 2 and value.shape[-1] == wanted[1]:
            old = value.reshape(-1, wanted[1])
            more = wanted[0] - len(old)
            extended[name] = torch.cat([old, old.mean(0, keepdim=True).expand(more, -1)]) if more > 0 else old
    return extended


@dataclass(frozen=True, eq=False)
class Judge:
    """A loss network, what it is asked, and each painting's answer."""

    network: BackboneNetwork
    objective: Objective
    targets: Sequence[losses.Targets]
    """One for each style; of one style, one."""
    shift: int
    """Images are looked at from a place less than so many pixels from their corner; or see `crop`."""
    crop: int = 0
    """Side of the part that is looked at; 0: all that the shift leaves."""

    def place(self, size: Sequence[int], rng: np.random.Generator | None) -> tuple[Any, ...]:
        """Return the part of images of this height and width that is looked at; None: the whole."""
        if rng is None:
            return (...,)
        sides = [self.crop or length - self.shift for length in size]
        starts = [int(rng.integers(max(1, length - side))) for length, side in zip(size, sides, strict=True)]
        return (..., *(slice(start, start + side) for start, side in zip(starts, sides, strict=True)))

    def __call__(self, photographs: Tensor, stylised: Tensor, chosen: Tensor | None) -> losses.Losses:
        """Return the losses of images; `chosen` says which style each should have, where there are several."""
        picked = self.targets[0] if chosen is None else losses.picked(self.targets, chosen)
        targets = losses.with_content(picked, self.network, self.objective, photographs)
        return losses.loss(self.network, self.objective, targets, stylised)


def judges(config: Config, paintings: Sequence[Tensor], storage: Any, device: str) -> list[Judge]:
    """Return the loss networks of a training: the backbone, and the texture's where there is one."""
    assert isinstance(config.method, TrainNetwork)
    method = config.method
    asked: list[tuple[Backbone, Objective, int]] = [(method.backbone, method.objective, 0)]
    if isinstance(method.texture, Texture):
        more = method.texture
        layers, weight = more.style_layers, more.style_weight
        fine = replace(method.objective, content_layers=(), style_layers=layers, layer_weights=(), style_weight=weight)
        asked.append((more.backbone, replace(fine, variation_weight=0.0), more.crop))
    groups = [[work] for work in paintings] if method.conditional else [list(paintings)]
    built = []
    for backbone, objective, crop in asked:
        network = build(backbone, config.seed, storage).to(device)
        blend = () if method.conditional else config.blend
        targets = [losses.targets(network, objective, None, [one.to(device) for one in some], blend) for some in groups]
        built.append(Judge(network, objective, targets, method.shift, crop))
    return built


def rate(config: Config, method: TrainNetwork, done: int) -> float:
    """Return the learning rate after so many updates."""
    if method.schedule == "constant":
        return method.learning_rate
    return method.learning_rate * (1 + math.cos(math.pi * done / (config.epochs * config.steps))) / 2


AnyLearner = ImageLearner | NetworkLearner | ZooLearner


def validate(learner: AnyLearner, data: Any) -> list[dict[str, float]]:
    """Return the cheap metrics that are taken with every checkpoint, and keep a sample picture."""
    return [learner.validate()]


def keep(config: Config) -> Sequence[int]:
    """Return the epochs whose weights stay, so that checkpoints can be compared: version 2's, every one."""
    return range(1, config.epochs + 1) if isinstance(config.method, TrainNetwork) else ()


MULTIPLICATIONS = {"vgg19": 361_152, "vgg16": 278_208, "alexnet": 13_900, "squeezenet": 22_000}
"""Multiply-adds for a pixel from the image to the deepest layer that the paper uses."""
SMALL = {"vgg19": 28_512, "alexnet": 2_574}
"""The same for the small networks that come with the task, which end at stage 3."""
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
    if isinstance(method, ZooNetwork):
        return "style/network", 0.0
    half = "/bfloat16" if config.precision == "bfloat16" else ""
    return f"style/network{half}", steps * method.batch * (method.size / 256) ** 2


def cost(config: Config) -> float:
    """Return seconds of one CPU core that a training takes, roughly: forward and backward passes; 5 s to begin with."""
    method = config.method
    if isinstance(method, ZooNetwork):
        return 5.0
    kind = type(method.backbone).__name__.lower()
    backbone = (SMALL if method.backbone.weights == "small" else MULTIPLICATIONS)[kind]
    steps = config.epochs * config.steps
    if isinstance(method, OptimiseImage):
        return 5 + steps * 2 * backbone * method.size**2 / RATE
    network = TRANSFORMER * (method.filters / 32) ** 2
    return 5 + steps * method.batch * 3 * (network + backbone) * method.size**2 / RATE
