import pytest
import torch

from retable.tasks.style.apply import tiling
from retable.tasks.style.apply.tiling import Moments, fast_convolution, fits, needed_bytes, stylise_tiled
from retable.tasks.style.networks.network import Architecture, Layer
from retable.tasks.style.networks.transformer import TransformerNetwork, read, stylise
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


def test_bfloat16_is_close_to_float32(shared, monkeypatch):
    monkeypatch.setattr(tiling, "STRIP", 16 * 48)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    net = read(shared / "weights/style/v2_wave_lengstrom_layout.safetensors")
    image = picture(shared, 32, 48)
    exact, rounded = stylise(net, image), stylise(net, image, "bfloat16")
    assert not torch.equal(exact, rounded)
    assert -10 * torch.log10((exact - rounded).square().mean()) > 50


def test_a_processor_without_bfloat16_computes_in_float32(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": False})
    net, image = network(), torch.rand(1, 3, 16, 16)
    assert torch.equal(stylise(net, image, "bfloat16"), stylise(net, image))
    tiled = [stylise_tiled(net, image, 8, precision=precision) for precision in ("bfloat16", "float32")]
    assert torch.equal(*tiled), "in tiles too"


def test_needed_bytes_of_tiles_are_the_largest_layers():
    net = TransformerNetwork()
    pixels = 100 * 160
    # The second convolution (and the last doubling): 32 + 64 / 4 channels a pixel, and the image and the result.
    assert needed_bytes(net, 100, 160) == 4 * pixels * (32 + 16 + 6)
    whole = needed_bytes(net, 100, 160, tiled=False)
    assert whole > 2 * needed_bytes(net, 100, 160)
    assert fits(net, 99, 158, whole) and not fits(net, 104, 160, whole)


def test_zero_padding_does_not_go_with_resizing():
    with pytest.raises(ValueError, match="transposed"):
        TransformerNetwork(padding="zeros", upsampling="resize")
    assert Layer(Architecture(), 3, 4, 9).source(0, 8) == (-4, 12)
