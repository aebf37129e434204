"""What leaves the platform and what comes in, through the commands a user types."""

import csv
import io
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import h5netcdf
import h5py
import numpy as np
import pytest
import torch
import typer
from matplotlib import pyplot
from safetensors.torch import load

from retable.platform.api import TrainedRun
from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.spec.task import Source, find
from retable.platform.store.storage import Storage
from retable.tasks.weather import cli, metrics
from retable.tasks.weather.config import Config, View
from retable.tasks.weather.export import read_export, write_export
from retable.tasks.weather.model import build
from retable.tasks.weather.tools.forecasts import submission
from retable.tasks.weather.tools.forecasts.exchange import official_forecasts, opened, write_netcdf
from retable.tasks.weather.w4c.convert import transfer
from retable.tasks.weather.w4c.layout import VERSION, Index
from retable.tasks.weather.w4c.prepare import index_folder
from tests.weather.files import Layout
from tests.weather.tools.test_submission import read
from tests.weather.toys import config, make, run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    storage = make(tmp_path_factory.mktemp("weather") / "results")
    return storage, run(storage, config(epochs=1))


def test_a_submission_holds_the_forecasts_of_the_organisers_inputs(trained, tmp_path, capsys):
    storage, folder = trained
    out = tmp_path / "core.zip"
    cli.submit([folder.fingerprint], out, storage.root, "test", 0, 0.45)
    found = {(year, region): forecast for year, region, forecast in read(out)}
    assert sorted(found) == [(y, r) for y in (2019, 2020) for r in ("boxi_0015", "roxi_0004")]
    source = Source.of(storage, "weather/tiny")
    predict = import_module("retable.tasks.weather.predict")  # the package has a function of that name
    for (year, region), forecast in found.items():
        shard = f"test/{year}/{region}"
        steps = predict.predict(config(epochs=1), View(epoch=1), folder.weights(1), source, shard)["probability"]
        assert np.array_equal(forecast, steps >= 90)
    said = capsys.readouterr().out
    assert "2019/boxi_0034" in said and "MB" in said  # the server would refuse two of seven regions


@pytest.mark.parametrize("regions", ["roxi_0004", "boxi_0015", ""])
def test_a_region_that_was_left_out_of_training_is_scored(trained, capsys, regions):
    storage, _ = trained
    folder = run(storage, config(epochs=1, left_out=["roxi_0004"]))
    capsys.readouterr()
    cli.score(folder.fingerprint, storage.root, "test", 0, 0.5, regions, "2019")
    said = dict(line.split() for line in capsys.readouterr().out.splitlines()[1:])
    assert 0 <= float(said["iou/2019"]) <= 1 and "iou/2020" not in said


def test_regions_and_years_that_a_run_was_not_trained_on(trained, tmp_path, capsys, monkeypatch):
    storage, _ = trained
    alone = run(storage, config(epochs=1, regions=["boxi_0015"], years=[2019]))
    monkeypatch.setattr(submission, "TRANSFER", ((2020, "boxi_0015"), (2019, "roxi_0004"), (2020, "roxi_0004")))
    cli.submit([alone.fingerprint], tmp_path / "more.zip", storage.root, "test", 0, 0.5, True)
    found = {(year, region): forecast for year, region, forecast in read(tmp_path / "more.zip")}
    assert sorted(found) == [(2019, "roxi_0004"), (2020, "boxi_0015"), (2020, "roxi_0004")]
    cli.netcdf(alone.fingerprint, tmp_path / "nc", storage.root, "test", 0, "roxi_0004", "2019")
    assert [path.name for path in (tmp_path / "nc").iterdir()] == ["test-2019-roxi_0004.nc"]
    with h5netcdf.File(tmp_path / "nc/test-2019-roxi_0004.nc") as file:
        assert file["x"].attrs["units"] == "1"  # own files do not say how wide their pixels are
    capsys.readouterr()
    cli.score(alone.fingerprint, storage.root, "test", 0, 0.5, "roxi_0004", "2019,2020")
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "data  own files, 12 x 12, 2 regions, 2 years"
    said = dict(line.split() for line in lines)
    source = Source.of(storage, "weather/tiny")
    events = import_module("retable.tasks.weather.predict").events
    rain = events(config(epochs=1), source, "test/2019/roxi_0004")
    hit, either = (found[2019, "roxi_0004"] & (rain == 1)), ((found[2019, "roxi_0004"] & (rain != 2)) | (rain == 1))
    assert float(said["iou/2019"]) == pytest.approx(hit.sum() / either.sum(), abs=1e-4)
    with pytest.raises(UserError, match="no 'roxi_0008' in these data"):
        cli.score(alone.fingerprint, storage.root, regions="roxi_0008", years="")
    with pytest.raises(UserError, match="'20x9' is no year"):
        cli.score(alone.fingerprint, storage.root, regions="", years="20x9")


