"""Winograd's algorithm: the direct convolution and its gradient, in float64, are the oracle."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from retable.tasks.style.networks import winograd


def drawn(inputs, outputs, height, width, padding_mode="zeros", batch=1):
    torch.manual_seed(0)
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, padding_mode=padding_mode).requires_grad_(False)
    return convolution, torch.randn(batch, inputs, height, width)


@pytest.mark.parametrize("padding", (0, 1))
@pytest.mark.parametrize("size", ((3, 3), (8, 8), (17, 22), (70, 41)))
def test_a_convolution_of_any_size(size, padding):
    """Tiles of four by four are completed where sizes are not multiples of it; a batch is taken image by image."""
    convolution, features = drawn(5, 7, *size, batch=2)
    found = winograd.convolve(features, winograd.transform(convolution.weight), convolution.bias, padding)
    weight, bias = convolution.weight.double(), convolution.bias.double()
    torch.testing.assert_close(
        found.double(), functional.conv2d(features.double(), weight, bias, 1, padding), atol=5e-5, rtol=0
    )


def test_a_strip_is_a_part_of_the_whole(monkeypatch):
    convolution, features = drawn(4, 4, 40, 40)
    kernels = winograd.transform(convolution.weight)
    whole = winograd.convolve(features, kernels, convolution.bias, 1)
    monkeypatch.setattr(winograd, "TILES", 20)
    torch.testing.assert_close(winograd.convolve(features, kernels, convolution.bias, 1), whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("padding_mode", ("zeros", "reflect"))
@pytest.mark.parametrize("size", ((16, 16), (9, 15), (18, 16), (16, 18)))
def test_the_gradient_of_features(padding_mode, size):
    convolution, features = drawn(6, 3, *size, padding_mode)
    probe = torch.randn(1, 3, *size)
    fast, plain = (features.clone().requires_grad_() for _ in range(2))
    (winograd.Frozen(convolution)(fast).relu_() * probe).sum().backward()  # in place: the result is no view
    (convolution.double()(plain.double()).relu() * probe).sum().backward()
    torch.testing.assert_close(fast.grad, plain.grad, atol=5e-5, rtol=0)


def test_only_wide_float32_convolutions_of_three_by_three_on_a_cpu_are_suited():
    wide = nn.Conv2d(128, 128, 3, padding=1)
    features = torch.zeros(1, 128, 16, 16)
    assert winograd.suits(wide, features)
    assert not winograd.suits(wide, features[..., :15])
    assert not winograd.suits(wide, features.double())
    assert not winograd.suits(nn.Conv2d(128, 128, 3, 2), features)
    assert not winograd.suits(nn.Conv2d(128, 128, 5), features)
    assert not winograd.suits(nn.Conv2d(64, 128, 3), features)
    assert not winograd.suits(nn.ConvTranspose2d(128, 128, 3), features)
    with torch.autocast("cpu", torch.bfloat16):
        assert not winograd.suits(wide, features)
