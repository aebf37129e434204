import json
import re

import cv2
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from retable.platform.errors import UserError
from retable.tasks.style.networks import transformer
from retable.tasks.style.networks.network import TransformerNetwork
from retable.tasks.style.networks.tiling import stylise, stylise_tiled
from retable.tasks.style.networks.transformer import find, load, pack, read

torch.set_num_threads(1)
SIZES = [(1, 1), (2, 3), (5, 7), (63, 65), (3, 400)]


def network(seed=0, **arguments):
    torch.manual_seed(seed)
    made = TransformerNetwork(**{"filters": 4, **arguments})
    with torch.no_grad():
        for name, value in made.named_parameters():
            if ".norm." in name:
                value.add_(torch.randn_like(value) * 0.3)
        made.layers[-1].convolution.weight.mul_(100)
        made.layers[-1].convolution.bias.add_(120)
    return made.eval()


def picture(shared, height, width):
    pixels = cv2.imread(str(shared / "data/style/content_coffee.png"))[:, :, ::-1]
    pixels = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
    return torch.from_numpy(pixels / 255).permute(2, 0, 1)[None].float()


def tensorflow_network(tensors, image):
    """lengstrom/fast-style-transfer in float64, from its own facts: SAME padding, doubling as a sum over the kernel."""
    triples = [
        [tensors["Variable" + (f"_{i}" if i else "")].double() for i in (3 * n, 3 * n + 1, 3 * n + 2)]
        for n in range(16)
    ]

    def norm(x, shift, scale):
        centred = x - x.mean((2, 3), keepdim=True)
        variance = (centred**2).mean((2, 3), keepdim=True)
        return scale.view(1, -1, 1, 1) * centred / (variance + 1e-3).sqrt() + shift.view(1, -1, 1, 1)

    def conv(x, index, stride):
        kernel, shift, scale = triples[index]
        size = kernel.shape[0]
        before = (size - stride) // 2
        after = size - stride - before
        x = functional.pad(x, (before, after, before, after))
        return norm(functional.conv2d(x, kernel.permute(3, 2, 0, 1), stride=stride), shift, scale)

    def up(x, index):
        kernel, shift, scale = triples[index]  # height, width, out, in
        height, width = x.shape[2:]
        out = torch.zeros(len(x), kernel.shape[2], 2 * height + 1, 2 * width + 1, dtype=torch.float64)
        for row in range(3):
            for column in range(3):
                part = torch.einsum("bihw,oi->bohw", x, kernel[row, column])
                out[:, :, row : row + 2 * height : 2, column : column + 2 * width : 2] += part
        return norm(out[:, :, :-1, :-1], shift, scale)

    x = image.double()
    for index, stride in ((0, 1), (1, 2), (2, 2)):
        x = conv(x, index, stride).relu()
    for index in range(3, 13, 2):
        x = x + conv(conv(x, index, 1).relu(), index + 1, 1)
    x = up(up(x, 13).relu(), 14).relu()
    return (conv(x, 15, 1).tanh() * 150 + 255 / 2) / 255


def example_weights(filters=8, seed=1):
    generator = torch.Generator().manual_seed(seed)
    state = {}

    def conv(name, inputs, outputs, kernel):
        bound = (inputs * kernel * kernel) ** -0.5
        state[f"{name}.conv2d.weight"] = (
            torch.rand(outputs, inputs, kernel, kernel, generator=generator) * 2 - 1
        ) * bound
        state[f"{name}.conv2d.bias"] = torch.randn(outputs, generator=generator) * 0.1

    def norm(name, channels):
        state[f"{name}.weight"] = 1 + 0.3 * torch.randn(channels, generator=generator)
        state[f"{name}.bias"] = 0.3 * torch.randn(channels, generator=generator)

    widths = [3, filters, 2 * filters, 4 * filters]
    for index, kernel in ((1, 9), (2, 3), (3, 3)):
        conv(f"conv{index}", widths[index - 1], widths[index], kernel)
        norm(f"in{index}", widths[index])
    for block in range(1, 6):
        for part in (1, 2):
            conv(f"res{block}.conv{part}", 4 * filters, 4 * filters, 3)
            norm(f"res{block}.in{part}", 4 * filters)
    for index, (inputs, outputs) in ((1, (4, 2)), (2, (2, 1))):
        conv(f"deconv{index}", inputs * filters, outputs * filters, 3)
        norm(f"in{index + 3}", outputs * filters)
    conv("deconv3", filters, 3, 9)
    state["deconv3.conv2d.weight"] *= 60
    state["deconv3.conv2d.bias"] += 128
    return state


