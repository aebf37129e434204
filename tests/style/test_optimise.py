import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from retable.tasks.style import losses
from retable.tasks.style.apply import lbfgs
from retable.tasks.style.apply.optimise import ImageOptimisation
from retable.tasks.style.config import Adam, Config, Lbfgs, Objective, OptimiseImage, Sgd, TrainNetwork
from retable.tasks.style.files.images import fit, square, to_tensor
from retable.tasks.style.networks.backbones import BackboneNetwork

OBJECTIVE = Objective(content_layers=("relu2_2",), style_layers=("relu1_1", "relu2_1"), style_weight=1e5)
OPTIMIZERS = {
    "lbfgs": Lbfgs(history=3),
    "lbfgs_unsearched": Lbfgs(history=3, line_search="none"),
    "adam": Adam(),
    "sgd": Sgd(learning_rate=1e-4),
    "normalised": Sgd(learning_rate=0.003, normalise_gradient=True),
}


def backbone():
    generator = torch.Generator().manual_seed(5)
    convolutions = [nn.Conv2d(i, o, 3, padding=1) for i, o in ((3, 8), (8, 8), (8, 8))]
    for convolution in convolutions:
        fan = convolution.weight[0].numel()
        convolution.weight.data = torch.randn(convolution.weight.shape, generator=generator) * (2 / fan) ** 0.5
        convolution.bias.data = 0.1 * torch.randn(convolution.bias.shape, generator=generator)
    one, two, three = convolutions
    features = nn.Sequential(one, nn.ReLU(), nn.AvgPool2d(2), two, nn.ReLU(), three, nn.ReLU())
    return BackboneNetwork("vgg19", features, (0.5, 0.4, 0.3), (0.2, 0.3, 0.25)).requires_grad_(False).eval()


