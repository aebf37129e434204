import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from retable.platform import api
from retable.platform.errors import UserError
from retable.platform.spec.task import Source, config_at, data_folder, find
from retable.platform.store import lease
from retable.platform.store.storage import Storage
from retable.platform.store.weights import stored
from retable.tasks.style import data
from retable.tasks.style.cli import app
from retable.tasks.style.networks import transformer
from retable.tasks.style.networks.network import TransformerNetwork
from retable.tasks.style.networks.transformer import trained
from retable.tasks.style.tools import learn


def pictures(folder, count):
    folder.mkdir()
    for number in range(count):
        noise = np.random.default_rng(number).integers(0, 256, (200, 240, 3), np.uint8)
        Image.fromarray(noise).save(folder / f"{number}.png")
    return folder


@pytest.fixture
def asked(monkeypatch):
    """Collect what is trained instead of training it."""
    calls = []
    monkeypatch.setattr(api, "train", lambda task, changes, **how: calls.append((changes, how)) or SimpleNamespace())
    return calls


@pytest.mark.parametrize("start", ["great_wave", pytest.param("the_scream-video", marks=pytest.mark.slow)])
def test_a_training_starts_from_the_network_and_has_the_painting(tmp_path, asked, start):
    storage, photographs = Storage.open(tmp_path / "results"), pictures(tmp_path / "photographs", 5)
    painting = tmp_path / "my work.png"
    Image.fromarray(np.full((30, 40, 3), 90, np.uint8)).save(painting)
    for _ in range(2):
        learn.learn(painting, start, photographs, 10, storage)
    (changes, how), again = asked
    assert again == (changes, how)  # so that the same command goes on
    config = config_at(find("style"), how["scale"], changes)
    assert config.epochs * config.steps == 12
    network = trained(config, stored(changes["init.sha256"], storage, "")[0])
    pixels = torch.rand(1, 3, 64, 64)
    torch.testing.assert_close(network(pixels), transformer.find(start)(pixels))
    place = storage / f"data/style/{config.data}"
    info = place.read_json("dataset.json")
    assert info["training"] == 3 and len(info["test"]) == learn.TESTS
    assert data.painting(Source(place, info), config.style[0])[0, 0].tolist() == [90, 90, 90]
    Image.fromarray(np.zeros((30, 40, 3), np.uint8)).save(painting)
    learn.learn(painting, start, photographs, 10, storage)
    renamed = painting.rename(tmp_path / "another.png")
    learn.learn(renamed, start, photographs, 10, storage)
    assert len({changes["data"] for changes, _ in asked}) == 3


def test_pictures_that_were_added_or_exchanged_since_are_trained_on(tmp_path, asked, capsys):
    storage, photographs = Storage.open(tmp_path / "results"), pictures(tmp_path / "photographs", 5)
    Image.fromarray(np.full((30, 40, 3), 90, np.uint8)).save(tmp_path / "work.png")

    def trained_on():
        learn.learn(tmp_path / "work.png", "great_wave", photographs, 10, storage)
        return asked[-1][0]["data"], data_folder(storage, "style", asked[-1][0]["data"]).read_json("dataset.json")

    before, _ = trained_on()
    (photographs / "mine.safetensors").touch()
    assert trained_on()[0] == before, "what is no picture changes nothing"
    (photographs / "7.png").write_bytes((photographs / "0.png").read_bytes())
    (photographs / "broken.jpg").write_text("no picture")
    capsys.readouterr()
    added, info = trained_on()
    assert added != before and info["training"] == 4
    assert capsys.readouterr().out.count("left out: ") == 1
    (photographs / "7.png").unlink()
    (photographs / "7.png").write_bytes((photographs / "1.png").read_bytes())
    assert trained_on()[0] not in (before, added)


def test_two_at_once_make_one_data_set(tmp_path, asked, monkeypatch):
    monkeypatch.setattr(lease, "POLL_SECONDS", 0.01)
    made = []

    def make(dataset, name, *_):
        made.append(name)
        time.sleep(0.3)
        dataset.write_json("dataset.json", {"name": name})

    monkeypatch.setattr(learn, "make_generated", make)
    Image.fromarray(np.zeros((30, 40, 3), np.uint8)).save(tmp_path / "work.png")
    with ThreadPoolExecutor(3) as pool:
        arguments = tmp_path / "work.png", "great_wave", None, 10, Storage.open(tmp_path / "results")
        list(pool.map(lambda _: learn.learn(*arguments), range(3)))
    assert len(asked) == 3 and len(made) == 1


def test_too_few_photographs_are_told_without_options_of_another_command(tmp_path, asked):
    Image.fromarray(np.full((30, 40, 3), 90, np.uint8)).save(tmp_path / "work.png")
    with pytest.raises(UserError, match=r"1 sound pictures and 0 videos, too few .* 2 tests; add pictures$"):
        learn.learn(tmp_path / "work.png", "great_wave", pictures(tmp_path / "few", 1), 10, Storage.open(tmp_path))
    assert not asked


def test_a_network_of_another_form_is_refused_before_the_work(tmp_path, asked):
    (tmp_path / "net.safetensors").write_bytes(transformer.pack(TransformerNetwork(4, final_norm=True), {}, half=False))
    Image.fromarray(np.zeros((30, 40, 3), np.uint8)).save(tmp_path / "work.png")
    with pytest.raises(UserError, match="another form"):
        learn.learn(tmp_path / "work.png", str(tmp_path / "net.safetensors"), None, 4, Storage.open(tmp_path))
    assert not asked and not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "file, said", [("x.png", "call it x.safetensors"), ("there.safetensors", "exists; --overwrite replaces it")]
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path, asked, file, said):
    (tmp_path / "there.safetensors").write_text("precious")
    words = ["learn", str(tmp_path / "work.png"), str(tmp_path / file), "--storage", str(tmp_path / "results")]
    assert said in str(CliRunner().invoke(app, words).exception)
    assert not asked and (tmp_path / "there.safetensors").read_text() == "precious"


@pytest.mark.slow
def test_a_painting_becomes_a_file_that_stylises(tmp_path, monkeypatch):
    photographs = pictures(tmp_path / "photographs", 4)
    Image.fromarray(np.random.default_rng(9).integers(0, 256, (90, 120, 3), np.uint8)).save(tmp_path / "work.png")
    file = tmp_path / "work.safetensors"
    words = ["learn", tmp_path / "work.png", file, "--photographs", photographs, "--start", "great_wave-video"]
    found = CliRunner().invoke(app, [*map(str, words), "--steps", "4", "--storage", str(tmp_path / "results")])
    assert found.exit_code == 0 and "style error" in found.output
    before, after = (transformer.find(name)(torch.ones(1, 3, 32, 32)) for name in ("great_wave-video", str(file)))
    assert not torch.allclose(before, after, atol=1e-3)
