"""The 3D U-Net against published counts and names and a functional second implementation."""

import math

import pytest
import torch
from torch import nn

from retable.platform.errors import UserError
from retable.tasks.weather.config import UNet
from retable.tasks.weather.models.unet import UNetForecaster
from tests.weather import reference_unet

IMPROVED = {"attention": True, "activation": "rrelu", "normalization": "instance"}


def trained(config, size=12, inputs=4, forecast=5, seed=0):
    """A network whose normalisation is not that of an untrained one."""
    torch.manual_seed(seed)
    network = UNetForecaster(config, size, inputs, forecast)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm3d):
            for value, low, high in ((module.weight, 0.5, 1.5), (module.bias, -0.5, 0.5)):
                nn.init.uniform_(value, low, high)
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 2)
        elif isinstance(module, nn.Conv3d | nn.ConvTranspose3d) and module.bias is not None:
            nn.init.uniform_(module.bias, -0.3, 0.3)
    return network


@pytest.mark.parametrize(
    ("fields", "parameters"),
    [
        ({}, 22_594_912),
        ({"filters": 64}, 90_331_808),
        ({"filters": 8}, 1_416_688),
        (IMPROVED, 22_825_508),
        ({**IMPROVED, "upsampling": "resize"}, 26_133_028),
    ],
)
def test_parameters_are_as_many_as_published(fields, parameters):
    with torch.device("meta"):
        network = UNetForecaster(UNet(**fields), 252, 4, 32)
    assert sum(value.numel() for value in network.parameters()) == parameters


def names(fields):
    network = UNetForecaster(UNet(filters=1, **fields), 48, 4, 32)
    return {name: tuple(value.shape) for name, value in network.state_dict().items()}


def test_names_are_the_references():
    norm = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    expected = {"reduce_channels.weight", "reduce_channels.bias"}
    for path, count, layers, norms in (
        ("down_convs", 5, ("conv1", "conv2"), 2),
        ("up_convs", 4, ("upconv", "conv1", "conv2"), 3),
    ):
        for level in range(count):
            expected |= {f"{path}.{level}.{layer}.{part}" for layer in layers for part in ("weight", "bias")}
            expected |= {f"{path}.{level}.norm{i}.{part}" for i in range(norms) for part in norm}
    official = names({})
    assert official.keys() == expected
    assert len(official) == 156
    assert official["up_convs.0.upconv.weight"] == (16, 8, 2, 2, 2)
    assert official["reduce_channels.weight"] == (32, 4, 1, 1, 1)


def test_names_of_the_improved_network():
    improved = names({**IMPROVED, "upsampling": "resize"})
    assert {name for name in improved if "norm" in name} == set()
    gate = {name.removeprefix("up_convs.3.attention."): shape for name, shape in improved.items() if "s.3.att" in name}
    assert gate.keys() == {
        *(f"w.0.{part}" for part in ("weight", "bias")),
        *(f"w.1.{part}" for part in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
        *("theta.weight", "phi.weight", "phi.bias", "psi.weight", "psi.bias"),
    }
    assert improved["up_convs.3.upconv.conv.weight"] == (1, 2, 3, 3, 3)
    strides = [improved[f"up_convs.{step}.attention.theta.weight"][2] for step in range(4)]
    assert strides == [1, 1, 2, 2]  # the reference's at 32 filters


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("fields", "size", "inputs", "levels"),
    [
        ({}, 36, 4, 5),
        ({}, 12, 1, 5),
        (IMPROVED, 36, 4, 5),
        ({"attention": True}, 20, 7, 4),
        ({**IMPROVED, "upsampling": "resize"}, 36, 4, 5),
        ({"normalization": "instance", "activation": "rrelu"}, 12, 3, 2),
        ({}, 12, 2, 1),
    ],
)
def test_outputs_equal_the_second_implementation(fields, size, inputs, levels, seed):
    config = UNet(filters=4, levels=levels, **fields)
    network = trained(config, size, inputs, 5, seed).double().eval()
    x = torch.randn(2, 11, inputs, size, size, dtype=torch.float64)
    with torch.no_grad():
        ours = network(x)
        theirs = reference_unet.forward(network.state_dict(), x, config.activation)
    assert ours.shape == (2, 5, size, size)
    assert theirs.std() > 0.05
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_gradients_equal_the_second_implementations():
    network = trained(UNet(filters=2, levels=3, **IMPROVED), 12).double().eval()
    x, weight = (torch.randn(1, *shape, dtype=torch.float64) for shape in ((11, 4, 12, 12), (5, 12, 12)))
    (network(x) * weight).sum().backward()
    copy = {name: value.detach().clone() for name, value in network.state_dict().items()}
    leaves = {name: copy[name].requires_grad_() for name, _ in network.named_parameters()}
    (reference_unet.forward(copy, x, "rrelu") * weight).sum().backward()
    for name, value in network.named_parameters():
        torch.testing.assert_close(value.grad, leaves[name].grad, rtol=1e-8, atol=1e-8)


