"""Files that are not what they were: one line that names the file, or handled; never another exception."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from retable.platform import api
from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.execute.datasets import DatasetCache
from retable.platform.execute.scoring import predict_and_score, summaries, weights_digest
from retable.platform.execute.session import ray_cluster
from retable.platform.plan import gc
from retable.platform.report.render import remarks
from retable.platform.report.results import fill as fill_table
from retable.platform.report.write import fill_and_keep, kept_tables
from retable.platform.spec.task import Source, find
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from retable.platform.train.loop import train
from retable.platform.train.worker import Worker
from tests.platform.halves import fit

LINE = find("line")
CONFIG = override(LINE.config(), {"epochs": 3})


class Stop(Exception):
    """An interruption."""


def train_until(storage, steps=None):
    """Train with the bare loop, and stop after so many reports."""
    folder = RunFolder.of(storage, LINE, CONFIG)
    source = Source.of(storage, "line/points")
    left = [steps]

    def report(row):
        if left[0] is not None:
            left[0] -= 1
            if left[0] == 0:
                raise Stop

    data = LINE.dataset.open({name: np.linspace(-1, 1, 64, dtype=np.float32) for name in "xy"}, source, [CONFIG])
    train(
        LINE, [CONFIG], data, [folder], source.info["digest"], Worker(report=report), [(3,)], checkpoint_every=100
    )  # and after each epoch
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A storage with a run that was trained and scored."""
    storage = Storage.open(tmp_path_factory.mktemp("finished"))
    folder = RunFolder.of(storage, LINE, CONFIG)
    folder.begin(CONFIG, LINE.version, {})
    fit(storage, CONFIG, folder, (3,), LINE)
    assert predict_and_score(LINE, CONFIG, override(LINE.view(), {"epoch": 3}), folder) is None
    return storage


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A storage with a run that was interrupted after two of three epochs."""
    storage = Storage.open(tmp_path_factory.mktemp("stopped"))
    LINE.dataset.prepare(CONFIG, storage)
    with pytest.raises(Stop):
        train_until(storage, 2)
    return storage


def copied(storage, target):
    shutil.copytree(storage.root, target / "copy")
    return Storage.open(target / "copy")


def other(value):
    """Return a value of another type."""
    return "x" if isinstance(value, (int, float, list, dict)) else 7


def wrong_inside(found):
    """Return an object whose entries are of the right types, and what is in them is not."""
    return {
        key: {k: other(v) for k, v in value.items()} if isinstance(value, dict) else value
        for key, value in found.items()
    }


def whole(data):
    """Return the object, or the last line's object, of a file; an empty one where it is neither."""
    try:
        return json.loads(data.splitlines()[-1] if data.count(b'"epoch"') > 1 else data)
    except ValueError:
        return {}


CONTENTS = {
    "missing": lambda data: None,
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "all but the end": lambda data: data[:-3],
    "list": lambda data: b"[1, 2]",
    "string": lambda data: b'"result"',
    "number": lambda data: b"3",
    "null": lambda data: b"null",
    "empty object": lambda data: b"{}",
    "binary": lambda data: bytes(range(256)) * 4,
    "not text": lambda data: b"\xff\xfe\x00{",
    "deep": lambda data: b"[" * 100_000,
    "wrong types": lambda data: json.dumps({key: other(value) for key, value in whole(data).items()}).encode(),
    "wrong inside": lambda data: json.dumps(wrong_inside(whole(data))).encode(),
    "nulls": lambda data: json.dumps(dict.fromkeys(whole(data))).encode(),
    "one entry less": lambda data: json.dumps(dict(list(whole(data).items())[1:])).encode(),
}
TWINS = ("string", "number", "null", "not text", "half")
"""Those that another one is like: a list, an empty object, what is binary, all but the end."""
EACH = [pytest.param(content, marks=[pytest.mark.slow] * (content in TWINS)) for content in CONTENTS]
SMALL = ("result.json", "config.json", "provenance.json", "metrics.jsonl", "scores.json")
NAMES = (*SMALL, "summary.npz", "epoch-0003.safetensors")


