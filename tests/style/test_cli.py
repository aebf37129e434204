import json
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
import torch
from safetensors import safe_open
from typer.testing import CliRunner

from retable.platform.config import flatten, override
from retable.platform.errors import UserError
from retable.platform.spec.task import find
from retable.platform.store.run import RunFolder
from retable.tasks.style.cli import app
from retable.tasks.style.config import Config
from retable.tasks.style.files import assets, images
from retable.tasks.style.networks import transformer, weights
from retable.tasks.style.networks.network import TransformerNetwork
from retable.tasks.style.tools.pictures.knobs import Knobs, Sets

RANDOM = ("--backbone", "alexnet", "--weights", "random", "--evaluations", "2", "--size", "72")


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def network(seed):
    """A network of random weights whose pictures fill the range of levels."""
    torch.manual_seed(seed)
    made = TransformerNetwork(filters=4).eval()
    last = made.layers[-1].convolution
    with torch.no_grad():
        last.weight *= 300
        last.bias += 127
    return made


@pytest.fixture
def style(tmp_path, monkeypatch):
    """Call `retable style ...` in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.safetensors").write_bytes(transformer.pack(network(0), {"style": "a test's"}, half=False))
    images.write(tmp_path / "lake.png", noise(40, 52))

    def call(*words):
        return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "160"}, catch_exceptions=True)

    return call


def refused(found):
    assert isinstance(found.exception, UserError), found.output
    assert "\n" not in str(found.exception)
    return str(found.exception)


def test_a_network(style, tmp_path):
    found = style("image", "lake.png", "--out", "out.png", "--style", "net.safetensors", "--precision", "float32")
    assert found.exit_code == 0 and "out.png" in found.output, found.output
    with torch.no_grad():
        expected = network(0)(images.to_tensor(noise(40, 52)))
    assert np.abs(images.read("out.png").pixels.astype(int) - images.to_pixels(expected)).max() <= 1
    again = style("image", "lake.png", "--out", "out.png", "--style", "net.safetensors")
    assert again.exit_code == 0 and "is there already" in again.output


def test_bfloat16_is_taken_where_it_is_fast(style, tmp_path, monkeypatch):
    made = {}
    for name, fast, words in (("a", True, ()), ("b", False, ()), ("c", True, ("--precision", "float32"))):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda fast=fast: {"amx_bf16": fast})
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert style("image", "lake.png", "-o", f"{name}.png", "--style", "net.safetensors", *words).exit_code == 0
        made[name] = images.read(f"{name}.png").pixels
    assert np.array_equal(made["b"], made["c"]) and not np.array_equal(made["a"], made["b"])
    painting = next(iter(assets.paintings().values()))
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    for name, words in (("d", ()), ("e", ("--precision", "float32"))):
        assert style("image", "lake.png", "-o", f"{name}.png", "--style", painting, *RANDOM, *words).exit_code == 0
        made[name] = images.read(f"{name}.png").pixels
    assert np.array_equal(made["d"], made["e"]), "paintings are optimised in float32"


def test_a_folder_with_a_broken_picture(style, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jpg").write_bytes(b"nothing")
    images.write(tmp_path / "in/b.jpg", noise(30, 30))
    found = style(
        "image", "in", "--out", "out", "--style", "net.safetensors", "--tile", "16", "--precision", "bfloat16"
    )
    assert found.exit_code == 1 and "1 stylised, 1 failed" in found.output
    assert images.read("out/b.jpg").pixels.shape == (30, 30, 3)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b.jpg"]


def test_paintings_with_every_option(style, tmp_path):
    first, second = list(assets.paintings().values())[:2]
    words = ("--blend", "0.7,0.3", "--style-weight", 20, "--content-weight", 2, "--variation-weight", 0.1)
    words += ("--style-scale", 1.1, "--start", "noise", "--optimizer", "adam", "--scales", "64", "--seed", 3)
    words += ("--content-layers", "stage3", "--style-layers", "stage1,stage2", "--history", "losses.csv")
    words += ("--strength", 0.5, "--original-colours")
    found = style("image", "lake.png", "--out", "out.jpg", "--style", first, "--style", second, *RANDOM, *words)
    assert found.exit_code == 0, found.output
    assert images.read("out.jpg").pixels.shape == (55, 72, 3)
    assert len((tmp_path / "losses.csv").read_text().splitlines()) == 3


def test_a_painting_by_its_name(style):
    name = next(name for name in assets.paintings())
    assert style("image", "lake.png", "--out", "out.png", "--style", f"{name}.jpg", *RANDOM).exit_code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--style", "nothing"), "no such file"),
        (("--style", "net.safetensors", "--start", "noise"), "method.start"),
        (("--style", "net.safetensors", "--history", "a.csv"), "--history"),
        (("--style", "lake.png", "--scales", "128;256", *RANDOM), "--scales 128;256"),
        (("--style", "lake.png", "--blend", "1,2", *RANDOM), "blend"),
        (("--style", "lake.png", "--optimizer", "sgd", "--line-search", "none", *RANDOM), "line_search"),
        (("--style", "lake.png", "--layer-weights", "1,2", *RANDOM), "2 layer_weights for 3 style_layers"),
        (("--style", "lake.png", "--layer-weights", "1,-1,1", *RANDOM), "layer_weights -1.0 is below 0"),
        (("--style", "net.safetensors@ff0000"), "needs --mask"),
        (
            ("--style", "net.safetensors@ff0000", "--style", "lake.png", "--mask", "lake.png"),
            "give each its own colour",
        ),
        (("--style", "net.safetensors", "--mask", "missing.png"), "missing.png"),
        (("--style", "net.safetensors", "--like", "gatys"), "--like gatys is of paintings"),
        (("--style", "lake.png", "--weights", "missing.pth"), "missing.pth"),
    ],
)
def test_mistakes_are_one_line(style, tmp_path, words, said):
    assert said in refused(style("image", "lake.png", "--out", "out.png", *words))
    assert not (tmp_path / "out.png").exists()


def test_what_is_no_choice_is_refused_with_the_choices(style):
    found = style("image", "lake.png", "--out", "out.png", "--style", "lake.png", "--optimizer", "adamw")
    assert found.exit_code == 2 and "'lbfgs', 'adam', 'sgd'" in found.output


def test_every_field_of_an_optimisation_can_be_said():
    """Fields of the config that no option sets would be hidden from the command."""
    said = {each.path for hint in get_type_hints(Knobs, include_extras=True).values() for each in sets(hint)}
    fields = {path for path in flatten(override(Config(), {"method": "optimise_image"})) if path.startswith("method.")}
    elsewhere = {"method.content", "method.size", "method.shape", "method.optimizer.history"}
    assert {path for path in said if path.startswith("method.")} == fields - elsewhere


def sets(hint):
    return [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Sets)]


def test_regions_of_a_mask_have_their_own_styles(style, tmp_path):
    (tmp_path / "other.safetensors").write_bytes(transformer.pack(network(1), {}, half=False))
    map_of = np.zeros((40, 52, 3), np.uint8)
    map_of[:20, :26], map_of[20:, :26], map_of[:20, 26:] = (255, 0, 0), (0, 0, 255), (0, 255, 0)
    images.write(tmp_path / "map.png", map_of)
    for name in ("net", "other"):
        assert style("image", "lake.png", "--out", f"{name}.png", "--style", f"{name}.safetensors").exit_code == 0
    words = ("--style", "net.safetensors@ff0000", "--style", "other.safetensors@#0000FF", "--mask", "map.png")
    found = style("image", "lake.png", "--out", "both.png", *words)
    assert found.exit_code == 0, found.output
    photograph, net, other, both = (images.read(f"{name}.png").pixels for name in ("lake", "net", "other", "both"))
    assert np.array_equal(both[:20, :26], net[:20, :26]) and np.array_equal(both[20:, :26], other[20:, :26])
    assert np.array_equal(both[:, 26:], photograph[:, 26:]) and not np.array_equal(net, other)


def test_no_weights_to_be_had(style, monkeypatch):
    """What a machine without a network and without torch's cache says."""

    def unreachable(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(torch.hub, "download_url_to_file", unreachable)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: "empty")
    said = refused(style("image", "lake.png", "--out", "out.png", "--style", "lake.png", "--weights", "imagenet"))
    assert "random" in said and "retable style weights FILE" in said


