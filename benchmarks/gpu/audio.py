"""Text-to-audio retrieval: PaSST and a sentence encoder of roberta-large's shape, trained together.

Recordings are noise, captions made-up words, and weights random, which take the same time. Dual encoders are not
trained as stacks; what they have instead, a batch in chunks (gradient caching), is compared to the whole batch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from functools import cache, lru_cache, partial
from io import StringIO
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu.frame import Step, Value, Where
from benchmarks.gpu.measure import free, peak_memory, per_second
from benchmarks.gpu.training import resumed
from benchmarks.gpu.ways import HALF, NO_CUDA, Opened, arithmetic, compared, compiled, graphed, shared_out
from retable.platform.train.worker import Worker
from retable.tasks.audio import TASK
from retable.tasks.audio.config import BANDS, SAMPLE_RATE, Config, Passt, Untrained
from retable.tasks.audio.data import Batch
from retable.tasks.audio.encoders.mel import Mel, normalise
from retable.tasks.audio.encoders.passt import PasstNetwork
from retable.tasks.audio.learner import RetrievalLearner
from retable.tasks.audio.model import DualEncoder

Results = Mapping[str, Value]

NETWORKS: Mapping[str, tuple[Passt, float]] = {
    "PaSST-N": (Passt(weights="random"), 10.0),
    "PaSST-S": (Passt(weights="random", stride=10, frames=998, patchout_frequency=3, patchout_time=50), 10.0),
    "PaSST-S15": (Passt(weights="random", stride=10, frames=2000, patchout_frequency=3, patchout_time=80), 15.0),
}
"""Encoders of the paper's Table 1, and the seconds of a segment."""
ROBERTA_LARGE = Untrained(family="roberta", width=1024, depth=24, heads=16, vocabulary=50_265)
VECTORS = {"float32": 1e-4, "tf32": 8e-3, "bfloat16": 3e-2, "float16": 8e-3}
"""How far unit vectors may be from float32's on a CPU. There, bfloat16 was seen to move them by 5e-3; TF32 and float16
keep three bits more. In float32, TF32 in its place would be noticed."""
GRADIENTS = {"float32": 1e-3, "tf32": 6e-2, "bfloat16": 0.4, "float16": 6e-2}
"""The same of gradients, twice what was seen in bfloat16 (0.18): the loss takes them from small differences, as sounds
that are all noise have much the same vector. Unrelated gradients are 1.4 apart."""
SPECTROGRAM = 1e-5
"""How far spectrograms may be from a CPU's, whose transform adds in another order: float32 rounds by 6e-8."""
KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
KERNEL = {"output": 8e-3, "gradients": 1.2e-2}
"""Bounds for attention in bfloat16, against float32 on the same numbers: four times what the CPU's kernels do, which
round (by 4e-3 at most) the weights, the result, and their gradients."""
WORDS = 11
"""Of a caption: Clotho's mean."""


class Clips:
    """Stand-in for `Recordings`, in memory: batches of noise with captions of different recordings; no validation."""

    source = SimpleNamespace(storage=None)

    def __init__(self, config: Config) -> None:
        self.config, self.steps, self.batch = config, config.steps, config.batch
        letters = np.random.default_rng(0).integers(97, 123, (2000, 6), np.uint8)
        self.words = [bytes(row).decode() for row in letters]

    def captions(self) -> list[str]:
        """Return what the tokenizer is trained on: every word."""
        return [" ".join(self.words[first : first + WORDS]) for first in range(0, len(self.words), WORDS)]

    def queries(self, split: str) -> list[tuple[str, int]]:
        """Return nothing to validate on."""
        return []

    def batches(self, epoch: int, start: int, rank: int, world: int) -> Iterator[Batch]:
        """Yield this rank's rows of batches of waveforms, `config.clip_seconds` seconds long."""
        samples, own = round(self.config.clip_seconds * SAMPLE_RATE), self.batch // world
        for step in range(start, self.steps):
            random = np.random.default_rng([self.config.seed, epoch, step])
            captions = [" ".join(random.choice(self.words, WORDS)) for _ in range(self.batch)]
            noise = torch.Generator().manual_seed(int(random.integers(2**62)))
            audio = torch.randn(self.batch, samples, generator=noise).mul_(0.1)
            rows = slice(rank * own, (rank + 1) * own)
            yield Batch(
                audio=audio[rows],
                lengths=torch.full((own,), samples),
                captions=tuple(captions[rows]),
                recording=torch.arange(self.batch)[rows],
                features="waveform",
            )


