"""Captions embedded with NumPy alone: transformers' numbers, whatever the file, and a search that imports no torch."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from retable.platform.errors import UserError
from retable.platform.spec.task import folder
from retable.platform.store.storage import Storage
from retable.tasks.audio.config import SAMPLE_RATE, Config, MeanMel, Pretrained, Untrained
from retable.tasks.audio.encoders.fingerprint import fingerprint, weights_fingerprint
from retable.tasks.audio.encoders.tokens import TEXT_STATE
from retable.tasks.audio.export import Exported, write_adopted
from retable.tasks.audio.model import build
from retable.tasks.audio.tools.embed.words import SEVERAL, error_function, read_words
from retable.tasks.audio.tools.search.index import update
from retable.tasks.audio.tools.search.opening import open_embedder
from retable.tasks.audio.tools.search.search import query_vector

ROOT = Path(__file__).parents[3]
SMALL = {"width": 16, "depth": 1, "heads": 2, "vocabulary": 330, "dropout": 0.0}
CAPTIONS = ["A dog barks while rain is falling on a tin roof.", "Birds sing; a door's hinge creaks", "狗在叫, собака"]
HEAVY = ("torch", "transformers", "ray", "faiss", "pandas", "scipy", "jinja2", "av", "pyarrow.compute")
"""What takes longer to import than a search takes."""


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_numpy_embeds_words_as_transformers_do(family, tmp_path):
    """Of a file with either family; captions are short, long, empty, and odd."""
    config = Config(
        audio=MeanMel(), text=Untrained(family=family, **{**SMALL, "depth": 2}), tokens=9, projection=7, segment=1.0
    )
    network = build(config, CAPTIONS, None).eval()
    for value in network.parameters():  # biases and norms begin at zeros and ones, which would hide a fault
        torch.nn.init.normal_(value, std=0.6)
    (tmp_path / "model.safetensors").write_bytes(write_adopted(Exported({}, config, network.state_dict(), "x")))
    found = read_words(tmp_path / "model.safetensors")
    captions = ["a dog barks", "", "!", "Rain, RAIN; naïve 雨 <pad> [PAD]", "word " * 40, "a"]
    with torch.inference_mode():
        expected = np.concatenate([network.embed_text([caption]).numpy() for caption in captions])
    np.testing.assert_allclose(found.words(captions), expected, atol=1e-5)
    assert found.words([]).shape == (0, 7)
    assert found.fingerprint == weights_fingerprint(config, network.state_dict())
    assert np.ptp(expected, axis=0).max() > 1e-3  # a hundred times the tolerance: they tell captions apart


def test_numpy_leaves_alone_what_it_does_not_know(tmp_path):
    """Other networks, other files and damaged ones are for torch's way, which says what is wrong."""
    config = Config(audio=MeanMel(), text=Untrained(**SMALL), tokens=9, projection=7, segment=1.0)
    weights = build(config, CAPTIONS, None).state_dict()
    path = tmp_path / "model.safetensors"

    def read(data):
        path.write_bytes(data)
        return read_words(path)

    def file(tensors, config=config):
        return write_adopted(Exported({}, config, tensors, "x"))

    whole = file(weights)
    assert read(whole) is not None
    state = json.loads(bytes(weights[TEXT_STATE].numpy()))
    for change in (
        {"hidden_act": "relu"},
        {"model_type": "distilbert"},
        {"is_decoder": True},
        {"num_attention_heads": 3},
    ):
        text = json.dumps({**state, "architecture": {**state["architecture"], **change}}).encode()
        assert read(file({**weights, TEXT_STATE: torch.frombuffer(bytearray(text), dtype=torch.uint8)})) is None
    deep = {**weights, TEXT_STATE: torch.frombuffer(bytearray(b"[" * 100_000), dtype=torch.uint8)}
    assert read(file(deep)) is None
    with pytest.raises(UserError, match=r"model.safetensors on \w+: maximum recursion") as raised:
        open_embedder(str(path), Storage.open(tmp_path))
    assert "\n" not in str(raised.value)
    assert read(file({**weights, "text_projection.bias": torch.zeros(8)})) is None
    assert read(file({name: value for name, value in weights.items() if name != "text_projection.bias"})) is None
    for pooling, there in (("class", True), ("mean", False)):
        theirs = replace(config, text=Pretrained(pooling=pooling))
        assert (read(file(weights, theirs)) is not None) == there
    assert read(whole[:-1]) is None and read(b"") is None and read(b"Dear Sir") is None
    assert read_words(tmp_path / "none") is None


def test_several_captions_have_the_bits_of_single_ones():
    """SciPy's error function, which is used for several, against Python's; with the zoo's model."""
    found = read_words(folder("audio") / "zoo/passt-scenes.safetensors")
    captions = [f"{caption} {number}" for number in range(4) for caption in CAPTIONS]
    assert len(captions) > SEVERAL
    np.testing.assert_array_equal(found.words(captions), np.concatenate([found.words([each]) for each in captions]))
    values = np.random.default_rng(0).normal(0, 3, (40, 768)).astype(np.float32)
    one, several = error_function(1), error_function(SEVERAL + 1)
    assert one is not several and np.array_equal(one(values), several(values))


def test_words_of_bytes_that_are_no_utf8_are_a_line():
    """As a shell passes what was typed in another encoding: a traceback of the tokenizer before."""
    found = read_words(folder("audio") / "zoo/passt-scenes.safetensors")
    for words, avoid in (("M\udcfcnster rain", ""), ("rain", "\udcff wind")):
        with pytest.raises(UserError, match=r"not UTF-8; type it in a terminal that is$") as caught:
            query_vector(found, words, None, avoid=avoid)
        assert str(caught.value).isascii()


def test_models_from_before_keep_their_fingerprints():
    """An index knows its model by it: fields that came later change none of those that have their defaults."""
    before = "31227ceeda3854946d16ea492b18364eebca430db4e21dd3986def306245e112"
    assert fingerprint(Config(), []) == before
    assert fingerprint(Config(text=Pretrained(pooling="mean")), []) != before


def test_a_search_imports_nothing_heavy(tmp_path):
    """`retable audio search` by the zoo's model, in a process of its own: its hits, and what it imported."""
    (tmp_path / "in").mkdir()
    for name in ("dog-203128-A.ogg", "sea_waves-213077-A.ogg"):
        (tmp_path / "in" / name).symlink_to(folder("audio") / "zoo/recordings" / name)
    soundfile.write(tmp_path / "in/silence.wav", np.zeros(SAMPLE_RATE), SAMPLE_RATE)
    update(tmp_path / "in", tmp_path / "out", open_embedder("passt-scenes", Storage.open(tmp_path), "cpu"))
    code = f"""
import sys
from retable.platform.cli.app import main
sys.argv = ["retable", "audio", "search", "a dog barks", "--index", {str(tmp_path / "out")!r}]
try:
    main()
finally:
    print(sorted({set(HEAVY)!r} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines[0].endswith("dog-203128-A.ogg"), done.stdout + done.stderr
    assert lines[-1] == "[]"
