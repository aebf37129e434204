"""Pairs of encoders of the authors' layouts: as their code computes, as files that search, and refused in one line."""

import io
import sys
from argparse import Namespace
from dataclasses import replace
from functools import partial
from types import ModuleType

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file
from torch.nn import functional
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerFast, RobertaConfig, RobertaModel
from typer.testing import CliRunner

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.tasks.audio.cli import app
from retable.tasks.audio.config import SAMPLE_RATE, Config, Pretrained, Untrained
from retable.tasks.audio.encoders.audio_encoder import AudioEncoder, check_segment
from retable.tasks.audio.encoders.checkpoints import segment_of
from retable.tasks.audio.encoders.passt import PasstNetwork
from retable.tasks.audio.encoders.text import train_tokenizer
from retable.tasks.audio.tools.adopt import pairs
from retable.tasks.audio.tools.search import opening
from retable.tasks.audio.tools.search.opening import open_embedder
from tests.audio.test_checkpoints import config_of, passt_state, shapes_of

CAPTIONS = ["A dog barks, twice!", "rain falls on a roof", "waves break on the shore while people talk"]
LAYOUTS = {"dcase2023_task6b": "audio_embedding_model.model.", "salsa": "audio_embedding_model.model.model."}


@pytest.fixture(scope="module")
def text_folder(tmp_path_factory):
    """A RoBERTa in the layout of Hugging Face, with random weights."""
    where = tmp_path_factory.mktemp("roberta")
    tokenizer = train_tokenizer(Untrained(family="roberta", width=16, heads=2, vocabulary=300), CAPTIONS)
    torch.manual_seed(1)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    RobertaModel(RobertaConfig(vocab_size=330, max_position_embeddings=40, pad_token_id=1, **shape)).save_pretrained(
        where
    )
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(where)
    return where


def state_of(layout, text):
    """The tensors that the authors' LightningModule has, by the names that it gives them."""
    torch.manual_seed(2)
    audio = {**passt_state("passt-n"), "mel.window": torch.ones(8)}
    state = {f"{LAYOUTS[layout]}{name}": value for name, value in audio.items()}
    state |= {f"sentence_embedding_model.{name}": value for name, value in text.state_dict().items()}
    state["sentence_embedding_model.embeddings.position_ids"] = torch.arange(40)[None].float()  # transformers 4.26
    for side, width in (("audio", 64), ("sentence", 16)):
        state[f"project_{side}.0.weight"] = torch.randn(24, width) / width**0.5
        state[f"project_{side}.0.bias"] = torch.randn(24) / 10
    state["tau"] = torch.tensor([-0.05])
    if layout == "salsa":
        state |= {"audio_token": torch.randn(1, 1, 768), "timing_tau": torch.ones(1), "posencode.pe": torch.ones(1, 9)}
    return state


def checkpoint(state, settings=()):
    buffer = io.BytesIO()
    torch.save({"epoch": 3, "state_dict": state, "hyper_parameters": settings, "loops": {}}, buffer)
    return buffer.getvalue()


