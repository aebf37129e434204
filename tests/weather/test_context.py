"""Our 2D network: where it looks, what it keeps, and that it learns."""

import pytest
import torch
from torch import nn

from retable.tasks.weather.config import Context
from retable.tasks.weather.models.context import RAIN_SHARE, Body, ContextForecaster


def network(size=36, inputs=2, forecast=3, crop=True, filters=8, levels=3, seed=0):
    """A network whose last layer says something."""
    torch.manual_seed(seed)
    made = ContextForecaster(Context(filters=filters, levels=levels), size, inputs, forecast, crop)
    nn.init.normal_(made.last.weight)
    return made


def local(made):
    """The same without normalisation, through which every pixel knows of all others."""
    for module in list(made.modules()):
        if hasattr(module, "norm1"):
            module.norm1, module.norm2 = nn.Identity(), nn.Identity()
    return made


@pytest.mark.parametrize("crop", [True, False])
@pytest.mark.parametrize(
    ("size", "inputs", "forecast", "filters", "levels"),
    [(12, 1, 1, 1, 5), (24, 4, 32, 4, 1), (36, 4, 32, 3, 5), (60, 2, 7, 16, 4)],
)
def test_any_shape_trains(size, inputs, forecast, filters, levels, crop):
    made = network(size, inputs, forecast, crop, filters, levels).train()
    logits = made(torch.randn(1, 11, inputs, size, size))
    assert logits.shape == (1, forecast, size, size)
    logits.square().mean().backward()
    assert all(value.grad is not None and value.grad.isfinite().all() for value in made.parameters())


def test_crop_changes_no_parameter():
    with_crop, without = network(crop=True).state_dict(), network(crop=False).state_dict()
    assert with_crop.keys() == without.keys()
    assert all(torch.equal(with_crop[name], without[name]) for name in with_crop)


def test_an_untrained_network_forecasts_the_climate():
    made = ContextForecaster(Context(filters=4, levels=2), 24, 4, 32, True)
    probability = made(torch.randn(2, 11, 4, 24, 24)).sigmoid()
    torch.testing.assert_close(probability, torch.full_like(probability, RAIN_SHARE))


def influence(made, size, inputs, row, column):
    """How much each pixel of the images matters for one pixel of the forecast, as a share of all: (S, S)."""
    x = torch.randn(1, 11, inputs, size, size, requires_grad=True)
    made(x)[0, :, row, column].sum().backward()
    share = x.grad.abs().sum((0, 1, 2))
    return share / share.sum()


@pytest.mark.parametrize(("row", "column"), [(0, 0), (0, 35), (18, 17), (35, 20)])
def test_a_forecast_pixel_looks_at_its_place_in_the_centre(row, column):
    size = 36
    share = influence(local(network(levels=1)), size, 2, row, column)
    middle = torch.arange(size, dtype=torch.float32)
    found = (share.sum(1) @ middle).item(), (share.sum(0) @ middle).item()
    for place, pixel in zip(found, (row, column), strict=True):
        assert place == pytest.approx(15 + (pixel + 0.5) / 6 - 0.5, abs=1.0)


@pytest.mark.parametrize(("row", "column"), [(0, 0), (18, 17), (35, 20)])
def test_without_crop_it_looks_at_the_same_pixel_of_the_images(row, column):
    share = influence(local(network(levels=1, crop=False)), 36, 2, row, column)
    assert divmod(share.argmax().item(), 36) == pytest.approx((row, column), abs=2)


def test_the_whole_context_matters():
    share = influence(local(network(levels=4)), 36, 2, 0, 0)
    assert (share[0] > 0).any()
    assert (share[:, 35] > 0).any()


def test_the_body_pads_evenly_with_the_border_and_cuts_it_off():
    torch.manual_seed(0)
    body = Body(3, 4, 3).eval()
    x = torch.randn(1, 3, 9, 14)
    indices = [torch.arange(start, stop).clamp(0, length - 1) for start, stop, length in ((-1, 11, 9), (-1, 15, 14))]
    padded = x[:, :, indices[0]][:, :, :, indices[1]]
    assert padded.shape == (1, 3, 12, 16)
    torch.testing.assert_close(body(x), body(padded)[:, :, 1:10, 1:15])


def test_it_learns_what_the_images_show():
    """Rain where channel 3 of the last image, enlarged, exceeds a threshold: most of it in 60 steps."""
    torch.manual_seed(0)
    made = ContextForecaster(Context(filters=8, levels=2), 24, 2, 2, True)
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-2)

    def batch():
        x = torch.randn(4, 11, 2, 24, 24)
        field = nn.functional.avg_pool2d(x[:, 3, 1:], 3, 1, 1) * 3
        x[:, 3, 1:] = field
        fine = nn.functional.interpolate(field[..., 9:15, 9:15], scale_factor=6, mode="bilinear")[..., 6:-6, 6:-6]
        return x, (fine > 1).float().expand(-1, 2, -1, -1)

    for _ in range(60):
        x, rain = batch()
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(made(x), rain).backward()
        optimizer.step()
    x, rain = batch()
    forecast = made.eval()(x) > 0
    iou = (forecast & rain.bool()).sum() / (forecast | rain.bool()).sum()
    assert iou > 0.45
