"""The maker of the zoo's networks, on tiny ones, and its judge, by the measures that were kept of the real ones."""

import json
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from benchmarks import style_zoo, style_zoo_train
from benchmarks.style_zoo_train import PRICES, RECIPES, Goals, Photographs, Stage, Training, fresh, running_mean, train
from retable.platform.errors import UserError
from retable.platform.models.zoo import zoo
from retable.platform.store.weights import metadata
from retable.tasks.style.cli import app
from retable.tasks.style.files import assets, images
from retable.tasks.style.networks.transformer import read

TINY = replace(
    RECIPES["the_scream"], filters=4, video_filters=4, size=96, batch=2, style_size=160, photographs=2, landscapes=1
)


@pytest.fixture(scope="module")
def few(shared, tmp_path_factory):
    """A folder as `shared`, with one photograph."""
    folder = tmp_path_factory.mktemp("shared")
    for name in ("data/style/bsds500", "weights/style"):
        (folder / name).mkdir(parents=True)
    photograph = min((shared / "data/style/bsds500").glob("train_*.jpg"))
    for file in (photograph, *(shared / "weights/style").glob("vgg19_*.pth")):
        (folder / file.relative_to(shared)).symlink_to(file)
    return folder


@pytest.fixture(scope="module")
def made(few, tmp_path_factory):
    """A folder in which networks of The Scream were trained for two steps of each stage."""
    folder = tmp_path_factory.mktemp("zoo")
    train("the_scream", folder, few, 0, 2, TINY)
    return folder


def test_style_stylises_by_what_was_trained(made, tmp_path):
    images.write(tmp_path / "in.png", np.random.default_rng(0).integers(0, 256, (40, 56, 3), np.uint8))
    for name in ("the_scream", "the_scream-video"):
        file, out = made / f"{name}.safetensors", tmp_path / f"{name}.png"
        words = ["image", str(tmp_path / "in.png"), "--style", str(file), "--out", str(out)]
        ended = CliRunner().invoke(app, words)
        assert not ended.exit_code, ended.output
        assert images.read(out).pixels.shape == (40, 56, 3)
        assert read(file).architecture.filters == 4


def test_judge_measures_what_was_trained_by_its_painting_or_ones_own(made, tmp_path, capsys, monkeypatch):
    held = style_zoo.held
    monkeypatch.setattr(style_zoo, "held", lambda count: {name: images.fit(p, 160) for name, p in held(count).items()})

    def judge(file, *words):
        style_zoo.main(["judge", str(file), "--photographs", "1", *words])
        ((label, rows),) = json.loads(capsys.readouterr().out)["networks"].items()
        return label, rows

    file = made / "the_scream-video.safetensors"
    label, rows = judge(file)
    assert label == "the_scream, the_scream-video" and list(rows) == ["test_101084"]
    (row,) = rows.values()
    assert list(row) == list(style_zoo.COLUMNS) and all(value >= 0 for value in row.values())
    style = {}
    for name in ("great_wave", "the_scream"):
        work = shutil.copy(assets.paintings()[name], tmp_path / f"my {name}.jpg")
        label, rows = judge(shutil.copy(file, tmp_path / "mine.safetensors"), "--painting", str(work))
        assert label == "mine"
        style[name] = rows["test_101084"]["style"]
    assert row["style"] == style["the_scream"] != style["great_wave"]


def test_a_training_that_is_done_is_left_as_it_is(made, few, capsys):
    before = {file.name: file.read_bytes() for file in made.glob("*.safetensors")}
    capsys.readouterr()
    train("the_scream", made, few, 0, 2, TINY)
    assert not capsys.readouterr().out
    assert {file.name: file.read_bytes() for file in made.glob("*.safetensors")} == before


def lesson(stop, goals, heard, photographs, rng, pace):
    """Learn photographs upside down, in noise; a loss's weight follows a goal. `stop` ends the training there."""
    if stop.pop() == "stop":
        raise KeyboardInterrupt
    noisy = photographs + 0.1 * torch.from_numpy(rng.standard_normal(tuple(photographs.shape), np.float32))
    found = (heard(noisy.clamp(0, 1)).made - photographs.flip(2)).square().mean()
    return goals({"tone": found}, 0.5)


def test_a_training_continues_where_it_was_stopped(shared, tmp_path, monkeypatch):
    """Its numbers are those of a training that was never stopped."""
    monkeypatch.setattr(style_zoo_train, "SAVED", -1.0)
    stage = Stage(name="x", rate=1e-2, lattice=0, batch=1, size=64, decay=0.9, steps=4)
    photographs = Photographs(shared, TINY, "cpu")

    def trained(file, stop):
        goals = Goals({"tone": 0.1})
        training = Training(fresh(4), stage, tmp_path / file, goals, "cpu")
        made = training.run(partial(lesson, stop, goals), photographs)
        return [*made.parameters(), goals.log, goals.mean]

    whole = trained("whole.state", [""] * 4)
    with pytest.raises(KeyboardInterrupt):
        trained("stopped.state", ["stop", "", ""])
    rest = ["", ""]
    assert all(map(torch.equal, trained("stopped.state", rest), whole)) and not rest
    assert any(not torch.equal(*each) for each in zip(whole, fresh(4).parameters(), strict=False))


