import math

import pytest
import torch
from torch import nn

from retable.tasks.weather.config import Vivit
from retable.tasks.weather.vivit import Attention, VivitForecaster, transformer

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