def config_of(where: Where, name: str, **changes: Any) -> Config:
    """Return what is trained: the defaults (batch 64, clips of 30 s, patchout, bfloat16); tiny: smaller in all."""
    audio, segment = NETWORKS[name]
    sizes: dict[str, Any] = {"audio": audio, "text": ROBERTA_LARGE, "segment": segment}
    if where.tiny:
        small = {"width": 32, "depth": 2, "heads": 2}
        audio = replace(audio, **small, patchout_frequency=1, patchout_time=2)
        text = replace(ROBERTA_LARGE, **small, vocabulary=600)
        sizes = {"audio": audio, "text": text, "segment": 1.0, "clip_seconds": 2.0, "batch": 4, "projection": 16}
    return Config(**{**sizes, "steps": 1, **changes})


def small_config(where: Where, **changes: Any) -> Config:
    """Return a training for checks: four blocks of each encoder; nothing random; a temperature that roundings survive.

    At the 0.01 of the defaults a difference of 0.01 between cosines is a factor of e.
    """
    config = config_of(where, "PaSST-N")
    assert isinstance(config.audio, Passt) and isinstance(config.text, Untrained)
    depth = min(4, config.audio.depth)
    audio = replace(config.audio, depth=depth, patchout_frequency=0, patchout_time=0)
    text = replace(config.text, depth=depth, dropout=0.0, vocabulary=min(4000, config.text.vocabulary))
    fixed = {
        "audio": audio,
        "text": text,
        "batch": 4,
        "clip_seconds": min(10.0, config.clip_seconds),
        "temperature": 0.1,
    }
    return replace(config, **{**fixed, "precision": "float32", **changes})


def fresh(device: str, config: Config) -> tuple[RetrievalLearner, Batch]:
    """Return a learner on a device, and a batch in host memory."""
    data = Clips(config)
    return RetrievalLearner([config], data, Worker(device=device)), next(data.batches(0, 0, 0, 1))


@lru_cache(maxsize=1)
def trained(where: Where, name: str) -> tuple[RetrievalLearner, Batch]:
    """Return the learner of a network: one at a time, as to draw half a billion weights takes longer than to time."""
    free(where)
    return fresh(where.device, config_of(where, name))


# Checks


def answer(where: Where, precision: str, device: str, **changes: Any) -> dict[str, Any]:
    """Return vectors of a batch, and the gradients of a step on it."""
    kept = precision if precision in HALF else "float32"
    with arithmetic("default" if precision in HALF else precision, device):
        learner, batch = fresh(device, small_config(where, precision=kept, **changes))
        vectors = torch.cat((learner.embed_audio(batch), learner.embed_text(batch.captions)))
        learner.step(batch)
    gradients = {name: value.grad for name, value in learner.model.named_parameters() if value.grad is not None}
    return {"vectors": vectors, "gradients": gradients}


@cache
def reference(where: Where) -> dict[str, Any]:
    """Return the answer of the CPU in float32, worked out once."""
    return answer(where, "float32", "cpu")


def against_cpu(where: Where, precision: str) -> Results:
    """Compare the device at a precision to the CPU in float32."""
    if precision in ("tf32", "float16") and not where.gpu:
        return NO_CUDA
    got, want = answer(where, precision, where.device), reference(where)
    return compared(got, want, {"vectors": VECTORS[precision], "gradients": GRADIENTS[precision]})


@torch.inference_mode()
def spectrogram(where: Where) -> Results:
    """Compare the mel spectrogram to the CPU's."""
    waveform = next(Clips(small_config(where)).batches(0, 0, 0, 1)).audio
    with arithmetic("float32", where.device):
        got = Mel().to(where.device)(waveform.to(where.device))
    return compared({"log-mel": got}, {"log-mel": Mel()(waveform)}, {"log-mel": SPECTROGRAM})


def attention(where: Where, kernel: SDPBackend) -> Results:
    """Compare an attention kernel in bfloat16 to the written-out formula in float32, on the same numbers."""
    if not where.gpu and kernel not in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
        return NO_CUDA
    tokens = 34 if where.tiny else 284  # 284: of PaSST-N's 10 s, after patchout
    draw = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, 12, tokens, 64, generator=draw).bfloat16() for _ in range(4)]

    def run(dtype: torch.dtype, chosen: SDPBackend) -> dict[str, Any]:
        query, key, value = (
            tensor.detach().to(where.device, dtype, copy=True).requires_grad_() for tensor in inputs[:3]
        )
        with sdpa_kernel(chosen), arithmetic("float32", where.device):
            output = functional.scaled_dot_product_attention(query, key, value)
            output.backward(inputs[3].to(where.device, dtype))
        return {"output": output.detach(), "gradients": {"query": query.grad, "key": key.grad, "value": value.grad}}

    return compared(run(torch.bfloat16, kernel), run(torch.float32, SDPBackend.MATH), KERNEL)