@pytest.fixture
def sacred(monkeypatch):
    """Sacred's container of settings, as checkpoints hold it: it is not there when they are read."""
    names = ("sacred", "sacred.config", "sacred.config.custom_containers")
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))

    class ReadOnlyDict(dict):
        def __setitem__(self, *_):
            raise TypeError

        def __reduce__(self):
            return self.__class__, ({**self},)

    ReadOnlyDict.__module__, ReadOnlyDict.__qualname__ = names[-1], "ReadOnlyDict"
    sys.modules[names[-1]].ReadOnlyDict = ReadOnlyDict
    yield ReadOnlyDict


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_checkpoint_embeds_as_the_authors_code_does(layout, text_folder, tmp_path, sacred, monkeypatch):
    text = AutoModel.from_pretrained(text_folder, add_pooling_layer=False).eval()
    state = state_of(layout, text)
    settings = {"audio_features": sacred(name="passt", frozen=False), "gpus": Namespace(n=1)}
    file = tmp_path / "pair.ckpt"
    file.write_bytes(checkpoint(state, settings))
    for name in [name for name in sys.modules if name.startswith("sacred")]:
        monkeypatch.delitem(sys.modules, name)
    out = tmp_path / "pair.safetensors"
    done = CliRunner().invoke(app, ["adopt", str(file), str(out), "--text", str(text_folder)])
    assert done.exit_code == 0 and "bytes" in done.output, done.output
    embedder = open_embedder(str(out), Storage.open(tmp_path))

    clean = ["a dog barks twice", "rain falls on a roof", "waves break on the shore while people talk"]
    tokens = AutoTokenizer.from_pretrained(text_folder)(clean, padding=True, return_tensors="pt")
    hidden = text(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"])[0][:, 0]
    projected = hidden @ state["project_sentence.0.weight"].T + state["project_sentence.0.bias"]
    np.testing.assert_allclose(embedder.words(CAPTIONS), functional.normalize(projected).detach(), atol=1e-5)

    sounds = np.random.default_rng(0).normal(0, 0.1, (2, 10 * SAMPLE_RATE)).astype(np.float32)
    network = PasstNetwork(config_of("passt-n"))
    prefix = LAYOUTS[layout]
    own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    network.load_state_dict({name: value for name, value in own.items() if not name.startswith(("head", "mel."))})
    encoder = AudioEncoder(Config(audio=config_of("passt-n")), network).eval()
    with torch.inference_mode():
        heard = encoder(torch.from_numpy(sounds), torch.full((2,), sounds.shape[1]), "waveform")
        expected = functional.normalize(heard @ state["project_audio.0.weight"].T + state["project_audio.0.bias"])
    np.testing.assert_allclose(embedder.sounds(list(sounds)), expected, atol=1e-5)
    assert embedder.network.temperature.item() == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("name", "width", "layers", "words"), [("roberta-large", 1024, 24, 50265), ("bert-base-uncased", 768, 12, 30522)]
)
def test_the_published_sizes_are_known(name, width, layers, words):
    text = {"embeddings.word_embeddings.weight": (words, width)}
    text |= {f"encoder.layer.{layer}.attention.self.query.bias": (width,) for layer in range(layers)}
    shapes = {f"{LAYOUTS['salsa']}{key}": shape for key, shape in shapes_of(768, 12, 8, 62)}
    shapes |= {f"sentence_embedding_model.{key}": shape for key, shape in text.items()} | {"tau": (1,)}
    for side, size in (("audio", 768), ("sentence", width)):
        shapes |= {f"project_{side}.0.weight": (1024, size), f"project_{side}.0.bias": (1024,)}
    state = {key: torch.zeros(1).expand(shape) for key, shape in shapes.items()}  # no memory
    config, parts = pairs.split(state)
    assert config.text == Pretrained(name=name) and config.projection == 1024
    assert (config.audio.stride, config.audio.width, config.audio.depth, config.audio.heads) == (16, 768, 12, 12)
    assert not any(key.startswith("head") for key in parts["audio"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"audio_sequence.0.norm1.weight": torch.ones(3)}, "a transformer over segments"),
        ({"project_audio.2.weight": torch.ones(3, 3)}, "projections of several layers"),
        ({"vgg.weight": torch.ones(3)}, "vgg.weight is not of this layout"),
        ({"tau": None}, "tau is missing"),
        ({"sentence_embedding_model.encoder.layer.1.output.dense.bias": None}, "its text encoder is not"),
    ],
)
def test_what_is_not_known_is_refused_in_one_line(change, message, text_folder):
    state = state_of("salsa", AutoModel.from_pretrained(text_folder, add_pooling_layer=False)) | change
    data = checkpoint({name: value for name, value in state.items() if value is not None})
    with pytest.raises(UserError, match=message) as caught:
        pairs.read_pair(data, "pair.ckpt", str(text_folder))
    assert "\n" not in str(caught.value) and str(caught.value).startswith("pair.ckpt: ")