def run_of(storage, epochs):
    """Lay down a finished run of networks, as the platform does."""
    config = override(Config(), {"method.filters": 4, "method.output": "raw", "epochs": epochs})
    task = find("style")
    folder = RunFolder.of(storage, task, config)
    folder.begin(config, task.version, {})
    kept = {str(epoch): folder.save_weights(epoch, network(epoch).state_dict()) for epoch in range(1, epochs + 1)}
    folder.folder.write_json("result.json", {"data": "", "metrics": {}, "weights": kept})
    return folder.fingerprint


def test_checkpoints_of_a_run(style, tmp_path, storage):
    run = run_of(storage, 3)
    words = ("--precision", "float32", "--storage", tmp_path / "results")
    found = style("compare", run[:8], "lake.png", "-o", "sheet.png", *words)
    assert found.exit_code == 0, found.output
    whole = images.read("sheet.png").pixels
    assert whole.shape[1] == 4 * 512
    pixels = images.fit(noise(40, 52), 512)
    assert np.array_equal(whole[: pixels.shape[0], :512], pixels)
    with torch.no_grad():
        expected = images.to_pixels(network(2)(images.to_tensor(pixels)))
    assert np.abs(whole[: pixels.shape[0], 1024:1536].astype(int) - expected).max() <= 1
    two = style("compare", run, "lake.png", "-o", "new/two.png", "--epochs", "1,3", "--storage", tmp_path / "results")
    assert two.exit_code == 0 and images.read("new/two.png").pixels.shape[1] == 3 * 512
    wrong = style("compare", run, "lake.png", "-o", "other.png", "--epochs", "9", "--storage", tmp_path / "results")
    assert "epoch 9" in refused(wrong)


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "latest", "lake.png", "-o", "mine.png"),
        ("onnx", "great_wave-video", "mine.png"),
        ("distil", "imagenet", "lake.png", "-o", "mine.png"),
    ],
)
def test_a_file_that_exists_is_replaced_only_on_demand(style, tmp_path, monkeypatch, words):
    monkeypatch.setattr("retable.tasks.style.tools.pictures.batches.compare", lambda *_: noise(8, 8))
    monkeypatch.setattr("retable.tasks.style.tools.distil.distil", lambda *_: b"weights")
    (tmp_path / "mine.png").write_text("precious")
    assert "mine.png: exists; --overwrite replaces it" in refused(style(*words))
    assert (tmp_path / "mine.png").read_text() == "precious"
    assert style(*words, "--overwrite").exit_code == 0
    assert (tmp_path / "mine.png").read_bytes() != b"precious"


