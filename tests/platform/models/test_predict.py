"""Batches of files without a server: each answer is the model's own, what is there stays, a failure is one line."""

import io
import os
import sys

import h5netcdf
import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from retable.platform.cli import app
from retable.platform.errors import UserError
from retable.platform.execute.session import ray_cluster
from retable.platform.models import predict as batch
from retable.platform.models import zoo
from retable.platform.store.storage import Storage
from retable.tasks.audio import answer as audio
from retable.tasks.audio.export import read_export as read_audio
from retable.tasks.rl import answer as rl
from retable.tasks.rl.export import read_export
from retable.tasks.style import answer as style
from retable.tasks.style.export import read_export as read_style
from retable.tasks.style.files import assets, images
from retable.tasks.style.tools.pictures.batches import nothing
from retable.tasks.weather import answer as weather
from retable.tasks.weather.export import read_export as read_weather
from tests.serve import toys


def observations(path, rows, seed=0):
    np.save(path, np.random.default_rng(seed).normal(size=(rows, 4)))
    return np.load(path).astype(np.float32)


@pytest.fixture
def cluster():
    with ray_cluster():
        yield


@pytest.mark.slow
def test_files_are_answered_once_and_again_when_they_change(cluster, tmp_path, monkeypatch, capsys):
    (tmp_path / "policy.rtsn").write_bytes(toys.policy_file(0))
    given = {name: observations(tmp_path / f"{name}.npy", rows) for name, rows in (("short", 3), ("long", 300))}
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY")
    words = ["predict", "rl", str(tmp_path), "--out", str(tmp_path / "out"), "--model", str(tmp_path / "policy.rtsn")]

    def call(*more):
        monkeypatch.setattr(sys, "argv", ["retable", *words, *more, "--storage", str(tmp_path / "results")])
        with pytest.raises(SystemExit) as ended:
            app.main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out + said.err

    status, said = call()
    assert status == 1 and "2 new answers, 1 failed" in said.replace("\n", "")
    assert f"failed: {tmp_path}/broken.npy: no array of NumPy's" in said.replace("\n", "")
    policy = toys.policy(0)
    for name, rows in given.items():
        parts = np.split(rows, range(256, len(rows), 256))
        noise = [policy.noise(len(part), 100, block) for block, part in enumerate(parts)]
        wanted = [policy.act(torch.from_numpy(part), drawn).numpy() for part, drawn in zip(parts, noise, strict=True)]
        found = np.load(tmp_path / "out" / f"{name}.npy")
        assert found.dtype == np.float32 and np.abs(found - np.concatenate(wanted)).max() <= 1e-6
    (tmp_path / "broken.npy").unlink()
    before = (tmp_path / "out" / "long.npy").stat().st_mtime_ns
    observations(tmp_path / "short.npy", 5, seed=1)
    assert call() == (0, f"rl: answering\n{tmp_path}/out: 1 new answers\n")
    assert len(np.load(tmp_path / "out" / "short.npy")) == 5
    assert (tmp_path / "out" / "long.npy").stat().st_mtime_ns == before
    status, said = call("--set", "seed=1")
    assert status == 2 and "answers of another model or with other options" in said.replace("\n", " ")


def test_what_is_done_and_what_cannot_be(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    for name in ("a.npy", "b.npy", "out/b.npy"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.npy").write_bytes(b"x")
    os.utime(tmp_path / "b.npy", (1, 1))
    sources = [tmp_path / "a.npy", tmp_path / "b.npy", tmp_path / "other/a.npy", tmp_path / "none.npy", out / "b.npy"]
    jobs, _, failures = batch.plan(
        sources, lambda source: out / rl.target(source, rl.Options()), batch.is_newer, "answer"
    )
    assert jobs == [batch.Job(tmp_path / "a.npy", out / "a.npy")]
    assert [line.partition(": ")[2][:20] for line in failures] == [
        "its answer would tak", "no such file", "its answer would tak"
    ]  # fmt: skip


def test_a_file_whose_name_is_no_text_is_a_line_and_the_others_are_answered(tmp_path, monkeypatch):
    (tmp_path / "policy.rtsn").write_bytes(toys.policy_file(0))
    for name in (b"good.npy", b"bad\xff.npy"):
        observations(tmp_path / os.fsdecode(name), 3)
    shared = []

    def answered(jobs, *_, in_order):
        shared.extend(job.source.name for job in jobs)
        return [{"failure": "", "note": "odd"} for _ in jobs]

    monkeypatch.setattr(batch, "over_actors", answered)
    inputs, storage = [str(tmp_path)], Storage.open(tmp_path / "results")
    count, failures, notes = batch.predict(
        "rl", inputs, tmp_path / "out", str(tmp_path / "policy.rtsn"), {}, storage, lambda *_: None
    )
    assert (count, shared, notes) == (1, ["good.npy"], ["odd"])
    assert failures == [f"{tmp_path}/bad\N{REPLACEMENT CHARACTER}.npy: its path is no valid UTF-8; rename it"]


def test_the_model_is_a_file_a_name_of_the_zoo_or_a_run(tmp_path):
    storage = Storage.open(tmp_path)
    shipped = zoo.read("style", "great_wave")
    assert batch.find_model("style", "great_wave", storage) == (shipped, "great_wave")
    (tmp_path / "mine.safetensors").write_bytes(b"mine")
    assert batch.find_model("style", str(tmp_path / "mine.safetensors"), storage)[0] == b"mine"
    for name, wanted in (
        ("great_wafe", "not in the zoo; did you mean 'great_wave'"),
        ("abc", "no run begins with 'abc'"),
        ("latest", "no run"),
        ("style/figure1/a row", "has no table style/figure1"),
        ("style/missing.safetensors", "not in the zoo"),
    ):
        with pytest.raises(UserError, match=wanted):
            batch.find_model("style", name, storage)
    with pytest.raises(UserError, match="--model: name one of HalfCheetah-dense, HalfCheetah-grasp-95"):
        batch.find_model("rl", "", storage)
    with pytest.raises(UserError, match="the task line has no module `answer`"):
        batch.predict("line", ["x"], tmp_path / "out", "", {}, storage, lambda done, total: None)


def test_the_help_names_the_options_of_each_task():
    told = app.predict.__doc__.partition("Options by --set: ")[2].partition(".")[0]
    answers = {"rl": rl, "style": style, "audio": audio, "weather": weather}
    named = {task: ", ".join(module.Options.__dataclass_fields__) for task, module in answers.items()}
    assert told == "; ".join(f"{task}: {names}" for task, names in named.items() if names)


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (np.zeros((2, 5)), r"an array \(2, 5\); wanted are numbers of shape \(n, 4\)"),
        (np.full((2, 4), np.nan), "not finite"),
        (np.array([["a"] * 4]), "wanted are numbers"),
    ],
)
def test_observations_of_another_kind_are_refused(tmp_path, made, wanted):
    np.save(tmp_path / "x.npy", made)
    with pytest.raises(UserError, match=wanted):
        rl.answer(read_export(toys.policy_file(0), "toy"), rl.Options(), tmp_path / "x.npy")


