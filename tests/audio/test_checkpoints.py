"""Files in the published layouts with random weights, against PaSST written in NumPy here."""

import dataclasses
import io
import json

import huggingface_hub
import numpy as np
import pytest
import timm
import torch
from safetensors import safe_open
from scipy.special import erf
from torch.nn import functional

from retable.platform.errors import UserError
from retable.tasks.audio.config import Cnn14, Config, Passt
from retable.tasks.audio.encoders import checkpoints
from retable.tasks.audio.encoders.audio_encoder import build_audio
from retable.tasks.audio.encoders.cnn14 import Cnn14Network, slaney_bank

NAMES = {
    "passt-n": "passt-s-f128-p16-s16-ap.468.pt",
    "passt-s": "passt-s-kd-ap.486.pt",
    "passt-s15": "passt-s-f128-20sec-p16-s10-ap.474-swa.pt",
}
GRIDS = {"passt-n": (16, 1000, 8, 62), "passt-s": (10, 998, 12, 99), "passt-s15": (10, 2000, 12, 200)}
"""Stride, frames, rows and columns, as published."""


def shapes_of(width, depth, rows, columns):
    """The official state dict: 159 tensors at depth 12."""
    yield from ((f"{token}_token", (1, 1, width)) for token in ("cls", "dist"))
    yield "new_pos_embed", (1, 2, width)
    yield "freq_new_pos_embed", (1, width, rows, 1)
    yield "time_new_pos_embed", (1, width, 1, columns)
    yield "patch_embed.proj.weight", (width, 1, 16, 16)
    yield "patch_embed.proj.bias", (width,)
    yield from block_shapes(width, depth)
    yield from linear("norm", width)
    yield from linear("head.0", width)
    yield from linear("head.1", 527, width)
    yield from linear("head_dist", 527, width)


def block_shapes(width, depth):
    for block in range(depth):
        yield from linear(f"blocks.{block}.norm1", width)
        yield from linear(f"blocks.{block}.norm2", width)
        yield from linear(f"blocks.{block}.attn.qkv", 3 * width, width)
        yield from linear(f"blocks.{block}.attn.proj", width, width)
        yield from linear(f"blocks.{block}.mlp.fc1", 4 * width, width)
        yield from linear(f"blocks.{block}.mlp.fc2", width, 4 * width)


def linear(name, *shape):
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[:1]


def draw(shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {name: 0.2 * torch.randn(shape, generator=generator) for name, shape in shapes}


def passt_state(variant, width=64, depth=2):
    _, _, rows, columns = GRIDS[variant]
    return draw(shapes_of(width, depth, rows, columns))


def written(folder, name, state):
    path = folder / name
    torch.save(state, path)
    return path


def config_of(variant, weights=None, **changes):
    stride, frames, _, _ = GRIDS[variant]
    sizes = {"width": 64, "depth": 2, "heads": 1, "patchout_frequency": 0, "patchout_time": 0} | changes
    return Passt(weights=weights or variant, **({"stride": stride, "frames": frames} | sizes))


def plain_normalisation(x, state, name):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-6) * state[f"{name}.weight"] + state[f"{name}.bias"]


def plain_passt(state, mel, stride, depth, heads):
    """One spectrogram (128, frames), normalised; float64; section 1.2 of the published facts, loop by loop."""
    state = {name: value.double().numpy() for name, value in state.items()}
    rows, columns = (128 - 16) // stride + 1, (mel.shape[1] - 16) // stride + 1
    tokens = [state[f"{name}_token"][0, 0] + state["new_pos_embed"][0, i] for i, name in enumerate(("cls", "dist"))]
    for row in range(rows):
        for column in range(columns):
            patch = mel[row * stride : row * stride + 16, column * stride : column * stride + 16]
            token = (state["patch_embed.proj.weight"][:, 0] * patch).sum((1, 2)) + state["patch_embed.proj.bias"]
            position = state["freq_new_pos_embed"][0, :, row, 0] + state["time_new_pos_embed"][0, :, 0, column]
            tokens.append(token + position)
    x = np.stack(tokens)
    for block in range(depth):
        name = f"blocks.{block}"
        x = x + plain_attention(plain_normalisation(x, state, f"{name}.norm1"), state, f"{name}.attn", heads)
        hidden = plain_linear(plain_normalisation(x, state, f"{name}.norm2"), state, f"{name}.mlp.fc1")
        x = x + plain_linear(hidden * (1 + erf(hidden / np.sqrt(2))) / 2, state, f"{name}.mlp.fc2")
    x = plain_normalisation(x, state, "norm")
    return (x[0] + x[1]) / 2


