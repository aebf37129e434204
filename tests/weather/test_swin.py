import math

import pytest
import torch
from monai.networks.nets.swin_unetr import SwinTransformerBlock, SwinUNETR
from torch import nn

from retable.tasks.weather.config import Swin
from retable.tasks.weather.models.swin import (
    KEEPING_TIME,
    ChannelConvolution,
    Merging,
    SwinForecaster,
    extend,
    halve,
    resize,
    shares,
)


def weights(module):
    return sum(p.numel() for p in module.parameters())


def ramp(size):
    return torch.arange(float(size)).reshape(1, 1, 1, size, 1).expand(1, 1, 2, size, size)


class Echo(nn.Module):
    """Stands for the network: the sum of channels, and what it was given."""

    def forward(self, volume):
        self.given = volume
        return volume.sum(1, keepdim=True)


def test_as_many_weights_and_the_same_names_as_monais():
    theirs = SwinUNETR(in_channels=11, out_channels=1, feature_size=24)
    plain = SwinForecaster(Swin(merging="merging"), size=252, inputs=4, forecast=32)
    convolution = SwinForecaster(Swin(variant="channel_convolution"), size=252, inputs=4, forecast=32)
    assert weights(plain) == weights(theirs)
    assert weights(convolution) == weights(theirs) + 31_168
    names = {f"model.{name}" for name in theirs.state_dict()}
    assert plain.state_dict().keys() == names
    own = convolution.state_dict().keys() - names
    assert own == {f"channel_conv.conv{i}.{part}" for i in (1, 2) for part in ("weight", "bias")}


def test_nearest_neighbours_shift_rows_and_padding_does_not():
    image = ramp(252)
    for how, moved in (("pad", 0), ("nearest", 248)):
        back = resize(resize(image, 256, how), 252, how)[0, 0, 0, :, 0]
        assert (back != image[0, 0, 0, :, 0]).sum() == moved
        assert (image[0, 0, 0, :, 0] - back).max() == (moved > 0)
    smooth = resize(resize(image, 256, "trilinear"), 252, "trilinear")
    torch.testing.assert_close(smooth[..., 4:-4, :], image[..., 4:-4, :], atol=1e-2, rtol=0)


@pytest.mark.parametrize(("size", "inner"), [(24, 64), (36, 64), (60, 64), (64, 64), (252, 256)])
def test_padding_repeats_the_border_and_is_cut_off_exactly(size, inner):
    image = torch.randn(1, 2, 3, size, size)
    padded = resize(image, inner, "pad")
    before = (inner - size) // 2
    after = inner - size - before
    flat = nn.functional.pad(image.flatten(1, 2), (before, after, before, after), "replicate")
    assert torch.equal(padded.flatten(1, 2), flat)
    assert torch.equal(resize(padded, size, "pad"), image)


def test_extending_repeats_the_ends():
    assert extend(torch.arange(3), 0, 2, 1).tolist() == [0, 0, 0, 1, 2, 2]


@pytest.mark.parametrize("how", ["pad", "nearest", "trilinear"])
def test_times_are_repeated_and_missing_ones_cut_off(how):
    model = SwinForecaster(Swin(feature_size=12, resize=how), size=24, inputs=4, forecast=8)
    model.model = Echo()
    images = torch.arange(4.0).reshape(1, 1, 4, 1, 1).expand(1, 11, 4, 24, 24)
    logits = model(images)
    assert logits.shape == (1, 8, 24, 24)
    assert model.model.given.shape == (1, 11, 64, 32, 32)  # of 32 x 32 x 32 one voxel would be left to normalise
    torch.testing.assert_close(logits[0, :, 5, 7], 11 * torch.tensor([0.0, 0, 1, 1, 2, 2, 3, 3]))
    torch.testing.assert_close(model.model.given[0, 0, :, 9, 9], torch.tensor([0.0, 0, 1, 1, 2, 2] + 58 * [3]))


