"""The synthesised sounds have the spectra and rhythms that make them audible as what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.signal import find_peaks, stft

from retable.tasks.audio.world.scenes import Event, Scene
from retable.tasks.audio.world.sounds import (
    COUNT,
    SOUNDS,
    Recorder,
    low_pass,
    noise,
    place,
    render,
    render_event,
    reverberate,
    tone,
)

Array = npt.NDArray[Any]
RATE = 32000


def make(sound: str, seconds: float = 2.0, seed: int = 0, **traits: str) -> Array:
    return render_event(Event(sound, 0.0, seconds, traits=traits), np.random.default_rng(seed))


def spectrum(wave: Array) -> tuple[Array, Array]:
    return np.fft.rfftfreq(len(wave), 1 / RATE), np.abs(np.fft.rfft(wave)) ** 2


def centroid(wave: Array) -> float:
    frequencies, power = spectrum(wave)
    return float((frequencies * power).sum() / power.sum())


def bandwidth(wave: Array) -> float:
    """Share of the 300 bands of 50 Hz below 15 kHz that a sound's power is spread over (1: evenly)."""
    frequencies, power = spectrum(wave)
    bands = np.histogram(frequencies, 300, (0, 15000), weights=power)[0]
    bands /= bands.sum()
    return float(np.exp(-(bands * np.log(bands + 1e-12)).sum()) / 300)


def pitches(wave: Array) -> Array:
    frequencies, _, cells = stft(wave, RATE, nperseg=2048)
    return frequencies[np.abs(cells).argmax(axis=0)][2:-2]