def plain_linear(x, state, name):
    return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def plain_attention(x, state, name, heads):
    queries, keys, values = np.split(plain_linear(x, state, f"{name}.qkv"), 3, axis=1)
    mixed, size = [], x.shape[1] // heads
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        scores = queries[:, part] @ keys[:, part].T / np.sqrt(size)
        scores = np.exp(scores - scores.max(1, keepdims=True))
        mixed.append(scores / scores.sum(1, keepdims=True) @ values[:, part])
    return plain_linear(np.concatenate(mixed, 1), state, f"{name}.proj")


@pytest.mark.parametrize("variant", NAMES)
def test_official_layouts_give_the_plain_outputs(tmp_path, storage, variant):
    """Of fewer frames than there are positions, too: the first are taken."""
    state = passt_state(variant)
    checkpoints.import_file(written(tmp_path, NAMES[variant], state), storage)
    config = Config(audio=config_of(variant, heads=4), segment=1.0)
    network = build_audio(config, storage).network.eval()
    mel = torch.randn(1, 1, 128, 90)
    wanted = plain_passt(state, mel[0, 0].double().numpy(), network.config.stride, 2, 4)
    with torch.no_grad():
        found = network(mel)[0].numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max())
    assert network.training is False and wanted.std() > 0


def test_the_whole_depth_has_159_tensors(tmp_path, storage):
    state = passt_state("passt-n", depth=12)
    assert len(state) == 159
    digest = checkpoints.import_file(written(tmp_path, "any.pt", {"model": state}), storage)
    loaded = checkpoints.load_state(config_of("passt-n", digest, depth=12), storage)
    assert loaded.keys() == {name for name in state if not name.startswith("head")}
    assert all(torch.equal(loaded[name], state[name]) for name in loaded)


def test_the_stored_file_says_what_it_is(tmp_path, storage):
    digest = checkpoints.import_file(written(tmp_path, NAMES["passt-s"], passt_state("passt-s")), storage)
    with safe_open(f"{storage}/weights/{digest}.safetensors", "pt") as file:
        fields = json.loads(file.metadata()["audio"])
    assert (fields["network"], fields["variant"], fields["stride"], fields["frames"]) == ("passt", "passt-s", 10, 990)


def test_importing_again_changes_nothing(tmp_path, storage):
    path = written(tmp_path, NAMES["passt-n"], passt_state("passt-n"))
    assert checkpoints.import_file(path, storage) == checkpoints.import_file(path, storage)
    assert len(storage.list("weights")) == 2
    path = written(tmp_path, NAMES["passt-n"], draw(shapes_of(64, 2, 8, 62), seed=1))
    with pytest.raises(UserError, match="passt-n is already another file's"):
        checkpoints.import_file(path, storage)
    assert len(storage.list("weights")) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stride": 10}, "audio.stride 10: passt-n was trained with 16; set audio.stride=16"),
        ({"frames": 2000}, r"audio.frames 2000: passt-n has positions for 62 .* not 125; .* 992 \(up to 1007\)"),
        ({"depth": 3}, "audio.depth 3: passt-n was trained with 2; set audio.depth=2"),
        ({"width": 32}, "audio.width 32: passt-n was trained with 64"),
    ],
)
def test_a_file_of_other_sizes_says_what_is_wrong(tmp_path, storage, changes, message):
    checkpoints.import_file(written(tmp_path, NAMES["passt-n"], passt_state("passt-n")), storage)
    with pytest.raises(UserError, match=message):
        build_audio(Config(audio=config_of("passt-n", **changes), segment=1.0), storage)


