import sys

import cv2
import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter, map_coordinates
from torch import nn

from retable.platform.errors import UserError
from retable.tasks.weather.config import Retrieval
from retable.tasks.weather.models.baselines import (
    DRY_LOGIT,
    Always,
    Climatology,
    RetrievalForecaster,
    advect,
    enlarge_centre,
    extrapolate,
    motion,
    optical_flow,
)
from retable.tasks.weather.w4c.preprocess import MEAN, STD

INFRARED = 4


def moving_clouds(size, right, down, frames, seed=0):
    """Brightness temperatures of one smooth pattern, cut from a larger picture at shifted places."""
    large = gaussian_filter(np.random.default_rng(seed).standard_normal((3 * size, 3 * size)), 2.5)
    rows, columns = np.mgrid[size : 2 * size, size : 2 * size].astype(float)
    pictures = [map_coordinates(large, (rows - down * t, columns - right * t), order=3) for t in range(frames)]
    return (265 + 15 * np.array(pictures) / large.std()).astype(np.float32)


def inputs(pictures):
    images = torch.zeros(1, 11, *pictures.shape)
    images[0, INFRARED] = torch.from_numpy((pictures - MEAN[INFRARED]) / STD[INFRARED])
    return images


def steady(size, right, down):
    return torch.tensor([right, down]).reshape(1, 2, 1, 1).expand(1, 2, size, size)


def test_it_never_rains():
    logits = Always(3, 12, DRY_LOGIT)(torch.randn(2, 11, 4, 12, 12), torch.tensor([0, 1]))
    assert logits.shape == (2, 3, 12, 12)
    assert logits.sigmoid().max() < 0.5 / 200
    assert not list(Always(3, 12, DRY_LOGIT).parameters())
    wet = Always(3, 12, -DRY_LOGIT)(torch.randn(2, 11, 4, 12, 12), torch.tensor([0, 1]))
    assert wet.sigmoid().min() > 1 - 0.5 / 200


def test_climatology_is_the_mean_of_what_was_not_masked():
    generator = np.random.default_rng(0)
    events = generator.choice(3, size=(30, 4, 12, 12), p=(0.6, 0.3, 0.1)).astype(np.uint8)
    events[:, :, 0, 0], events[:, :, 0, 1], events[:, :, 0, 2] = 2, 0, 1
    region = generator.integers(0, 2, 30)
    climatology = Climatology(regions=3, forecast=5, size=12)
    for part in np.split(np.arange(30), 3):
        climatology.observe(torch.from_numpy(events[part]), torch.from_numpy(region[part]))
    for r in range(2):
        shown = np.ma.masked_equal(events[region == r], 2).reshape(-1, 12, 12)
        counts = shown.count(0)
        mean = (shown.sum() + 0.5) / (shown.count() + 1)
        expected = (np.ma.filled(shown.mean(0), 0) * counts + mean) / (counts + 1)
        logits = climatology(torch.zeros(1, 11, 4, 12, 12), torch.tensor([r]))
        assert logits.shape == (1, 5, 12, 12)
        np.testing.assert_allclose(logits.sigmoid()[0, 3], expected, rtol=1e-5)
        assert np.isclose(expected[0, 0], mean)
        assert 0 < expected[0, 1] < 0.02 < 0.98 < expected[0, 2] < 1
    every = np.ma.masked_equal(events, 2)
    np.testing.assert_allclose(climatology.frequency()[2], (every.sum() + 0.5) / (every.count() + 1), rtol=1e-12)
    assert (Climatology(regions=2, forecast=5, size=12).frequency() == 0.5).all()


def test_counts_of_workers_add_up():
    events = torch.randint(0, 3, (6, 2, 12, 12), dtype=torch.uint8)
    region = torch.tensor([0, 1, 1, 0, 1, 1])
    whole, first, second = (Climatology(2, 2, 12) for _ in range(3))
    whole.observe(events, region)
    first.observe(events[:2], region[:2])
    second.observe(events[2:], region[2:])
    assert torch.equal(whole.rainy, first.rainy + second.rainy)
    assert torch.equal(whole.seen, first.seen + second.seen)
    assert whole.state_dict().keys() == {"rainy", "seen"}


@pytest.mark.parametrize(("right", "down"), [(0.5, -0.3), (1.0, 1.0), (-1.5, 1.0), (0.0, 2.0)])
@pytest.mark.parametrize("size", [24, 48])
def test_optical_flow_finds_the_motion(size, right, down):
    flow = optical_flow(moving_clouds(size, right, down, frames=4))
    error = np.hypot(flow[0] - right, flow[1] - down)
    assert error.mean() < 0.1
    assert np.quantile(error, 0.9) < 0.2


