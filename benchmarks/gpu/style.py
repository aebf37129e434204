"""Style transfer: version 1 optimises an image, version 2 trains a network that stylises any; the paper's Table I.

Pictures are those shipped with the task. The network and all backbones have random weights, which take the same time.
Neither version trains stacks, so in a stack's place several pictures are stylised at once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu.frame import Step, Value, Where
from benchmarks.gpu.measure import closeness, free, peak_memory, per_second
from benchmarks.gpu.training import MOVED, moves, numbers, resumed
from benchmarks.gpu.ways import NO_CUDA, Opened, arithmetic, compared, compiled, graphed, shared_out
from retable.platform.train.worker import Worker
from retable.tasks.style import TASK, losses
from retable.tasks.style.apply.optimise import EVALUATIONS, ImageOptimisation
from retable.tasks.style.config import (
    Alexnet,
    Backbone,
    Config,
    Objective,
    OptimiseImage,
    Squeezenet,
    TrainNetwork,
    Vgg16,
    Vgg19,
)
from retable.tasks.style.files import assets, images
from retable.tasks.style.learner import NetworkLearner
from retable.tasks.style.losses import Losses
from retable.tasks.style.networks.backbones import BackboneNetwork, build
from retable.tasks.style.networks.network import TransformerNetwork
from retable.tasks.style.networks.transformer import untrained

Results = Mapping[str, Value]
Image = Float[Tensor, "batch 3 height width"]
Call = Callable[[], object]

OUTPUTS = {"float32": 1e-4, "tf32": 8e-3, "float16": 8e-3, "bfloat16": 6e-2}
"""How far results may be from float32's on a CPU: six times what rounding the factors of every convolution to 11 and 8
bits was seen to do there (1.3e-3, 9e-3). In float32 other orders of summation, and Winograd's algorithm on the CPU,
are some 3e-5; TF32 in its place would be noticed."""
GRADIENTS = {"float32": 1e-3, "tf32": 1e-2, "bfloat16": 4e-2}
"""The same of gradients, at 128 pixels: four times what was seen (1e-4, 2.5e-3, 1.1e-2). Gradients that have nothing to
do with each other are 1.4 apart."""
SMALL = 4.0
"""How many times as far gradients may be in tiny networks at 64 pixels, where every rectifier that switches weighs more
(7e-2 in bfloat16)."""
BACKBONES: Mapping[str, Backbone] = {
    "vgg19": Vgg19(weights="random", normalise=False),
    "alexnet": Alexnet(weights="random", normalise=False),
}
UHD = (2160, 3840)
PHOTOGRAPH = (2480, 4032)
"""Rows and columns of the paper's large photograph."""
WAYS = ("float32", "tf32", "bfloat16", "float16")