@pytest.mark.parametrize(("size", "variant", "inner"), [(24, "upsample", 64), (32, "repeat_interleave", 32)])
def test_the_inner_size_leaves_more_than_one_voxel_to_normalise(size, variant, inner):
    model = SwinForecaster(Swin(variant=variant, feature_size=12, window=4), size=size, inputs=4, forecast=8)
    assert model.inner_size == inner
    model.train()(torch.randn(1, 11, 4, size, size)).sum().backward()
    with pytest.raises(ValueError, match="window 0 is below 1"):
        Swin(window=0)


def test_padded_images_come_back_in_place():
    model = SwinForecaster(Swin(feature_size=12), size=36, inputs=1, forecast=1)
    model.model = Echo()
    images = torch.randn(2, 11, 1, 36, 36)
    torch.testing.assert_close(model(images), images.sum(1))


def test_channel_convolution_mixes_times_as_channels():
    torch.manual_seed(0)
    module = ChannelConvolution(2, 3).eval()
    images = torch.randn(1, 11, 2, 6, 6)
    slope = (1 / 8 + 1 / 3) / 2

    def layer(volume, convolution):
        hidden = nn.functional.conv3d(volume, convolution.weight, convolution.bias, padding=1)
        mean, spread = hidden.mean((2, 3, 4), keepdim=True), hidden.std((2, 3, 4), keepdim=True, unbiased=False)
        hidden = (hidden - mean) / (spread**2 + 1e-5).sqrt()
        return torch.where(hidden < 0, slope * hidden, hidden)

    expected = layer(layer(images.permute(0, 2, 1, 3, 4), module.conv1), module.conv2).permute(0, 2, 1, 3, 4)
    assert expected.shape == (1, 11, 3, 6, 6)
    torch.testing.assert_close(module(images), expected, atol=1e-5, rtol=1e-5)


def test_merging_that_keeps_time_joins_two_by_two():
    torch.manual_seed(0)
    merging = Merging(3, 5, KEEPING_TIME)
    tokens = torch.randn(2, 4, 6, 6, 3)
    merged = merging(tokens)
    assert merged.shape == (2, 4, 3, 3, 5)
    joined = tokens[1, 2, 4:6, 2:4].reshape(-1)
    torch.testing.assert_close(merged[1, 2, 2, 1], merging.reduction(merging.norm(joined)))


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("merging", [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (0, 1, 0), (0, 0, 1), (1, 1, 1)]),
        ("merging_1_5", [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1), (1, 1, 1)]),
        ("mergingv2", [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1)]),
    ],
)
def test_the_order_of_merged_neighbours(name, order):
    torch.manual_seed(0)
    merging = halve(Swin(merging=name))(dim=3)
    tokens = torch.randn(1, 4, 4, 4, 3)
    joined = torch.cat([tokens[0, 2 + time, 0 + row, 2 + column] for time, row, column in order])
    torch.testing.assert_close(merging(tokens)[0, 1, 0, 1], merging.reduction(merging.norm(joined)))


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(1, [1, 1, 1]), (2, [1, 1, 2]), (4, [1, 2, 2]), (8, [2, 2, 2]), (6, [1, 3, 2]), (16, [2, 2, 4]), (7, [1, 1, 7])],
)
def test_the_ratio_is_shared_out(ratio, expected):
    assert shares(ratio, 3) == expected
    assert math.prod(expected) == ratio


def test_the_upsampling_variant_keeps_and_grows_times_and_channels_as_the_paper_says():
    with torch.device("meta"):
        model = SwinForecaster(Swin(variant="upsample"), size=252, inputs=4, forecast=32)
        shapes = {}

        def note(name):
            return lambda module, given, result: shapes.update({name: tuple(result.shape[1:3])})

        for part in ("embed", "out"):
            getattr(model.model, part).register_forward_hook(note(part))
        for part in ("stages", "decoders"):
            for i, layer in enumerate(getattr(model.model, part)):
                layer.register_forward_hook(note(f"{part}{i}"))
        assert model(torch.zeros(1, 11, 4, 252, 252)).shape == (1, 32, 252, 252)
    assert shapes == {
        "embed": (24, 4),
        **{"stages0": (48, 2), "stages1": (96, 1), "stages2": (96, 1), "stages3": (96, 1)},
        **{"decoders0": (96, 1), "decoders1": (96, 1), "decoders2": (48, 4), "decoders3": (24, 16)},
        **{"decoders4": (24, 32), "out": (1, 32)},
    }


