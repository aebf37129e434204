"""Data sets on a bucket that refuses for a while: every task waits, and reads what is there."""

import dataclasses
import io
from collections import Counter, OrderedDict
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import fs

from retable.platform.errors import Unreachable
from retable.platform.spec.task import Source, find
from retable.platform.store import patience
from retable.platform.store.storage import Storage
from retable.tasks.weather.w4c import frames
from retable.tasks.weather.w4c.convert import transfer
from tests.tiny import DATA, UNET, tiny

REFUSALS = (
    "When reading information for key 'a': AWS Error UNKNOWN (HTTP status 503) during HeadObject operation: no body",
    "When reading key 'a': AWS Error ACCESS_DENIED during GetObject operation: Access Denied",
)


class Asking(io.BytesIO):
    """An open file that asks before each reading."""

    def read(self, size=-1):
        self.ask()
        return super().read(size)


class Refusing(fs.FSSpecHandler):
    """The files of this machine, behind a bucket that refuses the first requests for each thing that it is asked."""

    def __init__(self, times, ending=""):
        super().__init__(fsspec.filesystem("file"))
        self.times, self.ending, self.asked = times, ending, Counter()

    def ask(self, what, path):
        if path.endswith(self.ending):
            self.asked[what, path] += 1
            if self.asked[what, path] <= self.times:
                raise OSError(REFUSALS[self.asked.total() % 2])

    def get_file_info(self, paths):
        for path in paths:
            self.ask("information", path)
        return super().get_file_info(paths)

    def get_file_info_selector(self, selector):
        self.ask("list", selector.base_dir)
        return super().get_file_info_selector(selector)

    def open_input_stream(self, path):
        self.ask("read", path)
        return super().open_input_stream(path)

    def open_input_file(self, path):
        self.ask("open", path)
        file = Asking(Path(path).read_bytes())
        file.ask = lambda: self.ask("read", path)
        return pa.PythonFile(file, mode="r")


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(patience.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(frames, "_opened", OrderedDict())


@pytest.fixture(scope="module", params=["line", "rl", "weather", "style", "audio"])
def made(request, tmp_path_factory):
    name, storage = request.param, Storage.open(tmp_path_factory.mktemp(request.param))
    DATA[name](storage)
    config = tiny(name, UNET if name == "weather" else {})
    if name == "weather":
        transfer(storage / "data/weather/tiny", storage / "data/weather/parquet", "parquet")
        config = tiny(name, {**UNET, "data": "parquet"})
    if name == "rl":  # entries that a toy is without
        where = "data/rl/InvertedPendulum/tiny/dataset.json"
        more = {"generated": False, "files": {}, "versions": {}}
        storage.write_json(where, {**more, **storage.read_json(where)})
    return name, storage, config


def read(name, storage, config, monkeypatch):
    """Return a data set's arrays as they are read into memory, and a first epoch, streamed where it can be."""
    dataset = find(name).dataset
    source = Source.of(storage, dataset.where(config))
    arrays = dict(dataset.read(source.folder))
    data = dataset.open(None if dataset.streams else arrays, source, [config])
    return arrays, [in_arrays(batch) for batch in data.batches(0, 0, 0, 1)]


def in_arrays(value):
    """Return a batch as containers of arrays, numbers and texts."""
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if dataclasses.is_dataclass(value):
        value = vars(value)
    if isinstance(value, dict):
        return {name: in_arrays(each) for name, each in value.items()}
    return [in_arrays(each) for each in value] if isinstance(value, (list, tuple)) else value


def test_a_data_set_is_read_once_its_bucket_grants_it_again(made, monkeypatch):
    name, storage, config = made
    expected, batches = read(name, storage, config, monkeypatch)
    handler = Refusing(1)
    got, others = read(name, Storage(fs.PyFileSystem(handler), storage.root), config, monkeypatch)
    np.testing.assert_equal([got, others], [expected, batches])
    assert any(what == "open" and path.endswith(".parquet") for what, path in handler.asked), "Parquet was read"


def test_beyond_the_bound_it_is_one_line_that_another_try_may_mend(made, monkeypatch):
    name, storage, config = made
    monkeypatch.setenv(patience.PATIENCE, "0")
    away = Storage(fs.PyFileSystem(Refusing(1 << 30, ".parquet")), storage.root)
    with pytest.raises(Unreachable, match=r"\.parquet: .*(HTTP status 503|ACCESS_DENIED)") as caught:
        read(name, away, config, monkeypatch)
    assert "\n" not in str(caught.value)
