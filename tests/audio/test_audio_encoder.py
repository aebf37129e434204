"""Segments, padding and their mean, against each segment encoded by itself; what happens in training only."""

import dataclasses

import numpy as np
import pytest
import torch

from retable.platform.errors import UserError
from retable.tasks.audio.config import Cnn14, Config, MeanMel, Passt
from retable.tasks.audio.encoders.audio_encoder import AT_ONCE, build_audio
from retable.tasks.audio.encoders.mel import Mel, frames_of, normalise

PASST = Passt(
    weights="random", frames=100, width=16, depth=1, heads=2, patchout_frequency=0, patchout_time=0, stride=16
)
CONFIG = Config(audio=PASST, segment=1.0)
AUDIOS = [PASST, Cnn14(filters=2), MeanMel()]


def encoder_of(config=CONFIG, **changes):
    torch.manual_seed(0)
    encoder = build_audio(dataclasses.replace(config, **changes), None)
    for module in encoder.modules():
        if isinstance(module, torch.nn.BatchNorm2d):  # as if trained
            module.running_mean.uniform_(-20, 0)
            module.running_var.uniform_(0.5, 2)
    return encoder.eval()


def waveform(seconds, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 0.3 * torch.randn(round(seconds * 32000), generator=generator)


def batch(*waveforms, behind=0.0):
    lengths = torch.tensor([len(one) for one in waveforms])
    audio = torch.full((len(waveforms), int(lengths.max())), behind)
    for row, one in zip(audio, waveforms, strict=True):
        row[: len(one)] = one
    return audio, lengths


@pytest.mark.parametrize("audio", AUDIOS)
@torch.no_grad()
def test_mean_of_segments_of_one_second(audio):
    encoder, whole = encoder_of(audio=audio), waveform(2.4)
    one_by_one = []
    for start in (0, 32000, 64000):
        piece = torch.zeros(1, 32000)
        cut = whole[start : start + 32000]
        piece[0, : len(cut)] = cut
        one_by_one.append(encoder(piece, torch.tensor([32000]), "waveform"))
    found = encoder(whole[None], torch.tensor([len(whole)]), "waveform")
    assert found.shape == (1, encoder.width)
    torch.testing.assert_close(found, torch.stack(one_by_one).mean(0), rtol=1e-4, atol=1e-5)
    assert (one_by_one[0] - one_by_one[2]).abs().max() > 1e-3


@torch.no_grad()
def test_the_network_gets_a_normalised_spectrogram():
    encoder, one = encoder_of(), waveform(1.0)[None]
    wanted = encoder.network(normalise(Mel()(one))[:, None])
    torch.testing.assert_close(encoder(one, torch.tensor([32000]), "waveform"), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("audio", AUDIOS)
@torch.no_grad()
def test_neither_batch_nor_padding_changes_a_vector(audio):
    encoder = encoder_of(audio=audio)
    recordings = [waveform(seconds, seed) for seed, seconds in enumerate((0.3, 1.0, 2.7))]
    alone = torch.cat([encoder(*batch(one), "waveform") for one in recordings])
    for behind in (0.0, 0.7):
        together = encoder(*batch(*recordings, behind=behind), "waveform")
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("samples", "segments"),
    [(1, 1), (3199, 1), (32000, 1), (32000 + 3199, 1), (32000 + 3200, 2), (64000, 2), (70 * 32000, 70)],
)
@torch.no_grad()
def test_segments_that_count(samples, segments):
    encoder = encoder_of(audio=MeanMel())
    vectors, counts = encoder.segments(torch.full((1, samples), 0.1), torch.tensor([samples]), "waveform")
    assert counts.tolist() == [segments] and vectors.shape == (1, segments, 256) and vectors.isfinite().all()


@torch.no_grad()
def test_segments_by_themselves():
    encoder = encoder_of()
    vectors, counts = encoder.segments(*batch(waveform(0.5), waveform(2.0, 1)), "waveform")
    assert counts.tolist() == [1, 2] and vectors.shape == (2, 2, 16) and not vectors[0, 1].any()
    wanted = encoder(*batch(waveform(2.0, 1)[32000:]), "waveform")
    torch.testing.assert_close(vectors[1, 1:], wanted, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_long_audio_goes_in_parts(monkeypatch):
    encoder, seen = encoder_of(audio=MeanMel()), []
    encoder.network.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    long = torch.zeros(1, 32000 * (AT_ONCE + 6))
    encoder(long, torch.tensor([long.shape[1]]), "waveform")
    assert seen == [AT_ONCE, 6]


@pytest.mark.parametrize("audio", [PASST, MeanMel()])
@torch.no_grad()
def test_cached_mels_of_one_segment_give_the_same_vector(audio):
    encoder, one = encoder_of(audio=audio), waveform(1.0)[None]
    log_mel = Mel()(one).transpose(1, 2)
    found = encoder(log_mel, torch.tensor([100]), "mel")
    torch.testing.assert_close(found, encoder(one, torch.tensor([32000]), "waveform"), rtol=0, atol=1e-6)


@torch.no_grad()
def test_a_cnn14_of_mels_hears_waveforms_as_mels():
    encoder, one = encoder_of(audio=Cnn14(filters=2)), waveform(1.0)[None]
    heard = [(Mel()(one).transpose(1, 2), torch.tensor([100]), "mel"), (one, torch.tensor([32000]), "waveform")]
    panns = encoder(*heard[1])
    encoder(*heard[0])  # embedding mels is no training on them
    assert torch.equal(encoder(*heard[1]), panns)
    encoder.train()(*heard[0])
    mel, found = (encoder.eval()(*each) for each in heard)
    torch.testing.assert_close(found, mel, rtol=1e-5, atol=1e-5)
    assert (found - panns).abs().max() > 1e-2
    again = encoder_of(audio=Cnn14(filters=2))
    again.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(again(*heard[1]), found, rtol=0, atol=0)


@pytest.mark.parametrize("audio", AUDIOS)
@torch.no_grad()
def test_cached_mels_are_cut_and_padded_with_silence(audio):
    encoder = encoder_of(audio=audio)
    log_mel = torch.randn(2, 250, 128) - 4
    lengths = torch.tensor([109, 250])
    found = encoder(log_mel, lengths, "mel")
    silence = torch.full((50, 128), 1e-5).log()
    pieces = torch.stack(
        (log_mel[0, :100], log_mel[1, :100], log_mel[1, 100:200], torch.cat((log_mel[1, 200:], silence)))
    )
    each = encoder(pieces, torch.full((4,), 100), "mel")
    torch.testing.assert_close(found, torch.stack((each[0], each[1:].mean(0))), rtol=1e-4, atol=1e-5)
    assert frames_of(109 * 320) == 109


@torch.no_grad()
def test_twice_the_same():
    encoder, one = encoder_of(frequency_mask=48, time_mask=50, shift_bands=True), batch(waveform(2.2))
    assert torch.equal(encoder(*one, "waveform"), encoder(*one, "waveform"))


@pytest.mark.parametrize("changes", [{"frequency_mask": 60}, {"time_mask": 60}, {"shift_bands": True}])
@torch.no_grad()
def test_only_training_hides_and_shifts(changes):
    encoder, one = encoder_of(audio=MeanMel(), **changes), batch(waveform(2.2))
    plain = encoder_of(audio=MeanMel())(*one, "waveform")
    torch.testing.assert_close(encoder(*one, "waveform"), plain, rtol=0, atol=0)
    found = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        found.append(encoder.train()(*one, "waveform"))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2]) and not torch.equal(found[0], plain)