def look(storage):
    """Do what `retable plan`, `score`, `report` and a notebook do with a finished run."""
    fingerprint = RunFolder.of(storage, LINE, CONFIG).fingerprint

    def plan():
        return list(api.plan("line/table1", storage=storage.root).corrupt.values())

    def fill():
        work = api.plan("line/table1", "line/figure1", storage=storage.root)
        return [line for name in work.tables for line in fill_table(work, name).corrupt]

    def load():
        run = api.load(fingerprint, storage.root)
        assert run.metrics and run.weights() and run.history is not None
        assert run.score()

    def predictions():
        view, folder = override(LINE.view(), {"epoch": 3}), RunFolder.of(storage, LINE, CONFIG)
        if weights_digest(folder, view):
            summaries(LINE, CONFIG, view, folder)

    return {"plan": plan, "fill": fill, "load": load, "predictions": predictions}


def attempt(call):
    """Call; return the line of its UserError, the first of those that it returns, or None where all went well."""
    try:
        lines = call()
    except UserError as error:
        assert "\n" not in str(error), str(error)
        return str(error)
    return lines[0] if isinstance(lines, list) and lines else None


@pytest.mark.parametrize("content", EACH)
@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_file_of_a_finished_run_is_named_or_handled(finished, tmp_path, name, content):
    storage = copied(finished, tmp_path)
    (file,) = Path(storage.root, "runs").rglob(name)
    data = CONTENTS[content](file.read_bytes())
    file.unlink() if data is None else file.write_bytes(data)
    said = {place: attempt(call) for place, call in look(storage).items()}
    unfinished = "is not finished"
    assert all(line is None or name in line or unfinished in line for line in said.values()), said
    damaged = content not in ("missing", "wrong inside", "one entry less") and name in ("result.json", "scores.json")
    assert not damaged or (said["fill"] and ("remove" in said["fill"])), said
    if name == "config.json" and content != "one entry less":
        assert said["load"] and "remove" in said["load"] and said["fill"] is None


def damage(file, content):
    data = CONTENTS[content](file.read_bytes())
    file.unlink() if data is None else file.write_bytes(data)


@pytest.mark.parametrize("name", [name for name in SMALL if name != "config.json"])
def test_a_table_is_filled_without_a_damaged_run_which_is_named(tmp_path, name, monkeypatch):
    """Whatever else is asked of the storage works too: another run, what nothing names, a bundle of the rest."""
    storage = Storage.open(tmp_path / "storage")
    configs = [override(LINE.config(), {"epochs": 3, "rate": rate, "seed": 0}) for rate in (0.1, 0.001)]
    for config in configs:
        folder = RunFolder.of(storage, LINE, config)
        folder.begin(config, LINE.version, {})
        fit(storage, config, folder, (1, 3), LINE)
        for epoch in (1, 3):
            assert predict_and_score(LINE, config, override(LINE.view(), {"epoch": epoch}), folder) is None
    damaged = RunFolder.of(storage, LINE, configs[0])
    for file in Path(damaged.folder.root).rglob(name):
        file.write_text("{")
    asked = {"scale": "quick", "set": {"seed": [0]}, "storage": storage}
    work = api.plan("line/table1", **asked)
    part = fill_table(work, "line/table1")
    assert {row.label: len(row.replicates) for row in part.rows}["slow"] == 1
    (line,) = part.corrupt
    assert f"{damaged.path}/" in line and name in line and "remove" in line
    assert f"Corrupt, and in no number: {line}." in remarks(part)
    assert name == "provenance.json" or not part.cell("fast", "RMSE").measured
    assert not work.missing or {each.status for each in work.missing} == {"new"}
    packed = attempt(lambda: api.pack("line/table1", out=tmp_path / "b", scale="quick", storage=storage).corrupt)
    assert packed.startswith(line.partition(": ")[0])  # of a log or a provenance it is what stops it
    monkeypatch.setattr(gc.tasks, "names", lambda: ["line"])  # not the papers' tables
    assert gc.find_unreferenced(storage)[0] == []
    fill_and_keep(work)
    (kept,) = kept_tables(storage)
    assert kept.corrupt == (line,) and not api.complete("line/table1", **asked), "it is filled again"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    storage = Storage.open(tmp_path_factory.mktemp("uninterrupted"))
    LINE.dataset.prepare(CONFIG, storage)
    train_until(storage)
    return outcome(storage)


