"""Version 1: the pixels of one image are optimised (Gatys et al. 2016; the paper's section IV)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from retable.platform.train.worker import autocast
from retable.tasks.style.apply.lbfgs import BacktrackingLbfgs
from retable.tasks.style.config import Adam, Config, Lbfgs, OptimiseImage, Sgd
from retable.tasks.style.files.images import Pixels, fit, square, to_tensor
from retable.tasks.style.losses import Losses, loss, targets
from retable.tasks.style.networks.backbones import BackboneNetwork, Image
from retable.tasks.style.streams import START, torch_generator

EVALUATIONS = 300
"""Evaluations of a run where nothing else is said, as in PyTorch's tutorial; the paper does not say."""

SEARCHED = 26
"""Evaluations of a step with a strong Wolfe search, at most: the first, and PyTorch's 25."""


def version1(config: Config) -> OptimiseImage:
    """Return the method of a config that optimises an image.

    Raises:
        ValueError: where it does something else.
    """
    if not isinstance(config.method, OptimiseImage):
        raise ValueError(f"{type(config.method).__name__} does not optimise an image")
    return config.method


class ImageOptimisation:
    """One stylised image in the making.

    Every step evaluates loss and gradient once and moves the pixels once, or, in a line search, takes back a part of
    the last move; a strong Wolfe search evaluates more often within a step. Before each evaluation pixels are clamped
    to [0, 1], as PyTorch's tutorial does within its closure; an optimiser does not learn of it. L-BFGS came to lower
    losses so than clamped at the end alone, and descent that diverges would else be NaN within a few steps.

    With `scales`, each size is a stage: an equal share of the evaluations (what does not divide goes to the largest),
    started from the image before, interpolated bilinearly, with targets of that size and an optimiser anew.
    """

    def __init__(
        self,
        config: Config,
        content: Pixels,
        paintings: Sequence[Pixels],
        network: BackboneNetwork,
        device: str,
        begin: Image | None = None,
    ) -> None:
        """Prepare the first stage; the network is moved to the device.

        `begin`, of the first stage's shape, is what is begun with in place of what the config says.

        Raises:
            UserError: where the backbone has no such layer, or the image is too small for it.
            ValueError: where the config does not optimise an image, or names another number of paintings.
        """
        method = version1(config)
        if len(paintings) != len(config.style):
            raise ValueError(f"{len(paintings)} paintings where the config names {len(config.style)}")
        self.config, self.method, self.device = config, method, device
        self.content, self.paintings = content, paintings
        self.network = network.to(device)
        self.sizes = (*self.method.scales, self.method.size)
        self.evaluations = config.epochs * config.steps
        self._loss: Any = torch.compile(loss) if config.compile else loss
        self._history: list[Tensor] = []
        self._enter(self._stage(0))
        self._place(self._start() if begin is None else begin)

    def step(self) -> Losses:
        """Evaluate the image once, and move it. The losses, each of shape (1,), are those before the move."""
        stage = self._stage(len(self._history))
        if stage != self.stage:
            before = self.image
            self._enter(stage)
            self._place(functional.interpolate(before, self.shape, mode="bilinear"))
        losses = self._evaluate()
        self._history.append(torch.cat((losses.total, losses.content, losses.style)))
        first = [losses]
        self.optimizer.step(lambda: (first.pop() if first else self._evaluate()).total)  # type: ignore[arg-type, return-value]
        return losses

    @property
    def image(self) -> Float[Tensor, "1 3 height width"]:
        """The image as it is now, at its stage's size, in [0, 1]; what diverged to NaN is black.

        With a line search it is the last one whose loss was accepted, else the one after the last move.
        """
        pixels: Tensor = self.optimizer.state[self._pixels].get("origin", self._pixels)
        return pixels.detach().nan_to_num(0.0).clamp(0, 1)

    @property
    def losses(self) -> Float[Tensor, "evaluation 3"]:
        """Total, content and style loss, weighted, of each evaluation so far; on the CPU."""
        return torch.stack(self._history).cpu() if self._history else torch.zeros(0, 3)

    @property
    def loss(self) -> Float[Tensor, " 3"]:
        """Total, content and style loss of the last evaluation that was not rejected; with a line search, `image`'s."""
        rejected = int(self.optimizer.state[self._pixels].get("rejected", 0))
        return self.losses[-1 - rejected]

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs to go on as if there had been no interruption, bit for bit."""
        image = self._pixels.detach().clone()
        return {"image": image, "optimizer": copy.deepcopy(self.optimizer.state_dict()), "losses": self.losses}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of an optimisation of the same config and pictures. The state is left as it is."""
        self._history = list(state["losses"].to(self.device))
        stage = self._stage(max(0, len(self._history) - 1))
        if stage != self.stage:
            self._enter(stage)
        self._place(state["image"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))

    def _stage(self, evaluation: int) -> int:
        """Return the stage of an evaluation, counted from 0; later ones than planned belong to the last."""
        left = max(0, self.evaluations - 1 - evaluation)
        return len(self.sizes) - 1 - left * len(self.sizes) // self.evaluations

    def _enter(self, stage: int) -> None:
        """Compute what stays the same over a stage: its shape and targets."""
        resize = square if self.method.shape == "square" else fit
        self.stage, size = stage, self.sizes[stage]
        content = to_tensor(resize(self.content, size)).to(self.device)
        side = max(1, round(size * self.method.style_scale))
        paintings = [to_tensor(resize(painting, side)).to(self.device) for painting in self.paintings]
        self.shape = content.shape[-2:]
        with autocast(self.device, self.config.precision):
            self._targets = targets(self.network, self.method.objective, content, paintings, self.config.blend)

    def _start(self) -> Image:
        """Return the image to begin with; of several paintings, their blend."""
        if self.method.start == "noise":
            return torch.rand(1, 3, *self.shape, generator=torch_generator(self.config.seed, START))
        resize = square if self.method.shape == "square" else fit
        size = self.sizes[self.stage]
        if self.method.start == "content":
            return to_tensor(resize(self.content, size))
        resized = [to_tensor(resize(painting, size)) for painting in self.paintings]
        shares = torch.tensor(self.config.blend or [1.0] * len(resized))
        stacked = torch.cat([functional.interpolate(image, self.shape, mode="bilinear") for image in resized])
        return torch.einsum("n, nchw -> chw", shares / shares.sum(), stacked)[None]

    def _place(self, image: Image) -> None:
        """Make the image what is optimised, by an optimiser of its own. L-BFGS needs it contiguous."""
        self._pixels = image.detach().to(self.device, copy=True).contiguous().requires_grad_()
        self.optimizer = make_optimizer(self.method.optimizer, self._pixels)

    def _evaluate(self) -> Losses:
        """Clamp the image and compute its losses and its gradient."""
        with torch.no_grad():
            self._pixels.clamp_(0, 1)
        with autocast(self.device, self.config.precision):
            losses: Losses = self._loss(self.network, self.method.objective, self._targets, self._pixels)
        self.optimizer.zero_grad()
        losses.total.sum().backward()  # type: ignore[no-untyped-call]
        optimizer, gradient = self.method.optimizer, self._pixels.grad
        if isinstance(optimizer, Sgd) and optimizer.normalise_gradient and gradient is not None:
            gradient.div_(gradient.abs().mean())
        return Losses(*(part.detach() for part in losses))


def make_optimizer(config: Lbfgs | Adam | Sgd, pixels: Tensor) -> torch.optim.Optimizer:
    """Return the config's optimiser of an image. Each evaluates once a step.

    For L-BFGS that means one iteration a step, or one trial of a line search; its history goes on from step to step. It
    never stops early: its tolerances are absolute, and the scale of the loss is the user's.
    """
    match config:
        case Lbfgs(line_search="backtracking"):
            return BacktrackingLbfgs(pixels, config.learning_rate, config.history)
        case Lbfgs():
            return torch.optim.LBFGS(
                [pixels],
                config.learning_rate,
                max_iter=1,
                max_eval=SEARCHED,
                tolerance_grad=0,
                tolerance_change=0,
                history_size=config.history,
                line_search_fn="strong_wolfe" if config.line_search == "strong_wolfe" else None,
            )
        case Adam():
            return torch.optim.Adam([pixels], config.learning_rate)
        case Sgd():
            return torch.optim.SGD([pixels], config.learning_rate)
