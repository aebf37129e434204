"""CNN14 against plain operations from the published layout, its mel bank against the formula."""

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers.audio_utils import mel_filter_bank

from retable.tasks.audio.config import Cnn14
from retable.tasks.audio.encoders import mel
from retable.tasks.audio.encoders.cnn14 import Cnn14Network, PannsMel, from_passt_mel, slaney_bank


@pytest.mark.parametrize("rate", [32_000, 48_000])
def test_bank_is_slaneys(rate):
    """By the formula: mels linear in Hz up to 1 kHz and logarithmic above, 27 of them for each factor of 6.4."""
    start, end = 50 * 3 / 200, 15 + 27 * np.log(14) / np.log(6.4)
    mels = np.linspace(start, end, 66)
    corners = np.where(mels < 15, mels * 200 / 3, 1000 * 6.4 ** ((mels - 15) / 27))
    bins, wanted = np.arange(513) * rate / 1024, np.zeros((64, 513))
    for band, (left, peak, right) in enumerate(zip(corners, corners[1:], corners[2:], strict=False)):
        wanted[band] = np.interp(bins, [left, peak, right], [0, 2 / (right - left), 0])
    found = slaney_bank(rate).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-12)
    assert (found.max(axis=1) > 0).all()


def test_spectrogram_equals_plain_numpy():
    waveform = np.random.default_rng(0).uniform(-1, 1, 8000).astype(np.float32)
    padded = np.pad(waveform.astype(np.float64), 512, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(1024) / 1024)
    frames = [np.abs(np.fft.rfft(padded[start : start + 1024] * window)) ** 2 for start in range(0, 8001, 320)]
    bank = mel_filter_bank(513, 64, 50.0, 14000.0, 32000, "slaney", "slaney")
    wanted = 10 * np.log10(np.maximum(np.array(frames) @ bank, 1e-10))
    found = PannsMel()(torch.from_numpy(waveform)[None])[0]
    np.testing.assert_allclose(found.numpy(), wanted.T, atol=1e-3)


def test_parameters_are_as_many_as_published():
    with torch.device("meta"):
        network = Cnn14Network(Cnn14())
    classifier = 2048 * 527 + 527
    assert sum(parameter.numel() for parameter in network.parameters()) + classifier == 80_753_615


def plain_normalisation(x, state, name, axis):
    shape = [1] * x.ndim
    shape[axis] = -1
    mean, variance, weight, bias = (
        state[f"{name}.{part}"].view(shape) for part in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / (variance + 1e-5).sqrt() * weight + bias


def plain_cnn14(state, x):
    """From (batch, 1, frames, 64), as in the source."""
    x = plain_normalisation(x, state, "bn0", 3)
    for block in range(1, 7):
        for layer in (1, 2):
            x = functional.conv2d(x, state[f"conv_block{block}.conv{layer}.weight"], padding=1)
            x = plain_normalisation(x, state, f"conv_block{block}.bn{layer}", 1).clamp(min=0)
        if block < 6:
            rows, columns = x.shape[2] // 2, x.shape[3] // 2
            x = x[:, :, : 2 * rows, : 2 * columns].reshape(*x.shape[:2], rows, 2, columns, 2).mean((3, 5))
    x = x.mean(3)
    x = x.max(2).values + x.mean(2)
    return (x @ state["fc1.weight"].T + state["fc1.bias"]).clamp(min=0)


def test_equals_plain_operations():
    torch.manual_seed(0)
    network = Cnn14Network(Cnn14(filters=2)).eval()
    state = {name: torch.rand_like(value.float()) + 0.5 for name, value in network.state_dict().items()}
    state = {name: value - 1 if "conv" in name and value.ndim == 4 else value for name, value in state.items()}
    network.load_state_dict(state)
    x = torch.randn(2, 1, 64, 75)
    wanted = plain_cnn14(state, x.transpose(2, 3))
    assert wanted.std() > 0
    torch.testing.assert_close(network(x), wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


def test_mels_of_passt_stand_in():
    """A tone is in the same place of both spectrograms, as far as bands agree."""
    time = torch.arange(16000) / 32000
    for frequency in (300.0, 1000.0, 4000.0):
        tone = torch.sin(2 * torch.pi * frequency * time)[None]
        stand_in = from_passt_mel(mel.Mel()(tone))[0].mean(1)
        edges = 1127 * np.log(1 + np.array([0, 15000]) / 700)
        centre = 64 * (1127 * np.log(1 + frequency / 700) - edges[0]) / (edges[1] - edges[0])
        assert stand_in.shape == (64,) and abs(int(stand_in.argmax()) + 0.5 - centre) <= 1
    power = torch.rand(1, 128, 3) + 0.1
    found = from_passt_mel(power.log())[0, 5, 1]
    np.testing.assert_allclose(float(found), 10 * np.log10(float(power[0, 10:12, 1].mean())), rtol=1e-4)
