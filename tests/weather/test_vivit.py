import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from retable.platform.config import override
from retable.tasks.weather.config import PAPER_VIVIT, Config, Vivit
from retable.tasks.weather.model import build, convert_reference
from retable.tasks.weather.models.vivit import Attention, VivitForecaster, transformer

SMALL = Vivit(dim=16, depth=2, heads=2, patch=8)


def weights(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("dim", "count"), [(400, 37_466_448), (256, 15_724_320)])
def test_as_many_weights_as_the_reference(dim, count):
    with torch.device("meta"):
        assert weights(VivitForecaster(Vivit(dim=dim), size=252, inputs=4, forecast=32)) == count


@torch.no_grad()
def test_attention_matches_a_naive_loop():
    torch.manual_seed(0)
    dim, heads, tokens = 12, 3, 5
    attention = Attention(dim, heads).double()
    x = torch.randn(2, tokens, dim, dtype=torch.float64)
    queries, keys, values = (x @ part.T for part in attention.queries_keys_values.weight.split(dim))
    mixed = torch.zeros_like(x)
    for sample in range(2):
        for head in range(heads):
            own = slice(head * 4, head * 4 + 4)
            for token in range(tokens):
                scores = [queries[sample, token, own] @ keys[sample, other, own] / 2 for other in range(tokens)]
                shares = [math.exp(s) / sum(math.exp(t) for t in scores) for s in scores]
                mixed[sample, token, own] = sum(s * values[sample, o, own] for o, s in enumerate(shares))
    torch.testing.assert_close(attention(x), mixed @ attention.out.weight.T + attention.out.bias)


def test_transformer_matches_pytorchs():
    torch.manual_seed(0)
    dim, depth, heads = 16, 3, 4
    ours = transformer(dim, depth, heads)
    layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, 0.0, "gelu", batch_first=True, norm_first=True)
    theirs = nn.TransformerEncoder(layer, depth, nn.LayerNorm(dim), enable_nested_tensor=False)
    with torch.no_grad():
        for block, other in zip(ours[:-1], theirs.layers, strict=True):
            norm, attention = block.attention
            other.norm1.load_state_dict(norm.state_dict())
            other.self_attn.in_proj_weight.copy_(attention.queries_keys_values.weight)
            other.self_attn.in_proj_bias.zero_()
            other.self_attn.out_proj.load_state_dict(attention.out.state_dict())
            norm, first, _, second = block.feed_forward
            other.norm2.load_state_dict(norm.state_dict())
            other.linear1.load_state_dict(first.state_dict())
            other.linear2.load_state_dict(second.state_dict())
    tokens = torch.randn(2, 7, dim)
    torch.testing.assert_close(ours(tokens), theirs(tokens), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("size", "inputs", "forecast"), [(24, 4, 32), (36, 4, 8), (24, 1, 5), (48, 3, 6)])
def test_shapes_and_gradients(size, inputs, forecast):
    torch.manual_seed(0)
    model = VivitForecaster(SMALL, size, inputs, forecast)
    logits = model(torch.randn(2, 11, inputs, size, size))
    assert logits.shape == (2, forecast, size, size)
    logits.square().mean().backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not silent


def test_every_image_and_place_counts():
    torch.manual_seed(0)
    model = VivitForecaster(SMALL, size=24, inputs=4, forecast=2)
    images = torch.randn(1, 11, 4, 24, 24, requires_grad=True)
    model(images).square().sum().backward()
    assert (images.grad.abs() > 0).all()


def test_order_of_images_matters():
    torch.manual_seed(0)
    model = VivitForecaster(SMALL, size=24, inputs=4, forecast=2)
    images = torch.randn(1, 11, 4, 24, 24)
    assert (model(images) - model(images.flip(2))).abs().max() > 1e-3