@pytest.mark.parametrize("variant", NAMES)
def test_an_absent_checkpoint_says_where_it_is(storage, variant):
    release = {"passt-n": "v0.0.2-audioset", "passt-s": "v.0.0.9", "passt-s15": "v0.0.5"}[variant]
    message = f"download {NAMES[variant]} of release {release} of kkoutini/PaSST and run `retable audio weights FILE`"
    with pytest.raises(UserError, match=message) as error:
        checkpoints.load_state(config_of(variant), storage)
    assert str(error.value).endswith(f"(https://github.com/kkoutini/PaSST/releases/tag/{release})")


def test_names_that_mean_nothing(storage):
    with pytest.raises(UserError, match=r"audio.weights passt-m: .*did you mean 'passt-"):
        checkpoints.load_state(config_of("passt-n", "passt-m"), storage)
    with pytest.raises(UserError, match=r"weights/0{64}.safetensors is missing"):
        checkpoints.load_state(config_of("passt-n", "0" * 64), storage)


def test_a_changed_file_is_refused(tmp_path, storage):
    digest = checkpoints.import_file(written(tmp_path, "a.pt", passt_state("passt-n")), storage)
    data = bytearray(storage.read(f"weights/{digest}.safetensors"))
    data[-1] ^= 1
    storage.write(f"weights/{digest}.safetensors", bytes(data))
    with pytest.raises(UserError, match="is missing or is another file"):
        checkpoints.load_state(config_of("passt-n", digest), storage)


def without(state, name):
    return {key: value for key, value in state.items() if key != name}


BROKEN = {
    "blocks.1.norm2.bias is missing": lambda state: without(state, "blocks.1.norm2.bias"),
    "blocks.0.extra is not of this network": lambda state: state | {"blocks.0.extra": torch.zeros(2)},
    r"norm.weight has shape \(65,\), not \(64,\)": lambda state: state | {"norm.weight": torch.zeros(65)},
    "norm.bias has values that are no finite numbers": lambda state: (
        state | {"norm.bias": torch.full((64,), torch.nan)}
    ),
    "7 rows of positions": lambda state: state | {"freq_new_pos_embed": torch.zeros(1, 64, 7, 1)},
    "positions are not of four dimensions": lambda state: state | {"freq_new_pos_embed": torch.zeros(64)},
    "unknown weights": lambda state: {"weight": torch.zeros(3)},
    "no state dict but a list": lambda state: list(state),
}


@pytest.mark.parametrize("message", BROKEN)
def test_broken_files_give_one_line(tmp_path, storage, message):
    path = written(tmp_path, "broken.pt", BROKEN[message](passt_state("passt-n")))
    with pytest.raises(UserError, match=message) as caught:
        checkpoints.import_file(path, storage)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)
    assert storage.list("weights") == []


def test_files_that_are_no_weights(tmp_path, storage):
    whole = io.BytesIO()
    torch.save(passt_state("passt-n"), whole)
    for data in (b"", b"RIFF", whole.getvalue()[:5000]):
        (tmp_path / "file.pt").write_bytes(data)
        with pytest.raises(UserError, match=r"file.pt: no file of tensors and plain values, or not the whole file"):
            checkpoints.import_file(tmp_path / "file.pt", storage)
    with pytest.raises(UserError, match=r"absent.pt: No such file"):
        checkpoints.import_file(tmp_path / "absent.pt", storage)


def test_a_published_name_on_another_layout(tmp_path, storage):
    path = written(tmp_path, NAMES["passt-n"], passt_state("passt-s"))
    with pytest.raises(UserError, match=r"named as passt-n, which has .* \(16, 62\), but has \(10, 99\)"):
        checkpoints.import_file(path, storage)


