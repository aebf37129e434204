"""The forward operator: its images have the real channels' numbers, show the rain where it is, and can be chunked."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from retable.tasks.weather.w4c.preprocess import CHANNELS, HIGH, normalise
from retable.tasks.weather.w4c.rainfall import Climate, block_mean, simulate
from retable.tasks.weather.w4c.satellite import BEFORE, observe

SIZE, FRAMES = 24, 96
CHANNEL = {name: number for number, name in enumerate(CHANNELS)}
SOLAR = [CHANNEL[name] for name in ("IR_016", "VIS006", "VIS008")]
Array = npt.NDArray[np.float32]


def rainfall(seed: int, fraction: float = 0.08) -> Array:
    return np.stack([sky.rain for sky in simulate(Climate(fraction=fraction), size=SIZE, slots=FRAMES, seed=seed)])


@pytest.fixture(scope="module")
def rain() -> Array:
    return rainfall(0)


@pytest.fixture(scope="module")
def images(rain: Array) -> Array:
    return observe(rain, cirrus_seed=1, start_minutes=0)


def test_channels_have_the_real_mean_and_spread(images: Array) -> None:
    others = [observe(rainfall(seed), cirrus_seed=10 + seed, start_minutes=0) for seed in (1, 2)]
    values = normalise(np.concatenate([images, *others]))
    mean, spread = values.mean((0, 2, 3)), values.std((0, 2, 3))
    assert np.all(np.abs(mean) < 0.6), mean
    assert np.all((spread > 0.5) & (spread < 2)), spread
    assert np.all((images >= 0) & (images <= HIGH[:, None, None])) and images.dtype == np.float32


def test_reflectances_follow_the_sun(images: Array) -> None:
    night, noon = images[:24], images[48]
    assert np.all(night[:, SOLAR] == 0) and np.all(images[72:, SOLAR] == 0)  # until 6 and from 18 o'clock
    assert np.all(noon[SOLAR].mean((1, 2)) > 0.1)
    fourth = images[:, CHANNEL["IR_039"]] - images[:, CHANNEL["IR_108"]]
    assert fourth[48].mean() > fourth[0].mean() + 5  # 3.9 micrometres see the sun as well


def test_rain_is_cold_and_bright(rain: Array, images: Array) -> None:
    wet = block_mean((rain >= 0.2).astype(np.float32))
    for name in ("IR_087", "IR_108", "IR_120", "IR_134"):
        assert np.corrcoef(images[:, CHANNEL[name]].ravel(), wet.ravel())[0, 1] < -0.35, name
    assert np.corrcoef(images[48, CHANNEL["VIS006"]].ravel(), wet[48].ravel())[0, 1] > 0.2
    # Water vapour knows less, and is smoother.
    wv, ir = (images[:, CHANNEL[name]] for name in ("WV_062", "IR_108"))
    assert np.corrcoef(wv.ravel(), wet.ravel())[0, 1] > np.corrcoef(ir.ravel(), wet.ravel())[0, 1]
    rough = [np.diff(field, axis=-1).std() / field.std() for field in (wv, ir)]
    assert rough[0] < rough[1]


def test_cold_tops_outlive_the_rain_and_do_not_precede_it() -> None:
    shower = np.zeros((16, 6 * SIZE, 6 * SIZE), np.float32)
    shower[8, 60:84, 60:84] = 10
    dry = observe(np.zeros_like(shower), cirrus_seed=5, start_minutes=0)
    cooling = (dry - observe(shower, cirrus_seed=5, start_minutes=0))[:, CHANNEL["IR_108"]].max((1, 2))
    felt = np.flatnonzero(cooling > 1)
    assert felt.tolist() == list(range(8, 8 + BEFORE + 1))
    assert cooling[8] > cooling[10] > cooling[12]
    # An anvil is wider than its rain (4 x 4 satellite pixels).
    change = (dry - observe(shower, cirrus_seed=5, start_minutes=0))[8, CHANNEL["IR_108"]]
    assert 16 < np.sum(change > 1) < 100


def test_the_split_window_tells_cirrus_from_rain() -> None:
    """Both are cold at 10.8 micrometres; cirrus is colder still at 12.0."""
    dry = np.zeros((1, 6 * SIZE, 6 * SIZE), np.float32)
    clear, wet = (observe(dry + rate, cirrus_seed=5, start_minutes=0)[0] for rate in (0, 20))
    window = clear[CHANNEL["IR_108"]]
    cold, warm = window < np.quantile(window, 0.1), window > np.quantile(window, 0.9)
    assert window[warm].mean() - window[cold].mean() > 20
    split = clear[CHANNEL["IR_120"]] - clear[CHANNEL["IR_108"]]
    rain_split = wet[CHANNEL["IR_120"]] - wet[CHANNEL["IR_108"]]
    assert wet[CHANNEL["IR_108"]].mean() < window[warm].mean() - 20
    assert split[cold].mean() < rain_split.mean() - 3
    assert split[cold].mean() < split[warm].mean() - 2


def test_chunks_are_the_whole(rain: Array, images: Array) -> None:
    start, stop = 20, 50
    chunk = observe(rain[start:stop], cirrus_seed=1, start_minutes=15 * start)
    np.testing.assert_array_equal(chunk[BEFORE:], images[start + BEFORE : stop])
    assert not np.array_equal(chunk[0], images[start])


@pytest.mark.parametrize("change", ["no rain", "other rain", "missing"])
def test_nothing_that_comes_later_changes_an_image(rain: Array, change: str) -> None:
    """Whatever replaces the rain after a frame, the images up to it stay as they are, bit for bit."""
    last = 30
    other = rain[:60].copy()
    later = {
        "no rain": np.zeros_like(other),
        "other rain": rain[::-1][:60] * 2,
        "missing": np.full_like(other, -9999000),
    }
    other[last + 1 :] = later[change][last + 1 :]
    found, before = (observe(maps, cirrus_seed=1, start_minutes=0) for maps in (other, rain[:60]))
    np.testing.assert_array_equal(found[: last + 1], before[: last + 1])
    assert np.abs(found[last + 1] - before[last + 1]).max() > 1  # the rain of a frame is in its image


def test_any_rain_is_accepted_and_sentinels_are_dry(rain: Array) -> None:
    real = rain[:12].astype(np.float64)
    dry = real == 0
    assert dry.any()
    gaps = np.where(dry, np.random.default_rng(0).choice([-9999000.0, -8888000.0, np.nan, -1.0], real.shape), real)
    np.testing.assert_array_equal(
        observe(gaps, cirrus_seed=3, start_minutes=720), observe(real, cirrus_seed=3, start_minutes=720)
    )
    with pytest.raises(ValueError, match="multiple of 6"):
        observe(np.zeros((12, 40, 40)), cirrus_seed=0, start_minutes=0)


def test_the_seed_decides(rain: Array) -> None:
    one, again, other = (observe(rain[:3], cirrus_seed=seed, start_minutes=600) for seed in (4, 4, 9))
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - other).max() > 5
