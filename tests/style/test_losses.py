"""Losses against the equations written as loops in float64, and identities between the conventions."""

import itertools
import math

import numpy as np
import pytest
import torch

from retable.platform.errors import UserError
from retable.tasks.style import losses
from retable.tasks.style.config import Objective, Vgg19
from retable.tasks.style.networks import weights
from retable.tasks.style.networks.backbones import BackboneNetwork, build

LAYERS = ("relu1_1", "relu2_1")
CONVENTIONS = ["gatys", "frobenius", "mean", "sum", "relative"]
CRITERIA = ["mse", "l1", "smooth_l1", "huber"]


@pytest.fixture(scope="module")
def network():
    random = torch.Generator().manual_seed(0)
    tensors = {}
    for index, inputs, filters in ((0, 3, 4), (2, 4, 5), (5, 5, 3), (7, 3, 6)):
        tensors[f"features.{index}.weight"] = torch.randn(filters, inputs, 3, 3, generator=random)
        tensors[f"features.{index}.bias"] = torch.randn(filters, generator=random)
    found = weights.Weights("vgg19", tensors)
    return BackboneNetwork("vgg19", weights.assemble(found, "average"), found.mean, found.std)


def image(height=9, width=7, count=1, seed=0):
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(seed))


def objective(convention="gatys", criterion="mse", **changes):
    options = {"content_layers": ("conv2_2",), "style_layers": LAYERS, "content_weight": 0.7, "style_weight": 3.0}
    return Objective(convention=convention, criterion=criterion, **(options | changes))


def evaluate(network, what, content, paintings, batch, blend=()):
    return losses.loss(network, what, losses.targets(network, what, content, paintings, blend), batch)


def features(network, layer, sample):
    """One image's features as nested lists: filters of positions."""
    return network(sample, (layer,))[layer][0].double().flatten(1).tolist()


def naive_gram(rows):
    return [[math.fsum(a * b for a, b in zip(one, other, strict=True)) for other in rows] for one in rows]


def phi(criterion, x):
    if criterion == "mse":
        return x * x
    if criterion == "l1":
        return abs(x)
    return 0.5 * x * x if abs(x) < 1 else abs(x) - 0.5


def naive_content(convention, criterion, ours, target):
    terms, own = [], []
    for row, other in zip(ours, target, strict=True):
        for f, p in zip(row, other, strict=True):
            terms.append(phi(criterion, f - p))
            own.append(phi(criterion, p))
    total = math.fsum(terms)
    return {"gatys": total / 2, "relative": total / math.fsum(own)}.get(convention, total / len(terms))


def naive_style(convention, criterion, ours, paintings, blend):
    """`paintings` are features of each."""
    n, m = len(ours), len(ours[0])
    g, grams = naive_gram(ours), [(naive_gram(rows), len(rows[0])) for rows in paintings]
    total = own = 0.0
    for i, j in itertools.product(range(n), repeat=2):
        a = sum(share * gram[i][j] / positions for (gram, positions), share in zip(grams, blend, strict=True))
        a /= sum(blend)
        if convention in ("gatys", "relative"):
            d = g[i][j] / m - a
        elif convention == "frobenius":
            d = g[i][j] - m * a
        else:
            d = g[i][j] / (n * m) - a / n
        total, own = total + phi(criterion, d), own + phi(criterion, a)
    divisor = {"gatys": 4 * n * n, "frobenius": 1, "mean": n * n, "sum": 1, "relative": own}[convention]
    return total / divisor


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_losses_are_the_equations(network, convention, criterion):
    """Batch of three, two paintings of other sizes, weights of layers and of all terms."""
    what = objective(convention, criterion, layer_weights=(0.3, 2.0), variation_weight=0.5)
    content, batch, blend = image(seed=1), image(count=3, seed=2), (1.0, 3.0)
    paintings = [image(12, 10, seed=3), image(6, 11, seed=4)]
    found = evaluate(network, what, content, paintings, batch, blend)
    target = features(network, "conv2_2", content)
    for k in range(3):
        sample = batch[k : k + 1]
        style = 0.0
        for layer, weight in zip(LAYERS, (0.3, 2.0), strict=True):
            shown = [features(network, layer, painting) for painting in paintings]
            style += weight * naive_style(convention, criterion, features(network, layer, sample), shown, blend)
        wanted = (0.7 * naive_content(convention, criterion, features(network, "conv2_2", sample), target), 3 * style)
        assert float(found.content[k]) == pytest.approx(wanted[0], rel=2e-5)
        assert float(found.style[k]) == pytest.approx(wanted[1], rel=2e-5)
        assert float(found.total[k]) == pytest.approx(sum(wanted) + float(found.variation[k]), rel=2e-5)
    assert {term.dtype for term in found} == {torch.float32} and {term.shape for term in found} == {(3,)}