def deit_state(width=64, depth=2, side=6):
    shapes = {"cls_token": (1, 1, width), "dist_token": (1, 1, width), "pos_embed": (1, 2 + side**2, width)}
    shapes |= {"patch_embed.proj.weight": (width, 3, 16, 16), "patch_embed.proj.bias": (width,)}
    shapes |= dict(block_shapes(width, depth)) | dict(linear("norm", width))
    shapes |= dict(linear("head", 1000, width)) | dict(linear("head_dist", 1000, width))
    return draw(shapes.items())


def test_the_deit_layout_is_timms():
    with torch.device("meta"):
        theirs = timm.create_model("deit_base_distilled_patch16_384", pretrained=False).state_dict()
    ours = {name: value.shape for name, value in deit_state(64, 12, 24).items()}
    assert {name: value.ndim for name, value in theirs.items()} == {name: len(shape) for name, shape in ours.items()}


@pytest.mark.parametrize("variant", NAMES)
def test_imagenets_weights_are_adapted(tmp_path, storage, variant):
    state = deit_state()
    digest = checkpoints.import_file(written(tmp_path, "deit.pth", {"model": state}), storage)
    audio = config_of(variant, digest)
    network = build_audio(Config(audio=audio, segment=1.0), storage).network
    _, _, rows, columns = GRIDS[variant]
    position = network.freq_new_pos_embed + network.time_new_pos_embed
    assert position.shape == (1, 64, rows, columns)
    square = state["pos_embed"][0, 2:].view(6, 6, 64).permute(2, 0, 1)[None]
    resized = functional.interpolate(square, (rows, columns), mode="bicubic", align_corners=False)
    wanted = resized.mean(2)[:, :, None] + resized.mean(3)[:, :, :, None]
    torch.testing.assert_close(position.detach(), wanted)
    torch.testing.assert_close(position.mean().detach(), 2 * resized.mean())
    grey = torch.randn(1, 1, 32, 48)
    colours = functional.conv2d(grey.expand(-1, 3, -1, -1), state["patch_embed.proj.weight"], stride=audio.stride)
    ours = functional.conv2d(grey, network.patch_embed.proj.weight, stride=audio.stride)
    torch.testing.assert_close(ours.detach(), colours, rtol=1e-4, atol=1e-4)
    assert torch.equal(network.new_pos_embed, state["pos_embed"][:, :2])
    for name in ("cls_token", "dist_token", "norm.weight", "blocks.1.attn.qkv.weight", "patch_embed.proj.bias"):
        assert torch.equal(network.state_dict()[name], state[name])


def test_imagenet_goes_through_timm(storage, monkeypatch):
    asked = []

    class Made:
        def state_dict(self):
            return deit_state()

    def create_model(name, pretrained):
        asked.append((name, pretrained))
        return Made()

    monkeypatch.setattr(timm, "create_model", create_model)
    network = build_audio(Config(audio=config_of("passt-n", "imagenet"), segment=1.0), storage).network
    assert asked == [("deit_base_distilled_patch16_384", True)]
    assert torch.equal(network.cls_token, deit_state()["cls_token"])
    with pytest.raises(UserError, match=r"audio.depth 3: ImageNet's DeiT was trained with 2; set audio.depth=2"):
        build_audio(Config(audio=config_of("passt-n", "imagenet", depth=3), segment=1.0), storage)


def test_imagenet_offline_is_one_line(storage, monkeypatch, tmp_path):
    monkeypatch.setattr(checkpoints, "DEIT", "deit_tiny_distilled_patch16_224")  # takes the same way, and less time
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(
        UserError, match=r"audio.weights imagenet: .*cannot be downloaded.*audio.weights=random"
    ) as caught:
        checkpoints.load_state(config_of("passt-n", "imagenet", width=768, depth=12, heads=12), storage)
    assert "\n" not in str(caught.value)


def panns_state(filters=2):
    network = Cnn14Network(Cnn14(filters=filters))
    state = {name: torch.rand(value.shape) for name, value in network.state_dict().items() if value.ndim}
    state |= {"bn0.num_batches_tracked": torch.tensor(7), "logmel_extractor.melW": slaney_bank().T}
    state |= {f"spectrogram_extractor.stft.conv_{part}.weight": torch.rand(513, 1, 1024) for part in ("real", "imag")}
    return state | dict(draw(linear("fc_audioset", 527, 32 * filters)))


