"""LAION-CLAP's layouts: as transformers compute, as one file that searches, and refused in one line."""

import io
import json
import shutil
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import scipy.signal
import soundfile
import soxr
import torch
from transformers import ClapConfig, ClapFeatureExtractor, ClapModel, ClapProcessor, PreTrainedTokenizerFast
from typer.testing import CliRunner

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.tasks.audio.cli import app
from retable.tasks.audio.config import SAMPLE_RATE, Untrained
from retable.tasks.audio.encoders.cnn14 import slaney_bank
from retable.tasks.audio.encoders.text import train_tokenizer
from retable.tasks.audio.export import read_export, served_as, write_adopted
from retable.tasks.audio.predict import embed_audio
from retable.tasks.audio.tools.adopt import clap, clap_files, pairs
from retable.tasks.audio.tools.search import finetune
from retable.tasks.audio.tools.search.opening import open_embedder

CAPTIONS = ["A dog barks, twice!", "rain falls on a roof", "Waves break on the shore", "", "rain " * 90]
HEADS = (4, 8, 16, 32)
SMALL = {"width": 8, "depths": (2, 2, 6, 2), "text": 16, "layers": 2, "words": 330, "positions": 90, "projection": 12}
TINY = {"width": 96, "depths": (2, 2, 6, 2), "text": 768, "layers": 12, "words": 50265, "positions": 514}
BASE = {**TINY, "width": 128, "depths": (2, 2, 12, 2)}