class Pictures:
    """Stand-in for `Photographs`, in memory: batches of the shipped photographs, shifted, and pictures by name."""

    storage = None

    def __init__(self, config: Config) -> None:
        self.config, self.steps, self.tests = config, config.steps, tuple(assets.photographs())
        self.batch = config.method.batch if isinstance(config.method, TrainNetwork) else 1

    def photograph(self, name: str) -> UInt8[np.ndarray, "height width 3"]:
        """Return a photograph."""
        return shipped(name)

    painting = photograph

    def batches(self, epoch: int, start: int, rank: int, world: int) -> Iterator[Tensor | None]:
        """Yield batches, uint8 (batch, 3, size, size); for version 1, None for each step."""
        method = self.config.method
        if not isinstance(method, TrainNetwork):
            yield from [None] * (self.steps - start)
            return
        squares = [images.square(self.photograph(name), method.size).transpose(2, 0, 1) for name in self.tests]
        own = slice(rank * self.batch // world, (rank + 1) * self.batch // world)
        for step in range(start, self.steps):
            random = np.random.default_rng([self.config.seed, epoch, step])
            draws = random.integers((len(squares), method.size), size=(self.batch, 2))
            moved = [np.roll(squares[number], shift, 2) for number, shift in draws]
            yield torch.from_numpy(np.stack(moved[own]))


@cache
def shipped(name: str) -> UInt8[np.ndarray, "height width 3"]:
    """Return a picture that comes with the task."""
    return images.read((assets.photographs() | assets.paintings())[name]).pixels


def picture(name: str, shape: tuple[int, int]) -> Image:
    """Return a shipped picture at a shape, on the CPU."""
    pixels = images.to_tensor(images.square(shipped(name), min(max(shape), 512)))
    return functional.interpolate(pixels, shape, mode="bicubic").clamp(0, 1)


@cache
def backbone(config: Backbone) -> BackboneNetwork:
    """Build a backbone once; to draw its weights takes longer than to copy them."""
    return build(config, 0, None)


def network_config(where: Where, **changes: Any) -> Config:
    """Return what version 2 trains: the defaults with random weights of the loss network; tiny: smaller in all."""
    method = TrainNetwork(backbone=Vgg16(weights="random", normalise=False, pooling="max"), style_size=256)
    if where.tiny:
        objective = Objective(content_layers=("fire2",), style_layers=("relu1", "fire2"), convention="relative")
        small = Squeezenet(weights="random", normalise=False)
        method = replace(method, size=32, style_size=32, batch=2, filters=8, backbone=small, objective=objective)
    return replace(Config(method=method), **changes)


def image_config(where: Where, name: str, size: int, **changes: Any) -> Config:
    """Return what version 1 optimises: the defaults, with random weights of a backbone."""
    method = OptimiseImage(size=size, backbone=BACKBONES[name])
    return replace(Config(method=method, epochs=1, steps=EVALUATIONS), **changes)


def fresh_network(where: Where) -> TransformerNetwork:
    """Return the network that stylises, untrained but always the same, on the device."""
    torch.manual_seed(0)
    method = network_config(where).method
    assert isinstance(method, TrainNetwork)
    return untrained(method).eval().to(where.device)


def optimisation(where: Where, config: Config, kind: type[ImageOptimisation] = ImageOptimisation) -> ImageOptimisation:
    """Return a run of version 1, on the device."""
    assert isinstance(config.method, OptimiseImage)
    network = copy.deepcopy(backbone(config.method.backbone))
    pictures = shipped(config.method.content), [shipped(name) for name in config.style]
    return kind(config, *pictures, network, where.device)


class GraphedOptimisation(ImageOptimisation):
    """Version 1 with loss and gradient as one CUDA graph; L-BFGS, which looks at the loss, stays outside."""

    _replay: Callable[[], None] | None = None

    def _place(self, image: Tensor) -> None:
        super()._place(image)
        self._replay = None  # a graph belongs to the memory that it was captured with

    def _evaluate(self) -> Losses:
        if self._replay is None:
            self._replay, self._found = graphed(super()._evaluate)
        self._replay()
        return self._found


# Checks


def network_answer(where: Where, precision: str, device: str) -> dict[str, Any]:
    """Return a picture that version 2 makes, and the gradients that its training takes."""
    side = 64 if where.tiny else 128
    network, config = fresh_network(where).to(device), network_config(where)
    assert isinstance(config.method, TrainNetwork)
    loss_network = copy.deepcopy(backbone(config.method.backbone)).to(device)
    content, painting = (picture(name, (side, side)).to(device) for name in ("mountain", "great_wave"))
    with arithmetic(precision, device):
        targets = losses.targets(loss_network, config.method.objective, content, [painting])
        made = network(content)
        if precision == "float16":  # is for pictures: what training sums is beyond its range
            return {"picture": made.detach()}
        loss = losses.loss(loss_network, config.method.objective, targets, made.float())
    loss.total.sum().backward()  # type: ignore[no-untyped-call]
    gradients = {name: value.grad for name, value in network.named_parameters()}
    return {"picture": made.detach(), "gradients": gradients}


def image_answer(name: str, where: Where, precision: str, device: str) -> dict[str, Any]:
    """Return loss and gradient of version 1, at an image between photograph and painting."""
    side = 32 if where.tiny else 128
    network, objective = copy.deepcopy(backbone(BACKBONES[name])).to(device), Objective()
    content, painting = (picture(asset, (side, side)).to(device) for asset in ("mountain", "great_wave"))
    pixels = (content + painting).div(2).requires_grad_()
    with arithmetic(precision, device):
        targets = losses.targets(network, objective, content, [painting])
        loss = losses.loss(network, objective, targets, pixels)
    loss.total.sum().backward()  # type: ignore[no-untyped-call]
    return {"loss": loss.total.detach(), "gradient": pixels.grad}


@cache
def reference(where: Where, answer: Callable[[Where, str, str], dict[str, Any]]) -> dict[str, Any]:
    """Return the answer of the CPU in float32, worked out once."""
    return answer(where, "float32", "cpu")


def against_cpu(where: Where, answer: Callable[[Where, str, str], dict[str, Any]], precision: str) -> Results:
    """Compare the device at a precision to the CPU in float32."""
    if precision in ("tf32", "float16") and not where.gpu:
        return NO_CUDA
    got, want = answer(where, precision, where.device), reference(where, answer)
    gradients = SMALL if where.tiny else 1.0
    bounds = {n: GRADIENTS[precision] * gradients if n.startswith("gradient") else OUTPUTS[precision] for n in got}
    return compared(got, want, bounds)


@torch.inference_mode()
def graph_of_pictures(where: Where) -> Results:
    """Compare a CUDA graph of the network to the network, on a picture that it was not captured with."""
    if not where.gpu:
        return NO_CUDA
    network, image = fresh_network(where), picture("mountain", (256, 256)).to(where.device)
    with arithmetic("float32", where.device):
        replay, made = graphed(lambda: network(image))
        image.copy_(picture("coffee", (256, 256)))
        replay()
        return compared({"picture": made}, {"picture": network(image)}, {"picture": OUTPUTS["float32"]})


def graph_of_evaluations(where: Where) -> Results:
    """Compare the losses of ten evaluations of version 1 by a CUDA graph to those without."""
    if not where.gpu:
        return NO_CUDA
    config = image_config(where, "vgg19", 128)
    with arithmetic("float32", where.device):
        jobs = [optimisation(where, config, kind) for kind in (GraphedOptimisation, ImageOptimisation)]
        got, want = ([torch.cat([job.step().total.clone() for _ in range(10)])] for job in jobs)
    return compared({"losses": got[0]}, {"losses": want[0]}, {"losses": GRADIENTS["float32"]})


def graph_of_training(where: Where) -> Results:
    """Compare where five steps by a CUDA graph move the weights to where five without do."""
    if not where.gpu:
        return NO_CUDA
    results = []
    with arithmetic("float32", where.device):
        for step_of in (graphed_step, eager_step):
            learner, batch = opened_learner(where, network_config(where))
            start, step = numbers(learner.network.state_dict()), step_of(learner, batch)
            for _ in range(5):
                step()
            results.append(moves(start, numbers(learner.network.state_dict())))
    return closeness("moves of the weights", *results, MOVED)


@torch.inference_mode()
def pictures_at_once(where: Where) -> Results:
    """Compare three pictures that go through the network together to each by itself."""
    side, network = (32 if where.tiny else 256), fresh_network(where)
    batch = torch.cat([picture(name, (side, side)) for name in assets.photographs()]).to(where.device)
    with arithmetic("float32", where.device):
        alone = torch.cat([network(single) for single in batch.split(1)])
        return compared({"pictures": network(batch)}, {"pictures": alone}, {"pictures": OUTPUTS["float32"]})


def opened(where: Where, method: str, device: str) -> Opened:
    """Return a run of a few steps, with its data."""
    sizes: dict[str, Any] = {"epochs": 2, "steps": 3}
    config = image_config(where, "alexnet", 96, **sizes) if method == "image" else network_config(where, **sizes)
    if isinstance(config.method, TrainNetwork) and device == "cpu" and not where.tiny:
        config = replace(config, method=replace(config.method, size=64))
    return TASK, config, Pictures(config)


def interrupted(where: Where, method: str) -> Results:
    """Compare a resumed run to an uninterrupted one."""
    task, config, data = opened(where, method, where.device)
    with arithmetic("float32", where.device):
        return resumed(task, [config], data, where)


# Speeds


def opened_learner(where: Where, config: Config) -> tuple[NetworkLearner, Tensor]:
    """Return a training of version 2, and a batch of it on the device."""
    data = Pictures(config)
    batch = next(data.batches(0, 0, 0, 1))
    assert batch is not None
    return NetworkLearner(config, data, Worker(device=where.device)), batch.to(where.device)


def eager_step(learner: NetworkLearner, batch: Tensor) -> Call:
    """Return a step of training as it is."""
    return partial(learner.step, batch)


def graphed_step(learner: NetworkLearner, batch: Tensor) -> Call:
    """Return a step of training as one CUDA graph, Adam included; the warm-up before the capture moves no weight."""
    start = copy.deepcopy(learner.network.state_dict())
    for group in learner.optimizer.param_groups:
        group["capturable"] = True
    replay, _ = graphed(partial(learner.step, batch))
    with torch.no_grad():
        learner.network.load_state_dict(start)
        for state in learner.optimizer.state.values():
            for value in state.values():
                value.zero_()
    return replay


def training(where: Where, config: Config, step_of: Callable[[NetworkLearner, Tensor], Call]) -> Results:
    """Time steps of version 2's training, the batch on the device."""
    if (step_of is graphed_step or config.compile) and not where.gpu:
        return NO_CUDA
    torch.compiler.reset()
    learner, batch = opened_learner(where, config)
    steps = per_second(step_of(learner, batch), where)
    return {"images a second": len(batch) * steps, "steps a second": steps, "MB": peak_memory(where)}


def evaluations(where: Where, config: Config, graph: bool = False) -> Results:
    """Time evaluations of version 1, L-BFGS included, with its full history."""
    assert isinstance(config.method, OptimiseImage)
    if (graph or config.compile) and not where.gpu:
        return NO_CUDA
    if config.precision == "bfloat16" and not where.gpu and isinstance(config.method.backbone, Vgg19):
        return {"left out": "no CUDA; processors that emulate bfloat16 take minutes"}
    torch.compiler.reset()
    job = optimisation(where, config, GraphedOptimisation if graph else ImageOptimisation)
    speed = per_second(job.step, where, warmup=2 if where.tiny else 21)
    image = f"s an image (a timed evaluation x {EVALUATIONS})"
    return {"evaluations a second": speed, image: EVALUATIONS / speed, "MB": peak_memory(where)}


def way(where: Where, network: TransformerNetwork, name: str, image: Image) -> Callable[[], Tensor]:
    """Return what stylises an image on the device: a precision, perhaps `compiled` or as a `CUDA graph`."""
    precision, _, how = name.partition(", ")
    forward: Callable[[Tensor], Tensor] = compiled(network, where) if how == "compiled" else network

    def call() -> Tensor:
        with torch.inference_mode(), arithmetic(precision, where.device):
            return forward(image).clamp(0, 1)

    if how != "CUDA graph":
        return call
    replay, made = graphed(call)

    def again() -> Tensor:
        replay()
        return made

    return again


def stylising(where: Where, shape: tuple[int, int], name: str) -> Results:
    """Time the network on one picture that is on the device; its result must be that of float32."""
    if not where.gpu and name not in ("float32", "bfloat16"):
        return NO_CUDA
    network = fresh_network(where)
    image = picture("mountain", shape).to(where.device, memory_format=torch.channels_last)
    wanted = way(where, network, "float32", image)().cpu()
    free(where)
    call = way(where, network, name, image)
    got = call().cpu()
    speed = per_second(call, where)
    compared_with = compared({"picture": got}, {"picture": wanted}, {"picture": OUTPUTS[name.partition(", ")[0]]})
    return {"s an image": 1 / speed, "images a second": speed, "MB": peak_memory(where), **compared_with}


def frames(where: Where, how: str) -> Results:
    """Time video frames from bytes in host memory to bytes in host memory, in bfloat16."""
    if how == "CUDA graph" and not where.gpu:
        return NO_CUDA
    shape = (36, 64) if where.tiny else UHD
    network = fresh_network(where).to(memory_format=torch.channels_last)
    forward: Callable[[Tensor], Tensor] = compiled(network, where) if how == "compiled" else network
    before = picture("mountain", shape)[0].permute(1, 2, 0).mul(255).byte().contiguous()
    after = torch.empty_like(before)
    if where.gpu:
        before, after = before.pin_memory(), after.pin_memory()

    def call() -> None:
        with torch.inference_mode(), arithmetic("bfloat16", where.device):
            image = before.to(where.device, non_blocking=True).permute(2, 0, 1)[None].float() / 255
            made = forward(image).clamp(0, 1).mul(255).round().byte()[0].permute(1, 2, 0)
            after.copy_(made, non_blocking=True)

    speed = per_second(graphed(call)[0] if how == "CUDA graph" else call, where)
    return {"frames a second": speed, "MB": peak_memory(where)}


def steps(where: Where) -> Iterator[Step]:
    """Yield the checks, then the speeds: eager and by CUDA graphs first, what must be compiled last."""
    yield from checks(where)
    yield from speeds(where)
    yield from compiled_speeds(where)


def checks(where: Where) -> Iterator[Step]:
    """Yield what must be right before anything is timed."""
    for precision in WAYS:
        yield Step(f"version 2, {precision} against the CPU", partial(against_cpu, where, network_answer, precision))
    for name in BACKBONES:
        answer = partial(image_answer, name)
        for precision in ("float32", "tf32", "bfloat16"):
            check = partial(against_cpu, where, answer, precision)
            yield Step(f"version 1, {name}, {precision} against the CPU", check)
    yield Step("version 2, CUDA graph against eager", partial(graph_of_pictures, where))
    yield Step("version 1, evaluations by CUDA graph against eager", partial(graph_of_evaluations, where))
    yield Step("version 2, training by CUDA graph against eager", partial(graph_of_training, where))
    yield Step("version 2, three pictures at once against one by one", partial(pictures_at_once, where))
    yield Step("version 2, resumed against uninterrupted", partial(interrupted, where, "network"))
    yield Step("version 1, resumed against uninterrupted", partial(interrupted, where, "image"))
    yield Step("version 2, a batch in two processes against one", partial(in_two, where))


def in_two(where: Where) -> Results:
    """Compare training in two processes to training in one."""
    return shared_out(partial(opened, where, "network"), where)


def speeds(where: Where) -> Iterator[Step]:
    """Yield what is timed without a compiler."""
    name = "version 2, training"
    plain, half = network_config(where), network_config(where, precision="bfloat16")
    yield Step(f"{name}, float32 as PyTorch is set", partial(training, where, plain, eager_step), rate_of("network"))
    yield Step(f"{name}, bfloat16", partial(training, where, half, eager_step), rate_of("network/bfloat16"))
    yield Step(f"{name}, bfloat16, CUDA graph", partial(training, where, half, graphed_step))
    for size in sizes(where):
        for name in BACKBONES:
            plain = image_config(where, name, size)
            half = replace(plain, precision="bfloat16")
            rates = {f"style/image/{name}": "evaluations a second"} if size == sizes(where)[0] else {}
            title = f"Table I, version 1, {name}, {size} x {size}"
            yield Step(f"{title}, float32 as PyTorch is set", partial(evaluations, where, plain), rates)
            yield Step(f"{title}, bfloat16", partial(evaluations, where, half))
            yield Step(f"{title}, bfloat16, CUDA graph", partial(evaluations, where, half, graph=True))
    for shape in shapes(where):
        for way_name in (*WAYS, "float16, CUDA graph"):
            yield Step(table_row(shape, way_name), partial(stylising, where, shape, way_name))
    for how in ("eager", "CUDA graph"):
        yield Step(f"version 2, UHD frames, bfloat16, {how}", partial(frames, where, how))


def compiled_speeds(where: Where) -> Iterator[Step]:
    """Yield what is compiled first, which takes longer than it is timed."""
    name = "version 2, UHD frames, bfloat16, compiled"
    yield Step(name, partial(frames, where, "compiled"))
    for precision, rate in (("float32", "network"), ("bfloat16", "network/bfloat16")):
        config = network_config(where, precision=precision, compile=True)
        name = f"version 2, training, {precision}, compiled"
        yield Step(name, partial(training, where, config, eager_step), rate_of(rate))
    for shape in reversed(shapes(where)):
        yield Step(table_row(shape, "float16, compiled"), partial(stylising, where, shape, "float16, compiled"))
    for size in sizes(where):
        for name in BACKBONES:
            config = image_config(where, name, size, compile=True, precision="bfloat16")
            title = f"Table I, version 1, {name}, {size} x {size}, bfloat16, compiled"
            yield Step(title, partial(evaluations, where, config))


def rate_of(rate: str) -> Mapping[str, str]:
    """Return which of the report's rates a training's speed is."""
    return {f"style/{rate}": "images a second"}


def sizes(where: Where) -> tuple[int, ...]:
    """Return the sides of the pictures that version 1 makes for Table I, the first of them what rates are taken at."""
    return (32,) if where.tiny else (512, 256, 1024)


def shapes(where: Where) -> list[tuple[int, int]]:
    """Return rows and columns of Table I's pictures."""
    return [(32, 32), (36, 44)] if where.tiny else [(256, 256), (512, 512), (1024, 1024), PHOTOGRAPH]


def table_row(shape: tuple[int, int], name: str) -> str:
    """Name a row of Table I."""
    return f"Table I, version 2, {shape[1]} x {shape[0]}, {name}"
