import os
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
import torch
from torch.nn import functional

from retable.tasks.style.networks import tiling
from retable.tasks.style.networks.network import Architecture, Layer, TransformerNetwork
from retable.tasks.style.networks.tiling import (
    Moments,
    fast_convolution,
    needed_bytes,
    stylise,
    stylise_mixed,
    stylise_tiled,
)
from retable.tasks.style.networks.transformer import read
from tests.style.test_transformer import network, picture

torch.set_num_threads(1)
VARIANTS = [{}, {"upsampling": "resize"}, {"padding": "zeros", "epsilon": 1e-3, "final_norm": True, "output": "tanh"}]


@pytest.mark.parametrize("arguments", VARIANTS)
@pytest.mark.parametrize(
    ("size", "tile"), [((64, 64), 16), ((63, 65), 24), ((37, 101), 40), ((9, 8), 8), ((50, 41), 1000)]
)
def test_tiles_give_what_the_whole_image_gives(arguments, size, tile):
    net, image = network(**arguments), torch.rand(1, 3, *size)
    with torch.no_grad():
        whole = net(image)
    tiled = stylise_tiled(net, image, tile)
    assert tiled.shape == image.shape
    torch.testing.assert_close(tiled, whole, rtol=0, atol=1e-5 * float(whole.abs().max()) * 5)


def test_tiles_of_a_trained_network_give_what_the_whole_image_gives(shared):
    net = read(shared / "weights/style/v2_wave_lengstrom_layout.safetensors")
    image = picture(shared, 76, 107)
    with torch.no_grad():
        whole = net(image)
        parts = torch.cat([net(image[..., :56]), net(image[..., 56:])], 3)
    tiled = stylise_tiled(net, image, 32)
    error = (tiled - whole).abs().max()
    assert error < 1e-5 * whole.abs().max() * 3
    assert (parts - whole).abs().mean() > 100 * error  # what tiles that know nothing of each other would do


def test_cores_that_others_compute_on_are_left_to_them():
    """As many busy processes as cores leave none free; what is computed with one thread or two is the same."""
    spin = "import sys; print(flush=True)\nwhile True: pass"
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, 1)
        torch.set_num_threads(2)
        others = [subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE) for _ in range(os.cpu_count())]
        for other in others:
            stack.enter_context(other)
            stack.callback(other.kill)
        for other in others:
            other.stdout.readline()
        deadline = time.monotonic() + 30
        while tiling.free_threads() != 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert tiling.free_threads() == 1
        with tiling.threads(tiling.free_threads()):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with pytest.raises(KeyError), tiling.threads(tiling.free_threads()):
            raise KeyError
        assert torch.get_num_threads() == 2


def test_threads_are_pytorchs_where_nothing_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(tiling, "Path", lambda name: tmp_path / name.lstrip("/"))
    assert tiling.free_threads() == torch.get_num_threads()
    (tmp_path / "proc/self/task/1").mkdir(parents=True)
    (tmp_path / "proc/loadavg").write_text("0.1 0.1 0.1 3/90 7\n")
    (tmp_path / "proc/self/task/1/stat").write_text("1 (a) R) R 2 3")
    (tmp_path / "proc/self/task/2").mkdir()
    (tmp_path / "proc/self/task/2/stat").write_text("1 (b) S 2 3")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert tiling.free_threads() == 6  # of three that run one is ours
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 2}, raising=False)
    assert tiling.free_threads() == 2  # the others have six cores to themselves
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert tiling.free_threads() == 4


def test_the_number_of_threads_changes_only_the_rounding_of_sums():
    net, image = network(), torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    made = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        with torch.inference_mode():
            made.append(tiling._walk(net, image, (64, 96), "cpu", "float32", lambda done, total: None, None))
    torch.set_num_threads(1)
    torch.testing.assert_close(*made, rtol=0, atol=1e-5)


def test_statistics_can_be_given():
    net, image, other = network(), torch.rand(1, 3, 40, 29), torch.rand(1, 3, 24, 24)
    statistics = net.statistics(other)
    with torch.no_grad():
        fixed = net(image, statistics)
    torch.testing.assert_close(stylise_tiled(net, image, 16, statistics=statistics), fixed, rtol=0, atol=1e-5)


def test_progress_counts_every_tile():
    calls = []
    stylise_tiled(network(), torch.rand(1, 3, 33, 20), 16, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(done, 16 * 3 * 2) for done in range(1, 97)]


