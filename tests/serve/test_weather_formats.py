"""Forecasts as files and of several forecasters, and what becomes of broken images: a problem, and nothing else."""

import asyncio
import io
import random
from types import SimpleNamespace

import h5netcdf
import numpy as np
import pytest
from PIL import Image

from benchmarks.serve_fuzz import corpus, damaged
from retable.platform.config import override
from retable.serve.deployments import maps, weather
from retable.serve.deployments.served import Line
from retable.serve.ingress.replies import Problem
from retable.serve.ingress.routes.weather import members_of
from retable.tasks.weather.export import Exported
from retable.tasks.weather.metrics import cuts
from retable.tasks.weather.model import build
from tests.weather.toys import config

STEPS = np.random.default_rng(0).integers(0, 201, (32, 36, 36)).astype(np.uint8)
FORECAST = maps.Forecast(STEPS, "boxi_0015", "a test", np.datetime64("2019-06-01T12:00"))
SHAPE = (4, 11, 36, 36)


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["npz", "hdf5", "bomb"])
def test_broken_images_are_a_problem_and_nothing_else(kind, count, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    whole, draw = corpus()[kind], random.Random(0)
    answered = 0
    for _ in range(count):
        try:
            found = weather.images_of(damaged(whole, draw), SHAPE)
        except Problem as problem:
            assert problem.status in (400, 413, 415, 422) and str(tmp_path) not in problem.detail
        else:
            answered += 1
            assert found.shape == SHAPE and found.dtype == np.float32
    assert answered < count and not list(tmp_path.iterdir())


def test_numbers_beyond_float32_are_infinite_without_a_word():
    file = io.BytesIO()
    np.savez(file, images=np.full(SHAPE, 1e300))
    assert np.isinf(weather.images_of(file.getvalue(), SHAPE)).all()


def test_netcdf_holds_the_forecast_and_its_times_where_they_are_known():
    for time in (FORECAST.time, None):
        made = maps.Forecast(STEPS, "boxi_0015", "a test", time)
        reply = maps.written(made, "netcdf")
        with h5netcdf.File(io.BytesIO(reply.body)) as file:
            packed = file["probability"]
            found = packed[:].astype(np.float64) * packed.attrs["scale_factor"] + packed.attrs["add_offset"]
            assert np.abs(found[0] - STEPS / 200).max() < 1e-6 and file["lead_time"][:].tolist()[:2] == [15, 30]
            assert file.attrs["region"] == "boxi_0015" and file.attrs["source"] == "a test" and "year" not in file.attrs
            assert ("time" in file.variables) == ("coordinates" in packed.attrs) == (time is not None)
            if time is not None:
                minutes = (np.datetime64("2019-06-01T12:15") - np.datetime64("1970-01-01")) / np.timedelta64(1, "m")
                assert file["time"][0, 0] == minutes
    assert reply.media == "application/x-netcdf"


def test_maps_show_each_pixel_in_the_colour_of_its_step():
    one = Image.open(io.BytesIO(maps.written(FORECAST, "png", lead=60).body))
    pixels = np.asarray(one.convert("RGB"))
    left, top = maps.EDGE, 20 + maps.EDGE + 20
    assert np.array_equal(pixels[top : top + 288 : 8, left : left + 288 : 8], maps.table()[STEPS[3]])
    assert tuple(maps.table()[0]) == maps.RAMP[0] and tuple(maps.table()[200]) == maps.RAMP[-1]
    film = Image.open(io.BytesIO(maps.written(FORECAST, "gif").body))
    assert film.n_frames == 32 and film.info["duration"] == 250
    sheet = Image.open(io.BytesIO(maps.written(FORECAST, "png").body))
    assert sheet.width < 1400 and sheet.height < 800
    for lead in (7, 32 * 15 + 15):
        with pytest.raises(Problem, match="lead: got") as refused:
            maps.written(FORECAST, "png", lead)
        assert refused.value.status == 422


def test_an_ensemble_is_that_of_the_tables():
    draw = np.random.default_rng(1)
    members = [draw.integers(0, 201, (2, 5, 5)).astype(np.uint8) for _ in range(3)]
    mean = weather.joined(members, "mean", 0.5)
    assert np.array_equal(mean, np.stack(members).astype(int).sum(0) // 3)
    vote = weather.joined(members, "vote", 0.3)
    votes = (np.stack(members) >= cuts(0.3)).sum(0)
    assert np.array_equal(vote, votes * 200 // 3)
    assert weather.joined(members[:1], "mean", 0.5) is members[0]
    with pytest.raises(Problem, match="not a multiple") as refused:
        weather.joined(members, "vote", 0.333)
    assert refused.value.status == 422
    assert np.array_equal(weather.joined(members, "mean", 0.333), mean)
    with pytest.raises(Problem, match="join like with like"):
        weather.joined([members[0], members[1][:1]], "mean", 0.5)


def test_times_are_of_the_world_and_what_is_none_is_a_problem():
    assert weather.moment("2019-06-01T12:00+02:00") == np.datetime64("2019-06-01T10:00") and weather.moment("") is None
    beyond = ("7000-01-01T00:00", "0001-01-01T00:00+14:00", "9999-12-31T23:59-14:00")  # two of them, all years in UTC
    for never in ("yesterday", *beyond):
        with pytest.raises(Problem, match="ISO 8601"):
            weather.moment(never)


def test_members_are_named_each_once():
    from retable.serve.launch.models import Model

    models = [Model(task="weather", name="weather", variant=v, sha256=v * 64) for v in "abc"]
    assert members_of(models, "") == [] and members_of(models, "all") == models
    assert members_of(models, "c,a,c") == [models[2], models[0]] and members_of(models, "weather") == models
    assert members_of(models, " c , a") == [models[2], models[0]] and members_of(models, "Weather") == models
    for words, status, why in (("a,d", 404, "no forecaster 'd' is served"), (", ", 422, "wanted names or digests")):
        with pytest.raises(Problem, match=why) as refused:
            members_of(models, words)
        assert refused.value.status == status


def test_a_forecaster_is_found_by_its_digest_among_all_names():
    from retable.serve.launch.models import Model, choose

    def found(name, variant):
        return choose([a, b], name, variant, "forecaster")

    a, b = (Model(task="weather", name=f"context-{v}", variant="", sha256=v * 64) for v in "ab")
    assert found("", "") is found("", a.sha256) is a
    assert found("", b.sha256) is found("Context-B", "") is b
    for name, variant in (("", "c" * 64), ("context-a", b.sha256), ("context-c", b.sha256)):
        with pytest.raises(Problem) as refused:
            found(name, variant)
        assert refused.value.status == 404


@pytest.mark.parametrize("region", ["boxi_0034", "nowhere", ""])
def test_networks_forecast_any_region_and_a_climatology_its_own(region):
    for changes in ({}, {"model": "climatology", "forecast": 8}):
        chosen = override(config(), changes)
        forecaster = Exported({}, chosen, 12, build(chosen, 12, chosen.regions).eval())
        file = io.BytesIO()
        np.savez(file, images=np.zeros((4, 11, 12, 12), np.float32))
        if changes:
            with pytest.raises(Problem, match="climatology has seen") as refused:
                weather.work([forecaster], region, file.getvalue())
            assert refused.value.status == 422 and "boxi_0015" in str(refused.value)
            assert weather.work([forecaster], "boxi_0015", file.getvalue())[0].region == "boxi_0015"
        else:
            assert weather.work([forecaster], region, file.getvalue())[0].region == region


def test_images_are_read_once_for_all_forecasters_of_a_size(monkeypatch):
    read = []
    monkeypatch.setattr(weather, "images_of", lambda body, shape: read.append(shape) or np.zeros(shape, np.float32))
    sizes = (12, 12, 24)
    forecasters = [Exported({}, config(), size, build(config(), size, config().regions).eval()) for size in sizes]
    works = weather.work(forecasters, "boxi_0034", b"")
    assert [each.images.shape[-1] for each in works] == list(sizes) and read == [(4, 11, 12, 12), (4, 11, 24, 24)]
    assert [each.forecaster for each in works] == forecasters


def test_several_forecasters_answer_one_request(monkeypatch):
    class Two:
        def __init__(self):
            self.line = Line(2, 1.0)

        async def model(self, sha256):
            asked = SimpleNamespace(forecast=32, rain_threshold=0.2 if sha256 != "c" else 0.0)
            return SimpleNamespace(name=sha256, about={"data_caution": "Not real.", "pixel": 14_000.0}, config=asked)

        async def batch(self, work):
            return STEPS // (1 if work == "a" else 2)

    monkeypatch.setattr(weather, "work", lambda forecasters, region, body: [each.name for each in forecasters])
    made = asyncio.run(weather.Forecasters.forecast(Two(), ["a", "b"], b"", "here"))
    found = np.load(io.BytesIO(made.body))
    assert np.array_equal(found["probability"], (STEPS.astype(int) + STEPS // 2) // 2) and found["minutes"][-1] == 480
    made = asyncio.run(weather.Forecasters.forecast(Two(), ["a", "b"], b"", "here", kind="netcdf"))
    with h5netcdf.File(io.BytesIO(made.body)) as file:
        assert file.attrs["comment"] == "Not real." and file["x"][0] == 7 and file["x"].attrs["units"] == "km"
    refused = asyncio.run(weather.Forecasters.forecast(Two(), ["a"], b"", "here", time="never"))
    assert isinstance(refused, Problem) and refused.status == 422
    refused = asyncio.run(weather.Forecasters.forecast(Two(), ["a", "c"], b"", "here"))
    assert isinstance(refused, Problem) and refused.status == 422 and "differ in rain_threshold" in refused.detail