def test_moving_beats_staying():
    pictures = moving_clouds(48, right=1.5, down=-1.0, frames=12)
    images = inputs(pictures[:4])
    moved = advect(torch.from_numpy(pictures[None, 3]), motion(images), 8)[0].numpy()
    inner = (slice(12, 36), slice(12, 36))
    for lead in (1, 4, 8):
        truth = pictures[3 + lead][inner]
        staying, moving = np.std(pictures[3][inner] - truth), np.std(moved[lead - 1][inner] - truth)
        assert moving < 0.2 * staying, (lead, moving, staying)


def test_missing_frames_show_no_motion():
    pictures = moving_clouds(48, right=1.0, down=0.5, frames=4)
    whole = optical_flow(pictures)
    pictures[0] = 0
    np.testing.assert_array_equal(optical_flow(pictures), optical_flow(pictures[1:]))
    assert np.abs(optical_flow(pictures) - whole).mean() < 0.1
    pictures[2] = 0
    np.testing.assert_array_equal(optical_flow(pictures), 0)


def test_motion_does_not_depend_on_opencvs_threads():
    images = inputs(moving_clouds(96, right=1.0, down=0.5, frames=3))
    before = cv2.getNumThreads()
    try:
        cv2.setNumThreads(1)
        one = motion(images)
        cv2.setNumThreads(4)
        assert torch.equal(motion(images), one)
    finally:
        cv2.setNumThreads(before)


def test_whole_steps_shift_the_field():
    field = torch.randn(1, 20, 20)
    moved = advect(field, steady(20, 2.0, -1.0), 3)
    for step in (1, 2, 3):
        expected = field.roll((-step, 2 * step), (1, 2))[0, : 20 - step, 2 * step :]
        torch.testing.assert_close(moved[0, step - 1, : 20 - step, 2 * step :], expected, atol=1e-4, rtol=0)
        assert torch.equal(moved[0, step - 1, -step:, 10], field[0, -1:, 10 - 2 * step].expand(step))


def test_paths_in_a_turning_flow_match_a_naive_loop():
    size, steps = 24, 5
    rows, columns = np.mgrid[:size, :size].astype(float)
    velocity = 0.1 * np.array([-(rows - 11.5), columns - 11.5])
    field = gaussian_filter(np.random.default_rng(1).standard_normal((size, size)), 1)
    moved = advect(torch.from_numpy(field)[None], torch.from_numpy(velocity)[None], steps)[0].numpy()

    def read(values, row, column):
        return map_coordinates(values, [[row], [column]], order=1, mode="nearest")[0]

    for row in range(0, size, 5):
        for column in range(0, size, 5):
            at = (float(row), float(column))
            for step in range(steps):
                at = (at[0] - read(velocity[1], *at), at[1] - read(velocity[0], *at))
                assert np.isclose(moved[step, row, column], read(field, *at), atol=1e-9)


def test_paths_match_pysteps():
    pytest.importorskip("pysteps", reason="pysteps is not installed; its extrapolation is a second oracle")
    from pysteps.extrapolation.semilagrangian import extrapolate

    size, steps = 24, 5
    rows, columns = np.mgrid[:size, :size].astype(float)
    velocity = 0.1 * np.array([-(rows - 11.5), columns - 11.5])
    field = gaussian_filter(np.random.default_rng(1).standard_normal((size, size)), 1)
    moved = advect(torch.from_numpy(field)[None], torch.from_numpy(velocity)[None], steps)[0].numpy()
    theirs = extrapolate(field, velocity, steps, n_iter=0)
    inside = np.isfinite(theirs)
    assert inside.mean() > 0.6
    np.testing.assert_allclose(moved[inside], theirs[inside], atol=1e-6)


def test_the_centre_of_a_ramp():
    rows = torch.arange(24.0).reshape(1, 1, 24, 1).expand(1, 1, 24, 24)
    centre = enlarge_centre(rows)[0, 0]
    assert centre.shape == (24, 24)
    # Satellite rows 10 to 13; the first fine row's centre lies 5/12 of a row above that of row 10, the border's value.
    places = 10 + (torch.arange(24) + 0.5) / 6 - 0.5
    torch.testing.assert_close(centre[:, 7], places.clamp(10, 13))