def test_merged_moments_are_those_of_all_pixels_far_from_zero():
    values = torch.randn(1, 3, 40, 30, dtype=torch.float64) + torch.tensor([0.0, 1e3, -50]).view(1, 3, 1, 1)
    moments = Moments()
    for tile in (values[:, :, :7], values[:, :, 7:8, :1], values[:, :, 7:8, 1:], values[:, :, 8:]):
        moments.add(tile.float())
    mean, variance = moments.result()
    torch.testing.assert_close(mean.double(), values.mean((0, 2, 3)), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(variance.double(), values.var((0, 2, 3), correction=0), rtol=1e-4, atol=0)


@pytest.mark.parametrize("arguments", VARIANTS)
def test_rewritten_convolutions_equal_the_plain_ones(arguments):
    for layer in network(**arguments).double().layers:
        x = torch.randn(1, layer.convolution.in_channels, 12, 8, dtype=torch.float64)
        whole = (0, layer.size(12)), (0, layer.size(8))
        window = layer.window(x, *whole)
        torch.testing.assert_close(fast_convolution(layer, "cpu", torch.float64)(window), layer.convolve(window))


@pytest.fixture
def amx(monkeypatch):
    """A processor that multiplies matrices in bfloat16."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})


def psnr(one, other):
    return float(-10 * torch.log10((one - other).square().mean()))


@pytest.mark.parametrize("arguments", VARIANTS)
@pytest.mark.parametrize("way", ["strips", "tiles", "whole", "whole, statistics given"])
def test_bfloat16_is_close_and_both_ends_are_in_float32(monkeypatch, amx, arguments, way):
    net, image = contrasty(**arguments)
    statistics = net.statistics(image.flip(3)) if way.endswith("given") else None
    with torch.no_grad():
        exact = net(image, statistics).clamp(0, 1)
    kinds = []
    if way in ("strips", "tiles"):
        conv2d = functional.conv2d
        monkeypatch.setattr(functional, "conv2d", lambda x, *rest: kinds.append(x.dtype) or conv2d(x, *rest))
    if way == "strips":
        rounded = stylise(net, image, "auto")
    elif way == "tiles":
        rounded = stylise_tiled(net, image, 16, precision="auto").clamp(0, 1)
    else:
        for layer in net.layers:
            layer.convolution.register_forward_hook(lambda _, x, y: kinds.append(y.dtype))
        rounded = torch.inference_mode()(stylise_mixed)(net, image, statistics).clamp(0, 1)
    changes = [kind for kind, before in zip(kinds, [None, *kinds], strict=False) if kind != before]
    assert changes == [torch.float32, torch.bfloat16, torch.float32], "in order, without repetitions"
    assert not torch.equal(exact, rounded) and psnr(exact, rounded) > 45


def contrasty(**arguments):
    """A network of random weights whose results have a picture's contrast, and a smooth image."""
    net = network(**{**arguments, "filters": 8})
    image = functional.interpolate(torch.rand(1, 3, 10, 9), (40, 36), mode="bilinear")
    with torch.no_grad():
        wanted = 0.4 if net.architecture.output == "tanh" else 60 / 255  # tanh(0.4): 57 levels
        last = net.layers[-1]
        if last.norm is not None:
            last.norm.weight.fill_(wanted)
            last.norm.bias.zero_()
        else:
            last.convolution.weight.mul_(wanted / net(image).std())
    return net, image


def test_the_arithmetic_of_a_device(monkeypatch):
    asked = ("auto", "float32", "bfloat16")
    for capable in (True, False):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda capable=capable: {"amx_bf16": capable})
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, capable=capable: capable)
        on = torch.bfloat16 if capable else torch.float32
        assert [tiling.arithmetic(each, "cpu") for each in asked] == [on, torch.float32, on]
        assert [tiling.arithmetic(each, "cuda:0") for each in asked] == [on, torch.float32, torch.bfloat16]
    assert tiling.arithmetic("auto", "mps") == torch.float32


def test_bfloat16_of_a_trained_network_is_close_to_float32(shared, monkeypatch, amx):
    monkeypatch.setattr(tiling, "STRIP", 16 * 48)
    net = read(shared / "weights/style/v2_wave_lengstrom_layout.safetensors")
    image = picture(shared, 32, 48)
    exact, rounded = stylise(net, image), stylise(net, image, "bfloat16")
    assert not torch.equal(exact, rounded)
    assert psnr(exact, rounded) > 54


def test_a_processor_without_bfloat16_computes_in_float32(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": False})
    net, image = network(), torch.rand(1, 3, 16, 16)
    assert torch.equal(stylise(net, image, "bfloat16"), stylise(net, image))
    tiled = [stylise_tiled(net, image, 8, precision=precision) for precision in ("bfloat16", "auto", "float32")]
    assert torch.equal(tiled[0], tiled[2]) and torch.equal(tiled[1], tiled[2]), "in tiles too"


def test_needed_bytes_of_tiles_are_the_largest_layers():
    net = TransformerNetwork()
    pixels = 100 * 160
    # The second convolution (and the last doubling): 32 + 64 / 4 channels a pixel, and the image and the result.
    assert needed_bytes(net, 100, 160) == 4 * pixels * (32 + 16 + 6)
    whole = needed_bytes(net, 100, 160, tiled=False)
    assert whole > 2 * needed_bytes(net, 100, 160)
    assert needed_bytes(net, 99, 158, tiled=False) <= whole < needed_bytes(net, 104, 160, tiled=False)


def test_zero_padding_does_not_go_with_resizing():
    with pytest.raises(ValueError, match="transposed"):
        TransformerNetwork(padding="zeros", upsampling="resize")
    assert Layer(Architecture(), 3, 4, 9).source(0, 8) == (-4, 12)