def test_equations_of_the_paper_as_printed(network):
    """Equations (1) to (4), with raw Gram matrices and sizes that agree; (6) likewise."""
    content, painting, made = image(seed=1), image(seed=2), image(seed=3)
    f, p = (network(one, ("conv2_2",))["conv2_2"].double().numpy() for one in (made, content))
    style = frobenius = 0.0
    for layer in LAYERS:
        x, y = (network(one, (layer,))[layer][0].double().flatten(1).numpy() for one in (made, painting))
        n, m = x.shape
        squares = ((x @ x.T - y @ y.T) ** 2).sum()
        style, frobenius = style + squares / (4 * n**2 * m**2) / len(LAYERS), frobenius + squares
    plain = {"content_weight": 1.0, "style_weight": 1.0}
    found = evaluate(network, objective(**plain), content, [painting], made)
    assert float(found.content) == pytest.approx(0.5 * ((f - p) ** 2).sum(), rel=1e-5)
    assert float(found.style) == pytest.approx(style, rel=1e-5)
    found = evaluate(network, objective("frobenius", **plain), content, [painting], made)
    assert float(found.content) == pytest.approx(((f - p) ** 2).mean(), rel=1e-5)
    assert float(found.style) == pytest.approx(frobenius, rel=1e-5)


def test_conventions_differ_by_known_factors(network):
    """For one layer of N filters, M positions: mean = gatys 4 / N^2, sum = 4 gatys, frobenius = 4 N^2 M^2 gatys."""
    content, painting, made = image(seed=1), image(seed=2), image(seed=3)
    found = {}
    for name in CONVENTIONS:
        what = objective(name, style_layers=("relu2_1",), content_weight=1.0, style_weight=1.0)
        found[name] = evaluate(network, what, content, [painting], made)
    n, m = network(made, ("relu2_1",))["relu2_1"][0].flatten(1).shape
    gatys = float(found["gatys"].style)
    for name, factor in (("mean", 4 / n**2), ("sum", 4), ("frobenius", 4 * n**2 * m**2)):
        assert float(found[name].style) == pytest.approx(factor * gatys, rel=1e-5)
    sizes = network(made, ("conv2_2",))["conv2_2"].numel()
    assert float(found["gatys"].content) == pytest.approx(sizes / 2 * float(found["mean"].content), rel=1e-5)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_huber_is_smooth_l1_at_delta_one(network, convention):
    args = (image(seed=1), [image(seed=2)], image(count=2, seed=3))
    huber, smooth = (evaluate(network, objective(convention, name), *args) for name in ("huber", "smooth_l1"))
    assert all(torch.equal(one, other) for one, other in zip(huber, smooth, strict=True))
    other = evaluate(network, objective(convention, "mse"), *args)
    assert not torch.allclose(huber.style, other.style) and not torch.allclose(huber.content, other.content)


def test_layer_weights_by_default(network):
    args = (None, [image(seed=2)], image(seed=3))
    for name in CONVENTIONS:
        one, other = (evaluate(network, objective(name, style_layers=(layer,)), *args).style for layer in LAYERS)
        share = 0.5 if name == "gatys" else 1.0
        torch.testing.assert_close(evaluate(network, objective(name), *args).style, share * (one + other))


@pytest.mark.parametrize("convention", ["gatys", "mean", "sum", "relative"])
def test_style_does_not_depend_on_sizes(convention):
    """Gram matrices of an image and of that image tiled are the same over positions."""
    torch.manual_seed(0)
    made, painting = torch.rand(1, 4, 6, 5), torch.rand(1, 4, 6, 5)
    target = losses.gram(painting) / 30
    once = losses.style_loss(made, target, convention, "mse")
    tiled = losses.style_loss(made.repeat(1, 1, 2, 3), losses.gram(painting.repeat(1, 1, 3, 1)) / 90, convention, "mse")
    torch.testing.assert_close(once, tiled, rtol=1e-5, atol=0)