def test_lead_times_are_channels_of_the_head():
    # With the last features fixed, one lead time's weights touch no other's forecast.
    network = trained(UNet(filters=2, levels=2), 12).eval()
    x = torch.randn(1, 11, 4, 12, 12)
    with torch.no_grad():
        before = network(x)
        network.reduce_channels.weight[3] += 1
        changed = (network(x) - before).abs().amax((0, 2, 3)) > 0
    assert changed.tolist() == [False, False, False, True, False]


def test_convolutions_start_xavier_normal_with_zero_bias():
    torch.manual_seed(0)
    network = UNetForecaster(UNet(filters=16, **IMPROVED), 36, 4, 32)
    layers = {name: m for name, m in network.named_modules() if isinstance(m, nn.Conv3d | nn.ConvTranspose3d)}
    assert len(layers) == 10 + 12 + 4 * 4 + 1
    for name, layer in layers.items():
        assert layer.bias is None or not layer.bias.any(), name
        field = layer.weight[0, 0].numel()
        expected = math.sqrt(2 / ((layer.weight.shape[0] + layer.weight.shape[1]) * field))
        tolerance = 6 / math.sqrt(2 * layer.weight.numel())  # six standard errors
        assert layer.weight.std().item() == pytest.approx(expected, rel=tolerance), name


def test_dropout_takes_whole_channels_on_the_way_down_and_on_what_goes_up():
    seen = []
    network = UNetForecaster(UNet(filters=8, levels=3, dropout=0.5), 12, 4, 5).train()
    for name, module in network.named_modules():
        if isinstance(module, nn.Dropout3d):
            module.register_forward_hook(lambda module, inputs, output, name=name: seen.append((name, output)))
    network(torch.randn(2, 11, 4, 12, 12) + 1)
    assert [name for name, _ in seen] == [
        *("down_convs.0.dropout", "down_convs.0.dropout", "dropout"),
        *("down_convs.1.dropout", "down_convs.1.dropout", "dropout"),
        *("down_convs.2.dropout", "down_convs.2.dropout", "dropout"),
    ]
    for name, output in seen:
        dropped = (output == 0).flatten(2).all(2).float().mean().item()
        assert 0.05 < dropped < 0.95, name


def test_a_pixel_that_instance_normalisation_makes_0_is_refused():
    with pytest.raises(UserError, match=r"model\.levels 5 brings images of 12 x 12 pixels to one.*lower model\.levels"):
        UNetForecaster(UNet(filters=2, normalization="instance"), 12, 4, 3)
    network = UNetForecaster(UNet(filters=2, levels=4, normalization="instance"), 12, 4, 3).train()
    assert network(torch.randn(1, 11, 4, 12, 12)).isfinite().all()


@pytest.mark.parametrize("fields", [{}, IMPROVED])
def test_any_number_of_filters_inputs_and_lead_times_trains(fields):
    for filters, inputs, forecast, size in ((1, 1, 1, 24), (3, 5, 7, 30), (2, 2, 33, 252 // 4)):
        network = UNetForecaster(UNet(filters=filters, **fields), size, inputs, forecast).train()
        logits = network(torch.randn(2, 11, inputs, size, size))
        assert logits.shape == (2, forecast, size, size)
        logits.square().mean().backward()
        assert all(value.grad is not None and value.grad.isfinite().all() for value in network.parameters())