def test_a_conversion_of_the_data_that_a_run_was_trained_on_is_no_other_set(tmp_path):
    storage = make(tmp_path / "results")
    place = storage / "data/weather"
    transfer(place / "tiny", place / "tiny-parquet", "tiny-parquet")
    Layout(years=(2021,)).write(Path(place.root) / "more")
    index_folder(place / "more", "more", "own")
    name = run(storage, config(epochs=1, train_on="training_and_validation")).fingerprint
    assert opened(name, storage.root, "validation", 0, 0.5, data="more").source.info["name"] == "more"
    with pytest.raises(UserError, match="was trained on the validation set"):
        opened(name, storage.root, "validation", 0, 0.5, data="tiny-parquet")


@pytest.mark.slow
def test_a_data_set_that_a_run_was_not_trained_on(tmp_path, capsys):
    storage = make(tmp_path / "results")
    folder = run(storage, config(epochs=1))
    name = folder.fingerprint
    others = {"more": {"regions": ("far", "off"), "years": (2021,)}, "wide": {"size": 24}, "short": {"forecast": 4}}
    for data, layout in others.items():
        place = storage / f"data/weather/{data}"
        Layout(**layout).write(Path(place.root))
        index_folder(place, data, "own")
    capsys.readouterr()
    cli.score(name, storage.root, "test", 0, "0.45", data="more", regions="", years="")
    first, *lines = capsys.readouterr().out.splitlines()
    said = dict(line.split() for line in lines)
    assert first == "data  own files, 12 x 12, 2 regions, 1 year" and "iou/2019" not in said
    source = Source.of(storage, "weather/more")
    other = config(epochs=1, data="more", regions=["far", "off"], years=[2021])
    predict = import_module("retable.tasks.weather.predict")
    ious = []
    for shard in ("test/2021/far", "test/2021/off"):
        steps = predict.predict(other, View(epoch=1), folder.weights(1), source, shard)["probability"]
        rain = predict.events(other, source, shard)
        hit, either = ((steps >= 90) & (rain == 1)), (((steps >= 90) & (rain != 2)) | (rain == 1))
        ious.append(hit.sum() / either.sum())
    assert float(said["iou/2021"]) == pytest.approx(np.mean(ious), abs=1e-4)
    cli.netcdf(name, tmp_path / "nc", storage.root, "test", 0, "", "", "more")
    assert sorted(p.name for p in (tmp_path / "nc").iterdir()) == ["test-2021-far.nc", "test-2021-off.nc"]
    cli.verify([name], tmp_path / "page", storage.root, regions="off", years="", data="more")
    assert "2021 off" in (tmp_path / "page/scores.csv").read_text()
    refused = {
        "wide": "24 pixels wide, the run's 12",
        "none": "has no dataset.json",
        "short": "its sequences have 4 forecast, the run's 8; import it with --forecast 8",
    }
    everything = run(storage, config(epochs=1, train_on="training_and_validation")).fingerprint
    with pytest.raises(UserError, match="was trained on the validation set"):
        cli.score(everything, storage.root, threshold="tuned")
    cli.score(everything, storage.root, threshold="tuned", data="more", regions="", years="")  # another's validation
    with pytest.raises(UserError, match="'half' is not one of a number, tuned, tuned_per_region, "):
        cli.score(name, storage.root, threshold="half")
    for data, words in refused.items():
        with pytest.raises(UserError, match=words):
            cli.score(name, storage.root, regions="", years="", data=data)


def drawn(draw):
    """Draw a picture once, and write a small one in its place: three files of each take seconds."""
    pyplot.close(draw())
    small = pyplot.figure(figsize=(0.1, 0.1))
    small.savefig(file := io.BytesIO(), format="png")
    pyplot.close(small)
    return {"png": file.getvalue()}