def test_samples_of_a_batch_do_not_mix():
    torch.manual_seed(0)
    model = VivitForecaster(SMALL, size=24, inputs=4, forecast=2)
    images = torch.randn(3, 11, 4, 24, 24)
    torch.testing.assert_close(model(images)[1:2], model(images[1:2]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("enlarge", ["linear", "nearest"])
@torch.no_grad()
def test_the_last_class_token_becomes_one_picture_for_each_lead_time(enlarge):
    torch.manual_seed(0)
    model = VivitForecaster(Vivit(dim=16, depth=1, heads=2, patch=8, enlarge=enlarge), size=24, inputs=2, forecast=3)
    model.head.weight.zero_()
    model.head.bias.copy_(torch.arange(48.0))
    model.refine.weight.zero_()
    model.refine.weight[range(3), range(3), 1, 1] = 1
    model.refine.bias.zero_()
    logits = model(torch.randn(1, 11, 2, 24, 24))[0]
    for lead in range(3):
        for row in (0, 8, 23):
            for column in (2, 15, 23):
                place = [(p + 0.5) / 6 - 0.5 for p in (row, column)]
                if enlarge == "nearest":
                    place = [math.floor(p / 6) for p in (row, column)]
                expected = 16 * lead + 4 * min(max(place[0], 0), 3) + min(max(place[1], 0), 3)
                assert math.isclose(logits[lead, row, column], expected, abs_tol=1e-4)


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="heads 3 does not divide dim 16"):
        Vivit(dim=16, heads=3)


def reference_shapes(dim, depth, patch, inputs, forecast, size):
    """The official names and shapes, as models/vivit.py of the authors makes them."""
    patches = math.ceil(size / patch) ** 2
    yield from (("pos_embedding", (1, inputs, patches + 1, dim)),)
    yield from ((f"{token}_token", (1, 1, dim)) for token in ("space", "temporal"))
    layers = {"to_patch_embedding.1": (dim, 11 * patch**2), "time_pred": (forecast * dim, dim)}
    for part in ("space", "temporal"):
        for layer in range(depth):
            where = f"{part}_transformer.layers.{layer}"
            yield f"{where}.0.fn.to_qkv.weight", (3 * dim, dim)
            layers[f"{where}.0.fn.to_out.0"] = (dim, dim)
            layers |= {f"{where}.1.fn.net.0": (4 * dim, dim), f"{where}.1.fn.net.3": (dim, 4 * dim)}
            layers |= {f"{where}.{half}.norm": (dim,) for half in (0, 1)}
        layers[f"{part}_transformer.norm"] = (dim,)
    layers["out_conv"] = (forecast, forecast, 3, 3)
    for name, shape in layers.items():
        yield f"{name}.weight", shape
        yield f"{name}.bias", shape[:1]


def reference(state, x, heads, patch, size, forecast):
    """What the authors' ViViT computes, written out: x is (batch, input, 11, S, S)."""

    def linear(tokens, name):
        return functional.linear(tokens, state[f"{name}.weight"], state.get(f"{name}.bias"))

    def norm(tokens, name):
        return functional.layer_norm(tokens, tokens.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"])

    def encode(tokens, name):
        for layer in range(2):
            own = f"{name}.layers.{layer}"
            parts = linear(norm(tokens, f"{own}.0.norm"), f"{own}.0.fn.to_qkv").chunk(3, -1)
            q, k, v = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in parts)
            shares = (q @ k.transpose(2, 3) / q.shape[-1] ** 0.5).softmax(-1)
            tokens = tokens + linear((shares @ v).transpose(1, 2).flatten(2), f"{own}.0.fn.to_out.0")
            hidden = functional.gelu(linear(norm(tokens, f"{own}.1.norm"), f"{own}.1.fn.net.0"))
            tokens = tokens + linear(hidden, f"{own}.1.fn.net.3")
        return norm(tokens, f"{name}.norm")

    batch, inputs, inner = *x.shape[:2], math.ceil(size / patch) * patch
    x = functional.interpolate(x, (11, inner, inner), mode="nearest")
    x = x.reshape(batch, inputs, 11, inner // patch, patch, inner // patch, patch)
    tokens = linear(
        x.permute(0, 1, 3, 5, 4, 6, 2).reshape(batch, inputs, -1, patch * patch * 11), "to_patch_embedding.1"
    )
    tokens = torch.cat((state["space_token"].expand(batch, inputs, 1, -1), tokens), 2) + state["pos_embedding"]
    summaries = encode(tokens.flatten(0, 1), "space_transformer")[:, 0].unflatten(0, (batch, inputs))
    summary = encode(torch.cat((state["temporal_token"].expand(batch, 1, -1), summaries), 1), "temporal_transformer")
    side = math.isqrt(summary.shape[-1])
    pictures = linear(summary[:, 0], "time_pred").view(batch, forecast, side, side)
    large = functional.interpolate(pictures, (size, size), mode="nearest")
    return functional.conv2d(large, state["out_conv.weight"], state["out_conv.bias"], padding=1)


@torch.no_grad()
@pytest.mark.parametrize("wrapped", ["", "model."])
def test_the_authors_weights_forecast_as_in_their_code(wrapped):
    torch.manual_seed(0)
    size, forecast = 36, 3
    state = {name: torch.randn(shape) / 4 for name, shape in reference_shapes(16, 2, 8, 4, forecast, size)}
    changes = {"model.dim": 16, "model.depth": 2, "model.heads": 2, "model.patch": 8, "forecast": forecast}
    config = override(Config(), {**PAPER_VIVIT, **changes})
    given = {f"{wrapped}{name}": value for name, value in state.items()}
    found = convert_reference(given, config, size, config.regions)
    forecaster = build(config, size, config.regions).eval()
    forecaster.load_state_dict(found)
    x = torch.randn(2, 4, 11, size, size)
    ours = forecaster(x.transpose(1, 2), torch.zeros(2, dtype=torch.long))
    torch.testing.assert_close(ours, reference(state, x, 2, 8, size, forecast), atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match=r"head\.bias is missing"):
        convert_reference({k: v for k, v in given.items() if "time_pred.bias" not in k}, config, size, config.regions)


def test_the_submitted_sizes_have_the_authors_shapes():
    config = override(Config(), {**PAPER_VIVIT, "model.depth": 1})
    state = {
        name: torch.zeros(1).expand(shape)
        for name, shape in reference_shapes(config.model.dim, 1, config.model.patch, 4, 32, 252)
    }
    assert len(convert_reference(state, config, 252, config.regions)) == len(state)
