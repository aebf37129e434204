"""Text encoders: the tokens of the paper, transformers' own outputs, a state that needs no other file."""

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    MPNetConfig,
    MPNetModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
)

from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.train.worker import Worker
from retable.tasks.audio.config import Config, Pretrained, Untrained
from retable.tasks.audio.encoders.text import build_text, rebuild_text, train_tokenizer
from retable.tasks.audio.learner import RetrievalLearner
from tests.audio.test_learner import Sounds
from tests.audio.test_model import SMALL as SMALL_MODEL

CAPTIONS = [
    "A dog barks while rain is falling on a tin roof.",
    "Birds are singing, and a car passes by!",
    "Someone walks over gravel; then a door's hinge creaks",
    "Rain falls and a dog is barking in the distance",
    "狗在叫, une voiture passe, собака лает",
] * 3
ODD = ["A DOG barks!", "", "...", "rain " * 500, "狗 ع 😀", "tin\troof\n"]
SMALL = {"width": 16, "depth": 1, "heads": 2, "vocabulary": 330, "dropout": 0.0}


def untrained(family="bert", **changes):
    return Config(text=Untrained(**{"family": family, **SMALL, **changes}), tokens=24)


@pytest.fixture(scope="module", params=["bert", "roberta"])
def folder(request, tmp_path_factory):
    """A folder in the layout of Hugging Face, with random weights."""
    family = request.param
    folder = tmp_path_factory.mktemp(family)
    tokenizer = train_tokenizer(Untrained(family=family, **SMALL), CAPTIONS)
    tokenizer.save(str(folder / "tokenizer.json"))
    kind, config = {"bert": (BertModel, BertConfig), "roberta": (RobertaModel, RobertaConfig)}[family]
    torch.manual_seed(3)
    shape = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "initializer_range": 0.3,
    }
    padding = {"bert": 0, "roberta": 1}[family]
    made = config(vocab_size=330, max_position_embeddings=40, pad_token_id=padding, **shape)
    kind(made).save_pretrained(folder)
    words = {"bert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]"), "roberta": ("<pad>", "<unk>", "<s>", "</s>")}[family]
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), words, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    return folder


def test_a_folder_gives_the_outputs_of_transformers(folder):
    encoder = build_text(Config(text=Pretrained(name=str(folder), dropout=0.3), tokens=38), []).eval()
    plain = ["a dog barks while rain is falling", "birds", "a car passes by a door"]
    theirs = AutoTokenizer.from_pretrained(folder)(plain, padding=True, return_tensors="pt")
    tokens = encoder.tokenize(["A dog barks, while rain is falling!", "Birds", "a car passes by a door"])
    assert torch.equal(tokens["ids"], theirs["input_ids"])
    assert torch.equal(tokens["mask"].long(), theirs["attention_mask"])
    network = AutoModel.from_pretrained(folder).eval()
    expected = network(**{name: theirs[name] for name in ("input_ids", "attention_mask")}).last_hidden_state[:, 0]
    torch.testing.assert_close(encoder(**tokens), expected)
    assert expected.std(0).max() > 0.1
    rates = {module.p for module in encoder.modules() if isinstance(module, torch.nn.Dropout)}
    assert rates == {0.3}


@pytest.fixture(scope="module")
def mpnet(tmp_path_factory):
    """A folder of an MPNet, as the sentence encoder of the challenge's baseline is one."""
    folder = tmp_path_factory.mktemp("mpnet")
    tokenizer = train_tokenizer(Untrained(family="bert", **SMALL), CAPTIONS)
    torch.manual_seed(3)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    made = MPNetConfig(vocab_size=330, max_position_embeddings=40, pad_token_id=0, initializer_range=0.3, **shape)
    MPNetModel(made).save_pretrained(folder)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    return folder


def test_a_caption_can_be_the_mean_of_its_tokens(mpnet):
    config = Config(text=Pretrained(name=str(mpnet), pooling="mean"), tokens=12)
    encoder = build_text(config, []).eval()
    captions = ["birds", "a dog barks while rain is falling on a roof"]
    network = AutoModel.from_pretrained(mpnet).eval()
    ids = [encoder.tokenizer.encode(caption).ids[:12] for caption in captions]
    expected = [network(input_ids=torch.tensor([each])).last_hidden_state[0].mean(0) for each in ids]
    assert len(ids[0]) < len(ids[1])  # the shorter one is padded beside the other
    tokens = encoder.tokenize(captions)
    torch.testing.assert_close(encoder(**tokens), torch.stack(expected))
    again = rebuild_text(config, encoder.get_extra_state())
    again.load_state_dict(encoder.state_dict())
    assert torch.equal(again.eval()(**tokens), encoder(**tokens))
    plain = build_text(Config(text=Pretrained(name=str(mpnet)), tokens=12), []).eval()
    assert not torch.allclose(plain(**tokens), encoder(**tokens), atol=1e-3)


def test_a_frozen_encoder_keeps_its_weights(folder):
    base = {name: value for name, value in SMALL_MODEL.items() if not name.startswith("text")}
    theirs = {"text": "pretrained", "text.name": str(folder), "text.frozen": True, "learning_rate": 0.1}
    config = override(Config(), {**base, **theirs})
    learner = RetrievalLearner([config], Sounds(), Worker())
    before = {name: value.clone() for name, value in learner.model.state_dict().items()}
    learner.step(next(Sounds().batches(0, 0, 0, 1)))
    after = learner.model.state_dict()
    moved = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert not any(name.startswith("text.") for name in moved)
    assert {"text_projection.weight", "audio_projection.weight"} <= moved