def test_grams_gradient_is_autograds_where_it_is_not_symmetric():
    random = torch.Generator().manual_seed(0)
    values = torch.randn(2, 4, 3, 5, generator=random, requires_grad=True)
    weights, flat = torch.randn(2, 4, 4, generator=random), values.flatten(2)
    (found,) = torch.autograd.grad((losses.gram(values) * weights).sum(), values)
    (wanted,) = torch.autograd.grad((flat @ flat.transpose(1, 2) * weights).sum(), values)
    torch.testing.assert_close(found, wanted)


def test_gram_is_of_each_sample():
    """Not of a batch flattened into channels, which the tutorial's Gram matrix is."""
    values = torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(0))
    found = losses.gram(values)
    assert found.shape == (3, 4, 4)
    for k in range(3):
        np.testing.assert_allclose(found[k], naive_gram(values[k].double().flatten(1).tolist()), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found, found.transpose(1, 2))


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_batch_is_its_samples(network, convention):
    what, batch, contents = objective(convention, variation_weight=1.0), image(count=4, seed=1), image(count=4, seed=2)
    fixed = losses.targets(network, what, None, [image(13, 8, seed=3)])
    found = losses.loss(network, what, losses.with_content(fixed, network, what, contents), batch)
    for k in range(4):
        own = losses.with_content(fixed, network, what, contents[k : k + 1])
        alone = losses.loss(network, what, own, batch[k : k + 1])
        for one, other in zip(found, alone, strict=True):
            torch.testing.assert_close(one[k : k + 1], other, rtol=1e-4, atol=1e-6)


def test_an_image_is_its_own_best_answer(network):
    same, other = image(seed=1), image(seed=2)
    for convention, criterion in itertools.product(CONVENTIONS, CRITERIA):
        what = objective(convention, criterion)
        found, usual = (evaluate(network, what, same, [same], made) for made in (same, other))
        assert float(found.content) == 0 and float(found.style) < 1e-5 * float(usual.style)


def test_blend(network):
    paintings, made, what = [image(12, 10, seed=3), image(6, 11, seed=4)], image(seed=5), objective("mean")
    first, second = (losses.targets(network, what, None, [painting]).style for painting in paintings)
    equal, weighted, alone = (
        losses.targets(network, what, None, paintings, blend).style for blend in ((), (1.0, 3.0), (0.0, 2.0))
    )
    for layer in LAYERS:
        torch.testing.assert_close(equal[layer], (first[layer] + second[layer]) / 2)
        torch.testing.assert_close(weighted[layer], (first[layer] + 3 * second[layer]) / 4)
        torch.testing.assert_close(alone[layer], second[layer])
    torch.testing.assert_close(
        evaluate(network, what, None, paintings, made, (0.0, 2.0)).style,
        evaluate(network, what, None, paintings[1:], made).style,
    )


def test_variation():
    values = image(4, 5, count=2, seed=1)
    for k in range(2):
        total = 0.0
        for channel, row, column in itertools.product(range(3), range(4), range(5)):
            here = float(values[k, channel, row, column])
            total += (float(values[k, channel, row + 1, column]) - here) ** 2 if row < 3 else 0
            total += (float(values[k, channel, row, column + 1]) - here) ** 2 if column < 4 else 0
        assert float(losses.mean_square_variation(values)[k]) == pytest.approx(total / 20, rel=1e-5)
    assert (
        float(losses.mean_square_variation(torch.ones(1, 3, 6, 6))) == 0
        and float(losses.mean_square_variation(torch.ones(1, 3, 1, 1))) == 0
    )
    checkerboard = (torch.arange(64).view(8, 8).sum(0) * 0 + torch.arange(8)[:, None] + torch.arange(8)) % 2.0
    assert float(losses.mean_square_variation(checkerboard.expand(1, 3, 8, 8))) == 3 * 2 * 7 * 8 / 64


def test_johnsons_variation_has_the_gradient_of_his_code():
    """Of TotalVariation.lua: each pixel but the last row and column is pulled to the ones below and on its right."""
    image = torch.rand(2, 3, 5, 7, dtype=torch.float32, requires_grad=True)
    losses.johnson_variation(image).sum().backward()
    values, wanted = image.detach(), torch.zeros(2, 3, 5, 7)
    across = values[..., :-1, :-1] - values[..., :-1, 1:]
    down = values[..., :-1, :-1] - values[..., 1:, :-1]
    wanted[..., :-1, :-1] += across + down
    wanted[..., :-1, 1:] -= across
    wanted[..., 1:, :-1] -= down
    torch.testing.assert_close(image.grad, wanted)


