"""Training of one dual encoder. Runs with plain PyTorch; knows of machines only what a `Worker` tells."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retable.platform.config import Scratch
from retable.platform.errors import UserError
from retable.platform.train.seeds import sequence
from retable.platform.train.worker import Worker, autocast
from retable.tasks.audio.config import SPLITS, Cnn14, Config, Passt, Pretrained, Untrained
from retable.tasks.audio.losses import contrastive, same_recording
from retable.tasks.audio.metrics import retrieval_scores
from retable.tasks.audio.model import DualEncoder, build, load_weights, rebuild

INITIAL = "audio.initial"
"""Stream of the weights that training starts from."""


class RetrievalLearner:
    """One run: a dual encoder, its optimiser and schedule, and the number of steps done.

    Source: section 3 of the paper, and its code: Adam without weight decay, a learning rate that rises linearly and
    falls as a half cosine.
    """

    def __init__(self, configs: Sequence[Config], data: Any, worker: Worker) -> None:
        (self.config,), self.worker = configs, worker
        config = self.config
        if config.patience and not data.queries("validation"):
            raise UserError(f"patience: {config.data} has no validation captions; set patience=0, or add some")
        torch.manual_seed(int(sequence(config.seed, INITIAL).generate_state(1)[0]))
        self.steps, self.done = data.steps, 0
        scratch = isinstance(config.init, Scratch)
        if scratch or isinstance(config.text, Untrained):
            # Weights to start from hold all of a network: its published ones need not be here.
            self._train(build(config, data.captions(), data.source.storage if scratch else None))

    def _train(self, model: DualEncoder) -> None:
        """Take a model to train, with an optimiser of its own."""
        self.model = model
        self.forward: Any = self.worker.wrap(model)
        if self.config.compile:
            self.forward = torch.compile(self.forward)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, self.config.learning_rate, betas=(0.9, 0.999), weight_decay=0.0)
        self.scaler = torch.amp.GradScaler(enabled=self.config.precision == "float16" and self.worker.device != "cpu")

    def step(self, batch: Any) -> dict[str, Tensor]:
        """Update once on this worker's share of a batch; return `loss` and `temperature`, shape (1,)."""
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        rate = learning_rate(self.config, (self.done + 1) / self.steps)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate
        inputs = self._inputs(batch)
        at_once = not 0 < self.config.chunk < len(batch.recording)
        loss = self._backward(inputs, batch) if at_once else self._backward_in_chunks(inputs, batch)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.done += 1
        return {"loss": loss.detach()[None], "temperature": self.model.temperature.detach().abs()[None]}

    def _inputs(self, batch: Any) -> tuple[Any, ...]:
        """Return what the model takes, on its device."""
        device = self.worker.device
        tokens = self.model.text.tokenize(batch.captions)
        audio, lengths = (tensor.to(device, non_blocking=True) for tensor in (batch.audio, batch.lengths))
        return audio, lengths, batch.features, tokens["ids"].to(device), tokens["mask"].to(device)

    def _autocast(self) -> contextlib.AbstractContextManager[None]:
        """Compute the encoders in the config's precision."""
        return autocast(self.worker.device, self.config.precision)

    def _backward(self, inputs: tuple[Any, ...], batch: Any) -> Tensor:
        """Take gradients of a batch at once; return its loss."""
        with self._autocast():
            audio, text = self.forward(*inputs)
        loss = self._loss(audio, text, batch, self.model.temperature)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return loss

    def _loss(self, audio: Tensor, text: Tensor, batch: Any, temperature: Tensor) -> Tensor:
        """Return the loss of the joined batch of all workers; the same on each."""
        gather = self.worker.gather
        positives = same_recording(gather(batch.recording.to(self.worker.device)))
        return contrastive(gather(audio), gather(text), positives, temperature.abs())

    def _backward_in_chunks(self, inputs: tuple[Any, ...], batch: Any) -> Tensor:
        """Take the gradients of the whole batch while only a chunk's activations are in memory; return the loss.

        Gradient caching (Gao et al. 2021, *Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup*):
        embed all chunks without gradients, take the loss's gradients with respect to the vectors, and embed each chunk
        again, with these. Dropout and masks are drawn from a seed for each chunk, so that both times agree.
        """
        chunks = self._chunks(inputs)
        seed = int(torch.randint(2**62, ()))
        with torch.no_grad():
            parts = [self._embed(chunk, seed + n, self.model) for n, chunk in enumerate(chunks)]
        cached = [torch.cat(side).requires_grad_() for side in zip(*parts, strict=True)]
        temperature = self.model.temperature.detach().clone().requires_grad_()
        loss = self._loss(cached[0], cached[1], batch, temperature)
        wanted = (*cached, temperature)
        *gradients, slope = torch.autograd.grad(self.scaler.scale(loss), wanted)
        pieces = [torch.split(gradient, self.config.chunk) for gradient in gradients]
        for n, (chunk, *directions) in enumerate(zip(chunks, *pieces, strict=True)):
            last = n == len(chunks) - 1
            alone = self.worker.world > 1 and not last
            with self.forward.no_sync() if alone else contextlib.nullcontext():
                vectors = self._embed(chunk, seed + n, self.forward)
                proxy = sum((v * d).sum() for v, d in zip(vectors, directions, strict=True))
                if last and self.model.temperature.requires_grad:
                    proxy = proxy + slope * self.model.temperature
                proxy.backward()
        return loss

    def _chunks(self, inputs: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Cut a batch's inputs into the chunks that are embedded at once."""
        audio, lengths, features, *tokens = inputs
        cut = [tensor.split(self.config.chunk) for tensor in (audio, lengths, *tokens)]
        return [(audio, lengths, features, *rest) for audio, lengths, *rest in zip(*cut, strict=True)]

    def _embed(self, chunk: tuple[Any, ...], seed: int, model: Any) -> tuple[Tensor, Tensor]:
        """Embed a chunk's recordings and captions, with the random numbers of a seed."""
        torch.manual_seed(seed)
        with self._autocast():
            vectors: tuple[Tensor, Tensor] = model(*chunk)
        return vectors

    @torch.no_grad()
    def embed_audio(self, batch: Any) -> Tensor:
        """Embed a batch's recordings in evaluation mode."""
        self.model.eval()
        device = self.worker.device
        with self._autocast():
            return self.model.embed_audio(batch.audio.to(device), batch.lengths.to(device), batch.features)

    @torch.no_grad()
    def embed_text(self, captions: Sequence[str]) -> Tensor:
        """Embed captions in evaluation mode."""
        self.model.eval()
        with self._autocast():
            return self.model.embed_text(captions)

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the weights, the optimiser's and scaler's state, and how many steps were done."""
        return [
            {
                "weights": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict(),
                "done": self.done,
            }
        ]

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Continue from such a state."""
        load_weights(self.model, states[0]["weights"])
        self.optimizer.load_state_dict(states[0]["optimizer"])
        if states[0]["scaler"]:  # empty where the run began on a CPU, which needs none
            self.scaler.load_state_dict(states[0]["scaler"])
        self.done = states[0]["done"]

    def load_weights(self, weights: Sequence[Mapping[str, Tensor]]) -> None:
        """Start from another run's weights, its tokenizer and temperature included: fine-tuning.

        They hold a pretrained text encoder whole: neither the hub nor its cache is asked for it.

        Raises:
            UserError: where the other run is of another model.
        """
        try:
            if isinstance(self.config.text, Pretrained) and not isinstance(self.config.init, Scratch):
                self._train(rebuild(self.config, weights[0], trained=True))
            load_weights(self.model, weights[0])
        except UserError as error:
            raise UserError(f"init: {error}") from error


def learning_rate(config: Config, epochs: float) -> float:
    """Return the learning rate of the step that ends after so many epochs, a fraction.

    It rises linearly in `warmup` epochs and falls as a half cosine to `final_learning_rate` at the last step. The
    paper's code adds a 16th epoch at the final rate; we do not.
    """
    if epochs < config.warmup:
        return config.learning_rate * epochs / config.warmup
    share = (epochs - config.warmup) / max(config.epochs - config.warmup, 1e-9)
    fall = (1 + math.cos(math.pi * min(share, 1.0))) / 2
    return config.final_learning_rate + (config.learning_rate - config.final_learning_rate) * fall


def validate(learner: RetrievalLearner, data: Any) -> list[dict[str, float]]:
    """Search the validation recordings by their captions; return loss and mAP@10, the same on every worker.

    The loss is training's, over batches of the same size, so that the two can be compared. Nothing where the data set
    has no validation recordings, or they were trained on.
    """
    # Running statistics (CNN14's): each worker has seen its own share of the batches. They are averaged at the end of
    # an epoch; a checkpoint within one has the first worker's.
    learner.worker.average_buffers(learner.model)
    queries = data.queries("validation")
    if not queries:
        return [{}]
    wanted = torch.tensor([recording for _, recording in queries])
    items = torch.unique(wanted)
    audio, text = embed_validation(learner, data, [caption for caption, _ in queries], items)
    similarity = (text @ audio.T).cpu().numpy()
    if not np.isfinite(similarity).all():  # diverged: no epoch is worse
        return [{"validation_loss": math.nan, "validation_map10": math.nan}]
    scores = retrieval_scores(similarity, wanted.numpy(), items.numpy())
    loss = validation_loss(learner, audio[torch.searchsorted(items, wanted)], text, wanted)
    return [{"validation_loss": loss, "validation_map10": scores["map10"]}]


def validation_loss(learner: RetrievalLearner, audio: Tensor, text: Tensor, recording: Tensor) -> float:
    """Return the mean loss over batches of pairs of vectors: first the first captions of all recordings."""
    temperature = learner.model.temperature.detach().abs()
    total, order = 0.0, torch.tensor(spread(recording.tolist()))
    for part in torch.split(order, learner.config.batch):
        positives = same_recording(recording[part]).to(audio.device)
        total += len(part) * float(contrastive(audio[part], text[part], positives, temperature))
    return total / len(order)


def embed_validation(
    learner: RetrievalLearner, data: Any, captions: Sequence[str], items: Tensor
) -> tuple[Tensor, Tensor]:
    """Embed the validation set, each worker its share: vectors of the recordings `items` (sorted), and of captions."""
    worker, config = learner.worker, learner.config
    audio = torch.zeros(len(items), config.projection, device=worker.device)
    text = torch.zeros(len(captions), config.projection, device=worker.device)
    for batch in data.validation(worker.rank, worker.world):
        described = torch.isin(batch.recording, items)
        audio[torch.searchsorted(items, batch.recording[described])] = learner.embed_audio(batch)[described]
    own = range(worker.rank, len(captions), worker.world)  # none where there are more workers than captions
    for first in range(0, len(own), config.batch):
        part = list(own[first : first + config.batch])
        text[part] = learner.embed_text([captions[n] for n in part])
    return worker.mean(audio) * worker.world, worker.mean(text) * worker.world


def spread(recordings: Sequence[int]) -> list[int]:
    """Order rows so that the first row of every recording comes first, then the second ones, and so on."""
    seen: dict[int, int] = {}
    turn = []
    for recording in recordings:
        turn.append(seen.get(recording, 0))
        seen[recording] = turn[-1] + 1
    return sorted(range(len(recordings)), key=lambda row: (turn[row], row))


ITEMS = {
    "generated-tiny": {"clotho": 240, "audiocaps": 32, "wavcaps": 64},
    "generated-quick": {"clotho": 6_000, "audiocaps": 200, "wavcaps": 600},
    "generated-small": {"clotho": 15_000, "audiocaps": 600, "wavcaps": 2_400},
}
"""Training captions of what is generated."""
CHALLENGE = {"clotho": 19_195, "audiocaps": 51_308, "wavcaps": 403_050}
"""Those of Clotho 2.1, AudioCaps and WavCaps."""
HELD_OUT = {"generated-tiny": (120, 120), "generated-quick": (500, 1_000), "generated-small": (1_500, 2_500)}
"""Captions of the validation and of the test set, which are Clotho's."""
CLOTHO_HELD_OUT = (5_225, 5_225)
"""Those of Clotho 2.1."""
TOKENS = 15
"""Of a caption, on average."""


def cost(config: Config) -> float:
    """Return seconds of one CPU core that a training takes, roughly: measured at 2 to 10 s; 10 s to begin with."""
    return 10 + config.epochs * epoch_clips(config) * clip_cost(config)


def gpu_work(config: Config) -> tuple[str, float]:
    """Return which rate of `python -m benchmarks gpu` a training goes at, and its clips, counted as the default's."""
    return "audio", config.epochs * epoch_clips(config) * clip_cost(config) / clip_cost(Config())


def epoch_clips(config: Config) -> int:
    """Return the clips of an epoch, with a caption each: as many as were asked for, or as there are captions."""
    items = ITEMS.get(config.data, CHALLENGE)
    captions = sum(items.get(corpus, 0) for corpus in config.corpora)
    if "clotho" in config.corpora:
        captions += sum(HELD_OUT.get(config.data, CLOTHO_HELD_OUT)[: len(SPLITS[config.train_on]) - 1])
    return config.steps * config.batch or captions


def clip_cost(config: Config) -> float:
    """Return seconds of one CPU core for one clip and caption forward and backward: the spectrogram, and arithmetic."""
    seconds = min(config.clip_seconds, 3.0 if config.data in ITEMS else 25.0)
    segments = math.ceil(seconds / config.segment)
    operations = 0.0
    match config.audio:
        case Passt(width=width, depth=depth, stride=stride):
            rows, columns = (128 - 16) // stride + 1, max((min(seconds, config.segment) * 100 - 16) // stride + 1, 1)
            tokens = (rows - config.audio.patchout_frequency) * max(columns - config.audio.patchout_time, 1)
            operations += 12 * width**2 * depth * segments * tokens
        case Cnn14(filters=filters):
            operations += (1.7e9 * (filters / 64) ** 2 + 2.2e7) * seconds  # few channels are padded
    match config.text:
        case Untrained(width=width, depth=depth):
            operations += 12 * width**2 * depth * TOKENS
        case Pretrained(name=name):
            operations += (3e8 if "large" in name else 8.5e7) * TOKENS
    spectrogram = 0.0 if config.data in ITEMS else 0.001 * seconds  # generated sets keep theirs
    return 0.001 + spectrogram + 6 * operations / 4e10