def test_a_sheet_never_replaces_its_photograph(style):
    said = refused(style("compare", "latest", "lake.png", "-o", "lake.png", "--overwrite"))
    assert said == "lake.png: is the photograph; choose another name"
    assert images.read("lake.png").pixels.shape == (40, 52, 3)


def test_a_target_that_cannot_be_written_is_refused_before_the_work(style, tmp_path, monkeypatch):
    (tmp_path / "blocker").write_text("a file")
    monkeypatch.setattr("retable.tasks.style.tools.distil.distil", lambda *_: pytest.fail("was trained"))
    monkeypatch.setattr("retable.tasks.style.tools.onnx_file.pack", lambda *_: pytest.fail("was packed"))
    for words in (("distil", "imagenet", "lake.png", "-o"), ("onnx", "great_wave-video")):
        assert "a part of the path is a file" in refused(style(*words, "blocker/small.safetensors"))


def test_a_run_as_style(style, tmp_path, storage):
    run = run_of(storage, 2)
    words = ("--style", run[:10], "--precision", "float32", "--storage", storage)
    assert style("image", "lake.png", "--out", "out.png", *words).exit_code == 0
    with torch.no_grad():
        expected = images.to_pixels(network(2)(images.to_tensor(noise(40, 52))))
    assert np.abs(images.read("out.png").pixels.astype(int) - expected).max() <= 1


