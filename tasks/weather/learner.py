"""Training of one forecaster. Runs with plain PyTorch; knows of machines only what a `Worker` tells."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from retable.platform.errors import UserError
from retable.platform.train.worker import Worker, autocast
from retable.tasks.weather import metrics
from retable.tasks.weather.config import (
    Adabelief,
    AllDry,
    AllRain,
    Bce,
    Climatology,
    Config,
    Context,
    Retrieval,
    Swin,
    UNet,
    Vivit,
)
from retable.tasks.weather.losses import build_loss
from retable.tasks.weather.model import build

WINDOWS = 200_000
"""Of the training set of one region and more, roughly: what an epoch has where `steps` does not say."""


class ForecastLearner:
    """One run: a forecaster, its loss and its optimiser. What has no trainable weights only counts, or does nothing."""

    def __init__(self, configs: Sequence[Config], data: Any, worker: Worker) -> None:
        (self.config,), self.worker = configs, worker
        config = self.config
        if config.patience and not data.validated:
            raise UserError(
                f"patience: {config.data} has no validation sequences of what is trained on; set patience=0"
            )
        torch.manual_seed(config.seed)
        self.model = build(config, data.size, data.regions)
        self.trains = any(parameter.requires_grad for parameter in self.model.parameters())
        self.forward: Any = worker.wrap(self.model) if self.trains else self.model.to(worker.device)
        if config.compile and self.trains:
            self.forward = torch.compile(self.forward)
        self.loss = build_loss(config, positive_weight(config, data))
        self.optimizer = make_optimizer(config, self.model) if self.trains else None
        on_gpu = worker.device != "cpu"
        self.scaler = torch.amp.GradScaler(enabled=config.precision == "float16" and on_gpu)

    def step(self, batch: Any) -> dict[str, Tensor]:
        """Update once on this worker's share of a batch; return `loss`, shape (1,)."""
        batch = on(batch, self.worker.device)
        if self.optimizer is None:
            if isinstance(self.config.model, Climatology):
                self._count(batch)
            return {"loss": torch.zeros(1, device=self.worker.device)}
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._loss(batch)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        if self.config.gradient_clamp:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_value_(self.model.parameters(), self.config.gradient_clamp)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return {"loss": loss.detach()[None]}

    def _loss(self, batch: Any) -> Tensor:
        """Return the loss of a batch; a retrieval learns rain at the time of the last image, the others the future."""
        with autocast(self.worker.device, self.config.precision):
            logits = self.forward(batch.images, batch.region)
        events = batch.now[:, None] if isinstance(self.config.model, Retrieval) else batch.events
        return self.loss(logits.float(), events)

    def _count(self, batch: Any) -> None:
        """Add a batch to the climatology's counts, summed over workers."""
        network: Any = self.model.model
        if self.worker.world > 1:
            batch = type(batch)(
                batch.images, self.worker.gather(batch.events), batch.now, self.worker.gather(batch.region), batch.shard
            )
        network.observe(batch.events, batch.region)

    def share_buffers(self) -> None:
        """Average running statistics over the workers: each has seen its own share of the batches.

        That happens at the end of an epoch. A checkpoint within one has the first worker's, so of several workers with
        batch norm, one that goes on within an epoch differs from one that was never interrupted.
        """
        if self.optimizer is not None:
            self.worker.average_buffers(self.model)

    @torch.no_grad()
    def forecast(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return logits and events of a batch, both (batch, leads, S, S), in evaluation mode."""
        batch = on(batch, self.worker.device)
        self.model.eval()
        with autocast(self.worker.device, self.config.precision):
            logits = self.model(batch.images, batch.region)
        return logits.float(), batch.events

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the weights, and the optimiser's and scaler's state."""
        optimizer = self.optimizer.state_dict() if self.optimizer is not None else {}
        return [{"weights": self.model.state_dict(), "optimizer": optimizer, "scaler": self.scaler.state_dict()}]

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Continue from such a state."""
        self.model.load_state_dict(states[0]["weights"])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(states[0]["optimizer"])
        if states[0]["scaler"]:  # empty where the run began on a CPU, which needs none
            self.scaler.load_state_dict(states[0]["scaler"])

    def load_weights(self, weights: Sequence[Mapping[str, Tensor]]) -> None:
        """Start from another run's weights.

        What the other model lacks stays as it was initialised, so that `channel_convolution` may start from a trained
        Swin (section 2.4: "everything else remains unchanged").

        Raises:
            UserError: where the other run is of another model.
        """
        ours, theirs = self.model.state_dict(), weights[0]
        foreign = [name for name, value in theirs.items() if name not in ours or ours[name].shape != value.shape]
        if foreign or not theirs:
            raise UserError(
                f"init: the weights hold {foreign[0] if foreign else 'nothing'!r}, which this model has not"
            )
        self.model.load_state_dict({**ours, **theirs})


def on(batch: Any, device: str) -> Any:
    """Return a batch on a device."""
    if device == "cpu":
        return batch
    moved = (getattr(batch, name).to(device, non_blocking=True) for name in ("images", "events", "now", "region"))
    return type(batch)(*moved, batch.shard)


def positive_weight(config: Config, data: Any) -> float:
    """Return the weight of rainy pixels: the config's, or dry over rainy pixels of the training set."""
    if isinstance(config.loss, Bce) and config.loss.positive_weight == "training_set":
        return float(data.positive_ratio)
    return float(getattr(config.loss, "positive_weight", 1.0))


def make_optimizer(config: Config, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return the optimiser of a config.

    AdaBelief is the reference's library with its own defaults (decoupled weight decay, rectification), but for the
    fields of the config, which the reference ignores.
    """
    chosen = config.optimizer
    if isinstance(chosen, Adabelief):
        from adabelief_pytorch import AdaBelief as Library

        made: torch.optim.Optimizer = Library(
            model.parameters(),
            lr=chosen.learning_rate,
            eps=chosen.epsilon,
            weight_decay=chosen.weight_decay,
            weight_decouple=True,
            rectify=True,
            print_change_log=False,
        )
        return made
    # None where it is not asked for: False would keep PyTorch from the kernel of its own choice on a GPU.
    fused = chosen.fused or None
    return torch.optim.AdamW(model.parameters(), chosen.learning_rate, weight_decay=chosen.weight_decay, fused=fused)


def validate(learner: ForecastLearner, data: Any) -> list[dict[str, float]]:
    """Forecast the validation set and return loss and pooled IoU at probability 0.5, in all and by year and region.

    It is the `iou` of `metrics.scores`: a place where neither radar nor forecast has rain counts as 0. Each worker
    takes its share of the sequences; the counts of all are added up.
    """
    learner.share_buffers()
    if not data.validated:  # an own set may have none
        return [{}]
    shards = {shard: n for n, shard in enumerate(data.validated)}
    device = learner.worker.device
    counts = torch.zeros(len(shards), 2, dtype=torch.float64, device=device)  # intersection, union
    loss = torch.zeros(2, dtype=torch.float64, device=device)
    for batch in data.validation(learner.worker.rank, learner.worker.world):
        logits, events = learner.forecast(batch)
        loss += torch.tensor([float(learner.loss(logits, events)) * len(logits), len(logits)], device=device)
        forecast, rain, seen = logits >= 0, events == 1, events != 2
        both = (forecast & rain & seen).sum(dim=(1, 2, 3))
        either = ((forecast | rain) & seen).sum(dim=(1, 2, 3))
        for sample, shard in enumerate(batch.shard):
            counts[shards[shard]] += torch.stack([both[sample], either[sample]])
    counts, loss = learner.worker.mean(counts) * learner.worker.world, learner.worker.mean(loss) * learner.worker.world
    hits, unions = counts.T.cpu().numpy()
    ious = metrics.ratio(hits, unions, 0.0)
    scores = {f"validation_iou/{shard}": float(ious[n]) for shard, n in shards.items()}
    return [{"validation_loss": float(loss[0] / loss[1]), "validation_iou": float(ious.mean()), **scores}]


def cost(config: Config) -> float:
    """Return seconds of one CPU core that a training takes, roughly: 5 s to begin with."""
    steps = config.steps or WINDOWS // config.batch
    if isinstance(config.model, AllDry | AllRain | Climatology):
        steps = 0
    return 5 + config.epochs * steps * config.batch * sample_cost(config)


def gpu_work(config: Config) -> tuple[str, float] | None:
    """Return which rate of `python -m benchmarks gpu` a training goes at, and its samples; None where there is none."""
    name = {UNet: "unet", Vivit: "vivit"}.get(type(config.model))
    if isinstance(config.model, Swin):
        name = f"swin/{config.model.variant}"
    steps = config.steps or WINDOWS // config.batch
    return (f"weather/{name}", float(config.epochs * steps * config.batch)) if name else None


def sample_cost(config: Config) -> float:
    """Return seconds of one CPU core for one sample forward and backward, roughly.

    The images' width is read off the name `generated-<width>`; 252 pixels for any other data, which may be narrower.
    """
    digits = re.match(r"generated-(\d+)", config.data)
    size = int(digits[1]) if digits else 252
    area = (size / 36) ** 2
    match config.model:
        case UNet(filters=filters):
            return 0.015 * (filters / 8) ** 2 * area
        case Swin(feature_size=features, window=window, variant=variant):
            small = size <= 32 and variant != "upsample"
            attention = 2.0 * (window / 7) ** 3  # the rest is convolutions
            return (attention + 0.6) * (0.5 if small else 1.0) * (features / 12) ** 2 * max(1.0, (size / 64) ** 2)
        case Vivit(dim=dim, depth=depth):
            return 0.05 * (dim / 64) ** 2 * depth / 8 * area
        case Context(filters=filters):
            return 0.02 * (filters / 16) ** 2 * area
    return 0.005 * area