def example_network(state, image):
    """pytorch/examples' network in float64, from 0..255 to 0..255, by numpy's reflection and repetition."""
    state = {name: value.double() for name, value in state.items()}

    def conv(x, name, stride=1):
        weight = state[f"{name}.conv2d.weight"]
        margin = weight.shape[2] // 2
        x = torch.from_numpy(np.pad(x.numpy(), [(0, 0), (0, 0), (margin, margin), (margin, margin)], mode="reflect"))
        return functional.conv2d(x, weight, state[f"{name}.conv2d.bias"], stride)

    def norm(x, name):
        x = (x - x.mean((2, 3), keepdim=True)) / (x.var((2, 3), correction=0, keepdim=True) + 1e-5).sqrt()
        return x * state[f"{name}.weight"].view(1, -1, 1, 1) + state[f"{name}.bias"].view(1, -1, 1, 1)

    x = image.double()
    for index in (1, 2, 3):
        x = norm(conv(x, f"conv{index}", 1 if index == 1 else 2), f"in{index}").relu()
    for block in range(1, 6):
        hidden = norm(conv(x, f"res{block}.conv1"), f"res{block}.in1").relu()
        x = x + norm(conv(hidden, f"res{block}.conv2"), f"res{block}.in2")
    for index in (1, 2):
        x = torch.from_numpy(x.numpy().repeat(2, 2).repeat(2, 3))
        x = norm(conv(x, f"deconv{index}"), f"in{index + 3}").relu()
    return conv(x, "deconv3")


@pytest.mark.parametrize("style", ["wave", "scream"])
def test_published_networks_give_what_their_own_definition_does(shared, style):
    path = shared / f"weights/style/v2_{style}_lengstrom_layout.safetensors"
    image = picture(shared, 48, 64)
    expected = tensorflow_network(load_file(path), image)
    assert expected.std() > 0.1
    with torch.no_grad():
        torch.testing.assert_close(read(path)(image).double(), expected, rtol=0, atol=2e-4)
    torch.testing.assert_close(stylise(read(path), image).double(), expected.clamp(0, 1), rtol=0, atol=2e-4)