@pytest.mark.parametrize("content", EACH)
@pytest.mark.parametrize("name", ["manifest.json", "state.pt", "model.safetensors"])
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(stopped, uninterrupted, tmp_path, name, content):
    storage = copied(stopped, tmp_path)
    _, newest = sorted(Path(storage.root, "runs").rglob(name))
    damage(newest, content)
    train_until(storage)
    assert outcome(storage) == uninterrupted


@pytest.mark.parametrize("content", EACH)
@pytest.mark.parametrize("name", ["metrics.jsonl", "manifest.json", "state.pt", "model.safetensors"])
def test_a_run_that_goes_on_names_or_handles_damaged_files(stopped, tmp_path, name, content):
    storage = copied(stopped, tmp_path)
    for file in sorted(Path(storage.root, "runs").rglob(name)):
        damage(file, content)
    said = attempt(lambda: train_until(storage))
    assert said is None or (name in said and "remove" in said), said
    assert (said is None) == (RunFolder.of(storage, LINE, CONFIG).result() is not None)
    if name == "metrics.jsonl" and content in ("missing", "empty", "all but the end"):
        assert said is None  # what the log lacks is trained again


def outcome(storage):
    """Everything a run ends with, apart from the time it took."""
    folder = RunFolder.of(storage, LINE, CONFIG)
    log = [{key: value for key, value in row.items() if key not in ("seconds", "time")} for row in folder.history()]
    return log, folder.result()["weights"], {key: folder.weights(3)[key].tolist() for key in folder.weights(3)}


def test_a_half_written_line_behind_the_checkpoint_costs_nothing(stopped, tmp_path):
    plain = Storage.open(tmp_path / "plain")
    LINE.dataset.prepare(CONFIG, plain)
    train_until(plain)
    storage = copied(stopped, tmp_path)
    folder = RunFolder.of(storage, LINE, CONFIG)
    with open(f"{folder.folder.root}/metrics.jsonl", "a") as file:
        file.write('{"epoch": 3, "step": 2')
    assert [row["epoch"] for row in folder.history()] == [1, 2]
    assert api.plan("line/table1", storage=storage.root).missing
    train_until(storage)
    assert outcome(storage) == outcome(plain)


@pytest.mark.parametrize(
    "place", ["runs", "runs/line", "runs/line/{run}", "runs/line/{run}/weights", "runs/line/{run}/views"]
)
def test_stray_files_are_passed_over(finished, tmp_path, place):
    storage = copied(finished, tmp_path)
    run = RunFolder.of(storage, LINE, CONFIG).fingerprint
    folder = Path(storage.root, place.format(run=run))
    (folder / ".DS_Store").write_bytes(bytes(range(256)))
    (folder / f"{run}.txt").write_text("notes")
    (folder / "checkpoint-00000001").write_text("notes")
    (folder / ".ipynb_checkpoints").mkdir()
    assert {name: attempt(call) for name, call in look(storage).items()} == dict.fromkeys(look(storage))
    assert api.load(run[:6], storage.root).fingerprint == run


def overwrite(file, size=400):
    """Overwrite bytes in the middle of a file with others."""
    data = bytearray(file.read_bytes())
    middle = len(data) // 2 - size // 2
    data[middle : middle + size] = np.random.default_rng(0).bytes(size)
    file.write_bytes(data)


@pytest.mark.slow
def test_nothing_trains_on_damaged_data_and_finished_results_stay(finished, tmp_path):
    storage = copied(finished, tmp_path)
    overwrite(Path(storage.root, "data/line/points/points.parquet"))
    with (
        ray_cluster(),
        pytest.raises(UserError, match=r"points\.parquet: missing or damaged; remove .*/points and run") as said,
    ):
        DatasetCache(storage).fetch({"line/points": (LINE, LINE.config())})
    assert "\n" not in str(said.value)
    assert {name: attempt(call) for name, call in look(storage).items()} == dict.fromkeys(look(storage))