@pytest.mark.parametrize(("inputs", "forecast"), [(1, 3), (2, 2), (3, 6), pytest.param(6, 12, marks=pytest.mark.slow)])
def test_the_upsampling_variant_takes_other_times(inputs, forecast):
    torch.manual_seed(0)
    model = SwinForecaster(Swin(variant="upsample", feature_size=12), size=24, inputs=inputs, forecast=forecast)
    with torch.no_grad():
        assert model(torch.randn(1, 11, inputs, 24, 24)).shape == (1, forecast, 24, 24)


def test_every_weight_of_the_upsampling_variant_learns():
    torch.manual_seed(0)
    model = SwinForecaster(Swin(variant="upsample", feature_size=12), size=24, inputs=2, forecast=2)
    model(torch.randn(1, 11, 2, 24, 24)).square().sum().backward()
    silent = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    assert not {name for name in silent if not name.endswith("bias")}, silent


def test_the_channel_convolution_learns_through_the_network():
    torch.manual_seed(0)
    model = SwinForecaster(Swin(variant="channel_convolution", feature_size=12), size=24, inputs=4, forecast=6)
    model.model = Echo()
    logits = model(torch.randn(2, 11, 4, 24, 24))
    assert logits.shape == (2, 6, 24, 24)
    assert model.model.given.shape == (2, 11, 64, 32, 32)
    logits.square().sum().backward()
    assert all(convolution.weight.grad.any() for convolution in (model.channel_conv.conv1, model.channel_conv.conv2))


def test_the_reference_forward_pass():
    """What the reference does but for its patch merging, written out with MONAI and PyTorch alone."""
    torch.manual_seed(0)
    model = SwinForecaster(Swin(feature_size=12, resize="nearest"), 36, 4, 32).eval()
    theirs = SwinUNETR(in_channels=11, out_channels=1, feature_size=12, downsample="mergingv2").eval()
    theirs.load_state_dict({name.removeprefix("model."): value for name, value in model.state_dict().items()})
    images = torch.randn(1, 11, 4, 36, 36)
    with torch.no_grad():
        volume = nn.functional.interpolate(images.repeat_interleave(8, 2), (32, 64, 64))
        expected = nn.functional.interpolate(theirs(volume), (32, 36, 36))[:, 0]
        torch.testing.assert_close(model(images), expected)


@pytest.mark.parametrize(("merging", "of_eight"), [("merging", 6), ("mergingv2", 8), ("merging_1_5", 8)])
@pytest.mark.parametrize("variant", ["repeat_interleave", "upsample"])
def test_the_references_patch_merging_leaves_two_of_eight_neighbours_out(variant, merging, of_eight):
    model = SwinForecaster(Swin(variant=variant, feature_size=12, merging=merging), 24, 4, 32).model
    first = model.stages[0] if variant == "upsample" else model.swinViT.layers1[0]
    tokens = torch.randn(1, 2, 2, 2, 12, requires_grad=True)
    first.downsample(tokens).square().sum().backward()
    assert tokens.grad.ne(0).any(-1).sum() == of_eight


def test_checkpointing_changes_no_gradient():
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = SwinForecaster(Swin(variant="upsample", feature_size=12, checkpointing=checkpointing), 24, 2, 2)
        model(torch.randn(1, 11, 2, 24, 24)).square().sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("variant", ["repeat_interleave", "upsample"])
def test_checkpointing_reaches_every_block(variant):
    model = SwinForecaster(Swin(variant=variant, feature_size=12, checkpointing=True), 24, 4, 32)
    assert [m.use_checkpoint for m in model.modules() if isinstance(m, SwinTransformerBlock)] == 8 * [True]


def test_channel_convolutions_take_any_number_of_lead_times():
    model = SwinForecaster(Swin(variant="channel_convolution", feature_size=12), size=24, inputs=4, forecast=30)
    with torch.inference_mode():
        assert model(torch.randn(1, 11, 4, 24, 24)).shape == (1, 30, 24, 24)