def test_an_objective_names_its_form_of_total_variation():
    network = build(Vgg19(weights="random", normalise=False), 0, None)
    image = torch.rand(1, 3, 32, 32)
    found = {}
    for form in ("mean_square", "johnson"):
        objective = Objective(style_layers=(), content_layers=(), variation_weight=2.0, variation=form)
        found[form] = losses.loss(network, objective, losses.Targets({}, {}), image).variation
    assert found["johnson"] == pytest.approx(float(2 * losses.johnson_variation(image)))
    assert found["mean_square"] == pytest.approx(float(2 * losses.mean_square_variation(image)))


@pytest.mark.parametrize("height, width", [(64, 96), (66, 99)])
def test_a_grid_is_seen_by_its_amplitude(height, width):
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    plain = torch.full((1, 3, height, width), 0.5)
    for frequency, power in ((math.pi / 2, 0.5), (math.pi, 1.0)):  # a wave of 4 pixels has two of the frequencies
        wave = 0.1 * torch.cos(frequency * columns)
        assert losses.lattice(plain + wave).item() == pytest.approx(power * 0.01, rel=1e-3)
    both = 0.1 * torch.cos(math.pi / 2 * rows) * torch.cos(math.pi / 2 * columns)
    assert losses.lattice(plain + both).item() == pytest.approx(0.25 * 0.01, rel=1e-3)
    assert losses.lattice(plain).item() < 1e-9
    other = plain + 0.1 * torch.cos(2 * math.pi * columns / 5) + rows / height
    assert losses.lattice(other).item() < 1e-5
    noise = torch.rand(8, 3, height, width, generator=torch.Generator().manual_seed(0))
    assert losses.lattice(noise).max() < 15 * 4 * noise.var() / (height * width)  # 15 of so many frequencies


def test_tones_are_compared_by_numpys_correlation_of_coarse_luma():
    first, second = image(64, 96, 3, seed=1), image(64, 96, 3, seed=2)
    first = first + torch.linspace(0, 1, 96)  # else the means over squares hardly vary
    for made, photograph, found in zip(first, second + first, losses.tone(first, second + first), strict=True):
        lumas = [(each.numpy().transpose(1, 2, 0) @ (0.299, 0.587, 0.114)) for each in (made, photograph)]
        cells = [each.reshape(4, 16, 6, 16).mean((1, 3)).ravel() for each in lumas]
        assert float(found) == pytest.approx(1 - np.corrcoef(*cells)[0, 1], abs=1e-4)
    assert losses.tone(0.3 * first + 0.2, first).abs().max() < 1e-4
    assert losses.tone(-first, first) == pytest.approx(2, abs=1e-4)
    assert losses.tone(torch.zeros_like(first), first) == pytest.approx(1)


def test_spikes_are_what_lies_far_from_a_channels_mean():
    features = torch.randn(2, 3, 20, 30, generator=torch.Generator().manual_seed(0))
    assert not losses.spikes(features).any()
    features[1, 2, 4, 5] = 1000.0
    channel = features[1, 2].numpy().astype(np.float64)
    beyond = (1000 - channel.mean()) / channel.std() - 8
    assert losses.spikes(features).tolist() == pytest.approx([0, beyond**2 / 600], rel=1e-4)


def test_terms_that_are_not_asked_for(network):
    found = evaluate(network, objective(style_layers=()), image(seed=1), [image(seed=2)], image(count=2, seed=3))
    assert not found.style.any() and found.content.all() and torch.equal(found.total, found.content)
    found = evaluate(network, objective(), None, [image(seed=2)], image(count=2, seed=3))
    assert not found.content.any() and found.style.all() and torch.equal(found.total, found.style)


def test_a_black_layer_does_not_divide_by_zero():
    zeros, ones = torch.zeros(1, 2, 3, 3), torch.ones(1, 2, 3, 3)
    assert float(losses.content_loss(ones, zeros, "relative", "mse")) == 18
    assert float(losses.style_loss(ones, torch.zeros(1, 2, 2), "relative", "mse")) == 4


