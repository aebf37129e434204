"""Result tables over HTTP, as they were filled; and the example that forecasters are tried with."""

import io
import json

import numpy as np
import pytest

from retable.platform.report.results import FilledClaim
from retable.platform.spec.claims import UNTESTED
from retable.platform.spec.table import Origin
from retable.platform.store.storage import Storage
from retable.serve.deployments import weather
from retable.serve.ingress.routes import tables as results
from retable.serve.launch.models import Model, fills
from tests.platform.store.test_storage import failing
from tests.serve import web
from tests.serve.test_parts import ask, problem


@pytest.fixture
def storage(tmp_path):
    return Storage.open(tmp_path / "a storage")


def got(storage, path, served=web.MODELS):
    status, _, body = ask(web.application(served, storage=storage), "GET", path)
    assert status == 200
    return json.loads(body)


def test_tables_are_listed_as_the_papers_have_them(storage):
    names = [
        "rl/speed",
        "weather/table10",
        "weather/figure1",
        "rl/figure2",
        "weather/table2",
        "audio/table1",
        "rl/table1",
    ]
    for name in names:
        web.keep(storage, web.table(name), f"{name.replace('/', '-')}-smoke")
    web.keep(storage, web.table("weather/table2", "paper"), "weather-table2-paper")
    web.keep(storage, web.table("weather/table2", "paper", changes={"epochs": 2}), "weather-table2-paper-x")
    listed = got(storage, "/v1/tables")
    assert [f"{each['name']} {each['at'][:6]}" for each in listed] == [
        "weather/table2 paper", "weather/table2 paper-", "weather/table2 smoke", "weather/table10 smoke",
        "weather/figure1 smoke", "audio/table1 smoke", "rl/table1 smoke", "rl/figure2 smoke", "rl/speed smoke",
    ]  # fmt: skip
    assert listed[0]["claims"] == {"holds": 1, "does not hold": 1, "not tested at this scale": 1}
    assert got(storage, "/v1/tables/weather/table2")["scale"] == "paper"
    assert got(storage, "/v1/tables/weather/table2?at=smoke")["scale"] == "smoke"
    changed = listed[1]["at"]
    assert "epochs=2" in got(storage, f"/v1/tables/weather/table2?at={changed}")["about"]


def test_a_table_says_measured_beside_published_and_who_serves_it(storage):
    web.keep(storage, web.table(), "weather-table1-smoke")
    row, absent = got(storage, "/v1/tables/weather/table1")["rows"]
    assert row["cells"] == [
        {
            "measured": "0.250",
            "mean": 0.25,
            "count": 1,
            "published": "0.200",
            "difference": "+0.050",
            "models": ["4" * 64],
        }
    ]
    assert (absent["cells"][0]["measured"], absent["cells"][0]["models"]) == ("absent", [])
    assert got(storage, "/v1/tables/weather/table1", web.MODELS[:2])["rows"][0]["models"] == []


def test_a_table_has_what_its_data_do_not_show_and_its_claims_in_the_order_of_the_report(storage):
    claims = [("ours", True, "holds"), ("untested", False, UNTESTED), ("the paper's", False, "does not hold")]
    filled = [FilledClaim(text, ours, status, "0.05") for text, ours, status in claims]
    web.keep(storage, web.table(caution="Not real.", claims=tuple(filled)), "weather-table1-smoke")
    found = got(storage, "/v1/tables/weather/table1")
    assert found["caution"] == "Not real."
    assert [each["text"] for each in found["claims"]] == ["the paper's", "ours", "untested"]
    assert list(got(storage, "/v1/tables")[0]["claims"]) == ["holds", "does not hold", UNTESTED]


