"""The statistics of rain on maps, on a sequence whose statistics are known."""

import numpy as np
import pytest

from benchmarks.weather_world import coarse, measure_maps


def test_a_square_that_moves_by_a_pixel_a_step():
    """It keeps its area and never dies, and is carried onto itself; left alone it overlaps by 6 of 10 columns."""
    maps = np.zeros((12, 60, 60), np.float32)
    for number, field in enumerate(maps):
        field[20:28, 10 + number : 18 + number] = 3
    found = measure_maps(maps)
    assert found["rainy pixels"] == pytest.approx(64 / 3600)
    assert found["rainy pixels with 1 mm/h"] == 1 and found["rainy pixels with 5 mm/h"] == 0
    assert found["median area, pixels"] == 64 and found["rain in areas below 30 pixels"] == 0
    assert found["IoU when left 60 min"] == pytest.approx(4 / 12)
    assert found["IoU when carried 60 min"] > 0.8 and found["speed, pixels in 15 min"] == pytest.approx(1, abs=0.3)
    assert found["lifetime of an area, h"] == 11 / 4 and found["growth in 15 min, factor"] < 1.05
    assert measure_maps(maps * 0) == {}


def test_coarse_pixels_are_means_of_what_was_measured():
    rate = np.array([[1, 3, -9999000, -9999000], [-8888000, 0, 5, -9999000]], np.float32)
    np.testing.assert_array_equal(coarse(rate, 2), [[1, np.nan]])