def envelope(wave: Array, step: float = 0.01) -> Array:
    size = int(step * RATE)
    return np.sqrt((wave[: len(wave) // size * size].reshape(-1, size) ** 2).mean(axis=1))


def beats_a_second(wave: Array, most: float) -> float:
    """The strongest rhythm of a sound's loudness, from its autocorrelation."""
    level = envelope(wave)
    level = level - level.mean()
    correlation = np.correlate(level, level, "full")[len(level) - 1 :]
    first = int(100 / most)
    peaks, _ = find_peaks(correlation[first:], prominence=0.1 * correlation[0])
    return 100 / (first + peaks[0])


@pytest.mark.parametrize("sound", SOUNDS)
def test_every_sound_has_its_length_and_level_and_differs_each_time(sound: str) -> None:
    for seconds in (0.02, 0.5, 2.013):
        wave = make(sound, seconds, count="many")
        assert wave.dtype == np.float32 and len(wave) == round(seconds * RATE) and np.isfinite(wave).all()
    assert 0.01 < np.sqrt(np.mean(wave**2)) < 0.09 and np.abs(wave).max() <= 0.501
    assert np.array_equal(wave, make(sound, seconds, count="many"))
    assert not np.allclose(wave, make(sound, seconds, seed=1, count="many"), atol=0.01)


def test_a_sirens_pitch_moves_and_a_beeps_does_not() -> None:
    heard = pitches(make("siren"))
    assert heard.max() > 1.7 * heard.min() and heard.min() > 450 and heard.max() < 1700
    frequencies, power = spectrum(make("beep", 1.0, count="once"))
    assert power[np.abs(frequencies - frequencies[power.argmax()]) < 25].sum() > 0.9 * power.sum()


def test_rain_and_static_are_broadband_and_tones_are_not() -> None:
    assert min(bandwidth(make(sound)) for sound in ("rain", "static")) > 0.3
    assert max(bandwidth(make(sound)) for sound in ("beep", "cricket", "phone", "engine")) < 0.1


def test_thunder_wind_and_helicopter_are_low_and_crickets_and_glass_high() -> None:
    assert max(centroid(make(sound)) for sound in ("thunder", "wind", "engine", "drum")) < 1200
    assert 4000 < centroid(make("cricket")) < 5200 and centroid(make("glass")) > 3000


def test_a_bells_partials_are_inharmonic_and_decay() -> None:
    wave = make("bell", 1.5, count="once")
    frequencies, power = spectrum(wave)
    peaks, _ = find_peaks(power, height=0.02 * power.max(), distance=50)
    ratios = frequencies[peaks] / frequencies[peaks][0]
    assert len(peaks) >= 4 and np.abs(ratios - np.round(ratios)).max() > 0.2
    level = envelope(wave, 0.1)
    assert level[1] > 3 * level[-2]


@pytest.mark.parametrize("sound", [name for name, sound in SOUNDS.items() if "pitch" in sound.traits])
def test_high_is_higher_than_low(sound: str) -> None:
    # Whistles and squeaks glide: the median over a second hides that.
    low, high = (np.median(pitches(make(sound, 1.0, pitch=pitch))) for pitch in ("low", "high"))
    assert centroid(make(sound, pitch="high")) > 1.15 * centroid(make(sound, pitch="low"))
    if sound in ("beep", "siren", "whistle", "phone", "squeak"):
        assert high > 2 * low


@pytest.mark.parametrize("sound,usual", [("clock", 3.0), ("footsteps", 2.0), ("drum", 2.5), ("helicopter", 11.0)])
def test_fast_beats_twice_and_slow_half_as_often(sound: str, usual: float) -> None:
    for rate, factor in (("slow", 0.5), ("", 1.0), ("fast", 2.0)):
        wave = make(sound, 4.0, rate=rate) if rate else make(sound, 4.0)
        assert beats_a_second(wave, 1.6 * factor * usual) == pytest.approx(factor * usual, rel=0.25)


@pytest.mark.parametrize("sound", ["dog", "bell", "knock", "beep", "horn"])
@pytest.mark.parametrize("count", COUNT)
def test_strikes_can_be_counted(sound: str, count: str) -> None:
    level = envelope(make(sound, 3.0, count=count), 0.02)
    rises = np.diff(level, prepend=(0.0, 0.0))
    peaks, _ = find_peaks(rises, height=0.3 * rises.max(), distance=10)
    assert len(peaks) == COUNT[count]


def test_loudness_distance_and_trend() -> None:
    plain = make("crowd")
    rms = {name: np.sqrt(np.mean(make("crowd", loudness=name) ** 2)) for name in ("quiet", "loud")}
    assert 20 * np.log10(rms["loud"] / rms["quiet"]) == pytest.approx(20, abs=0.1)
    far = make("static", distance="far")
    assert centroid(far) < 0.5 * centroid(make("static")) and len(far) == len(plain)
    rising, fading = (envelope(make("rain", trend=trend), 0.2) for trend in ("rising", "fading"))
    assert rising[-2] > 4 * rising[1] and fading[1] > 4 * fading[-2]


def test_noise_has_its_band_and_slope() -> None:
    rng = np.random.default_rng(0)
    frequencies, power = spectrum(noise(rng, 1 << 17, 1000, 4000))
    assert power[(frequencies > 800) & (frequencies < 5000)].sum() > 0.95 * power.sum()
    frequencies, power = spectrum(noise(rng, 1 << 17, 20, 15000, -0.5))
    low, high = (power[(frequencies > f) & (frequencies < 2 * f)].mean() for f in (200, 3200))
    assert 10 * np.log10(low / high) == pytest.approx(12, abs=1)  # 4 octaves of pink noise: 3 dB each


def test_a_tone_equals_its_sum_of_sines_and_leaves_out_what_cannot_be_heard() -> None:
    phase = 2 * np.pi * 440 * np.arange(1, 3201) / RATE
    expected = np.sin(phase) + 0.5 * np.sin(2 * phase) + 0.25 * np.sin(4 * phase)
    assert tone(3200, 440.0, (1, 0.5, 0, 0.25)) == pytest.approx(expected, abs=1e-4)
    assert np.array_equal(tone(3200, 9000.0, (1, 1)), tone(3200, 9000.0, (1,)))


def test_place_adds_and_cuts() -> None:
    wave = place(10, np.array([0.0, 4 / RATE, 8 / RATE]), [np.ones(5, np.float32)], np.array([1.0, 2.0, 3.0]))
    assert wave.tolist() == [1, 1, 1, 1, 3, 2, 2, 2, 5, 3]


def test_an_echo_goes_on_after_the_sound_and_a_low_pass_is_one_of_its_order() -> None:
    click = np.zeros(RATE, np.float32)
    click[100] = 1
    rng = np.random.default_rng(0)
    level = envelope(reverberate(click, 0.5, 0.5, rng), 0.05)
    decibels = 20 * np.log10(level[1] / level[9])
    assert decibels == pytest.approx(60 * 0.4 / 0.5, abs=4)  # 60 dB in 0.5 s
    assert (reverberate(click, 0.5, 0.5, rng) - click)[:100] == pytest.approx(0, abs=1e-5)
    line = tone(RATE, 4000.0)
    assert np.std(low_pass(line, 1000.0)) / np.std(line) == pytest.approx(1 / 17, rel=0.02)


def test_a_mix_puts_events_where_they_belong() -> None:
    scene = Scene((Event("dog", 0.0, 0.5, traits={"count": "once"}), Event("horn", 2.0, 0.8)), 3.0)
    wave = render(scene, Recorder(floor=-70.0), np.random.default_rng(0))
    level = envelope(wave, 0.1)
    assert len(wave) == 3 * RATE and wave.dtype == np.float32 and np.abs(wave).max() <= 0.951
    assert level[:3].max() > 20 * level[10:19].max() and level[21:24].min() > 20 * level[10:19].max()


def test_recorders_differ_in_band_and_noise() -> None:
    scene = Scene((Event("static", 0.0, 1.0),), 2.0)
    narrow, wide = (render(scene, Recorder(edge=edge), np.random.default_rng(0)) for edge in (5000.0, 16000.0))
    frequencies, power = spectrum(narrow)
    assert power[frequencies > 6000].sum() < 0.02 * power.sum() and centroid(wide) > 1.5 * centroid(narrow)
    quiet, noisy = (render(scene, Recorder(floor=floor, colour=0), np.random.default_rng(0)) for floor in (-60, -30))
    assert np.std(noisy[40000:]) > 20 * np.std(quiet[40000:])