@pytest.mark.parametrize(
    ("about", "view", "same"),
    [
        ({"fingerprint": "12"}, {}, True),
        ({"fingerprint": "12"}, {"epoch": 3}, True),
        ({"fingerprint": "12", "epoch": 5, "config": {"epochs": 5}}, {"threshold": 0.2}, True),
        ({"fingerprint": "12", "epoch": 5, "config": {"epochs": 5}}, {"epoch": 3}, False),
        ({"fingerprint": "12", "epoch": 3, "config": {"epochs": 5}}, {"epoch": 3}, True),
        ({"fingerprint": "12", "epoch": 3, "config": {"epochs": 5}}, None, False),
        ({"fingerprint": "13"}, {}, False),
        ({}, {}, False),
    ],
)
def test_a_model_is_a_cells_run_at_the_epoch_that_was_read(about, view, same):
    assert fills(Model(task="rl", name="x", sha256="a", about=about), Origin("12", view)) is same
    assert not fills(Model(task="rl", name="x", sha256="a", about={}), Origin(""))


def test_nothing_says_where_it_lies(storage):
    changes = {"init": "/secret/place/x", "data": "s3://secret", "words": ["~/secret", ["../secret"]]}
    secrets = {"note": f"kept in {storage}/runs", "changes": changes}
    web.keep(storage, web.table(**secrets), "weather-table1-smoke")
    web.keep(storage, web.table("weather/figure1", figure=True, columns=(), rows=()), "weather-figure1-smoke", b"PNG")
    made = web.application(storage=storage)
    for path in ("/v1/tables", "/v1/tables/weather/table1", "/v1/tables/weather/figure1", "/v1/tables/weather/none"):
        body = ask(made, "GET", path)[2].decode()
        assert str(storage) not in body and "secret" not in body, path
    assert ask(made, "GET", "/v1/tables/weather/figure1/picture")[2] == b"PNG"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("{}", "STORAGE"),
        ("in '{}/runs', {}.", "in 'STORAGE/runs', STORAGE."),
        ("a\n{}\tb", "a\nSTORAGE\tb"),
        ("https://x.org{}/a {}s {}-b", "https://x.org{}/a {}s {}-b"),
        ("file://{}/a", "file://STORAGE/a"),
    ],
)
def test_the_storage_is_hidden_where_it_is_a_path_and_nothing_else_is(storage, said, shown):
    web.keep(storage, web.table(note=said.replace("{}", str(storage))), "weather-table1-smoke")
    assert got(storage, "/v1/tables/weather/table1")["note"] == shown.replace("{}", str(storage))


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("weather/tabel1", "no table 'weather/tabel1' was filled here; did you mean 'weather/table1'?"),
        ("weather/table1?at=smoky", "weather/table1 was not filled at 'smoky'; did you mean 'smoke'?"),
        ("weather/table1/picture", "no picture of 'weather/table1' was drawn here"),
        ("../weather/table1", "there is nothing here"),
        ("weather/..%2f..%2fsecret", "no table"),
    ],
)
def test_what_was_not_filled_is_not_found(storage, path, wanted):
    web.keep(storage, web.table(), "weather-table1-smoke")
    storage.write("secret.json", "{}")
    status, detail = problem(ask(web.application(storage=storage), "GET", f"/v1/tables/{path}"))
    assert status == 404 and wanted in detail


def test_half_a_file_is_left_out_and_a_line_too_long_is_cut(storage):
    storage.write("report/rl-table1-smoke.json", '{"table": {"name": "rl/')
    storage.write("report/rl-table2-smoke.json", '{"table": 3}')
    storage.write("report/index.html", "<html>")
    storage.write("report/folder.json/file", "")
    part = web.table("weather/table1", columns=())
    web.keep(storage, part, "weather-table1-smoke")
    assert [each["name"] for each in got(storage, "/v1/tables")] == ["weather/table1"]
    assert [row["cells"] for row in got(storage, "/v1/tables/weather/table1")["rows"]] == [[], []]


REFUSALS = ("AWS Error SLOW_DOWN during ListObjectsV2 operation", "AWS Error ACCESS_DENIED during GetObject operation")