def test_panns_layout(tmp_path, storage):
    state = panns_state()
    digest = checkpoints.import_file(written(tmp_path, "Cnn14_mAP=0.431.pth", {"model": state}), storage)
    config = Config(audio=Cnn14(weights=digest, filters=2), segment=1.0)
    loaded = build_audio(config, storage).network.state_dict()
    for name in ("bn0.running_var", "conv_block6.conv2.weight", "conv_block1.bn2.bias", "fc1.weight"):
        assert torch.equal(loaded[name], state[name])
    with pytest.raises(UserError, match=r"audio.filters 4: the file has 2; set audio.filters=2"):
        build_audio(dataclasses.replace(config, audio=Cnn14(weights=digest, filters=4)), storage)
    with pytest.raises(UserError, match=r"weights of cnn14, not of passt"):
        checkpoints.load_state(config_of("passt-n", digest), storage)


def test_panns_published_file_is_known_by_its_name(tmp_path, storage):
    message = r"download Cnn14_mAP=0\.431\.pth of record 3987831 of Zenodo .*\(https://zenodo\.org/records/3987831\)$"
    with pytest.raises(UserError, match=message):
        checkpoints.load_state(Cnn14(weights="cnn14", filters=2), storage)
    state = panns_state()
    checkpoints.import_file(written(tmp_path, "Cnn14_mAP=0.431.pth", {"model": state}), storage)
    loaded = checkpoints.load_state(Cnn14(weights="cnn14", filters=2), storage)
    assert torch.equal(loaded["conv_block6.conv2.weight"], state["conv_block6.conv2.weight"])
    with pytest.raises(UserError, match=r"audio.weights cnn14: neither a SHA-256 nor a known name"):
        checkpoints.load_state(config_of("passt-n", "cnn14"), storage)
    with pytest.raises(UserError, match="named as cnn14, but holds weights of passt"):
        checkpoints.import_file(written(tmp_path, "Cnn14_mAP=0.431.pth", passt_state("passt-n")), storage)


def test_panns_of_another_sample_rate(tmp_path, storage):
    state = panns_state() | {"logmel_extractor.melW": torch.rand(257, 64)}
    with pytest.raises(UserError, match="trained on other mel bands"):
        checkpoints.import_file(written(tmp_path, "Cnn14_8k.pth", {"model": state}), storage)


def test_without_a_storage_no_weights_are_read():
    network = build_audio(Config(audio=config_of("passt-n"), segment=1.0), None).network
    assert float(network.blocks[0].attn.qkv.weight.detach().std()) == pytest.approx(network.width**-0.5, rel=0.1)


def test_which_copy_of_a_network_is_taken_is_said_and_can_be_told(tmp_path, storage):
    """PaSST's own training checkpoints hold the network and its average over the last epochs."""
    own = passt_state("passt-n")
    both = {f"net.{name}": value for name, value in own.items()}
    both |= {f"net_swa.{name}": value + 0.5 for name, value in own.items()}
    path, lines = written(tmp_path, "epoch.ckpt", {"state_dict": both}), []

    def taken(*told):
        digest = checkpoints.import_file(path, storage, *told, say=lines.append)
        audio = dataclasses.replace(config_of("passt-n"), weights=digest)
        return checkpoints.stored(audio, storage).tensors["cls_token"]

    assert torch.equal(taken(), own["cls_token"])
    remedy = "`retable audio adopt` and `weights` take the other by --part net_swa"
    assert lines == [f"{path}: holds net and net_swa: net is taken; {remedy}"]
    assert torch.equal(taken("net_swa"), own["cls_token"] + 0.5) and torch.equal(taken("net"), own["cls_token"])
    assert len(lines) == 1
    with pytest.raises(UserError, match="it has no part 'ema'"):
        taken("ema")