@pytest.mark.parametrize("frozen", [False, True])
def test_fine_tuning_needs_nothing_but_the_weights_that_it_starts_from(folder, frozen):
    """Neither folder nor hub has the encoder, nor the storage the audio encoder's published weights."""
    base = {name: value for name, value in SMALL_MODEL.items() if not name.startswith("text")}
    config = override(Config(), {**base, "text": "pretrained", "text.name": str(folder), "text.dropout": 0.1})
    before = RetrievalLearner([config], Sounds(), Worker())
    weights = {name: value.clone() for name, value in before.model.state_dict().items()}
    gone = {"text.name": "/gone", "text.dropout": 0.3, "text.frozen": frozen, "audio.weights": "passt-n"}
    start = {"init": "weights", "init.sha256": "0" * 64, "learning_rate": 0.1}
    learner = RetrievalLearner([override(config, {**gone, **start})], Sounds(), Worker())
    learner.load_weights([weights])
    assert learner.model.state_dict().keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in learner.model.named_parameters())
    rates = {module.p for module in learner.model.text.modules() if isinstance(module, torch.nn.Dropout)}
    assert rates == {0.3}, "the config's, as where the encoder is read"
    learner.step(next(Sounds().batches(0, 0, 0, 1)))
    after = learner.model.state_dict()
    moved = {name for name, value in weights.items() if not torch.equal(value, after[name])}
    assert any(name.startswith("text.network.") for name in moved) is not frozen
    assert "audio_projection.weight" in moved
    with pytest.raises(UserError, match=r"^init: weights: they hold no text encoder"):
        learner.load_weights([{"x": torch.ones(1)}])


def test_the_hubs_encoder_has_no_layer_that_is_never_trained(folder):
    encoder = build_text(Config(text=Pretrained(name=str(folder)), tokens=12), [])
    encoder(**encoder.tokenize(CAPTIONS)).square().sum().backward()
    assert [name for name, parameter in encoder.named_parameters() if parameter.grad is None] == []


def test_a_folders_encoder_is_rebuilt_from_its_state_alone(folder):
    config = Config(text=Pretrained(name=str(folder)), tokens=12)
    encoder = build_text(config, []).eval()
    again = rebuild_text(Config(text=Pretrained(name="/gone"), tokens=12), encoder.get_extra_state())
    again.load_state_dict(encoder.state_dict())
    assert torch.equal(again.eval()(**again.tokenize(ODD)), encoder(**encoder.tokenize(ODD)))
    assert str(folder) not in bytes(encoder.get_extra_state().numpy()).decode()


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_captions_are_cleaned_framed_and_cut(family):
    encoder = build_text(untrained(family), CAPTIONS)
    tokens = encoder.tokenize(ODD)
    first, last = {"bert": (2, 3), "roberta": (0, 2)}[family]
    assert tokens["ids"].shape == (6, 24) and set(tokens["ids"][:, 0].tolist()) == {first}
    lengths = tokens["mask"].sum(1)
    assert lengths[1] == lengths[2] == 2 and lengths[3] == 24  # nothing but the frame; no room for the end
    ends = tokens["ids"][torch.arange(6), lengths - 1] == last
    assert ends.tolist() == [True, True, True, False, True, True]
    assert torch.equal(encoder.tokenize(["a dog barks"])["ids"], encoder.tokenize(["A Dog, 'barks'?!"])["ids"])
    assert torch.isfinite(encoder(**tokens)).all()


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_padding_does_not_change_a_caption(family):
    encoder = build_text(untrained(family), CAPTIONS).eval()
    alone = encoder(**encoder.tokenize(["birds sing"]))
    beside = encoder(**encoder.tokenize(["birds sing", "rain " * 20]))[:1]
    torch.testing.assert_close(alone, beside)
    assert torch.equal(alone, encoder(**encoder.tokenize(["birds sing"])))


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_training_a_tokenizer_always_gives_the_same(family):
    text = Untrained(**{"family": family, **SMALL})
    assert len({train_tokenizer(text, CAPTIONS).to_str() for _ in range(8)}) == 1


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_many_scripts_stay_within_the_vocabulary(family):
    captions = ["".join(chr(code) for code in range(start, start + 40)) for start in range(0x4E00, 0x6E00, 40)]
    encoder = build_text(untrained(family), captions + CAPTIONS)
    tokens = encoder.tokenize(captions)
    assert encoder.tokenizer.get_vocab_size() <= 330
    assert int(tokens["ids"].max()) < 330 and torch.isfinite(encoder(**tokens)).all()


def test_words_that_captions_repeat_become_tokens():
    tokenizer = train_tokenizer(Untrained(**{**SMALL, "vocabulary": 200}), ["barking dogs"] * 50 + CAPTIONS)
    assert tokenizer.encode("barking dogs").tokens == ["[CLS]", "barking", "dogs", "[SEP]"]


def test_what_cannot_be_used_is_one_clear_line(tmp_path, monkeypatch, folder):
    with pytest.raises(UserError, match=r"text.vocabulary: 100 is too few for roberta; take at least 261"):
        build_text(untrained("roberta", vocabulary=100), CAPTIONS)
    with pytest.raises(UserError, match=r"no folder with a config\.json"):
        build_text(Config(text=Pretrained(name=str(tmp_path / "none"))), CAPTIONS)
    with pytest.raises(UserError, match=r"tokens: 39 are more than the positions of text\.name .*; take 38"):
        build_text(Config(text=Pretrained(name=str(folder)), tokens=39), CAPTIONS)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="neither in the cache of Hugging Face nor to be had from the hub") as raised:
        build_text(Config(text=Pretrained(name="nobody/nothing")), CAPTIONS)
    assert "\n" not in str(raised.value)


def test_a_folder_that_lacks_weights_is_refused(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"its weights lack encoder\.layer\.1\.output\.dense\.weight"):
        build_text(Config(text=Pretrained(name=str(tmp_path)), tokens=12), [])