@torch.inference_mode()
def graph_of_embedding(where: Where) -> Results:
    """Compare embedding by a CUDA graph to the learner's own, on sounds that it was not captured with."""
    if not where.gpu:
        return NO_CUDA
    config = small_config(where)
    learner, batch = fresh(where.device, replace(config, clip=config.segment))
    learner.model.eval()
    sounds = torch.zeros_like(batch.audio, device=where.device)
    with arithmetic("float32", where.device):
        replay, vectors = graphed(partial(straight, learner.model, sounds))
        sounds.copy_(batch.audio)
        replay()
        return compared({"vectors": vectors}, {"vectors": learner.embed_audio(batch)}, {"vectors": VECTORS["float32"]})


def straight(model: DualEncoder, segments: Float[Tensor, "n samples"]) -> Float[Tensor, "n dimension"]:
    """Embed whole segments as `embed_audio` does, without its look at their lengths, for which the CPU waits."""
    encoded = model.audio.network(normalise(model.audio.mel(segments))[:, None]).float()
    return functional.normalize(model.audio_projection(encoded).float(), dim=-1)


def in_chunks(where: Where) -> Results:
    """Compare gradients of a batch in two chunks to those of the whole batch."""
    got, want = answer(where, "float32", where.device, chunk=2), answer(where, "float32", where.device)
    return compared(got, want, {"gradients": GRADIENTS["float32"]})


def opened(where: Where, random: bool, device: str) -> Opened:
    """Return a run of a few steps, with its data; `random`: with dropout and patchout."""
    config = small_config(where, epochs=2, steps=3, clip_seconds=2.0, segment=1.0)
    if random:
        assert isinstance(config.audio, Passt) and isinstance(config.text, Untrained)
        audio = replace(config.audio, patchout_frequency=1, patchout_time=2)
        config = replace(config, audio=audio, text=replace(config.text, dropout=0.2))
    return TASK, config, Clips(config)


def interrupted(where: Where) -> Results:
    """Compare a resumed run, with dropout and patchout, to an uninterrupted one."""
    task, config, data = opened(where, True, where.device)
    with arithmetic("float32", where.device):
        return resumed(task, [config], data, where)


def in_two(where: Where) -> Results:
    """Compare training in two processes to training in one, the loss being that of the joined batch."""
    return shared_out(partial(opened, where, False), where)


# Speeds


def training(where: Where, name: str, how: str = "", **changes: Any) -> Results:
    """Time steps of training, from a batch in host memory; `how`: `compiled`, or with the batch `on the device`."""
    if how == "compiled" and not where.gpu:
        return NO_CUDA
    learner, batch = trained(where, name)
    before, forward = learner.config, learner.forward
    learner.config = replace(before, **changes)
    if how == "compiled":
        learner.forward = compiled(learner.model, where)
    if how == "on the device":
        batch = replace(batch, audio=batch.audio.to(where.device))
    try:
        steps = per_second(lambda: learner.step(batch), where, warmup=1 if where.tiny else 3)
    finally:
        learner.config, learner.forward = before, forward
    clips = len(batch.recording) * steps
    return {"clips a second": clips, "s a step": 1 / steps, "MB": peak_memory(where)}


def embedding(where: Where, name: str, how: str = "") -> Results:
    """Time embedding whole segments in bfloat16, from host memory; as a `CUDA graph`, from memory that is pinned."""
    if how and not where.gpu:
        return NO_CUDA
    learner, batch = trained(where, name)
    length = round(learner.config.segment * SAMPLE_RATE)
    audio = batch.audio[:, :length].contiguous()
    batch = replace(batch, audio=audio, lengths=torch.full((len(audio),), length))
    call: Callable[[], object] = partial(learner.embed_audio, batch)
    if how:
        learner.model.eval()
        pinned = audio.pin_memory()

        def embed() -> Tensor:
            with torch.inference_mode(), arithmetic("bfloat16", where.device):
                return straight(learner.model, pinned.to(where.device, non_blocking=True))

        call, _ = graphed(embed)
    speed = per_second(call, where) * len(audio)
    hours = speed * learner.config.segment / 60
    return {"segments a second": speed, "hours of sound a minute": hours, "MB": peak_memory(where)}