def test_scores_and_forecasts_of_imported_data_say_that_images_are_simulated(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("retable.platform.report.write.pictures", drawn)
    storage = make(tmp_path / "results")
    place, about = storage / "data/weather/tiny", {"product": "OPERA composites", "date": "2018-08-24"}
    index_folder(place, "tiny", "imported", **about, simulated_satellite=True, simulation=VERSION)
    words = "OPERA composites of 2018-08-24 with satellite images simulated from past rain, split by place"
    warning = "The rain is real, the satellite images were simulated from the rain at their time and in the hour before"
    chosen = config(epochs=1)
    folder = run(storage, chosen)
    name = folder.fingerprint
    assert Source.of(storage, "weather/tiny").info["caution"].startswith(warning)
    said = read_export(write_export(TrainedRun(find("weather"), folder, chosen)), "x").about
    assert said["data_description"] == words and said["data_caution"].startswith(warning)
    capsys.readouterr()
    cli.score(name, storage.root, regions="", years="")
    first, second, third, *_ = capsys.readouterr().out.splitlines()
    assert first == f"data  {words}" and second.startswith(warning) and len(third.split()) == 2
    cli.netcdf(name, tmp_path / "nc", storage.root, "test", 0, "", "")
    for path in (tmp_path / "nc").iterdir():
        with h5netcdf.File(path) as file:
            assert file.attrs["data_description"] == words and file.attrs["comment"].startswith(warning)
    cli.verify([name], tmp_path / "page", storage.root, regions="", years="")
    rows = list(csv.DictReader((tmp_path / "page/scores.csv").read_text().splitlines()))
    assert {row["data"] for row in rows} == {words}
    halves = {row["value"] for row in rows if (row["about"], row["where"]) == ("threshold", "0.5")}
    assert halves == {row["value"] for row in rows if (row["about"], row["score"]) == ("all", "IoU")}
    assert sum(float(row["value"]) for row in rows if row["score"] == "share of pixels") == pytest.approx(1)
    page = (tmp_path / "page/index.html").read_text()
    assert words in page and warning in page and (tmp_path / "page/scores.png").exists()


def test_the_challenges_ask_for_14_and_16_files():
    assert len(submission.CORE) == 14 and len(set(submission.TRANSFER)) == 16
    assert not set(submission.CORE) & set(submission.TRANSFER)


def test_several_runs_submit_their_majority_vote(trained, tmp_path):
    storage, folder = trained
    others = [run(storage, config(epochs=1, seed=seed)) for seed in (1, 2)]
    names = [each.fingerprint for each in (folder, *others)]
    votes = [0]
    for name in names:
        cli.submit([name], tmp_path / f"{name}.zip", storage.root, "test", 0, 0.5)
        forecasts = np.stack([forecast for _, _, forecast in read(tmp_path / f"{name}.zip")])
        votes.append(votes[-1] + forecasts.astype(int))
    for count in (2, 3):  # of two, a tie is rain
        cli.submit(names[:count], tmp_path / "deep/vote.zip", storage.root, "test", 0, 0.5, overwrite=True)
        found = np.stack([forecast for _, _, forecast in read(tmp_path / "deep/vote.zip")])
        assert np.array_equal(found, votes[count] >= count / 2) and 0 < found.mean() < 1
    member = opened(names[0], storage.root, "test", 0, 0.5)
    (_, _, alone), (_, _, many) = (next(official_forecasts([member] * count)) for count in (1, 128))
    assert np.array_equal(many, alone) and alone.any()


@pytest.fixture(scope="module")
def epochs(trained):
    """Three epochs of one run."""
    return run(trained[0], config(epochs=3, seed=5), keep=(1, 2)).fingerprint


@pytest.mark.slow
def test_epochs_of_one_run_vote_beside_other_runs(trained, epochs, tmp_path, capsys):
    storage, folder = trained

    def submitted(*runs, epoch=0):
        cli.submit(list(runs), tmp_path / "vote.zip", storage.root, "test", epoch, 0.5, overwrite=True)
        return np.stack([forecast for _, _, forecast in read(tmp_path / "vote.zip")]).astype(int)

    alone = {each: submitted(each) for each in (f"{epochs}@1", f"{epochs}@2", epochs, folder.fingerprint)}
    assert np.array_equal(alone[f"{epochs}@1"], submitted(epochs, epoch=1))
    assert not np.array_equal(alone[f"{epochs}@1"], alone[epochs])
    assert np.array_equal(alone[epochs], submitted(f"{epochs}@3", epoch=1))  # a run that names none has --epoch
    votes = sum(alone[each] for each in (f"{epochs}@1", f"{epochs}@2", folder.fingerprint))
    assert np.array_equal(submitted(f"{epochs[:12]}@1", f"{epochs}@2", folder.fingerprint), votes >= 2)
    cli.verify([f"{epochs}@1", f"{epochs}@2"], tmp_path / "page", storage.root, regions="roxi_0004", years="2019")
    assert all(f"epoch {epoch}" in (tmp_path / "page/index.html").read_text() for epoch in (1, 2))
    [one] = write_netcdf(opened(f"{epochs}@2", storage.root, "test", 0, 0.5, ["roxi_0004"], [2019]), tmp_path / "nc")
    with h5py.File(one) as file:
        assert f"run {epochs}, epoch 2" in str(file.attrs["source"])
    cli.export(f"{epochs}@2", tmp_path / "one.safetensors", 0, "", storage.root)
    capsys.readouterr()


@pytest.mark.parametrize("how", ["tuned", "tuned_per_region_and_lead"])
def test_a_submissions_threshold_is_tuned_on_validation(trained, tmp_path, monkeypatch, how):
    storage, folder = trained
    places = tuple((year, region) for year in (2019, 2020) for region in ("boxi_0015", "roxi_0004"))
    monkeypatch.setattr(submission, "TRANSFER", places[1:])
    cli.submit([folder.fingerprint], tmp_path / "a.zip", storage.root, "test", 0, how, True)
    found = {f"test/{year}/{region}": rain for year, region, rain in read(tmp_path / "a.zip")}
    assert len(found) == len(places) - 1
    predict, source = import_module("retable.tasks.weather.predict"), Source.of(storage, "weather/tiny")
    chosen, view = config(epochs=1), View(epoch=1, threshold=how)
    both = {}
    for split in ("validation", "test"):
        for shard in predict.shards(chosen, replace(view, split=split), source):
            both[shard] = predict.predict(chosen, view, folder.weights(1), source, shard)["probability"]
    summaries = {
        shard: metrics.summarise(steps, predict.events(chosen, source, shard)) for shard, steps in both.items()
    }
    by = metrics.thresholds(view, summaries)
    for shard, rain in found.items():
        leads = np.broadcast_to(by[shard], (8,))
        assert all(np.array_equal(rain[:, k], both[shard][:, k] >= round(200 * leads[k])) for k in range(8))
    if how == "tuned":  # a place without validation has the threshold of all
        validated = {place: histogram for place, histogram in metrics.validated(summaries).items()}
        for each in ("tuned_per_region", "tuned_per_region_and_lead"):
            apart = metrics.thresholds_of(["test/2021/roxi_0008"], replace(view, threshold=each), validated)
            assert np.shape(apart["test/2021/roxi_0008"]) == (() if each == "tuned_per_region" else (8,))
        alone = metrics.thresholds_of(["test/2021/roxi_0008"], replace(view, threshold="tuned_per_region"), validated)
        assert alone["test/2021/roxi_0008"] == by["test/2019/boxi_0015"]
    with pytest.raises(UserError, match="threshold"):
        cli.submit([folder.fingerprint], tmp_path / "b.zip", storage.root, "test", 0, "best")


@pytest.mark.parametrize("name", ["latest@", "latest@0", "latest@last", "@3", "latest@-1"])
def test_what_is_no_epoch_of_a_run_is_one_line(trained, name):
    with pytest.raises(UserError, match=r"write RUN@EPOCH, such as latest@4; epochs count from 1"):
        opened(name, trained[0].root, "test", 0, 0.5)


def test_an_epoch_that_was_not_kept_and_other_lengths_are_refused(trained, epochs, tmp_path):
    storage, folder = trained
    with pytest.raises(UserError, match="epoch 7"):
        cli.submit([f"{epochs}@7"], tmp_path / "a.zip", storage.root, "test", 0, 0.5)
    short = run(storage, config(epochs=1, forecast=4)).fingerprint
    early = run(storage, config(epochs=1, years=[2019])).fingerprint
    for other, field in ((short, "forecast"), (early, "years")):
        with pytest.raises(UserError, match=f"the runs differ in {field}"):
            cli.submit([folder.fingerprint, other], tmp_path / "a.zip", storage.root, "test", 0, 0.5)
    assert not list(tmp_path.iterdir())


def test_check_says_why_a_submission_would_be_refused(trained, tmp_path, capsys):
    storage, folder = trained
    cli.submit([folder.fingerprint], tmp_path / "core.zip", storage.root, "heldout", 0, 0.5)
    capsys.readouterr()
    with pytest.raises(typer.Exit):
        cli.check(str(tmp_path / "core.zip"), storage.root)
    assert "shape" in capsys.readouterr().out
    with pytest.raises(UserError, match="optical_flow moves a retrieval's rain"):
        cli.submit([folder.fingerprint], tmp_path / "b.zip", storage.root, motion="optical_flow")


def test_check_finds_the_sets_of_a_storage_and_names_what_is_broken(trained, tmp_path, capsys):
    storage = make(tmp_path / "results")
    file = tmp_path / "results/data/weather/tiny/2019/HRIT/boxi_0015.train.reflbt0.ns.h5"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(typer.Exit):
        cli.check(None, storage.root)
    assert "boxi_0015.train.reflbt0.ns.h5" in capsys.readouterr().out
    with pytest.raises(UserError, match="retable data make weather"):
        cli.check(None, str(tmp_path / "nowhere"))
    with pytest.raises(typer.Exit):
        cli.check("memory://bucket/data/weather/mine", storage.root)
    assert "timestamps_and_splits.csv is missing" in " ".join(capsys.readouterr().out.split())


def test_weights_of_the_kit_become_a_file_that_a_run_can_start_from(tmp_path, capsys):
    chosen = override(Config(), {"model.filters": 2})
    state = build(chosen, 252, chosen.regions).state_dict()
    foreign = {name.removeprefix("model."): value for name, value in state.items()}
    checkpoint = {"state_dict": {f"model.{name}": value for name, value in foreign.items()}, "epoch": 3}
    torch.save(checkpoint, tmp_path / "a.ckpt")
    cli.weights(tmp_path / "a.ckpt", str(tmp_path / "results"), ["model.filters=2"])
    digest = capsys.readouterr().out.strip().rsplit("=", 1)[1]
    kept = load(Storage.open(tmp_path / "results").read(f"weights/{digest}.safetensors"))
    assert kept.keys() == state.keys() and all(torch.equal(kept[name], state[name]) for name in state)


def test_weights_that_hold_code_or_do_not_fit_are_refused(tmp_path):
    torch.save({"model": torch.nn.Linear(1, 1)}, tmp_path / "code.ckpt")
    with pytest.raises(UserError, match="no file of tensors"):
        cli.weights(tmp_path / "code.ckpt", str(tmp_path / "results"), [])
    torch.save({"reduce_channels.weight": torch.zeros(1)}, tmp_path / "other.ckpt")
    with pytest.raises(UserError, match=r"other\.ckpt: .* is missing; set the fields of `model`"):
        cli.weights(tmp_path / "other.ckpt", str(tmp_path / "results"), ["model.filters=2"])
    torch.save(torch.zeros(3), tmp_path / "tensor.ckpt")
    with pytest.raises(UserError, match="no state dict but a Tensor"):
        cli.weights(tmp_path / "tensor.ckpt", str(tmp_path / "results"), [])
    with pytest.raises(UserError, match="Is a directory"):
        cli.weights(tmp_path, str(tmp_path / "results"), [])
    with pytest.raises(UserError, match="No such file"):
        cli.weights(tmp_path / "none.ckpt", str(tmp_path / "results"), [])


def test_forecast_times_are_those_of_the_last_input(trained):
    storage, _ = trained
    source = Source.of(storage, "weather/tiny")
    index = Index.read(source.folder, source.info)
    for split in ("validation", "test"):
        for windows in index.sequences(split, ("boxi_0015",), (2019,), 4, 8).values():
            times = index.reference_times(windows, 4)
            text = source.folder.read("timestamps_and_splits.csv").decode()
            lines = [line.split(",") for line in text.splitlines()[1:]]
            last = [
                np.datetime64(f"{line[2]}T{line[0][:2]}:{line[0][2:4]}", "m")
                for line, following in pairwise(lines)
                if line[9] == f"{split}_in" and following[9] == f"{split}_target" and line[2].startswith("2019")
            ]
            assert times.tolist() == [moment.tolist() for moment in last]


def test_make_refuses_what_it_cannot_make(tmp_path):
    with pytest.raises(UserError, match="--size 40"):
        cli.make(40, str(tmp_path), None, 0)
    with pytest.raises(UserError, match="--name"):
        cli.make(24, str(tmp_path), None, 3)
    for name, seed in (("generated-36", 0), ("generated-24", 3)):
        with pytest.raises(UserError, match=f"--name {name}: tables read other data under such a name"):
            cli.make(24, str(tmp_path), name, seed)


def test_make_never_touches_other_data(tmp_path):
    storage = make(tmp_path / "results")
    storage.write_json("data/weather/tiny/dataset.json", {"source": "own"})
    before = sorted((tmp_path / "results/data").rglob("*"))
    with pytest.raises(UserError, match="holds other data"):
        cli.make(24, storage.root, "tiny", 0, replace=True)
    assert sorted((tmp_path / "results/data").rglob("*")) == before
