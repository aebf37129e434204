"""Streams: the caller's order and the very arrays, whatever runs beside them."""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from retable.platform.errors import Unreachable, UserError, one_line
from retable.platform.execute import streams as streaming
from retable.platform.execute.session import ray_cluster
from retable.platform.execute.streams import decode, encode, limit, map_over, pieces_together, stream
from retable.platform.execute.trials import Launch, open_data
from retable.platform.spec.resources import Resources

ARRAYS = {
    "plain": np.arange(6, dtype=np.int32).reshape(2, 3),
    "scalar": np.array(2.5),
    "empty": np.zeros((0, 4), np.float16),
    "none": np.zeros((3, 0, 2), np.uint8),
    "half": np.arange(4, dtype=np.float16),
    "true": np.array([[True], [False]]),
    "turned": np.arange(6.0).reshape(2, 3).T,
    "part": np.arange(20, dtype=np.uint16)[3:17:2],
    "big": np.arange(3, dtype=">i8"),
    "complex": np.array([1 + 2j]),
    "time": np.array(["2020-01-01"], dtype="datetime64[s]"),
    "text": np.array(["æ", "bc"]),
}


def same(got, wanted):
    assert list(got) == list(wanted)
    for name, array in wanted.items():
        assert got[name].dtype == array.dtype and got[name].shape == array.shape, name
        np.testing.assert_array_equal(got[name], array)


def numbered(count):
    return [{"number": number, "text": "æ", "list": [1, [2.5, None]]} for number in range(count)]


def test_arrays_of_any_kind_come_back_as_they_were():
    for arrays in (ARRAYS, {}, {"one": np.zeros(1)}):
        same(decode(encode(7, arrays)), arrays)
    table = encode(7, ARRAYS)
    assert table["number"].to_pylist() == [7] and table.num_rows == 1
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    same(decode(pa.ipc.open_stream(sink.getvalue()).read_all()), ARRAYS)


def test_without_ray_the_pieces_are_fetched_here_as_they_are_asked_for():
    seen = []

    def fetch(piece):
        seen.append(piece["number"])
        return {"number": np.array(piece["number"])}

    found = stream(numbered(5), fetch)
    assert seen == [] and [int(next(found)["number"]) for _ in range(3)] == [0, 1, 2] and seen == [0, 1, 2]
    assert list(stream([], fetch)) == []


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster():
        yield


SHAPES = [(2, 5), *(pytest.param(*shape, marks=pytest.mark.slow) for shape in ((1, 1), (2, 1), (1, 100)))]


@pytest.mark.parametrize(("tasks", "together"), SHAPES)
def test_with_ray_the_order_and_the_arrays_are_those_of_map(cluster, monkeypatch, tasks, together):
    monkeypatch.setattr(streaming, "TASKS", tasks)
    monkeypatch.setattr(streaming, "TASK_BYTES", together)  # of pieces of one byte

    def fetch(piece):
        number = piece["number"]
        time.sleep(float(np.random.default_rng(number).uniform(0, 0.05)))
        assert piece["text"] == "æ" and piece["list"] == [1, [2.5, None]]
        return {"number": np.array(number), "rows": np.full((number % 4, 3), number, np.float16)}

    pieces = numbered(12)
    for got, wanted in zip(stream(pieces, fetch, 1), map(fetch, pieces), strict=True):
        same(got, wanted)
    assert list(stream([], fetch)) == []


def test_a_task_fetches_as_many_pieces_as_fill_16_mb_or_a_quarter_of_the_limit():
    mb = 1 << 20
    found = [pieces_together(*each) for each in ((0, None), (mb, None), (mb, 8 * mb), (mb, 100 * mb), (20 * mb, None))]
    assert found == [1, 16, 2, 16, 1]


def test_what_a_stream_may_read_ahead_is_an_option_of_the_launch(monkeypatch):
    told = []
    monkeypatch.setattr(streaming, "limit", told.append)
    task = SimpleNamespace(dataset=SimpleNamespace(where=lambda config: "place", open=lambda *_: "data"))
    for wanted in (Resources(), Resources(read_ahead=0.5)):
        assert open_data(task, [None], None, Launch(None, wanted, {})) == "data"
    assert told == [0.5]
    with pytest.raises(UserError, match="read_ahead=-1"):
        Resources(read_ahead=-1)