def test_photographs_become_what_the_command_paints(tmp_path):
    model = read_style(zoo.zoo("style")["great_wave"].read_bytes(), "great_wave")
    pixels = images.fit(images.read(assets.paintings()["great_wave"]).pixels, 80)
    images.write(tmp_path / "small.png", pixels)
    made = style.answering(model, style.Options(size=48, strength=0.5))(tmp_path / "small.png")
    resized = images.fit(pixels, 48)
    wanted = images.mix(model.style()([resized], nothing)[0].pixels, resized, 0.5)
    assert (
        np.array_equal(images.read(made).pixels, wanted)
        and style.target(tmp_path / "a.gif", style.Options()) == "a.png"
    )
    with pytest.raises(ValueError, match="strength outside"):
        style.Options(strength=2)


def test_what_is_odd_about_a_picture_is_told_as_the_command_does(tmp_path):
    storage = Storage.open(tmp_path)
    digest = batch.export.keep("style", zoo.read("style", "great_wave"), storage)
    frames = [Image.new("RGB", (48, 40), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "two.gif", save_all=True, append_images=frames[1:])
    frames[0].save(tmp_path / "one.png")
    answerer = batch._Answerer("style", digest, style.Options(), storage)
    block = {"source": [f"{tmp_path}/{name}" for name in ("two.gif", "one.png", "none.png")]}
    told = answerer(pa.table(block | {"target": [f"{tmp_path}/out/{each}.png" for each in "abc"]})).to_pydict()
    assert told["note"] == [f"{tmp_path}/two.gif: holds several pictures; the first is stylised", "", ""]
    assert told["failure"][:2] == ["", ""] and "none.png" in told["failure"][2]


def test_forecasts_of_one_sequence_and_of_several_after_each_other(tmp_path):
    (file,) = zoo.zoo("weather").values()
    model = read_weather(file.read_bytes(), "weather")
    shape = (model.config.inputs, 11, model.size, model.size)
    frames = np.random.default_rng(0).normal(250, 20, (2, *shape)).astype(np.float32)
    region = model.config.regions[0]
    np.savez(tmp_path / f"{region}.one.npz", images=frames[0])
    np.savez(tmp_path / "two.npz", images=frames.reshape(-1, *shape[1:]))
    wanted = model.steps(frames, region)
    one = np.load(io.BytesIO(weather.answering(model, weather.Options())(tmp_path / f"{region}.one.npz")))
    two = np.load(io.BytesIO(weather.answering(model, weather.Options(region=region))(tmp_path / "two.npz")))
    assert np.abs(two["probability"].astype(int) - wanted).max() <= 1 and two["minutes"][0] == 15
    assert np.abs(one["probability"].astype(int) - wanted[:1]).max() <= 1
    options = weather.Options(region=region, format="netcdf")
    with h5netcdf.File(io.BytesIO(weather.answering(model, options)(tmp_path / "two.npz"))) as file:
        stored = file["probability"]
        assert np.array_equal(stored[:].astype(int) + 100, two["probability"]) and stored.attrs["add_offset"] == 0.5
    assert weather.target(tmp_path / "two.npz", options) == "two.nc"
    unseen = np.load(io.BytesIO(weather.answer(model, weather.Options(), tmp_path / "two.npz")))
    assert np.array_equal(unseen["probability"], two["probability"])


def test_recordings_become_their_segments_vectors(tmp_path):
    import soundfile

    (file,) = [path for path in zoo.zoo("audio").values() if path.suffix == ".safetensors"]
    model = read_audio(file.read_bytes(), "audio")
    sound = np.random.default_rng(0).normal(0, 0.1, 32000 * 2).astype(np.float32)
    soundfile.write(tmp_path / "noise.wav", sound, 32000, subtype="FLOAT")
    found = np.load(io.BytesIO(audio.answering(model, audio.Options())(tmp_path / "noise.wav")))
    length = round(model.config.segment * 32000)
    pieces = [sound[start : start + length] for start in range(0, len(sound), length)]
    wanted = model.embedder().sounds([piece for piece in pieces if len(piece) >= 3200])
    assert found["vectors"].shape == wanted.shape and np.abs(found["vectors"] - wanted).max() < 1e-5
    assert found["offsets"][0] == 0