@pytest.mark.parametrize("size", [(32, 44), (64, 36)])
def test_state_dicts_of_pytorch_examples_give_what_their_definition_does(size):
    state, image = example_weights(), torch.rand(2, 3, *size)
    expected = example_network(state, image * 255) / 255
    assert expected.std() > 0.02
    with torch.no_grad():
        torch.testing.assert_close(load(state)(image).double(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(stylise(load(state), image).double(), expected.clamp(0, 1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("wrapped", [False, True])
def test_networks_of_gordicaleksa_give_what_their_definition_does(tmp_path, wrapped):
    state = example_weights()
    state["deconv3.conv2d.weight"] /= 60
    state["deconv3.conv2d.bias"] -= 128
    renamed = {re.sub(r"^deconv([12])", r"up\1.conv2d", name).replace("deconv3", "up3"): v for name, v in state.items()}
    torch.save({"commit_hash": "0", "state_dict": renamed} if wrapped else renamed, tmp_path / "net.pth")
    image = torch.rand(2, 3, 32, 44)
    mean, std = (torch.tensor(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    expected = example_network(state, (image - mean) / std) * std + mean
    assert expected.std() > 0.02
    with torch.no_grad():
        torch.testing.assert_close(read(tmp_path / "net.pth")(image).double(), expected, rtol=0, atol=1e-5)


def rrmina_weights(kernels, filters=8):
    """Random weights of rrmina/fast-neural-style-pytorch; `kernels`: of a residual block."""
    generator = torch.Generator().manual_seed(2)
    state = {}

    def add(name, inputs, outputs, kernel, what="conv_layer", norm=True):
        shape = (outputs, inputs) if what == "conv_layer" else (inputs, outputs)
        state[f"{name}.{what}.weight"] = torch.randn(*shape, kernel, kernel, generator=generator) / kernel / inputs**0.5
        state[f"{name}.{what}.bias"] = torch.randn(outputs, generator=generator) * 0.1
        if norm:
            state[f"{name}.norm_layer.weight"] = 1 + 0.3 * torch.randn(outputs, generator=generator)
            state[f"{name}.norm_layer.bias"] = 0.3 * torch.randn(outputs, generator=generator)

    for index, (inputs, outputs, kernel) in enumerate(((3, 1, 9), (1, 2, 3), (2, 4, 3))):
        add(f"ConvBlock.{2 * index}", inputs if index == 0 else inputs * filters, outputs * filters, kernel)
    widths = [4, 4, 4] if len(kernels) == 2 else [4, 2, 2, 4]
    for block in range(5):
        for part, kernel in enumerate(kernels):
            add(f"ResidualBlock.{block}.conv{part + 1}", widths[part] * filters, widths[part + 1] * filters, kernel)
    add("DeconvBlock.0", 4 * filters, 2 * filters, 3, "conv_transpose")
    add("DeconvBlock.2", 2 * filters, filters, 3, "conv_transpose")
    add("DeconvBlock.4", filters, 3, 9, norm=False)
    state["DeconvBlock.4.conv_layer.weight"] *= 60
    state["DeconvBlock.4.conv_layer.bias"] += 128
    return state


def rrmina_network(state, image, parts):
    """The network in float64, from BGR 0..255 to BGR 0..255, by PyTorch's own padding and transposed convolution."""
    state = {name: value.double() for name, value in state.items()}

    def norm(x, name):
        return functional.instance_norm(
            x, weight=state[f"{name}.norm_layer.weight"], bias=state[f"{name}.norm_layer.bias"]
        )

    def conv(x, name, stride=1):
        weight, margin = state[f"{name}.conv_layer.weight"], [state[f"{name}.conv_layer.weight"].shape[2] // 2] * 4
        padded = functional.pad(x, margin, mode="reflect")
        return functional.conv2d(padded, weight, state[f"{name}.conv_layer.bias"], stride)

    x = image.double()
    for index, stride in ((0, 1), (2, 2), (4, 2)):
        x = norm(conv(x, f"ConvBlock.{index}", stride), f"ConvBlock.{index}").relu()
    for block in range(5):
        hidden = x
        for part in range(1, parts + 1):
            name = f"ResidualBlock.{block}.conv{part}"
            hidden = norm(conv(hidden, name), name)
            hidden = hidden.relu() if part < parts else hidden
        x = x + hidden
    for name in ("DeconvBlock.0", "DeconvBlock.2"):
        weight, bias = (state[f"{name}.conv_transpose.{part}"] for part in ("weight", "bias"))
        x = norm(functional.conv_transpose2d(x, weight, bias, 2, 1, 1), name).relu()
    return conv(x, "DeconvBlock.4")


@pytest.mark.parametrize("kernels", [(3, 3), (1, 3, 1)], ids=["plain", "resnext"])
def test_networks_of_rrmina_give_what_their_definition_does(tmp_path, kernels):
    state, image = rrmina_weights(kernels), torch.rand(2, 3, 32, 44)
    expected = rrmina_network(state, image.flip(1) * 255, len(kernels)).flip(1) / 255
    assert expected.std() > 0.02
    net = load(state)
    with torch.no_grad():
        torch.testing.assert_close(net(image).double(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(stylise(net, image).double(), expected.clamp(0, 1), rtol=0, atol=1e-5)
    tiled = stylise_tiled(net, image[:1], 16)
    torch.testing.assert_close(tiled.double(), expected[:1], rtol=0, atol=1e-5)
    path = tmp_path / "net.safetensors"
    path.write_bytes(pack(net, {}))
    assert torch.equal(stylise(read(path), image), stylise(net, image))


def folder_of(tensors, folder):
    folder.mkdir()
    listed = {name: {"filename": name, "shape": list(tensor.shape)} for name, tensor in tensors.items()}
    (folder / "manifest.json").write_text(json.dumps(listed))
    for name, tensor in tensors.items():
        (folder / name).write_bytes(tensor.numpy().astype("<f4").tobytes())
    return folder


def test_a_folder_of_variables_is_its_tensors(shared, tmp_path):
    path = shared / "weights/style/v2_wave_lengstrom_layout.safetensors"
    folder = folder_of(load_file(path), tmp_path / "wave")
    image = torch.rand(1, 3, 16, 20)
    assert torch.equal(stylise(read(folder), image), stylise(read(path), image))


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ("[]", "no list of variables"),
        ("nonsense", "no list of variables"),
        ('{"Variable": {"filename": "../Variable", "shape": [4]}}', "no name of a file in this folder"),
        ('{"Variable": {"filename": "Variable", "shape": [5]}}', "16 bytes are no 5 float32"),
        ('{"Variable": {"filename": "Variable", "shape": [-4]}}', "16 bytes are no -4 float32"),
        ('{"Variable": {"filename": "Other", "shape": [4]}}', "No such file"),
        ('{"Variable": {"filename": "Variable", "shape": [4]}}', "no weights of a transformation network"),
    ],
)
def test_a_damaged_folder_is_told_in_one_line(tmp_path, manifest, said):
    (tmp_path / "manifest.json").write_text(manifest)
    (tmp_path / "Variable").write_bytes(bytes(16))
    with pytest.raises(UserError) as caught:
        read(tmp_path)
    assert said in str(caught.value) and str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_unused_running_statistics_of_old_files_are_dropped(tmp_path):
    state = example_weights()
    old = {**state, "in1.running_mean": torch.zeros(8), "res1.in2.running_var": torch.ones(32)}
    torch.save(old, tmp_path / "old.pth")
    torch.save(state, tmp_path / "new.pth")
    image = torch.rand(1, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(read(tmp_path / "old.pth")(image), read(tmp_path / "new.pth")(image))


@pytest.mark.parametrize("upsampling", ["transposed", "resize"])
def test_parameters_are_counted_as_published(upsampling):
    state = TransformerNetwork(upsampling=upsampling).state_dict()
    assert (len(state), sum(value.numel() for value in state.values())) == (62, 1_679_235)


def test_a_transposed_convolution_is_pytorchs_with_output_padding():
    layer = network().layers[13]
    x = torch.randn(1, 16, 6, 10)
    theirs = functional.conv_transpose2d(x, layer.convolution.weight, layer.convolution.bias, 2, 1, 1)
    torch.testing.assert_close(layer.convolve(layer.window(x, (0, 12), (0, 20))), theirs)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "arguments", [{}, {"upsampling": "resize"}, {"padding": "zeros", "output": "tanh", "final_norm": True}]
)
def test_the_result_has_the_size_of_the_image(size, arguments):
    net, image = network(**arguments), torch.rand(1, 3, *size)
    with torch.no_grad():
        whole = net(image)
    assert whole.shape == image.shape and bool(whole.isfinite().all())
    # A picture of few pixels has channels of next to no variance, by whose root rounding errors are divided.
    tolerance = 1e-4 if min(size) > 8 else 1e-2
    torch.testing.assert_close(stylise(net, image), whole.clamp(0, 1), rtol=0, atol=tolerance)


def test_a_batch_gives_what_its_images_give():
    net, images = network(), torch.rand(3, 3, 21, 30)
    with torch.no_grad():
        torch.testing.assert_close(net(images), torch.cat([net(image[None]) for image in images]), rtol=0, atol=1e-5)
    torch.testing.assert_close(stylise(net, images)[1:2], stylise(net, images[1:2]), rtol=0, atol=0)


@pytest.mark.parametrize("count", [1, 2])
def test_gradients_are_the_same_wherever_channels_lie(count):
    """One image had a wrong gradient below the last normalisation where its channels lay last."""
    images, found = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))[:count], []
    for layout in (torch.contiguous_format, torch.channels_last):
        made = network().train().to(memory_format=layout)
        made(images.contiguous(memory_format=layout)).square().mean().backward()
        found.append([value.grad for name, value in made.named_parameters() if name.endswith("convolution.weight")])
    for first, last in zip(*found, strict=True):
        assert (last - first).norm() < 1e-4 * first.norm()


@pytest.mark.parametrize(
    "arguments", [{"upsampling": "resize"}, {"padding": "zeros", "epsilon": 1e-3, "final_norm": True, "output": "tanh"}]
)
def test_a_saved_network_is_the_same(tmp_path, arguments):
    net, image = network(**arguments), torch.rand(1, 3, 24, 24)
    (tmp_path / "full.safetensors").write_bytes(pack(net, {"painting": "wave"}))
    (tmp_path / "half.safetensors").write_bytes(pack(net, {"painting": "wave"}, half=True))
    with torch.no_grad():
        assert torch.equal(read(tmp_path / "full.safetensors")(image), net(image))
        half = find(str(tmp_path / "half.safetensors"))
        assert half.architecture == net.architecture
        assert next(half.parameters()).dtype == torch.float32
        torch.testing.assert_close(half(image), net(image), rtol=0, atol=5e-3)


def test_a_network_of_the_zoo_has_below_4_megabytes(tmp_path, monkeypatch):
    (tmp_path / "wave.safetensors").write_bytes(pack(TransformerNetwork(), {}, half=True))
    assert (tmp_path / "wave.safetensors").stat().st_size < 4e6
    monkeypatch.setattr(transformer, "zoo", lambda task: {"wave": tmp_path / "wave.safetensors"})
    assert find("wave").architecture.filters == 32
    with pytest.raises(UserError, match="wawe: neither a file nor a network of the zoo; did you mean 'wave'"):
        find("wawe")


def test_wrong_files_are_told_in_one_line(tmp_path):
    state = example_weights()
    missing = {name: value for name, value in state.items() if name != "res3.in1.bias"}
    wide = {**state, "res3.in1.bias": torch.zeros(7)}
    torch.save(missing, tmp_path / "missing.pth")
    torch.save(wide, tmp_path / "wide.pth")
    torch.save({"epoch": 3}, tmp_path / "epoch.pth")
    torch.save({"classifier.weight": torch.zeros(2)}, tmp_path / "other.pth")
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pth")
    (tmp_path / "text.pth").write_text("no weights")
    (tmp_path / "empty.pth").write_bytes(b"")
    (tmp_path / "text.safetensors").write_text("no weights")
    named = {"network": json.dumps({"filters": 4, "depth": 3})}
    save_file(network().state_dict(), tmp_path / "strange.safetensors", named)
    save_file({}, tmp_path / "broken.safetensors", {"network": "{"})
    flat = {name: torch.zeros(3) for name in ("Variable", *(f"Variable_{number}" for number in range(1, 48)))}
    save_file(flat, tmp_path / "flat.safetensors")
    files = [*tmp_path.iterdir(), tmp_path / "absent.pth", tmp_path / "absent.safetensors", tmp_path]
    for path in files:
        with pytest.raises(UserError) as caught:
            read(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value) and "weights_only" not in str(caught.value)


def test_a_small_file_does_not_ask_for_the_memory_that_it_claims(tmp_path, monkeypatch):
    save_file({"x": torch.zeros(1)}, tmp_path / "claims.safetensors", {"network": json.dumps({"filters": 160})})
    built = []
    build = transformer.TransformerNetwork
    monkeypatch.setattr(
        transformer, "TransformerNetwork", lambda **how: built.append(torch.empty(0).device.type) or build(**how)
    )
    with pytest.raises(UserError, match=r"the weights fit no transformation network: .* is missing"):
        read(tmp_path / "claims.safetensors")
    assert built == ["meta"]


def test_the_images_own_statistics_change_nothing_and_others_do():
    net, image, other = network(), torch.rand(1, 3, 20, 32), torch.rand(1, 3, 20, 32) * 0.2
    own = net.statistics(image)
    assert [len(mean) for mean, _ in own] == [len(layer.norm.weight) for layer in net.layers if layer.norm is not None]
    with torch.no_grad():
        free = net(image)
        torch.testing.assert_close(net(image, own), free, rtol=0, atol=1e-5)
        fixed = net(other, own)
        assert (fixed - net(other)).abs().max() > 1e-2
    torch.testing.assert_close(stylise(net, other, statistics=own), fixed.clamp(0, 1), rtol=0, atol=1e-5)


def test_statistics_of_several_frames_are_those_of_all_their_pixels():
    net, frames = network(), torch.rand(3, 3, 16, 24) * torch.tensor([0.3, 0.6, 1]).view(3, 1, 1, 1)
    first = net.layers[0]
    features = first.convolve(first.window(frames, (0, 16), (0, 24))).detach().double().transpose(0, 1).flatten(1)
    mean, variance = net.statistics(frames)[0]
    torch.testing.assert_close(mean.double(), features.mean(1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(variance.double(), features.var(1, correction=0), rtol=1e-4, atol=1e-6)


def conditional(styles=3):
    torch.manual_seed(5)
    made = TransformerNetwork(4, "resize", "tanh", styles=styles)
    with torch.no_grad():
        for name, value in made.named_parameters():
            if ".norm." in name:
                value.add_(torch.randn_like(value) * 0.3)
    return made.eval()


def test_each_image_of_a_batch_has_its_own_style(shared):
    made = conditional()
    images = torch.cat([picture(shared, 24, 32), picture(shared, 24, 32).flip(3)])
    shares = torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    together = made(images, shares=shares)
    for place, style in enumerate((2, 0)):
        plain = TransformerNetwork(4, "resize", "tanh").eval()  # PyTorch's own instance normalisation is the oracle
        state = {name: value[style] if ".norm." in name else value for name, value in made.state_dict().items()}
        plain.load_state_dict(state)
        assert torch.allclose(plain(images[place : place + 1]), together[place : place + 1], atol=1e-6)


def test_blended_styles_are_a_network_of_one(shared):
    made, shares = conditional(), [0.7, 0.1, 0.2]
    image = picture(shared, 24, 32)
    one = made.blended(shares)
    assert one.architecture.styles == 1
    assert torch.allclose(one(image), made(image, shares=torch.tensor([shares])), atol=1e-6)
    split = [made.blended(torch.eye(3)[style].tolist()) for style in range(3)]
    again = transformer.blend(split, [7, 1, 2])
    assert torch.allclose(again(image), one(image), atol=1e-6)
    with pytest.raises(ValueError, match="2 shares of 3 styles"):
        made.blended([0.5, 0.5])


def test_only_styles_that_were_trained_together_blend():
    made = conditional()
    other = made.blended([1, 0, 0])
    with torch.no_grad():
        other.layers[3].convolution.weight[0, 0, 0, 0] += 1e-3
    for wrong in (other, network(), network(filters=6)):
        with pytest.raises(UserError, match="trained together"):
            transformer.blend([made.blended([0, 1, 0]), wrong], [0.5, 0.5])


def test_a_file_of_several_styles_gives_the_one_that_is_named(tmp_path, shared):
    made, file = conditional(), tmp_path / "three.safetensors"
    file.write_bytes(pack(made, {"paintings": ["wave", "night", "scream"]}))
    image = picture(shared, 24, 32)
    assert torch.allclose(read(file, "night")(image), made(image, shares=torch.tensor([[0.0, 1.0, 0.0]])), atol=1e-6)
    first = transformer.read_bytes(file.read_bytes(), "x", None)
    assert torch.allclose(first(image), made(image, shares=torch.tensor([[1.0, 0.0, 0.0]])), atol=1e-6)
    with pytest.raises(UserError, match=r"several styles; name one: .*three.safetensors:wave"):
        read(file)
    with pytest.raises(UserError, match="no style 'lake'"):
        read(file, "lake")
    file.write_bytes(pack(made.blended([1, 0, 0]), {"paintings": ["wave"]}))
    with pytest.raises(UserError, match="one style alone"):
        read(file, "wave")


def test_training_under_autocast_gives_every_parameter_a_finite_gradient():
    net = network(upsampling="resize").train()
    with torch.autocast("cpu", torch.bfloat16):
        result = net(torch.rand(2, 3, 16, 16))
    assert result.dtype == torch.float32
    result.square().mean().backward()
    for name, value in net.named_parameters():
        assert value.grad is not None and bool(value.grad.isfinite().all()), name
