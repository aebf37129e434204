"""The dual encoder: unit vectors, the same each time, and a state dict that is all there is to know."""

import pytest
import torch
from safetensors.torch import load as read
from safetensors.torch import save

from retable.platform.config import override
from retable.platform.errors import UserError
from retable.tasks.audio.config import Config
from retable.tasks.audio.model import ON_MELS, build, load, load_weights

CAPTIONS = ["a dog barks", "rain falls on a tin roof", "birds sing while a car passes", "a door creaks"]
SMALL = {
    "audio.weights": "random",
    "audio.heads": 2,
    "audio.width": 16,
    "audio.depth": 1,
    "audio.patchout_time": 0,
    "audio.patchout_frequency": 0,
    "audio.frames": 50,
    "segment": 0.5,
    "clip_seconds": 1.0,
    "text": "untrained",
    "text.heads": 2,
    "text.width": 16,
    "text.depth": 1,
    "text.vocabulary": 300,
    "projection": 8,
}
MEAN = {name: value for name, value in SMALL.items() if not name.startswith("audio.")} | {"audio": "mean_mel"}


def of(base=SMALL, **changes):
    return override(Config(), {**base, **{name.replace("__", "."): value for name, value in changes.items()}})


def sounds(n=4, samples=20_000):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(n, samples, generator=generator) * 0.1, torch.linspace(samples // 2, samples, n).long()


@pytest.mark.parametrize("config", [of(), of(text__family="roberta"), of(MEAN)], ids=["bert", "roberta", "mean mel"])
def test_a_model_is_rebuilt_from_its_weights_alone(config):
    torch.manual_seed(1)
    model = build(config, CAPTIONS, None).eval()
    audio, lengths = sounds()
    again = load(config, read(save(model.state_dict())))
    with torch.no_grad():
        heard, understood = again.embed_audio(audio, lengths, "waveform"), again.embed_text(["A dog!", "", "ع"])
        torch.testing.assert_close(heard, model.embed_audio(audio, lengths, "waveform"), rtol=0, atol=0)
        torch.testing.assert_close(understood, model.embed_text(["a dog", "", "ع"]), rtol=0, atol=0)
    assert heard.shape == (4, 8) and understood.shape == (3, 8)
    torch.testing.assert_close(torch.cat([heard, understood]).norm(dim=1), torch.ones(7))
    assert not torch.allclose(heard[0], heard[1])


def test_embedding_twice_gives_the_same_and_training_mode_does_not():
    model = build(of(text__dropout=0.5, audio__patchout=9), CAPTIONS, None)
    audio, lengths = sounds()
    torch.manual_seed(0)
    with torch.no_grad():
        heard = [model.embed_audio(audio, lengths, "waveform") for _ in range(2)]
        understood = [model.embed_text(CAPTIONS) for _ in range(2)]
        model.eval()
        heard += [model.embed_audio(audio, lengths, "waveform") for _ in range(2)]
        understood += [model.embed_text(CAPTIONS) for _ in range(2)]
    for one, two, three, four in (heard, understood):
        assert not torch.equal(one, two) and torch.equal(three, four)


def test_temperature_is_learnt_only_where_the_config_says_so():
    for learnt in (True, False):
        model = build(of(temperature=0.03, learn_temperature=learnt), CAPTIONS, None)
        assert float(model.temperature.detach()) == pytest.approx(0.03) and model.temperature.requires_grad is learnt


def test_a_child_takes_the_tokenizer_of_its_parent():
    parent = build(of(), ["birds sing"] * 9 + CAPTIONS, None).eval()
    child = build(of(), ["doors creak"] * 9 + ["a frog"], None).eval()
    before = child.text.tokenize(["birds sing"])["ids"]
    load_weights(child, parent.state_dict())
    assert not torch.equal(before, child.text.tokenize(["birds sing"])["ids"])
    assert torch.equal(child.embed_text(CAPTIONS), parent.embed_text(CAPTIONS))


def test_a_cnn14_remembers_that_it_was_trained_on_mels():
    config = of({**MEAN, "audio": "cnn14", "audio.filters": 1, "segment": 1.0})
    model, (audio, lengths) = build(config, CAPTIONS, None), sounds(samples=32_000)
    model.embed_audio(torch.zeros(2, 100, 128), torch.tensor([100, 90]), "mel")
    weights = read(save(model.state_dict()))
    again = load(config, weights)
    with torch.no_grad():
        model.eval()
        assert torch.equal(again.embed_audio(audio, lengths, "waveform"), model.embed_audio(audio, lengths, "waveform"))
    assert again.audio.on_mels and weights.pop(ON_MELS)
    assert not load(config, weights).audio.on_mels  # from before it was remembered
    load_weights(again, weights)
    assert not again.audio.on_mels


def test_weights_of_another_model_are_refused_by_name():
    model = build(of(), CAPTIONS, None)
    with pytest.raises(UserError, match=r"'audio_projection\.bias' has shape .*choose the encoders"):
        load_weights(build(of(projection=12), CAPTIONS, None), model.state_dict())
    with pytest.raises(UserError, match=r"'audio\.network\.\S+' is not in the weights"):
        load_weights(model, build(of(MEAN), CAPTIONS, None).state_dict())
    with pytest.raises(UserError, match=r"'audio\.network\.\S+' is not in this model"):
        load_weights(build(of(MEAN), CAPTIONS, None), model.state_dict())
    with pytest.raises(UserError, match="they hold no text encoder"):
        load(of(), {"head.weight": torch.zeros(1)})