def test_weights_of_others(style, tmp_path, storage):
    torch.save(dict(weights.random("alexnet", 1).tensors), tmp_path / "alexnet.pth")
    found = style("weights", "alexnet.pth", "--storage", storage)
    assert found.exit_code == 0, found.output
    digest, line = found.output.split("\n")[:2]
    assert line == f"--set method.backbone=alexnet --set method.backbone.weights={digest}"
    words = ("--weights", digest, "--storage", storage, "--evaluations", 1, "--size", 64)
    assert style("image", "lake.png", "--out", "out.png", "--style", "lake.png", *words).exit_code == 0
    assert "no such file" in refused(style("weights", "absent.pth", "--storage", storage)).lower()


def test_a_video_that_cannot_be_written_starts_no_ray(style, monkeypatch):
    monkeypatch.setattr("retable.tasks.style.tools.video.video_cli.ray_cluster", lambda: pytest.fail("Ray is started"))
    Path("in.mp4").touch()
    Path("out.mp4").touch()
    for target, said in (("out.mp4", "exists; --overwrite"), ("out.txt", "are written as"), ("in.mp4", "is read")):
        assert said in refused(style("video", "in.mp4", target, "--style", "great_wave", "--workers", 2))


@pytest.mark.parametrize("words", [(), ("image",), ("compare",), ("weights",), ("video",)])
def test_help_teaches(style, words):
    found = style(*words, "--help")
    assert found.exit_code == 0 and "Usage" in found.output
    if words:
        assert f"retable style {words[0]}" in found.output


def test_help_needs_no_torch():
    code = "import sys; sys.argv = ['retable', '--help']; from retable.platform.cli import app as cli\n"
    code += "try: cli.main()\nexcept SystemExit: print(sorted({'torch', 'cv2', 'av'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert found.stdout.endswith("[]\n") and "Commands of the task style" in found.stdout


def test_a_run_becomes_a_file_that_says_where_it_is_from(style, tmp_path, storage):
    run = run_of(storage, 2)
    folder = storage / f"runs/style/{run}"
    folder.write_json("provenance.json", {"data": {"source": "folder", "training": 7}, "commit": "abc", "seed": 0})
    written = style("export", run[:8], "wave.safetensors", "--half", "--licence", "CC0", "--storage", storage)
    assert written.exit_code == 0, written.output
    with safe_open("wave.safetensors", "pt") as file:
        said = json.loads(file.metadata()["provenance"])
        assert all(file.get_tensor(name).dtype == torch.float16 for name in file.keys())
    assert said["fingerprint"] == run and said["licence"] == "CC0" and said["commit"] == "abc"
    assert "7" in said["data_description"]
    assert said["config"]["method.filters"] == 4 and said["epoch"] == 2
    assert style("image", "lake.png", "--out", "out.png", "--style", "wave.safetensors").exit_code == 0
    with torch.no_grad():
        expected = images.to_pixels(network(2)(images.to_tensor(noise(40, 52))))
    assert np.abs(images.read("out.png").pixels.astype(int) - expected).mean() < 1  # 16 bits
    assert ".safetensors" in refused(style("export", run, "wave.pth", "--storage", storage))
    assert "epoch" in refused(style("export", run, "9.safetensors", "--epoch", "9", "--storage", storage))