def picture(seed, height=40, width=60):
    coarse = np.random.default_rng(seed).integers(0, 256, (height // 4, width // 4, 3), np.uint8)
    return coarse.repeat(4, 0).repeat(4, 1)


CONTENT, PAINTING = picture(0), picture(1, 48, 36)


def make(steps=8, paintings=(PAINTING,), network=None, *, seed=0, blend=(), precision="float32", **method):
    method = OptimiseImage(**{"size": 24, "objective": OBJECTIVE, **method})
    names = tuple(f"painting_{n}" for n in range(len(paintings)))
    config = Config(style=names, method=method, epochs=1, steps=steps, seed=seed, blend=blend, precision=precision)
    return ImageOptimisation(config, CONTENT, paintings, network or backbone(), "cpu")


def run(optimisation, steps=None):
    for _ in range(optimisation.evaluations if steps is None else steps):
        optimisation.step()
    return optimisation


class Float64:
    """The gatys convention on the small network, written out in float64, and its gradient."""

    def __init__(self, content, painting):
        self.weights = [(m.weight.double(), m.bias.double()) for m in backbone().features if isinstance(m, nn.Conv2d)]
        self.content = self.features(torch.from_numpy(content))[2]
        self.grams = [f @ f.T for f in self.features(torch.from_numpy(painting))[:2]]

    def features(self, image):
        x = (image - torch.tensor([0.5, 0.4, 0.3]).double()[:, None, None]) / torch.tensor(
            [0.2, 0.3, 0.25], dtype=torch.float64
        )[:, None, None]
        first = functional.conv2d(x[None], *self.weights[0], padding=1).relu()
        blocks = first.unfold(2, 2, 2).unfold(3, 2, 2).mean((-2, -1))
        second = functional.conv2d(blocks, *self.weights[1], padding=1).relu()
        third = functional.conv2d(second, *self.weights[2], padding=1).relu()
        return [f.reshape(f.shape[1], -1) for f in (first, second, third)]

    def __call__(self, image):
        leaf = torch.from_numpy(image).requires_grad_()
        *style, deep = self.features(leaf)
        content = ((deep - self.content) ** 2).sum() / 2
        total = 0
        for f, target in zip(style, self.grams, strict=True):
            filters, positions = f.shape
            total = total + ((f @ f.T - target) ** 2).sum() / (4 * filters**2 * positions**2) / 2
        loss = content + 1e5 * total
        loss.backward()
        return np.array([loss.item(), content.item(), 1e5 * total.item()]), leaf.grad.numpy()


def textbook_lbfgs(function, x, steps, history, longest, window):
    """Nocedal and Wright's algorithms 7.4 and 7.5, with steps of length one and pixels clamped before they are seen.

    With `longest`, moves are scaled down to that mean change, and halved while the loss is above those of the last
    images. Returns the image, the losses, and how many moves were scaled down and how many halved.
    """
    pairs, trace, accepted, move, origin, old, scaled, halved = [], [], [], None, None, None, 0, 0
    for _ in range(steps):
        x = x.clip(0, 1)
        values, gradient = function(x)
        trace.append(values)
        if longest and accepted and values[0] > max(accepted[-window:]):
            move, halved = move / 2, halved + 1
            x = origin + move
            continue
        accepted.append(values[0])
        if old is not None:
            pairs.append((move, gradient - old))
            pairs = pairs[-history:] if pairs[-1][0].ravel() @ pairs[-1][1].ravel() > 1e-10 else pairs[:-1]
        q, kept = gradient.copy(), []
        for s, y in reversed(pairs):
            alpha = (s * q).sum() / (s * y).sum()
            q -= alpha * y
            kept.append(alpha)
        if pairs:
            s, y = pairs[-1]
            q *= (s * y).sum() / (y * y).sum()
        for (s, y), alpha in zip(pairs, reversed(kept), strict=True):
            q += s * (alpha - (y * q).sum() / (s * y).sum())
        move = -q * (1.0 if old is not None else min(1.0, 1 / np.abs(gradient).sum()))
        if longest and np.abs(move).mean() > longest:
            move, scaled = move * longest / np.abs(move).mean(), scaled + 1
        origin, x, old = x, x + move, gradient
    return origin if longest else x, np.array(trace), scaled, halved


@pytest.mark.parametrize(
    ("longest", "window", "scaled", "halved"),
    [(None, 0, False, False), (0.004, 10, True, False), (1.0, 1, False, True)],
)
def test_lbfgs_follows_the_textbook_in_float64(monkeypatch, longest, window, scaled, halved):
    monkeypatch.setattr(lbfgs, "LONGEST", longest)
    monkeypatch.setattr(lbfgs, "WINDOW", window)
    chosen = Lbfgs(history=4, line_search="backtracking" if longest else "none")
    optimisation = run(make(steps=14, optimizer=chosen))
    content, painting = (to_tensor(square(p, 24))[0].double().numpy() for p in (CONTENT, PAINTING))
    pixels, trace, *counts = textbook_lbfgs(Float64(content, painting), content, 14, 4, longest, window)
    assert [count > 0 for count in counts] == [scaled, halved]
    np.testing.assert_allclose(optimisation.losses.numpy(), trace, rtol=5e-4)
    assert np.abs(pixels.clip(0, 1) - content).max() > 0.1
    np.testing.assert_allclose(optimisation.image[0].numpy(), pixels.clip(0, 1), atol=1e-4)


def test_lbfgs_of_one_iteration_a_step_is_lbfgs_of_all_in_one_call():
    whole = make(optimizer=Lbfgs(line_search="none"))
    pixels = whole.image.requires_grad_()
    seen = []

    def closure():
        with torch.no_grad():
            pixels.clamp_(0, 1)
        pixels.grad = None
        total = losses.loss(whole.network, OBJECTIVE, whole._targets, pixels).total
        total.sum().backward()
        seen.append(total.item())
        return total

    torch.optim.LBFGS([pixels], max_iter=11, max_eval=100, history_size=20, tolerance_grad=0, tolerance_change=0).step(
        closure
    )
    ours = run(make(steps=11, optimizer=Lbfgs(line_search="none")))
    assert seen == ours.losses[:, 0].tolist()
    assert torch.equal(ours.image, pixels.detach().clamp(0, 1))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_evaluates_once(optimizer):
    network, calls = backbone(), []
    optimisation = make(steps=5, network=network, optimizer=OPTIMIZERS[optimizer])
    network.register_forward_hook(lambda *_: calls.append(1))
    for count in range(1, 6):
        found = optimisation.step()
        assert len(calls) == count == len(optimisation.losses)
        assert optimisation.losses[-1].tolist() == [found.total.item(), found.content.item(), found.style.item()]
    assert all(parameter.grad is None for parameter in network.parameters())


def test_a_strong_wolfe_search_is_pytorchs():
    searched = Lbfgs(line_search="strong_wolfe")
    job, plain = run(make(optimizer=searched), 4), make(optimizer=searched)
    pixels = plain._pixels.detach().clone().requires_grad_()
    never = {"tolerance_grad": 0, "tolerance_change": 0, "history_size": 20}
    reference = torch.optim.LBFGS([pixels], max_iter=1, max_eval=26, line_search_fn="strong_wolfe", **never)
    seen = []

    def closure():
        with torch.no_grad():
            pixels.clamp_(0, 1)
        reference.zero_grad()
        value = losses.loss(plain.network, OBJECTIVE, plain._targets, pixels).total.sum()
        value.backward()
        seen.append(value.item())
        return value

    for _ in range(4):
        reference.step(closure)
    torch.testing.assert_close(job._pixels.detach(), pixels.detach())
    assert len(seen) > 4 and job.losses[0, 0] == pytest.approx(seen[0])


def test_the_image_of_a_line_search_is_the_one_whose_loss_is_given(monkeypatch):
    monkeypatch.setattr(lbfgs, "LONGEST", 1.0)
    monkeypatch.setattr(lbfgs, "WINDOW", 1)  # so that moves are halved
    optimisation, rejected = make(optimizer=Lbfgs(history=4)), 0
    for _ in range(14):
        found = optimisation.step()
        leaf = optimisation.image.requires_grad_()
        total = losses.loss(optimisation.network, OBJECTIVE, optimisation._targets, leaf).total
        assert optimisation.loss[0].item() == pytest.approx(total.item(), rel=1e-6)
        rejected += found.total.item() > optimisation.loss[0].item()
    assert rejected and optimisation.losses[:, 0].min() == optimisation.loss[0]


@pytest.mark.parametrize("scales", [(), (16, 20)])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_resumed_anywhere_is_uninterrupted(optimizer, scales):
    def new():
        return make(steps=6, scales=scales, start="noise", optimizer=OPTIMIZERS[optimizer])

    whole, states = new(), []
    for _ in range(6):
        stream = io.BytesIO()
        torch.save(whole.state_dict(), stream)
        states.append(stream)
        whole.step()
    for done, stream in enumerate(states):
        stream.seek(0)
        resumed = new()
        resumed.load_state_dict(torch.load(stream, weights_only=True))
        run(resumed, 6 - done)
        assert torch.equal(resumed.image, whole.image)
        assert torch.equal(resumed.losses, whole.losses)


@pytest.mark.parametrize("optimizer", ["lbfgs", "adam"])
def test_a_state_outlives_its_use(optimizer):
    first = run(make(optimizer=OPTIMIZERS[optimizer]), 3)
    state = first.state_dict()
    run(first, 3)
    for _ in range(2):
        again = make(optimizer=OPTIMIZERS[optimizer])
        again.load_state_dict(state)
        assert torch.equal(run(again, 3).image, first.image)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_losses_fall(optimizer):
    total = run(make(steps=25, optimizer=OPTIMIZERS[optimizer])).losses[:, 0]
    assert total[-1] < 0.7 * total[0]


def test_first_steps_of_adam_and_descent():
    start = make().image
    leaf = start.clone().requires_grad_()
    optimisation = make()
    losses.loss(optimisation.network, OBJECTIVE, optimisation._targets, leaf).total.sum().backward()
    for optimizer, move in (
        (Adam(), -0.02 * leaf.grad.sign()),
        (Sgd(learning_rate=1e-5), -1e-5 * leaf.grad),
        (Sgd(learning_rate=0.01, normalise_gradient=True), -0.01 * leaf.grad / leaf.grad.abs().mean()),
    ):
        moved = run(make(optimizer=optimizer), 1).image
        torch.testing.assert_close(moved, (start + move).clamp(0, 1), rtol=0, atol=2e-6)


def test_noise_is_a_function_of_the_seed():
    images = [make(start="noise", seed=seed).image for seed in (0, 0, 1)]
    assert torch.equal(images[0], images[1]) and not torch.equal(images[0], images[2])
    assert 0.4 < images[0].mean() < 0.6 and images[0].std() > 0.2


def test_start_is_the_content_or_the_painting_in_its_shape():
    assert torch.equal(make(shape="keep").image, to_tensor(fit(CONTENT, 24)))
    assert torch.equal(make(start="style").image, to_tensor(square(PAINTING, 24)))
    kept = make(start="style", shape="keep").image
    expected = functional.interpolate(to_tensor(fit(PAINTING, 24)), (16, 24), mode="bilinear")
    assert torch.equal(kept, expected)
    mixed = make(start="style", paintings=(PAINTING, CONTENT), blend=(3, 1)).image
    parts = to_tensor(square(PAINTING, 24)), to_tensor(square(CONTENT, 24))
    torch.testing.assert_close(mixed, 0.75 * parts[0] + 0.25 * parts[1])


def test_shapes():
    assert make(size=32).image.shape == (1, 3, 32, 32)
    assert make(size=32, shape="keep").image.shape == (1, 3, 21, 32)


@pytest.mark.parametrize(("steps", "shares"), [(10, [3, 3, 4]), (6, [2, 2, 2]), (2, [0, 1, 1]), (1, [0, 0, 1])])
def test_scales_share_the_evaluations(steps, shares):
    optimisation = make(steps=steps, scales=(16, 20))
    seen = []
    for _ in range(steps):
        optimisation.step()
        seen.append(optimisation.image.shape[-1])
    assert [seen.count(size) for size in (16, 20, 24)] == shares
    optimisation.step()  # one more than planned
    assert optimisation.image.shape[-1] == 24


def test_a_stage_starts_from_the_last_ones_image_with_an_optimiser_anew():
    optimisation = make(steps=8, scales=(16,))
    run(optimisation, 4)
    before = optimisation.image
    found = optimisation.step()
    assert optimisation.optimizer.state_dict()["state"][0]["n_iter"] == 1
    larger = make(steps=1)  # has the targets of size 24
    start = functional.interpolate(before, (24, 24), mode="bilinear")
    expected = losses.loss(larger.network, OBJECTIVE, larger._targets, start)
    torch.testing.assert_close(found.total, expected.total)


def test_two_equal_paintings_are_one():
    one = run(make(), 4)
    two = run(make(paintings=(PAINTING, PAINTING), blend=(0.25, 0.75)), 4)
    torch.testing.assert_close(two.losses, one.losses, rtol=1e-4, atol=0)
    torch.testing.assert_close(two.image, one.image, rtol=0, atol=1e-4)
    weighed = run(make(paintings=(PAINTING, CONTENT), blend=(2.0, 0.0)), 4)
    torch.testing.assert_close(weighed.image, one.image, rtol=0, atol=1e-4)


def test_style_scale_is_of_the_painting():
    assert make(paintings=(CONTENT,)).step().style.item() == pytest.approx(0, abs=1e-6)
    assert make(paintings=(CONTENT,), style_scale=0.5).step().style.item() > 1e-2


def test_divergence_is_recorded_and_the_image_stays_a_picture():
    wild = run(make(steps=6, optimizer=Sgd(learning_rate=1e6)))
    assert wild.losses[1:, 0].min() > wild.losses[0, 0]
    assert wild.losses.isfinite().all() and set(wild.image.unique().tolist()) == {0, 1}
    enormous = replace(OBJECTIVE, layer_weights=(1e9, 1.0), style_weight=1e38)
    for optimizer in OPTIMIZERS.values():
        broken = run(make(steps=4, objective=enormous, optimizer=optimizer, scales=(16,)))
        assert not broken.losses.isfinite().all()
        assert broken.image.isfinite().all() and len(broken.losses) == 4


def test_bfloat16_keeps_image_and_losses_in_float32():
    plain, short = run(make(steps=2)), run(make(steps=2, precision="bfloat16"))
    assert short.image.dtype == short.losses.dtype == torch.float32
    torch.testing.assert_close(short.losses[0], plain.losses[0], rtol=0.02, atol=0)
    assert not torch.equal(short.losses, plain.losses)


def test_a_config_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="TrainNetwork does not optimise an image"):
        ImageOptimisation(Config(method=TrainNetwork()), CONTENT, (PAINTING,), backbone(), "cpu")
    with pytest.raises(ValueError, match="2 paintings where the config names 1"):
        ImageOptimisation(Config(method=OptimiseImage()), CONTENT, (PAINTING, PAINTING), backbone(), "cpu")