def test_a_folder_of_another_training_is_refused(made, shared):
    with pytest.raises(UserError, match=r"the_scream.network.state: of a training with other settings; name another"):
        train("the_scream", made, shared, 0, 2, replace(TINY, filters=5))


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in zoo("style")])
def test_the_shipped_networks_have_the_measures_that_were_kept(shared, name):
    """Here of one photograph of the sixteen; other processors round otherwise."""
    kept = json.loads(style_zoo.RESULTS.read_text())["networks"][name]
    networks = style_zoo.read_networks(zoo("style")[name], name)
    found = style_zoo.measure_networks(networks, style_zoo.held(1))[name]["test_101084"]
    for measure, value in kept["test_101084"].items():
        assert found[measure] == pytest.approx(value, rel=0.5 if measure == "lattice" else 0.02, abs=0.001), measure


def test_the_photographs_that_judge_are_the_kept_ones(shared):
    kept = json.loads(style_zoo.RESULTS.read_text())["networks"]
    names = list(style_zoo.held(style_zoo.HELD))
    for rows in kept.values():
        assert sorted(rows) == sorted(names)
        assert [name for name in names if "flicker" in rows[name]] == names[style_zoo.MOVED]


def test_without_the_photographs_the_command_ends_in_a_line(monkeypatch):
    monkeypatch.delenv("RETABLE_SHARED", raising=False)
    for words in (["judge", "great_wave"], ["train", "great_wave", "--out", "x"]):
        with pytest.raises(SystemExit, match=r"^style_zoo: RETABLE_SHARED names no folder; set it to one with data"):
            style_zoo.main(words)


def test_a_folder_without_the_photographs_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("RETABLE_SHARED", str(tmp_path))
    with pytest.raises(SystemExit, match=r"data/style/bsds500: too few test_\*.jpg"):
        style_zoo.main(["judge", "great_wave", "--photographs", "1"])
    with pytest.raises(UserError, match=r"data/style/bsds500: no train_\*.jpg or val_\*.jpg"):
        Photographs(tmp_path, TINY, "cpu")


def test_a_file_of_no_painting_is_refused(shared):
    file = shared / "weights/style/v2_wave_lengstrom_layout.safetensors"
    with pytest.raises(SystemExit, match="its metadata name none of the paintings great_wave"):
        style_zoo.main(["judge", str(file)])


def test_a_weight_follows_its_goal_and_stays_within_its_bounds():
    goals = Goals({"content": 0.2, "tone": 0.1})
    missed = {"content": torch.tensor(0.4), "tone": torch.tensor(0.05)}
    start = goals(missed, 0.0)
    assert float(start["content"]) == pytest.approx(0.3 * 0.4) and float(start["tone"]) == pytest.approx(0.3 * 0.05)
    for _ in range(60):
        goals(missed, 0.02)
    content, tone = (float(value) for value in goals.log.exp())
    assert 0.3 < content <= 0.3 * np.exp(60 * 0.02) and tone < 0.3
    for _ in range(2000):
        goals(missed, 0.02)
    assert goals.log.exp().tolist() == pytest.approx([PRICES["content"][2], PRICES["tone"][1]])


def test_the_running_mean_is_of_all_until_they_are_many():
    values = torch.rand(6)
    mean = values[0]
    for count, value in enumerate(values[1:], 1):
        mean = running_mean(0.995, mean, value, torch.tensor(count))
    assert float(mean) == pytest.approx(float(values.mean()), rel=1e-5)
    assert float(running_mean(0.98, torch.tensor(1.0), torch.tensor(0.0), torch.tensor(1000))) == pytest.approx(0.98)
    assert float(running_mean(0.0, torch.tensor(1.0), torch.tensor(0.0), torch.tensor(9))) == 0


def test_crops_are_of_the_photographs(shared):
    """A crop in gray is a photograph's range times the gain, which is drawn in [0.7, 1.25]."""
    photographs = Photographs(shared, TINY, "cpu")
    crops = photographs.draw(np.random.default_rng(0), 5, 64)
    assert crops.shape == (5, 3, 64, 64) and 0 <= float(crops.min()) < float(crops.max()) <= 1
    assert torch.equal(crops, photographs.draw(np.random.default_rng(0), 5, 64))
    assert not torch.equal(crops, photographs.draw(np.random.default_rng(1), 5, 64))


def test_a_training_that_diverges_keeps_its_last_finite_state(shared, tmp_path, monkeypatch):
    """The loss is printed every 50 steps alone; a save between two of these must not replace what can be continued."""
    monkeypatch.setattr(style_zoo_train, "SAVED", -1.0)
    stage = Stage(name="x", rate=1e-2, lattice=0, batch=1, size=64, steps=4)

    def diverge(heard, photographs, rng, pace):
        return {"pixels": heard(photographs).made.square().mean() * (float("nan") if training.steps == 2 else 1)}

    training = Training(fresh(4), stage, tmp_path / "x.state", torch.nn.Module(), "cpu")
    with pytest.raises(UserError, match=r"x\.state: the weights after step 3 are not finite"):
        training.run(diverge, Photographs(shared, TINY, "cpu"))
    state = torch.load(tmp_path / "x.state", weights_only=True)
    assert state["at"][0] == 2 and all(value.isfinite().all() for value in state["network"].values())


def test_a_file_says_how_many_pictures_its_network_saw(made):
    """Not how many the recipe asks for: a folder may hold fewer."""
    assert TINY.photographs == 2
    said = json.loads(metadata((made / "the_scream.safetensors").read_bytes())["provenance"])["data_description"]
    assert "1 photographs of BSDS500 (training and validation) and 1 generated" in said