def encoder(where: Where, how: str) -> Results:
    """Time steps of PaSST-N alone on 64 spectrograms of 10 s, in bfloat16 with patchout.

    `how` names an attention kernel, or is `compiled`, `written out` (attention as published PaSST code has it: two
    products and a softmax) or `hear21passt`: that package's own network.
    """
    if how in ("memory-efficient", "cuDNN") and not where.gpu:
        return NO_CUDA
    if how == "hear21passt" and not importlib.util.find_spec("hear21passt"):
        return {"left out": "hear21passt is not installed"}
    trained.cache_clear()  # its memory is not what this step takes
    torch.manual_seed(0)
    config = config_of(where, "PaSST-N")
    assert isinstance(config.audio, Passt)
    network = theirs(config.audio) if how == "hear21passt" else PasstNetwork(config.audio)
    if how == "written out":
        for block in network.blocks:
            block.attn.fused_attn = False
    network = network.to(where.device).train()
    optimizer = torch.optim.AdamW(network.parameters(), 2e-5)
    forward = compiled(network, where) if how == "compiled" else network
    spectrograms = torch.randn(config.batch, 1, BANDS, round(100 * config.segment), device=where.device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with arithmetic("bfloat16", where.device), sdpa_kernel(KERNELS[how]) if how in KERNELS else nullcontext():
            vectors = forward(spectrograms)
        vectors.float().square().mean().backward()
        optimizer.step()

    with redirect_stdout(StringIO()):  # hear21passt prints the shapes of its first batch
        step()
    speed = per_second(step, where)
    return {"segments a second": speed * len(spectrograms), "s a step": 1 / speed, "MB": peak_memory(where)}


def theirs(audio: Passt) -> nn.Module:
    """Return the network of the package hear21passt with the sizes of ours; it gives features beside its classes."""
    from hear21passt.models.passt import PaSST

    class Features(PaSST):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            features: Tensor = super().forward(x)[1]
            return features

    return Features(
        s_patchout_t=audio.patchout_time,
        s_patchout_f=audio.patchout_frequency,
        img_size=(BANDS, audio.frames),
        stride=audio.stride,
        embed_dim=audio.width,
        depth=audio.depth,
        num_heads=audio.heads,
        distilled=True,
    )


def steps(where: Where) -> Iterator[Step]:
    """Yield the checks, then the speeds, what must be compiled last."""
    for precision in ("float32", "tf32", "bfloat16", "float16"):
        yield Step(f"both encoders, {precision} against the CPU", partial(against_cpu, where, precision))
    yield Step("mel spectrogram against the CPU", partial(spectrogram, where))
    for name, kernel in KERNELS.items():
        yield Step(f"attention, {name} in bfloat16 against float32", partial(attention, where, kernel))
    yield Step("embedding by CUDA graph against eager", partial(graph_of_embedding, where))
    yield Step("gradients in chunks against the whole batch", partial(in_chunks, where))
    yield Step("resumed against uninterrupted", partial(interrupted, where))
    yield Step("a batch in two processes against one", partial(in_two, where))
    yield from speeds(where)


def speeds(where: Where) -> Iterator[Step]:
    """Yield training and embedding of PaSST-N, the steps of its encoder alone, then the other networks."""
    name, rates = "PaSST-N", {"audio": "clips a second"}
    title = f"training, {name} + roberta-large"
    yield Step(f"{title}, bfloat16", partial(training, where, name), rates)
    yield Step(f"embedding, {name}, bfloat16", partial(embedding, where, name))
    yield Step(f"embedding, {name}, bfloat16, CUDA graph", partial(embedding, where, name, "CUDA graph"))
    yield Step(f"{title}, bfloat16, batch on the device", partial(training, where, name, "on the device"))
    yield Step(f"{title}, bfloat16, in chunks of 16", partial(training, where, name, chunk=1 if where.tiny else 16))
    yield Step(f"{title}, float32 as PyTorch is set", partial(training, where, name, precision="float32"))
    for how in ("flash", "hear21passt", "written out", "memory-efficient", "cuDNN", "math"):
        yield Step(f"{name} alone, bfloat16, {how}", partial(encoder, where, how))
    for other in ("PaSST-S", "PaSST-S15"):
        rates = {f"audio/{other}": "clips a second"}
        yield Step(f"training, {other} + roberta-large, bfloat16", partial(training, where, other), rates)
        yield Step(f"embedding, {other}, bfloat16", partial(embedding, where, other))
    yield Step(f"{name} alone, bfloat16, compiled", partial(encoder, where, "compiled"))
    yield Step(f"{title}, bfloat16, compiled", partial(training, where, name, "compiled"), {"audio": "clips a second"})
