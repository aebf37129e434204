from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import save_file

from retable.platform.config import Parent
from retable.platform.errors import UserError
from retable.platform.models import zoo
from retable.platform.spec.task import Scale, folder
from retable.platform.store.run import RunFolder
from retable.tasks.audio.collect.files import Remarks
from retable.tasks.audio.config import SAMPLE_RATE, Config, Passt, Untrained
from retable.tasks.audio.encoders.fingerprint import weights_fingerprint
from retable.tasks.audio.export import read_export, write_export
from retable.tasks.audio.model import build
from retable.tasks.audio.tools.compose import CLASSES
from retable.tasks.audio.tools.embed.embedder import embed_file, pieces
from retable.tasks.audio.tools.embed.words import Words
from retable.tasks.audio.tools.search import opening
from retable.tasks.audio.tools.search.classes import class_map, sentences
from retable.tasks.audio.tools.search.opening import check_scale, open_embedder
from retable.tasks.audio.tools.search.search import open_words

CONFIG = Config(
    audio=Passt(weights="random", width=24, depth=1, patchout_time=2),
    text=Untrained(width=16, depth=1, heads=2, vocabulary=60),
    segment=1.0,
    projection=8,
    epochs=3,
    init=Parent(overrides=(("seed", 3),)),
)
CAPTIONS = ["rain falls on a roof", "a dog barks twice", "waves break"]


def noise(seconds, seed=0):
    return np.random.default_rng(seed).normal(0, 0.1, round(seconds * SAMPLE_RATE)).astype(np.float32)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return build(CONFIG, CAPTIONS, None).eval()


@pytest.fixture
def run(network, storage):
    """A finished run of this network, and what the platform says of it."""
    folder = RunFolder(storage, "audio", "0123456789abcdef")
    digest = folder.save_weights(3, network.state_dict())
    folder.folder.write_json(
        "provenance.json",
        {
            "data": {"name": "sounds"},
            "commit": "abc",
            "command": "retable train audio --storage /home/me/x --seed 1",
            "scale": "small",
            "changed": [],
        },
    )
    folder.folder.write_json(
        "result.json", {"data": "", "weights": {"3": digest}, "metrics": {"r1": 0.5, "loss": float("nan")}}
    )
    task = SimpleNamespace(
        name="audio",
        version=2,
        dataset=SimpleNamespace(describe=lambda info: f"the {info['name']}", caution=lambda info: ""),
        scales=lambda: {"small": Scale(about="hours")},
    )
    return opening.api.TrainedRun(task, folder, CONFIG)