def laion_shapes(width, depths, text, layers, words, positions, projection=512):
    """The tensors of LAION's `CLAP` with an HTSAT and a RoBERTa, by the names that it gives them."""
    audio, last = {"bn0.running_mean": (64,), "bn0.running_var": (64,), "bn0.num_batches_tracked": ()}, width * 8
    audio |= {f"bn0.{part}": (64,) for part in ("weight", "bias")}
    audio |= {f"spectrogram_extractor.stft.conv_{part}.weight": (513, 1, 1024) for part in ("real", "imag")}
    audio |= {"logmel_extractor.melW": (513, 64), "patch_embed.proj.weight": (width, 1, 4, 4)}
    audio |= {"tscam_conv.weight": (527, last, 2, 3), "tscam_conv.bias": (527,)}
    audio["patch_embed.proj.bias"] = (width,)
    linear, norms = {"head": (527, 527)}, {"patch_embed.norm": width, "norm": last}
    for stage, (depth, heads) in enumerate(zip(depths, HEADS, strict=True)):
        size = width * 2**stage
        for block in range(depth):
            name = f"layers.{stage}.blocks.{block}"
            linear |= {f"{name}.attn.qkv": (3 * size, size), f"{name}.attn.proj": (size, size)}
            linear |= {f"{name}.mlp.fc1": (4 * size, size), f"{name}.mlp.fc2": (size, 4 * size)}
            norms |= {f"{name}.norm1": size, f"{name}.norm2": size}
            audio[f"{name}.attn.relative_position_bias_table"] = (225, heads)
            audio[f"{name}.attn.relative_position_index"] = (64, 64)
            if block % 2 and stage < 3:
                audio[f"{name}.attn_mask"] = ((64 // 2**stage // 8) ** 2, 64, 64)
        if stage < 3:
            audio[f"layers.{stage}.downsample.reduction.weight"] = (2 * size, 4 * size)
            norms[f"layers.{stage}.downsample.norm"] = 4 * size
    audio |= {f"{name}.weight": shape for name, shape in linear.items()}
    audio |= {f"{name}.bias": shape[:1] for name, shape in linear.items()}
    audio |= {f"{name}.{part}": (size,) for name, size in norms.items() for part in ("weight", "bias")}
    found = {f"audio_branch.{name}": shape for name, shape in audio.items()}
    found |= {f"text_branch.{name}": shape for name, shape in roberta_shapes(text, layers, words, positions).items()}
    for side, size in (("audio", last), ("text", text)):
        layers_of = {f"{side}_projection.0": size, f"{side}_projection.2": projection}
        layers_of |= {f"{side}_transform.sequential.{number}": projection for number in (0, 3)}
        found |= {f"{name}.weight": (projection, of) for name, of in layers_of.items()}
        found |= {f"{name}.bias": (projection,) for name in layers_of}
    return found | {"logit_scale_a": (), "logit_scale_t": ()}


def roberta_shapes(width, layers, words, positions):
    """Those of transformers' RoBERTa of 2022."""
    found = {"embeddings.position_ids": (1, positions)}
    for table, rows in {"word": words, "position": positions, "token_type": 1}.items():
        found[f"embeddings.{table}_embeddings.weight"] = (rows, width)
    linear, norms = {"pooler.dense": (width, width)}, ["embeddings.LayerNorm"]
    for layer in range(layers):
        name = f"encoder.layer.{layer}"
        linear |= {f"{name}.attention.self.{part}": (width, width) for part in ("query", "key", "value")}
        linear |= {f"{name}.attention.output.dense": (width, width)}
        linear |= {f"{name}.intermediate.dense": (4 * width, width), f"{name}.output.dense": (width, 4 * width)}
        norms += [f"{name}.attention.output.LayerNorm", f"{name}.output.LayerNorm"]
    found |= {f"{name}.weight": shape for name, shape in linear.items()}
    found |= {f"{name}.bias": shape[:1] for name, shape in linear.items()}
    return found | {f"{name}.{part}": (width,) for name in norms for part in ("weight", "bias")}


@pytest.fixture(scope="module")
def model():
    """Transformers' network with random weights, of the layout that is published but narrow."""
    config = ClapConfig(
        projection_dim=12,
        audio_config={"patch_embeds_hidden_size": 8, "hidden_size": 64},
        text_config={
            **{"vocab_size": 330, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 1},
            **{"intermediate_size": 64, "max_position_embeddings": 90, "layer_norm_eps": 1e-5},
        },
    )
    torch.manual_seed(3)
    network = ClapModel(config).eval()
    for value in network.parameters():  # norms and biases begin at ones and zeros, which would hide a fault
        torch.nn.init.normal_(value, std=0.3)
    normalise = network.audio_model.audio_encoder.batch_norm
    normalise.running_mean.normal_(-30, 5)
    normalise.running_var.uniform_(100, 300)
    projection = network.audio_projection
    with torch.inference_mode():  # random networks hear much alike: what is common to sounds is taken off
        features = extractor()([sound(2.0), sound(2.0, 1)], sampling_rate=48000, return_tensors="pt")["input_features"]
        heard = projection(network.audio_model(input_features=features).pooler_output)
    projection.linear2.bias.data -= heard.mean(0)
    return network


def laion_state(model):
    """A network's tensors as LAION names them, with those that embed nothing."""
    torch.manual_seed(4)
    state = {name: torch.randn(shape) for name, shape in laion_shapes(**SMALL).items()}
    ours = model.state_dict()
    for name in state:
        side, _, rest = name.partition(".")
        where = {"audio_branch": "audio_model.audio_encoder.", "text_branch": "text_model."}.get(side, f"{side}.")
        if side == "audio_branch":
            rest = rest.replace("mlp.fc1", "intermediate.dense").replace("mlp.fc2", "output.dense")
            rest = rest.replace("attn.proj", "attention.output.dense").replace("attn.", "attention.self.")
            rest = rest.replace("norm1", "layernorm_before").replace("norm2", "layernorm_after")
            rest = rest.replace("bn0", "batch_norm")
        if side.endswith("_projection"):
            rest = {"0": "linear1", "2": "linear2"}[rest[0]] + rest[1:]
        parts = [where + rest.replace("qkv", part) for part in ("query", "key", "value")]
        if name in ours or where + rest in ours:
            state[name] = ours[name if name in ours else where + rest]
        elif "qkv" in rest:
            state[name] = torch.cat([ours[part] for part in parts])
    state["audio_branch.logmel_extractor.melW"] = slaney_bank(clap.RATE).T
    return state


def checkpoint(state):
    """A file as LAION wrote it: a training's, with the scores of a NumPy before 2."""
    buffer, old = io.BytesIO(), io.BytesIO()
    wrapped = {f"module.{name}": value for name, value in state.items()}
    torch.save({"epoch": 15, "name": "x", "state_dict": wrapped, "best": np.float64(0.5)}, buffer)
    with zipfile.ZipFile(buffer) as source, zipfile.ZipFile(old, "w") as target:
        for entry in source.infolist():
            data = source.read(entry)
            if entry.filename.endswith("data.pkl"):
                assert b"numpy._core.multiarray\n" in data
                data = data.replace(b"numpy._core.multiarray\n", b"numpy.core.multiarray\n")
            target.writestr(entry.filename, data)
    return old.getvalue()


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """The network in the layout of Hugging Face, with its processor."""
    where = tmp_path_factory.mktemp("clap") / "clap-htsat-unfused"
    model.save_pretrained(where)
    tokenizer = train_tokenizer(Untrained(family="roberta", width=16, heads=2, vocabulary=300), CAPTIONS)
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"}
    tokens = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    ClapProcessor(extractor(), tokens).save_pretrained(where)
    extractor().save_pretrained(where)
    return where


def extractor():
    return ClapFeatureExtractor(frequency_min=50, frequency_max=14000, truncation="rand_trunc")


@pytest.fixture(scope="module")
def embedder(folder):
    return clap_files.read_folder(folder).embedder("cpu")


def sound(seconds, seed=0):
    """A gliding tone in noise, at 32 kHz."""
    random = np.random.default_rng(seed)
    time = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    tone = np.sin(2 * np.pi * (200 + 1000 * random.random()) * (1 + 0.2 * np.sin(2 * np.pi * time)) * time)
    return (0.3 * tone * random.random() + random.normal(0, 0.03, len(time))).astype(np.float32)


@torch.inference_mode()
def transformers_vectors(model, waves):
    """What transformers make of sounds at 48 kHz, none longer than 10 s."""
    features = extractor()(waves, sampling_rate=48000, return_tensors="pt")
    return model.get_audio_features(input_features=features["input_features"]).pooler_output.numpy()


def test_sounds_are_embedded_as_transformers_do(model, embedder):
    sounds = [sound(10.0), sound(3.7, 1), sound(0.05, 2), sound(6.2, 3), np.zeros(SAMPLE_RATE, np.float32)]
    found = embedder.sounds(sounds)
    expected = transformers_vectors(model, [soxr.resample(one, 32000, 48000) for one in sounds])
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert np.abs(found[:, None] - found).max(2)[np.triu_indices(5, 1)].min() > 0.05
    independent = [scipy.signal.resample_poly(one, 3, 2).astype(np.float32) for one in sounds]
    np.testing.assert_allclose(found, transformers_vectors(model, independent), atol=5e-3)
    assert embedder.sounds([np.zeros(0, np.float32)]).shape == (1, 12)
    assert (embedder.segment, embedder.dimension) == (10.0, 12)


def test_words_are_embedded_as_transformers_do(model, folder, embedder):
    tokens = ClapProcessor.from_pretrained(folder)(
        text=CAPTIONS, padding="max_length", truncation=True, max_length=77, return_tensors="pt"
    )
    with torch.inference_mode():
        expected = model.get_text_features(tokens["input_ids"], tokens["attention_mask"]).pooler_output.numpy()
    np.testing.assert_allclose(embedder.words(CAPTIONS), expected, atol=1e-5)
    assert np.ptp(expected, axis=0).max() > 0.05 and embedder.words([]).shape == (0, 12)
    assert np.abs(embedder.words(["a dog"]) - embedder.words(["A dog"])).max() > 1e-3


def test_of_a_long_recording_segments_are_averaged(embedder):
    long, short = sound(12.5, 5), sound(10.05, 6)  # its last 0.05 s are no segment
    parts = [long[: 10 * SAMPLE_RATE], long[10 * SAMPLE_RATE :], short[: 10 * SAMPLE_RATE]]
    with torch.inference_mode():
        first, second, other = embedder.network._heard([clap.segments(part)[0] for part in parts])
    expected = torch.nn.functional.normalize(torch.stack([(first + second) / 2, other]), dim=-1)
    np.testing.assert_allclose(embed_audio(embedder.network, [long, short]), expected, atol=1e-6)
    with pytest.raises(UserError, match="hears waveforms, not mel"):
        embed_audio(embedder.network, [np.zeros((5, 128), np.float32)], "mel")


def test_both_layouts_are_one_network(model, folder, embedder, tmp_path):
    (tmp_path / "630k.pt").write_bytes(checkpoint(laion_state(model)))
    found = pairs.read_foreign(tmp_path / "630k.pt", str(folder)).embedder("cpu")
    sounds = [sound(2.0, 7), sound(9.0, 8)]
    np.testing.assert_allclose(found.sounds(sounds), embedder.sounds(sounds), atol=1e-6)
    np.testing.assert_allclose(found.words(CAPTIONS), embedder.words(CAPTIONS), atol=1e-6)

    old = tmp_path / "old"
    shutil.copytree(folder, old)
    (old / "model.safetensors").unlink()
    torch.save(model.state_dict(), old / "pytorch_model.bin")
    (old / "preprocessor_config.json").unlink()
    assert pairs.read_foreign(old).fingerprint == embedder.fingerprint
    torch.save({**model.state_dict(), "logit_scale_a": torch.tensor(1.0)}, old / "pytorch_model.bin")
    assert pairs.read_foreign(old).fingerprint != embedder.fingerprint


@pytest.mark.parametrize("layout", [TINY, BASE], ids=["tiny", "base"])
def test_the_published_sizes_are_known(layout):
    integers = ("position_ids", "relative_position_index", "num_batches_tracked")
    with torch.device("meta"):
        state = {k: torch.empty(shape) for k, shape in laion_shapes(**layout).items() if not k.endswith(integers)}
        ours = clap_files.renamed(state)
        architecture = clap_files.architecture_of(ours)
        config = ClapConfig.from_dict(architecture)
        wanted = {k: v.shape for k, v in ClapModel(config).state_dict().items() if v.is_floating_point()}
    assert {name: value.shape for name, value in ours.items()} == wanted
    audio, text = config.audio_config, config.text_config
    assert (audio.patch_embeds_hidden_size, tuple(audio.depths)) == (layout["width"], layout["depths"])
    assert (tuple(audio.num_attention_heads), audio.hidden_size) == (HEADS, 8 * layout["width"])
    assert (text.num_attention_heads, text.num_hidden_layers, config.projection_dim) == (12, 12, 512)
    if layout is TINY:  # transformers' defaults are the first network's
        usual = ClapConfig()
        usual.text_config.layer_norm_eps = 1e-5
        assert config.to_dict() == usual.to_dict()


def test_one_file_indexes_searches_and_serves(folder, embedder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*words, typed=None):
        done = CliRunner().invoke(app, [str(word) for word in words], typed, env={"COLUMNS": "160"})
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    (tmp_path / "in").mkdir()
    for number, seconds in enumerate((12.0, 1.0, 3.0)):
        soundfile.write(f"in/{number}.wav", sound(seconds, number), SAMPLE_RATE, subtype="FLOAT")
    assert "bytes" in call("adopt", folder, "clap.safetensors", "--licence", "theirs")
    assert "3 files, 4 segments of 10 s" in call("index", "in", "--model", "clap.safetensors")
    said = json.loads(call("search", "rain falls", "--json"))
    best = embedder.words(["rain falls"]) @ embedder.sounds([sound(1.0, 1), sound(3.0, 2)]).T
    scores = {hit["file"]: hit["score"] for hit in said["hits"]}
    assert [scores["1.wav"], scores["2.wav"]] == pytest.approx(best[0].tolist(), abs=1e-4)
    assert json.loads(call("search", "--like", "in/2.wav", "--json"))["hits"][0]["file"] == "2.wav"
    assert ".wav" in call("shell", typed="rain\n")

    opened = read_export((tmp_path / "clap.safetensors").read_bytes(), "clap")
    assert opened.about["licence"] == "theirs" and len(opened.about["adopted"]) == 64
    assert served_as(opened, "")[2]["weights"] == opened.embedder("cpu").fingerprint == embedder.fingerprint
    assert write_adopted(opened) == (tmp_path / "clap.safetensors").read_bytes()
    with pytest.raises(UserError, match=r"^clap\.safetensors: LAION-CLAP is searched with, not trained; name a run"):
        finetune.settings("clap.safetensors", {"name": "x", "captions": {"training": 3}}, Storage.open(tmp_path), {})
    refused = CliRunner().invoke(app, ["export", "clap.safetensors", "other.safetensors"]).exception
    assert isinstance(refused, UserError) and "\n" not in str(refused)
    (tmp_path / "damaged.safetensors").write_bytes((tmp_path / "clap.safetensors").read_bytes()[:-50])
    with pytest.raises(UserError, match=r"damaged\.safetensors: (no model|a damaged model)"):
        open_embedder("damaged.safetensors", Storage.open(tmp_path))
    for name in (clap.TEXT_STATE, "clap.logit_scale_a"):
        weights = {key: value for key, value in opened.weights.items() if key != name}
        with pytest.raises(UserError, match=r"^clap: a damaged model; `retable audio adopt` writes one$"):
            replace(opened, weights=weights).embedder("cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"audio_branch.patch_embed.mel_conv2d.weight": torch.ones(8, 1, 4, 12)}, r"with fusion \(.*mel_conv2d"),
        ({"audio_branch.cnn.weight": torch.ones(2)}, "audio_encoder.cnn.weight is not of this network"),
        ({"text_branch.embeddings.token_type_embeddings.weight": torch.ones(2, 16)}, r"has shape \(2, 16\), not"),
        ({"text_branch.pooler.dense.bias": None}, "text_model.pooler.dense.bias is missing"),
        ({"audio_projection.0.weight": None}, "audio_projection.linear1.weight is missing"),
        ({"audio_branch.norm.bias": torch.full((64,), torch.nan)}, "no finite numbers"),
        ({"audio_branch.logmel_extractor.melW": torch.ones(513, 64)}, "trained on other mel bands"),
        ({"text_branch.embeddings.word_embeddings.weight": torch.ones(40, 16)}, "has more words than the network"),
    ],
)
def test_other_networks_are_refused_in_one_line(change, message, model, folder):
    state = {name: value for name, value in {**laion_state(model), **change}.items() if value is not None}
    with pytest.raises(UserError, match=message) as caught:
        pairs.read_pair(checkpoint(state), "630k.pt", str(folder))
    said = str(caught.value)
    assert said.startswith("630k.pt: ") and "\n" not in said and "630k-audioset-best.pt (1.86 GB)" in said


def test_files_that_lack_something_are_refused_in_one_line(model, folder, tmp_path):
    data = checkpoint(laion_state(model))

    def refused(read, *given):
        with pytest.raises(UserError) as caught:
            read(*given)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    empty = tmp_path / "empty"
    empty.mkdir()
    assert "x.pt: the tokenizer of " in (said := refused(pairs.read_pair, data, "x.pt", str(empty)))
    assert said.endswith("name a folder with it by --text")
    assert "or not the whole file" in refused(pairs.read_pair, data[:-3000], "x.pt", str(folder))
    assert "huggingface.co/lukewys/laion_clap" in refused(pairs.read_foreign, tmp_path / "630k-best.pt")
    assert "its config.json is of nothing" in refused(pairs.read_foreign, empty)

    def changed(name, **fields):
        place = tmp_path / f"folder{len(list(tmp_path.iterdir()))}"
        shutil.copytree(folder, place)
        said = json.loads((place / name).read_text())
        for field, value in fields.items():
            said = {**said, field: {**said[field], **value} if isinstance(value, dict) else value}
        (place / name).write_text(json.dumps(said))
        return place

    fused = changed("config.json", audio_config={"enable_fusion": True, "fusion_type": "aff_2d"})
    assert "a network with fusion is not here" in refused(pairs.read_foreign, fused)
    assert "of roberta" in refused(pairs.read_foreign, changed("config.json", model_type="roberta"))
    wrong = changed("config.json", text_config={"hidden_size": "many"})
    assert "no config of such a network" in refused(pairs.read_foreign, wrong)
    other = changed("preprocessor_config.json", sampling_rate=16000)
    assert "sampling_rate 16000, not 48000" in refused(pairs.read_foreign, other)
    (other / "model.safetensors").unlink()
    assert "neither model.safetensors nor pytorch_model.bin" in refused(pairs.read_foreign, other)
    for text in ("{", "[" * 100_000, "7"):
        (other / "config.json").write_text(text)
        assert "config.json: no JSON object; download it again" in refused(pairs.read_foreign, other)
