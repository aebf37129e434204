"""Mel spectrograms against NumPy, written from the published constants."""

import numpy as np
import pytest
import torch
from transformers.audio_utils import mel_filter_bank

from retable.tasks.audio.encoders import mel


def noise(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32))


def plain_triangles(lowest, highest):
    def scale(frequency):
        return 1127 * np.log(1 + frequency / 700)

    bank = np.zeros((128, 513))
    edges = np.linspace(scale(lowest), scale(highest), 130)
    for band in range(128):
        left, peak, right = edges[band : band + 3]
        for place in range(512):
            here = scale(place * 31.25)
            if left < here <= peak:
                bank[band, place] = (here - left) / (peak - left)
            elif peak < here < right:
                bank[band, place] = (right - here) / (right - peak)
    return bank


def plain_log_mel(waveform, lowest=0.0, highest=15000.0):
    """One frame after another, in float64."""
    signal = waveform[1:].astype(np.float64) - 0.97 * waveform[:-1]
    window = np.zeros(1024)
    window[112:912] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(800) / 799)
    padded = np.concatenate((signal[512:0:-1], signal, signal[-2:-514:-1]))
    starts = range(0, len(padded) - 1023, 320)
    power = np.array([np.abs(np.fft.rfft(padded[start : start + 1024] * window)) ** 2 for start in starts])
    return np.log(plain_triangles(lowest, highest) @ power.T + 1e-5)


@pytest.mark.parametrize("samples", [16000, 9999, 514])
def test_equals_plain_numpy(samples):
    waveform = noise(2, samples)
    found = mel.Mel()(waveform)
    assert found.shape == (2, 128, mel.frames_of(samples)) and found.dtype == torch.float32
    for row, one in zip(found, waveform, strict=True):
        np.testing.assert_allclose(row.numpy(), plain_log_mel(one.numpy()), atol=5e-4)  # float32, in quiet bands


def test_another_band():
    found = mel.Mel()(noise(1, 4000), (7.0, 14321.0))[0]
    np.testing.assert_allclose(found.numpy(), plain_log_mel(noise(1, 4000)[0].numpy(), 7.0, 14321.0), atol=2e-4)


def test_bank_equals_another_library():
    theirs = mel_filter_bank(513, 128, 0.0, 15000.0, 32000, None, "kaldi", triangularize_in_mel_space=True)
    found = mel.kaldi_bank(0.0, 15000.0).numpy()
    np.testing.assert_allclose(found[:, :512], theirs.T[:, :512], atol=1e-5)
    assert (found.max(1) > 0).all() and not found[:, 512].any()


def test_published_numbers_of_frames():
    front = mel.Mel()
    assert [front(torch.zeros(1, seconds * 32000)).shape[2] for seconds in (5, 10, 15)] == [500, 1000, 1500]
    assert [mel.frames_of(seconds * 32000) for seconds in (5, 10, 15)] == [500, 1000, 1500]


@pytest.mark.parametrize("samples", [1, 2, 320, 513, 514])
def test_the_shortest_waveforms(samples):
    found = mel.Mel()(torch.ones(1, samples))
    assert found.shape[2] == mel.frames_of(samples) and found.isfinite().all()


def test_silence_is_the_published_value():
    silent = mel.normalise(mel.Mel()(torch.zeros(1, 3200)))
    torch.testing.assert_close(silent, torch.full_like(silent, -1.40259), atol=1e-5, rtol=0)
    assert mel.SILENCE == pytest.approx(silent[0, 0, 0].item() * 5 - 4.5, abs=1e-5)


def test_full_precision_in_a_half_precision_step():
    waveform = noise(1, 8000) * 1e-3
    with torch.autocast("cpu", torch.bfloat16):
        found = mel.Mel()(waveform)
    torch.testing.assert_close(found, mel.Mel()(waveform), rtol=0, atol=0)


def test_bands_are_drawn_in_the_published_range():
    torch.manual_seed(0)
    lowest, highest = np.array([mel.draw_band() for _ in range(3000)]).T
    assert set(lowest) == set(range(10))
    assert highest.min() >= 14001 and highest.max() <= 16000 and highest.max() - highest.min() > 1950
    assert abs(highest.mean() - 15000.5) < 50


def test_masks_hide_one_range_of_bands_and_one_of_frames():
    generator = torch.Generator().manual_seed(0)
    log_mel = torch.full((400, 128, 300), -3.0)
    masked = mel.mask(log_mel, 48, 192, generator)
    hidden = masked == 0.0
    assert (masked[~hidden] == -3.0).all()
    bands, frames = hidden.all(2), hidden.all(1)
    assert torch.equal(hidden, bands[:, :, None] | frames[:, None, :])
    for ranges, most in ((bands, 48), (frames, 192)):
        edges = ranges.int().diff(dim=1, prepend=torch.zeros(400, 1), append=torch.zeros(400, 1))
        assert (edges.abs().sum(1) <= 2).all()
        lengths = ranges.sum(1).float()
        assert lengths.max() < most and lengths.max() > 0.9 * most
        assert abs(lengths.mean() - (most - 1) / 2) < 0.1 * most
    assert bands[:, 0].any() and bands[:, 120:].any() and frames[:, 280:].any()


def test_masks_come_from_the_generator_and_zero_hides_nothing():
    log_mel = noise(3, 128, 100)
    found = [mel.mask(log_mel, 20, 30, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
    assert torch.equal(mel.mask(log_mel, 0, 0), log_mel)
    assert not (mel.mask(log_mel, 48, 1000, torch.Generator().manual_seed(0)) == 0).all()
