"""Seconds an image of version 2: `stylise` against the same network in plain eager float32 PyTorch; PSNR; peak memory.

The reference is written as it usually is (pytorch/examples' `fast_neural_style`, and its transposed sibling), with
PyTorch's defaults and the same weights, which are random; calls alternate in one process, many times, and the least
seconds of each way count: what else the machine does only adds to them. Where onnxruntime is installed, it runs the
file that `retable style onnx` writes, on as many threads. On a CPU the smaller size is also timed beside processes that
keep cores busy with products of NumPy's matrices: there the median counts, as neighbours are what is measured. On a GPU
(`RETABLE_BENCH_DEVICE=cuda`) sizes go up to 4K, the settings are those that pay there, and the reference's convolutions
are in TF32, as is PyTorch's default. Memory is that of a process of its own on a CPU, the allocator's on a GPU.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import most_resident
from retable.tasks.style.files.assets import photographs
from retable.tasks.style.files.images import read, square, to_tensor
from retable.tasks.style.networks.network import TransformerNetwork
from retable.tasks.style.networks.tiling import stylise

DEVICE = os.environ.get("RETABLE_BENCH_DEVICE", "cpu")
SHAPES = ((256, 256), (512, 512), (1024, 1024), (2160, 3840)) if DEVICE == "cuda" else ((512, 512), (1024, 1024))
ROUNDS = {512: 12, 1024: 5} if DEVICE == "cpu" else {}
"""Calls of each way, by the shorter side; the least seconds count."""
NEIGHBOURS = (0, 1, 2, 4) if DEVICE == "cpu" else ()
"""Busy processes beside this one."""
START = 3.0
"""Seconds that neighbours are given to start."""
FILTERS, UPSAMPLING = 32, ("transposed", "resize")


class Convolution(nn.Sequential):
    """Reflection padding, a convolution, and perhaps instance normalisation and ReLU."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, norm: bool = True, relu: bool = True
    ) -> None:
        layers: list[nn.Module] = [nn.ReflectionPad2d(kernel // 2), nn.Conv2d(inputs, outputs, kernel, stride)]
        layers += [nn.InstanceNorm2d(outputs, affine=True)] * norm + [nn.ReLU()] * relu
        super().__init__(*layers)


class Residual(nn.Sequential):
    """Two convolutions, and the input added."""

    def __init__(self, filters: int) -> None:
        super().__init__(Convolution(filters, filters, 3), Convolution(filters, filters, 3, relu=False))

    def forward(self, x: Tensor) -> Tensor:
        """Apply both and add."""
        added: Tensor = self[1](self[0](x)) + x
        return added


def doubled(inputs: int, outputs: int, upsampling: str) -> nn.Module:
    """Return a layer that doubles the resolution."""
    if upsampling == "resize":
        return nn.Sequential(nn.Upsample(scale_factor=2), Convolution(inputs, outputs, 3))
    transposed = nn.ConvTranspose2d(inputs, outputs, 3, 2, padding=1, output_padding=1)
    return nn.Sequential(transposed, nn.InstanceNorm2d(outputs, affine=True), nn.ReLU())


def plain(network: TransformerNetwork) -> nn.Module:
    """Return the same network, which returns images times 255, as a plain chain of modules."""
    f, upsampling = network.architecture.filters, network.architecture.upsampling
    made = nn.Sequential(
        Convolution(3, f, 9),
        Convolution(f, 2 * f, 3, 2),
        Convolution(2 * f, 4 * f, 3, 2),
        *(Residual(4 * f) for _ in range(5)),
        doubled(4 * f, 2 * f, upsampling),
        doubled(2 * f, f, upsampling),
        Convolution(f, 3, 9, norm=False, relu=False),
    )
    made.load_state_dict(dict(zip(made.state_dict(), network.state_dict().values(), strict=True)))
    return made.eval().to(next(network.parameters()).device)


def picture(shape: tuple[int, int]) -> Tensor:
    """Return a photograph of a shape, on the device."""
    pixels = to_tensor(square(read(photographs()["mountain"]).pixels, 512))
    return nn.functional.interpolate(pixels, shape, mode="bicubic").clamp(0, 1).to(DEVICE)


def untrained(upsampling: Any) -> TransformerNetwork:
    """Return a network of random weights whose output has the contrast of a picture."""
    torch.manual_seed(0)
    network = TransformerNetwork(FILTERS, upsampling).eval().to(DEVICE)
    with torch.no_grad():
        weight, bias = list(network.parameters())[-2:]
        weight.mul_(60 / network(picture((256, 256))).std() / 255)
        bias.add_(127)
    return network


def ways(network: TransformerNetwork) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return the ways to stylise, the reference first."""
    reference = plain(network)

    def eager(image: Tensor) -> Tensor:
        result: Tensor = reference(image)
        return (result / 255).clamp(0, 1)

    calls: dict[str, Callable[[Tensor], Tensor]] = {"eager": eager, "float32": partial(stylise, network)}
    if DEVICE == "cuda" or torch.cpu.get_capabilities().get("amx_bf16", False):
        calls["bfloat16"] = partial(stylise, network, precision="bfloat16")
    if DEVICE == "cpu" and find_spec("onnxruntime") and find_spec("onnx"):
        calls["onnxruntime"] = onnx_way(network)
    if DEVICE == "cuda":
        for name, mode in (("compiled", "default"), ("CUDA graph", "reduce-overhead")):
            compiled: Any = torch.compile(network, mode=mode)
            calls[f"bfloat16, {name}"] = partial(half, compiled)
    return calls


def onnx_way(network: TransformerNetwork) -> Callable[[Tensor], Tensor]:
    """Return the network's file in onnxruntime, on as many threads as PyTorch has."""
    import onnxruntime

    from retable.tasks.style.tools import onnx_file

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    file = onnx_file.pack(network)
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()

    def run(image: Tensor) -> Tensor:
        (made,) = session.run(None, {given.name: image.contiguous().numpy()})
        return torch.from_numpy(made).clamp(0, 1)

    return run


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep so many cores busy with products of matrices, a process each, while the block runs."""
    spin = "import numpy as np\na = np.ones((256, 256), np.float32)\nwhile True: a = a @ a * 1e-3"
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    neighbours = [subprocess.Popen([sys.executable, "-c", spin], env=alone) for _ in range(count)]
    try:
        if neighbours:
            time.sleep(START)
        yield
    finally:
        for one in neighbours:
            one.kill()
            one.wait()


@torch.inference_mode()
def beside(count: int) -> dict[str, float]:
    """Time the first network's ways at the smaller size, in turn, beside so many busy processes."""
    shape, upsampling = SHAPES[0], UPSAMPLING[0]
    image, calls = picture(shape), ways(untrained(upsampling))
    with busy(count):
        times = interleaved(calls, image, ROUNDS.get(shape[0], 20) // 2 + 1)
    middle = {way: statistics.median(values) for way, values in times.items()}
    name = f"{upsampling}, {shape[1]} x {shape[0]}, {count} busy neighbours"
    results = {f"{name}, {way}: median s": value for way, value in middle.items()}
    return results | {
        f"{name}, {way}: times as fast": middle["eager"] / middle[way] for way in middle if way != "eager"
    }


def interleaved(calls: Mapping[str, Callable[[Tensor], Tensor]], image: Tensor, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of so many calls of each way, taken in turn, forwards and backwards."""
    times: dict[str, list[float]] = {way: [] for way in calls}
    for call in calls.values():
        call(image)
    for number in range(rounds):
        for way in sorted(calls, reverse=number % 2 == 1):
            times[way].append(seconds(partial(calls[way], image)))
    return times


def half(network: Callable[[Tensor], Tensor], image: Tensor) -> Tensor:
    """Do what `stylise` does on a GPU in bfloat16, with a compiled network."""
    with torch.autocast("cuda", torch.bfloat16):
        return network(image.contiguous(memory_format=torch.channels_last)).clamp(0, 1)


def seconds(call: Callable[[], object]) -> float:
    """Time one call, the device's work included."""
    start = time.perf_counter()
    call()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def psnr(one: Tensor, other: Tensor) -> float:
    """Compare images in [0, 1], dB."""
    return float(-10 * torch.log10((one.double() - other.double()).square().mean()))


@torch.inference_mode()
def compare(upsampling: str, shape: tuple[int, int]) -> dict[str, float]:
    """Time all ways on one picture, in turn."""
    name, image = f"{upsampling}, {shape[1]} x {shape[0]}", picture(shape)
    calls = ways(untrained(upsampling))
    made = {way: call(image).float() for way, call in calls.items()}
    results: dict[str, float] = {
        f"{name}, {way}: PSNR, dB": psnr(result, made["eager"]) for way, result in made.items() if way != "eager"
    }
    times = interleaved(calls, image, ROUNDS.get(shape[0], 20))
    for way, values in times.items():
        results[f"{name}, {way}: s"] = min(values)
        if way != "eager":
            results[f"{name}, {way}: times as fast"] = min(times["eager"]) / min(values)
    return results


@torch.inference_mode()
def peak(upsampling: str, height: int, width: int, way: str) -> None:
    """Print the most memory, MB, that one way adds to what there is before it."""
    image, call = picture((height, width)), ways(untrained(upsampling))[way]
    call(image[..., :64, :64])
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        call(image)
        print((torch.cuda.max_memory_allocated() - held) / 1e6)
        return
    before = most_resident()
    call(image)
    print(most_resident() - before)


def measure() -> dict[str, Any]:
    """Compare times for both ways of upsampling at all sizes, and memory at the largest."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    results: dict[str, Any] = {"device": DEVICE, "filters": FILTERS, "threads": torch.get_num_threads()}
    for upsampling in UPSAMPLING:
        for shape in SHAPES:
            results |= compare(upsampling, shape)
    for count in NEIGHBOURS:
        results |= beside(count)
    height, width = SHAPES[-1]
    for way in ("eager", "float32", "bfloat16") if DEVICE == "cuda" else ("eager", "float32"):
        command = f"from benchmarks.style_network import peak; peak('transposed', {height}, {width}, {way!r})"
        done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
        results[f"transposed, {width} x {height}, {way}: peak MB"] = float(done.stdout)
    return results