@pytest.mark.parametrize("error", [OSError(each) for each in REFUSALS], ids=str)
@pytest.mark.parametrize("method", ["get_file_info", "open_input_stream"])
def test_a_storage_that_does_not_answer_is_to_be_asked_again_and_hides_no_table(storage, monkeypatch, error, method):
    """At once: who asks does not wait for as long as a training would."""
    web.keep(storage, web.table("rl/figure1", figure="lines"), "rl-figure1-smoke")
    storage.write("report/rl-figure1-smoke.png", b"png")
    filesystem, left = failing(monkeypatch, method)
    application = web.application(storage=Storage(filesystem, storage.root))
    monkeypatch.setattr("retable.platform.store.patience.time.sleep", None)
    for path in ("/v1/tables", "/v1/tables/rl/figure1", "/v1/tables/rl/figure1/picture"):
        left.append(error)
        if method == "open_input_stream" and path == "/v1/tables/rl/figure1":
            left.clear()  # what is known is not read again
            continue
        status, headers, body = ask(application, "GET", path)
        assert (status, headers["retry-after"]) == (503, "5"), path
        assert "does not answer; try again" in json.loads(body)["detail"] and str(storage) not in body.decode()
        assert not left and ask(application, "GET", path)[0] == 200


def test_a_table_is_read_again_when_it_has_changed(storage, monkeypatch):
    reads = []
    read = results.read_table
    monkeypatch.setattr(results, "read_table", lambda *where: (reads.append(where[1]), read(*where))[1])
    web.keep(storage, web.table(), "weather-table1-smoke")
    made = web.application(storage=storage)
    for _ in range(3):
        assert json.loads(ask(made, "GET", "/v1/tables")[2])[0]["title"] == "IoU on the test set"
    assert reads == ["report/weather-table1-smoke.json"]
    web.keep(storage, web.table(title="another title"), "weather-table1-smoke")
    assert json.loads(ask(made, "GET", "/v1/tables")[2])[0]["title"] == "another title"
    storage.remove("report/weather-table1-smoke.json")
    assert json.loads(ask(made, "GET", "/v1/tables")[2]) == []


def test_a_file_too_large_to_be_a_table_is_not_read(storage, monkeypatch):
    web.keep(storage, web.table(), "weather-table1-smoke")
    reads = []
    monkeypatch.setattr(results, "LARGEST", 100)
    monkeypatch.setattr(Storage, "read", lambda *where: reads.append(where) or b"")
    assert got(storage, "/v1/tables") == reads == []


def test_without_a_storage_there_are_no_tables():
    assert got(None, "/v1/tables") == []


def test_a_region_that_no_file_can_name_is_refused():
    """netCDF's attributes hold no NUL."""
    said = problem(ask(web.application(), "POST", "/v1/weather?region=a%00b&format=netcdf", body=b"x"))
    assert said[0] == 422 and "region" in str(said)


def test_the_example_is_one_that_a_forecaster_of_its_size_reads():
    made = web.application()
    status, headers, body = ask(made, "GET", "/v1/weather/example")
    assert (status, headers["content-type"]) == (200, "application/x-npz")
    assert len(body) <= 250_000, "it is part of the package: an hour of 11 channels and 8 hours of rain take 200 kB"
    with np.load(io.BytesIO(body), allow_pickle=False) as arrays:
        assert np.array_equal(weather.images_of(body, (4, 11, 36, 36)), arrays["images"], equal_nan=True)
        assert arrays["truth"].shape == (32, 36, 36) and set(np.unique(arrays["truth"])) <= {0, 1, 2}
    elsewhere = {**web.WEATHER, "regions": ["roxi_0007"]}
    network = web.application([Model(task="weather", name="x", sha256="a", about=elsewhere)])
    assert ask(network, "GET", "/v1/weather/example")[0] == 200, "a network forecasts any region"
    for about in (
        {**web.WEATHER, "size": 252},
        {**web.WEATHER, "inputs": 2},
        {**elsewhere, "config": {"model": "climatology"}},
        {},
    ):
        other = web.application([Model(task="weather", name="x", sha256="a", about=about)])
        assert problem(ask(other, "GET", "/v1/weather/example"))[0] == 404