class Adder:
    """What an actor of `map_over` holds."""

    def __init__(self, sum, slow):
        self.sum, self.slow = sum, slow

    def __call__(self, share):
        numbers = share["number"].to_pylist()
        time.sleep(0.3 if self.slow in numbers else 0.0)
        return pa.table({"number": numbers, "sum": [number + self.sum for number in numbers]})


@pytest.mark.parametrize("in_order", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_shares_go_to_actors_and_their_rows_come_back(cluster, in_order):
    shares = [pa.table({"number": list(range(start, start + 3))}) for start in range(0, 12, 3)]
    found = list(map_over(shares, Adder, 100, 0, in_order=in_order))
    wanted = [{"number": number, "sum": number + 100} for number in range(12)]
    assert (found if in_order else sorted(found, key=lambda row: row["number"])) == wanted
    assert list(map_over([], Adder, 100, 0, in_order=in_order)) == []


def test_a_stream_runs_where_every_cpu_is_taken(cluster):
    import ray

    def all_arrays(piece):
        return ARRAYS

    def read(pieces, fetch):
        return list(stream(pieces, fetch))

    remote = ray.remote(num_cpus=ray.cluster_resources()["CPU"])(read)
    found = ray.get(remote.remote(numbered(3), all_arrays), timeout=300)
    assert len(found) == 3
    for got in found:
        same(got, ARRAYS)


def test_a_stream_that_is_left_early_leaves_nothing_behind(cluster, tmp_path):
    folder = str(tmp_path)

    def fetch(piece):
        with open(f"{folder}/{piece['number']}", "w"):
            pass
        time.sleep(0.05)
        return {"block": np.zeros(1 << 20, np.uint8)}

    def executors():
        return [thread for thread in threading.enumerate() if "StreamingExecutor" in thread.name]

    before = len(executors())
    found = stream(numbered(500), fetch)
    assert len(next(found)["block"]) == 1 << 20
    found.close()
    end = time.monotonic() + 20
    while len(executors()) > before and time.monotonic() < end:
        time.sleep(0.1)
    assert len(executors()) == before
    fetched = -1
    while fetched != len(list(tmp_path.iterdir())):  # what was in flight ends
        fetched = len(list(tmp_path.iterdir()))
        time.sleep(0.5)
    assert fetched < 500


@pytest.mark.slow
@pytest.mark.parametrize(("ahead", "least", "most"), [(12, 8, 16), (0, 40, 80)])
def test_no_more_is_read_ahead_than_asked_for(cluster, tmp_path, ahead, least, most):
    folder, size = str(tmp_path), 1 << 20

    def fetch(piece):
        with open(f"{folder}/{piece['number']}", "w"):
            pass
        return {"block": np.full(size, piece["number"], np.uint8)}

    pieces = numbered(80)
    limit(ahead * size / 1e9)
    try:
        found = stream(pieces, fetch)
        first = [next(found)]
    finally:
        limit(0)
    seen, since = 0, time.monotonic()
    while time.monotonic() - since < 3:  # until nothing new comes
        if seen != (seen := len(list(tmp_path.iterdir()))):
            since = time.monotonic()
        time.sleep(0.1)
    assert least <= seen <= most
    for got, wanted in zip(first + list(found), pieces, strict=True):
        assert (got["block"] == wanted["number"]).all()


@pytest.mark.parametrize("kind", [UserError, Unreachable, ValueError])
def test_an_error_names_its_cause(cluster, capfd, kind):
    def fetch(piece):
        if piece["number"] == 2:
            raise kind("tile 2 is damaged; import it again")
        return {"number": np.array(piece["number"])}

    found = stream(numbered(4), fetch)
    assert [int(next(found)["number"]) for _ in range(2)] == [0, 1]
    expected = kind if issubclass(kind, UserError) else RuntimeError
    with pytest.raises(expected, match="tile 2 is damaged") as caught:
        next(found)
    assert type(caught.value) is expected
    line = one_line(caught.value)
    assert "tile 2 is damaged; import it again" in line and "\n" not in line
    assert kind is not ValueError or ("ValueError" in line and "test_streams.py" in line)
    assert "Ray" not in capfd.readouterr().err