def test_training_reaches_every_weight():
    for audio in (PASST, Cnn14(filters=2)):
        encoder = encoder_of(audio=audio).train()
        encoder(*batch(waveform(1.5), waveform(0.2, 1)), "waveform").square().sum().backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in encoder.parameters())


def test_the_state_holds_the_network_only():
    assert {name.split(".")[0] for name in encoder_of().state_dict()} == {"network"}
    assert not encoder_of(audio=MeanMel()).state_dict()
    cnn14 = encoder_of(audio=Cnn14(filters=2)).state_dict()
    assert {name.split(".")[0] for name in cnn14} == {"network", "on_mels"}


@torch.no_grad()
def test_half_precision_outside():
    encoder, one = encoder_of(), batch(waveform(1.5))
    exact = encoder(*one, "waveform")
    with torch.autocast("cpu", torch.bfloat16):
        found = encoder(*one, "waveform")
    assert found.dtype == torch.float32 and torch.nn.functional.cosine_similarity(found, exact) > 0.999


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"segment": 1.15}, "segment 1.15 s: audio.frames 100 at audio.stride 16 suit segments of 0.16 s to 1.11 s"),
        ({"segment": 0.1}, "suit segments of 0.16 s"),
        (
            {"segment": 0.3, "audio": dataclasses.replace(PASST, patchout_time=2)},
            "nothing is left of the 8 x 1 patches",
        ),
        ({"segment": 0.5, "audio": dataclasses.replace(PASST, patchout=24)}, "nothing is left of the 8 x 3 patches"),
        ({"segment": 0.3, "audio": Cnn14()}, "no less than 0.32 s"),
        ({"audio": Cnn14(), "shift_bands": True}, "set shift_bands=false"),
    ],
)
def test_segments_that_do_not_suit(changes, message):
    with pytest.raises(UserError, match=message):
        build_audio(dataclasses.replace(CONFIG, **changes), None)


def test_segments_that_just_suit():
    encoder = encoder_of(segment=1.11)
    assert encoder(*batch(waveform(1.11)), "waveform").shape == (1, 16)
    assert encoder_of(audio=Cnn14(filters=1), segment=0.32)(*batch(waveform(0.32)), "waveform").shape == (1, 32)


def test_bands_of_cached_mels_cannot_be_shifted():
    encoder = encoder_of(shift_bands=True).train()
    with pytest.raises(UserError, match="shift_bands: the data set holds mels"):
        encoder(torch.zeros(1, 100, 128), torch.tensor([100]), "mel")


@torch.no_grad()
def test_linear_controls_are_numpys_statistics():
    x = torch.randn(3, 1, 128, 50)
    build = [encoder_of(audio=MeanMel(deviation=deviation)) for deviation in (False, True)]
    mean, both = (encoder.network(x).numpy() for encoder in build)
    assert [encoder.width for encoder in build] == [128, 256]
    np.testing.assert_allclose(mean, x.numpy().mean((1, 3)), atol=1e-6)
    np.testing.assert_allclose(both, np.hstack((mean, x.numpy().std(3)[:, 0])), atol=1e-5)