def test_gradients_are_the_published():
    """Gatys et al. 2016, equations (3) and (6): F - P, and (G - A) F / (N^2 M^2), of each sample alone."""
    random = torch.Generator().manual_seed(0)
    made, content = (torch.randn(2, 4, 3, 5, generator=random) for _ in range(2))
    target = losses.gram(torch.randn(1, 4, 3, 5, generator=random)) / 15
    made.requires_grad_()
    (gradient,) = torch.autograd.grad(losses.content_loss(made, content, "gatys", "mse").sum(), made)
    torch.testing.assert_close(gradient, (made - content).detach())
    (gradient,) = torch.autograd.grad(losses.style_loss(made, target, "gatys", "mse")[1], made)
    flat = made.detach()[1].flatten(1).double()
    wanted = (flat @ flat.T - 15 * target[0].double()) @ flat / (4**2 * 15**2)
    assert not gradient[0].any()
    torch.testing.assert_close(gradient[1].flatten(1).double(), wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_the_loss_falls_along_its_gradient(network, convention):
    what, made = objective(convention, variation_weight=0.5), image(seed=3).requires_grad_()
    fixed = losses.targets(network, what, image(seed=1), [image(seed=2)])
    assert not any(tensor.requires_grad for part in fixed for tensor in part.values())
    before = losses.loss(network, what, fixed, made).total
    (gradient,) = torch.autograd.grad(before.sum(), made)
    step = 1e-3 * gradient / gradient.norm()
    fall = float(before.detach()) - float(losses.loss(network, what, fixed, made.detach() - step).total)
    assert fall == pytest.approx(1e-3 * float(gradient.norm()), rel=0.1)


def test_float32_under_autocast(network):
    """Gram matrices of bfloat16 features are those of the same numbers in float32, to float32's precision."""
    values = torch.randn(2, 8, 40, 40, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = losses.gram(values)
        terms = evaluate(network, objective(), image(seed=1), [image(seed=2)], image(seed=3))
    assert found.dtype == torch.float32 and {term.dtype for term in terms} == {torch.float32}
    exact = torch.einsum("bnhw,bmhw->bnm", values.double(), values.double())
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-2)
    photograph, near = image(64, 96, seed=4), image(64, 96, seed=4) + 0.01 * image(64, 96, seed=5)
    tone = losses.tone(near, photograph)
    with torch.autocast("cpu", torch.bfloat16):
        assert tone > 0 and torch.equal(losses.tone(near, photograph), tone)


def test_a_layer_that_is_named_twice_counts_with_both_weights(network):
    what = {"content": image(seed=1), "paintings": [image(seed=2)], "batch": image(seed=3)}
    once = evaluate(network, objective(style_layers=("relu1_1",), layer_weights=(4.0,)), **what)
    twice = evaluate(network, objective(style_layers=("relu1_1", "stage1"), layer_weights=(3.0, 1.0)), **what)
    torch.testing.assert_close(twice.style, once.style)


def test_layers_that_are_not_there(network):
    for wrong in ({"content_layers": ("stage4",)}, {"style_layers": ("relu3_1",)}):
        with pytest.raises(UserError, match="not among the layers"):
            losses.targets(network, objective(**wrong), image(seed=1), [image(seed=2)])


def test_octaves_are_losses_of_smaller_images(network):
    content, painting, batch = image(32, 24), image(40, 36, seed=1), image(32, 24, count=2, seed=2)
    both = evaluate(network, objective(octaves=2, content_octave=1, style_weight=3.0), content, [painting], batch)

    def half(one):
        return one.unflatten(2, (-1, 2)).unflatten(4, (-1, 2)).mean((3, 5))

    whole = evaluate(network, objective(), content, [painting], batch)
    small = evaluate(network, objective(), half(content), [half(painting)], half(batch))
    torch.testing.assert_close(both.style, (whole.style + small.style) / 2)
    torch.testing.assert_close(both.content, small.content)
    assert not torch.allclose(both.style, whole.style) and not torch.allclose(both.content, whole.content)


@pytest.mark.parametrize("changes", [{"octaves": 0}, {"octaves": 7}, {"content_octave": -1}, {"content_octave": 6}])
def test_octaves_have_bounds(changes):
    with pytest.raises(ValueError, match="is outside"):
        objective(**changes)
