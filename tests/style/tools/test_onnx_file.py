import inspect

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from typer.testing import CliRunner

from retable.platform.models.zoo import zoo
from retable.tasks.style import cli
from retable.tasks.style.networks import transformer
from retable.tasks.style.networks.network import TransformerNetwork
from retable.tasks.style.networks.tiling import stylise
from retable.tasks.style.tools.onnx_file import pack

KINDS = {
    "transposed": {},
    "resize": {"upsampling": "resize"},
    "tensorflow": {"padding": "zeros", "output": "tanh", "final_norm": True, "epsilon": 1e-3},
    "bottleneck": {"bottleneck": True},
}


def network(**arguments):
    torch.manual_seed(3)
    made = TransformerNetwork(**{"filters": 4, **arguments})
    with torch.no_grad():
        for name, value in made.named_parameters():
            if ".norm." in name:
                value.add_(torch.randn_like(value) * 0.3)
        made.layers[-1].convolution.weight.mul_(1 if arguments.get("output") == "tanh" else 100)
        made.layers[-1].convolution.bias.add_(0 if arguments.get("output") == "tanh" else 120)
    return made.eval()


def run(data, image):
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"image": image.numpy()})[0])


def signal_to_noise(image, like):
    return -10 * torch.log10((image - like).square().mean()).item()


@pytest.mark.parametrize("size", [(32, 44), (37, 50), (9, 61), (5, 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_another_runtime_gives_the_same_picture(kind, size):
    net, image = network(**KINDS[kind]), torch.rand(2, 3, *size)
    found = run(pack(net), image)
    assert found.shape == image.shape
    # A picture of few pixels has channels of next to no variance, by whose root rounding errors are divided.
    torch.testing.assert_close(found, stylise(net, image), rtol=0, atol=1e-4 if min(size) > 8 else 1e-2)
    assert min(size) < 9 or found.std() > 0.02


def test_operators_are_old_enough_by_default():
    """Runtimes of three years ago read version 17."""
    model = onnx.load_from_string(pack(network()))
    assert [each.version for each in model.opset_import] == [17]
    assert inspect.signature(cli.onnx).parameters["opset"].default == 17


@pytest.mark.parametrize("opset", [13, 15, 17, 18])
def test_older_operators_give_the_same_picture(opset):
    net, image = network(), torch.rand(1, 3, 37, 50)
    for bits in (32, 8):
        data = pack(net, bits, opset)
        model = onnx.load_from_string(data)
        assert [each.version for each in model.opset_import] == [opset] and model.ir_version <= 8
        if bits == 32:
            torch.testing.assert_close(run(data, image), stylise(net, image), rtol=0, atol=1e-4)
    assert [each.version for each in onnx.load_from_string(pack(net)).opset_import] == [17], "what phones want"


# One of each architecture; the others differ in their weights alone.
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if "great_wave" in n else pytest.mark.slow) for n in sorted(zoo("style"))]
)
def test_networks_of_the_zoo_on_another_runtime(name):
    net = transformer.find(name)
    image = torch.nn.functional.interpolate(torch.rand(1, 3, 12, 16), (93, 122), mode="bicubic").clamp(0, 1)
    expected = stylise(net, image)
    torch.testing.assert_close(run(pack(net), image), expected, rtol=0, atol=1e-4)
    half, bytes_of = (run(pack(net, bits), image) for bits in (16, 8))
    assert signal_to_noise(half, expected) > 55 and signal_to_noise(bytes_of, expected) > 30


def test_weights_of_fewer_bits_are_the_nearest_of_them():
    net = network()
    kernel = net.layers[4].convolution.weight.detach().numpy()
    scale = np.abs(kernel).max((1, 2, 3), keepdims=True) / 127
    with torch.no_grad():
        for layer in net.layers:
            weight = layer.convolution.weight
            others = (0, 2, 3) if layer.transposed else (1, 2, 3)
            step = weight.abs().amax(others, keepdim=True) / 127
            weight.copy_(torch.round(weight / step) * step)
    assert np.abs(net.layers[4].convolution.weight.detach().numpy() - kernel).max() <= scale.max() / 2 + 1e-9
    image = torch.rand(1, 3, 32, 40)
    torch.testing.assert_close(run(pack(network(), 8), image), stylise(net, image), rtol=0, atol=2e-4)
    sizes = [len(pack(network(filters=8), bits)) for bits in (32, 16, 8)]
    assert sizes[1] < 0.65 * sizes[0] and sizes[2] < 0.45 * sizes[0]


def test_the_command_writes_a_file(tmp_path, monkeypatch):
    from retable.tasks.style.cli import app

    monkeypatch.chdir(tmp_path)
    net = network(upsampling="resize")
    (tmp_path / "net.safetensors").write_bytes(transformer.pack(net, {}))
    found = CliRunner().invoke(app, ["onnx", "net.safetensors", "made/net.onnx"])
    assert found.exit_code == 0 and "made/net.onnx: 0." in found.output, found.output
    image = torch.rand(1, 3, 20, 24)
    expected = stylise(net, image)
    torch.testing.assert_close(run((tmp_path / "made/net.onnx").read_bytes(), image), expected, rtol=0, atol=1e-4)
    assert CliRunner().invoke(app, ["onnx", "net.safetensors", "a.onnx", "--bits", "7"]).exit_code == 2