def channel_of_the_last_image(model, channel):
    """Weights that hand through one channel, shifted so that ReLU leaves it alone."""
    convolutions = [layer for layer in model.network if isinstance(layer, nn.Conv2d)]
    for layer, source, bias in zip(convolutions, (channel, 0, 0), (100.0, 0.0, -100.0), strict=True):
        nn.init.zeros_(layer.weight)
        nn.init.constant_(layer.bias, bias)
        layer.weight.data[0, source, 1, 1] = 1


def test_rain_now_is_read_off_the_last_image():
    model = RetrievalForecaster(Retrieval(), size=24, inputs=4, forecast=6)
    channel_of_the_last_image(model, 7)
    images = torch.randn(2, 11, 4, 24, 24)
    expected = nn.functional.interpolate(images[:, 7, -1:, 10:14, 10:14], (24, 24), mode="bilinear")[:, 0]
    torch.testing.assert_close(model.now(images), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(model(images), expected[:, None], atol=1e-4, rtol=0)  # what is trained
    forecast = model.eval()(images)
    assert forecast.shape == (2, 6, 24, 24)
    assert all(torch.equal(forecast[:, lead], model.now(images)) for lead in range(6))


def flowing(**shape):
    model = RetrievalForecaster(Retrieval(), **shape)
    model.move("optical_flow")
    return model


def test_rain_moves_with_the_clouds():
    pictures = moving_clouds(48, right=1.0, down=0.5, frames=10)
    images = inputs(pictures)
    model = flowing(size=48, inputs=4, forecast=6)
    channel_of_the_last_image(model, INFRARED)
    forecast = model.eval()(images[:, :, :4])
    assert forecast.shape == (1, 6, 48, 48)
    for lead in (2, 6):
        truth = model.now(images[:, :, : 4 + lead])
        staying = (model.now(images[:, :, :4]) - truth).std()
        assert (forecast[:, lead - 1] - truth).std() < 0.25 * staying


def test_without_contrast_the_moving_forecast_stays():
    torch.manual_seed(0)
    moving = flowing(size=24, inputs=4, forecast=3).eval()
    images = torch.randn(2, 11, 4, 24, 24)
    images[:, INFRARED] = 0
    torch.testing.assert_close(moving(images)[:, 2], moving.now(images), atol=1e-5, rtol=1e-5)


def test_samples_of_a_batch_do_not_mix():
    torch.manual_seed(0)
    model = flowing(size=24, inputs=3, forecast=3)
    images = torch.cat(
        [inputs(moving_clouds(24, 1.0, 0.0, 3, seed=0)), inputs(moving_clouds(24, -1.0, 1.0, 3, seed=1))]
    )
    torch.testing.assert_close(model(images)[1:], model(images[1:]), atol=1e-5, rtol=1e-5)


def test_the_retrieval_learns():
    torch.manual_seed(0)
    model = RetrievalForecaster(Retrieval(filters=4), size=24, inputs=1, forecast=2)
    assert sum(p.numel() for p in model.parameters()) == (11 * 9 + 1) * 4 + (4 * 9 + 1) * 4 + (4 * 9 + 1)
    images = torch.randn(4, 11, 1, 24, 24)
    rain = (enlarge_centre(images[:, INFRARED]) < 0).float()[:, 0]
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    losses = []
    for _ in range(60):
        loss = nn.functional.binary_cross_entropy_with_logits(model.now(images), rain)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_pysteps_moves_a_field_to_where_it_comes():
    pytest.importorskip("pysteps", reason="no pysteps: pip install 'retable[pysteps]'")
    pictures = moving_clouds(96, 2.0, -1.0, frames=7)
    moved = extrapolate(torch.from_numpy(pictures[3:4]), inputs(pictures[:4]), 3)
    assert moved.shape == (1, 3, 96, 96) and moved.dtype == torch.float32
    for step in range(3):
        truth = pictures[4 + step, 16:80, 16:80]
        error, still = (np.abs(each[16:80, 16:80] - truth).mean() for each in (moved[0, step].numpy(), pictures[3]))
        assert error < 0.3 * still
    blank = extrapolate(torch.from_numpy(pictures[3:4]), torch.zeros(1, 11, 4, 96, 96), 2)
    np.testing.assert_allclose(blank[0, 1], pictures[3], rtol=1e-5)


def test_without_pysteps_one_line_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("pysteps.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pysteps", None)
    with pytest.raises(UserError, match=r"view.motion pysteps: .*; pip install 'retable\[pysteps\]'$"):
        RetrievalForecaster(Retrieval(), size=24, inputs=4, forecast=3).move("pysteps")
