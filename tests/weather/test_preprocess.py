"""Normalisation and events, against the kit's rules written as a plain loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retable.tasks.weather.w4c.preprocess import CHANNELS, HIGH, LOW, MEAN, STD, classify, normalise


def test_channels_are_in_the_order_of_the_files() -> None:
    assert CHANNELS[0] == "IR_016" and CHANNELS[CHANNELS.index("VIS006")] == "VIS006" and len(CHANNELS) == 11
    assert list(CHANNELS) == sorted(CHANNELS)
    assert MEAN[CHANNELS.index("IR_108")] == np.float32(270.1535)
    assert STD[CHANNELS.index("WV_062")] == np.float32(5.531017)
    assert HIGH[CHANNELS.index("VIS008")] == np.float32(1.2)
    for constant in (MEAN, STD, LOW, HIGH):
        assert constant.shape == (11,) and constant.dtype == np.float32


def test_normalise_follows_the_kit_step_by_step() -> None:
    rng = np.random.default_rng(0)
    raw = (MEAN[:, None, None] + STD[:, None, None] * 3 * rng.standard_normal((2, 11, 5, 4))).astype(np.float32)
    raw[0, 1, 0, 0], raw[0, 4, 1, 1], raw[1, 7, 2, 2], raw[1, 9, 0, 0] = np.nan, np.inf, -np.inf, 1e9
    before, expected = raw.copy(), np.empty(raw.shape)
    for index in np.ndindex(raw.shape):
        value, channel = float(raw[index]), index[1]
        value = 0.0 if math.isinf(value) or math.isnan(value) else value
        value = min(max(value, float(LOW[channel])), float(HIGH[channel]))
        expected[index] = (value - float(MEAN[channel])) / float(STD[channel])
    found = normalise(raw)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(raw, before)
    assert found[0, 1, 0, 0] == pytest.approx(-17.088, abs=1e-3)  # measured on the kit: a missing IR_039


def test_normalise_does_not_depend_on_the_batch() -> None:
    raw = np.random.default_rng(1).uniform(0, 400, (5, 2, 11, 7, 7)).astype(np.float32)
    whole = normalise(raw)
    np.testing.assert_array_equal(whole, np.stack([[normalise(image) for image in images] for images in raw]))


@pytest.mark.parametrize("copy", [True, False])
def test_normalise_does_not_depend_on_how_images_lie_in_memory(copy: bool) -> None:
    raw = np.random.default_rng(1).uniform(0, 400, (5, 2, 11, 7, 7)).astype(np.float32)
    expected = normalise(raw)
    for other in (np.asfortranarray(raw), np.ascontiguousarray(raw.swapaxes(1, 2)).swapaxes(1, 2)):
        np.testing.assert_array_equal(normalise(other, copy), expected)


def kit(value: float, threshold: float) -> int:
    """The kit's rules, in its order."""
    masked = value == -9999000 or math.isinf(value) or math.isnan(value) or value > 128
    if masked:
        return 2
    if value == -8888000:
        return 0
    return int(value > threshold or (threshold > 0 and value == threshold))


values = st.one_of(
    st.floats(-1, 130, width=32),
    st.sampled_from([-9999000.0, -8888000.0, math.inf, -math.inf, math.nan, 0.0, 128.0]),
)


@given(st.lists(values, min_size=1, max_size=20), st.sampled_from([0.0, 0.2, 1.0]))
def test_events_are_the_kits(rates: list[float], threshold: float) -> None:
    rates = [*rates, float(np.float32(threshold)), float(np.nextafter(np.float32(128), np.float32(200)))]
    events = classify(np.array(rates, np.float32).reshape(1, 1, -1), threshold)
    assert events.dtype == np.uint8 and events.shape == (1, 1, len(rates))
    assert events.ravel().tolist() == [kit(rate, float(np.float32(threshold))) for rate in rates]