@pytest.fixture
def file(run, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(write_export(run, licence="ours"))
    return tmp_path / "model.safetensors"


def test_a_file_carries_its_score(run):
    score = {"metric": "class mAP", "value": 0.7}
    assert read_export(write_export(run, score=score), "x").embedder("cpu").score == score
    assert read_export(write_export(run), "x").embedder("cpu").score == {}


def test_a_run_and_its_file_are_one_model(run, file, network, storage, monkeypatch):
    monkeypatch.setattr(opening.api, "load", lambda start, where, task: run)
    one, other = open_embedder("0123", storage, "cpu"), open_embedder(str(file), storage, "cpu")
    assert one.fingerprint == other.fingerprint and (one.source, other.source) == (run.fingerprint, str(file))
    segments = [noise(1.0), noise(0.3, 1)]
    with torch.inference_mode():
        audio = torch.zeros(2, SAMPLE_RATE)
        for row, segment in zip(audio, segments, strict=True):
            row[: len(segment)] = torch.from_numpy(segment)
        heard = network.embed_audio(audio, torch.tensor([len(s) for s in segments]), "waveform").numpy()
        said = network.embed_text(CAPTIONS).numpy()
    for embedder in (one, other):
        np.testing.assert_allclose(embedder.sounds(segments), heard, atol=1e-5)
        np.testing.assert_allclose(embedder.words(CAPTIONS), said, atol=1e-5)
    assert one.words([]).shape == (0, 8)
    config = read_export(file.read_bytes(), "x").config
    assert config == replace(CONFIG, data=Config().data, init=Config().init)


def test_what_embeds_words_alone_embeds_them_alike(file, storage, monkeypatch):
    whole = open_embedder(str(file), storage, "cpu")
    monkeypatch.setattr("retable.tasks.audio.model.build_audio", lambda *words: pytest.fail("what hears was built"))
    half = open_embedder(str(file), storage, "cpu", words_alone=True)
    assert half.fingerprint == whole.fingerprint
    assert np.array_equal(half.words(CAPTIONS), whole.words(CAPTIONS))
    spoken = open_words(str(file), storage)
    assert isinstance(spoken, Words) and spoken.fingerprint == whole.fingerprint and spoken.source == whole.source
    np.testing.assert_allclose(spoken.words(CAPTIONS), whole.words(CAPTIONS), atol=1e-5)


def test_a_file_says_where_it_is_from(file):
    said = read_export(file.read_bytes(), "x").about
    assert said["command"] == "retable train audio --seed 1", "not where it lay"
    assert (said["fingerprint"], said["task"], said["epoch"], said["scale"]) == (
        "0123456789abcdef",
        "audio",
        3,
        "small",
    )
    assert (said["data"], said["data_description"], said["commit"]) == ("sounds", "the sounds", "abc")
    assert said["config"]["projection"] == 8 and said["licence"] == "ours" and said["metrics"] == {"r1": 0.5}


def test_models_of_the_smoke_scale_are_refused_unless_they_are_wanted(file, storage):
    embedder = open_embedder(str(file), storage, "cpu")
    check_scale(embedder, False)
    smoke = replace(embedder, scale="smoke")
    with pytest.raises(UserError, match=r"is of the smoke scale: .*--anyway$"):
        check_scale(smoke, False)
    check_scale(smoke, True)


def test_fingerprints_tell_networks_apart(network):
    weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    first = weights_fingerprint(CONFIG, weights)
    assert first == weights_fingerprint(replace(CONFIG, seed=5, epochs=1), dict(reversed(weights.items())))
    assert first != weights_fingerprint(replace(CONFIG, segment=2.0), weights)
    weights["temperature"] = weights["temperature"] + 1
    assert first != weights_fingerprint(CONFIG, weights)


@pytest.mark.parametrize("seconds", [0.1, 1.0, 2.05, 2.5])
def test_segments_are_those_of_the_encoder(network, storage, file, tmp_path, seconds):
    """Their mean before the projection is what the whole recording is embedded from."""
    path = tmp_path / "sound.wav"
    soundfile.write(path, noise(seconds), SAMPLE_RATE, subtype="FLOAT")
    embedder = open_embedder(str(file), storage, "cpu")
    starts, vectors, _ = embed_file(embedder, path)
    audio, lengths = torch.from_numpy(noise(seconds))[None], torch.tensor([round(seconds * SAMPLE_RATE)])
    with torch.inference_mode():
        encoded, counts = network.audio.segments(audio, lengths, "waveform")
        expected = torch.nn.functional.normalize(network.audio_projection(encoded[0]), dim=-1)
    assert len(starts) == counts.item() and starts == [float(number) for number in range(len(starts))]
    np.testing.assert_allclose(vectors, expected.numpy(), atol=1e-4)
    again = embed_file(embedder, path)[1]
    assert (vectors == again).all()


@pytest.mark.parametrize(
    ("seconds", "starts"),
    [(0.01, [0]), (1, [0]), (1.05, [0]), (1.1, [0, 1]), (2.5, [0, 1, 2]), (3, [0, 1, 2])],
)
def test_where_segments_begin(tmp_path, seconds, starts):
    soundfile.write(tmp_path / "a.wav", np.full(round(seconds * 32000), 0.1), 32000)
    found = list(pieces(tmp_path / "a.wav", 1.0, Remarks()))
    assert [start for start, _ in found] == starts
    assert max(len(piece) for _, piece in found) <= 32000


def test_rates_and_channels_make_no_other_sound(storage, file, tmp_path):
    """A low tone is the same in every form."""
    embedder = open_embedder(str(file), storage, "cpu")
    found = []
    for rate, channels in ((32000, 1), (8000, 1), (44100, 2), (48000, 1)):
        tone = 0.3 * np.sin(2 * np.pi * 500 * np.arange(rate) / rate)
        soundfile.write(tmp_path / "tone.wav", np.stack([tone] * channels, 1), rate, subtype="FLOAT")
        starts, vectors, _ = embed_file(embedder, tmp_path / "tone.wav")
        assert len(starts) == 1
        found.append(vectors[0])
    assert min(float(found[0] @ other) for other in found[1:]) > 0.95


def test_what_is_no_model_is_refused(storage, tmp_path, run, file):
    for name in ("nothing.safetensors", "no such run!"):
        with pytest.raises(UserError, match=f"^model {name}: no such file, no run, and none of the zoo's"):
            open_embedder(name, storage)  # which `submit` takes without an option
    (tmp_path / "text.safetensors").write_text("hello, this is no model")
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    for name in ("text", "other"):
        with pytest.raises(UserError, match="no model"):
            open_embedder(str(tmp_path / f"{name}.safetensors"), storage)
    with pytest.raises(UserError, match="epoch 2 were not kept"):
        write_export(run, 2)
    (tmp_path / "half.safetensors").write_bytes(file.read_bytes()[:-10])
    with pytest.raises(UserError, match="damaged"):
        open_embedder(str(tmp_path / "half.safetensors"), storage)
    with pytest.raises(UserError, match="on nowhere"):
        open_embedder(str(file), storage, "nowhere")


def test_the_zoo_hears_and_says_how_well():
    """Words find the recordings that come with the task, which no model heard in training, well beyond chance."""
    paths = sorted((folder("audio") / "zoo" / "recordings").glob("*.ogg"))
    for name, file in zoo.zoo("audio").items():
        opened = read_export(file.read_bytes(), name)
        score = opened.about["score"]
        assert score["metric"] == "class mAP" and score["low"] > 4 * score["chance"] and opened.about["licence"]
        assert opened.about["command"].startswith("retable train audio") and opened.about["scale"] == "small"
        embedder = opened.embedder("cpu")
        kinds = sorted({path.name.partition("-")[0] for path in paths})
        words = embedder.words([sentences(CLASSES[kind])[0] for kind in kinds])
        assert words.shape == (10, 128) and np.allclose(np.linalg.norm(words, axis=1), 1, atol=1e-5)
        sounds = [embed_file(embedder, path)[1] for path in paths]
        similarity = np.stack([(words @ vectors.T).max(1) for vectors in sounds], 1)
        relevance = np.array([[path.name.startswith(f"{kind}-") for path in paths] for kind in kinds])
        assert class_map(similarity, relevance).mean() > 0.6
    assert zoo.zoo("audio") and len(paths) == 29