def test_other_files_are_refused(tmp_path):
    (tmp_path / "other.ckpt").write_bytes(checkpoint({"a": torch.ones(2)}))
    with pytest.raises(UserError, match=r"other.ckpt: no pair of encoders; known are the Lightning checkpoints"):
        open_embedder(str(tmp_path / "other.ckpt"), Storage.open(tmp_path))


@pytest.mark.parametrize(("variant", "seconds"), [("passt-n", 10.0), ("passt-s", 10.0), ("passt-s15", 15.0)])
def test_segments_are_as_long_as_the_authors(variant, seconds, text_folder):
    """PaSST-S15 has positions for 20 s, and was given 15 s."""
    state = state_of("salsa", AutoModel.from_pretrained(text_folder, add_pooling_layer=False))
    state = {name: value for name, value in state.items() if not name.startswith("audio_embedding_model.")}
    state |= {f"{LAYOUTS['salsa']}{name}": value for name, value in passt_state(variant).items()}
    lines = []
    pair = pairs.read_pair(checkpoint(state), "pair.ckpt", str(text_folder), say=lines.append)
    assert pair.config.segment == seconds and lines == [f"pair.ckpt: segments of {seconds:g} s"]
    embedder = pair.embedder("cpu")
    assert embedder.segment == seconds
    assert embedder.sounds([np.ones(round(seconds * SAMPLE_RATE), np.float32) / 9]).shape == (1, 24)


@pytest.mark.parametrize(("stride", "columns", "seconds"), [(10, 149, 15), (16, 31, 5), (10, 18, 1.9), (10, 49, 5)])
def test_segments_of_other_tables_fit_them(stride, columns, seconds):
    layout = replace(config_of("passt-s"), stride=stride, frames=columns * stride)
    assert segment_of(layout) == seconds
    check_segment(Config(audio=layout, segment=segment_of(layout)))


def test_which_copy_of_a_network_is_taken_is_said_and_can_be_told(text_folder, tmp_path, monkeypatch):
    state = state_of("dcase2023_task6b", AutoModel.from_pretrained(text_folder, add_pooling_layer=False))
    own, others = LAYOUTS["dcase2023_task6b"], {}
    for name, value in state.items():
        if name.startswith(own):
            others[f"audio_embedding_model.net.{name.removeprefix(own)}"] = value
            others[f"audio_embedding_model.net_swa.{name.removeprefix(own)}"] = value + 0.5
        else:
            others[name] = value
    (tmp_path / "pair.ckpt").write_bytes(checkpoint(others))

    def adopted(*options):
        out = tmp_path / "pair.safetensors"
        done = CliRunner().invoke(
            app, ["adopt", str(tmp_path / "pair.ckpt"), str(out), "--text", str(text_folder), *options]
        )
        return done, load_file(out)["audio.network.cls_token"] if done.exit_code == 0 else None

    first, taken = adopted()
    line = (
        "pair.ckpt: holds net and net_swa: net is taken; `retable audio adopt` and `weights` take the other by --part"
    )
    assert line in " ".join(first.output.split())
    assert torch.equal(taken, others["audio_embedding_model.net.cls_token"])
    second, other = adopted("--part", "net_swa", "--overwrite")
    assert torch.equal(other, taken + 0.5) and "is taken" not in second.output
    assert isinstance(adopted("--part", "ema")[0].exception, UserError)
    monkeypatch.setattr(opening, "read_pair", partial(pairs.read_pair, text=str(text_folder)))
    (tmp_path / "in").mkdir()
    soundfile.write(tmp_path / "in/a.wav", np.random.default_rng(0).normal(0, 0.1, 32_000), 32_000)
    options = ["--model", str(tmp_path / "pair.ckpt"), "--out", str(tmp_path / "index")]
    made = CliRunner().invoke(app, ["index", str(tmp_path / "in"), *options], catch_exceptions=False)
    assert line in " ".join(made.output.split()) and "pair.ckpt: segments of" in made.output
