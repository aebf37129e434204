"""A data set that is there is made or imported anew only where that is asked for, by the same option in every task."""

import pytest

from retable.platform.cli import app
from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.tasks.weather.w4c.prepare import CENTRAL, GENERATED, Preset

MAKE = {
    "audio": ("make", "audio", "--name", "mine"),
    "style": ("make", "style", "--name", "mine", "--photographs", "1"),
    "weather": ("make", "weather", "--name", "mine", "--size", "24"),
}


def data(*words):
    return app.app(["data", *words], standalone_mode=False)


@pytest.mark.parametrize("task", MAKE)
def test_what_is_there_is_replaced_only_where_that_is_asked_for(tmp_path, task, monkeypatch):
    little = Preset(regions=CENTRAL[:1], years=(2019,), training=36, validation=1, tests=1)
    monkeypatch.setitem(GENERATED, "24", little)
    place = Storage.open(tmp_path) / f"data/{task}/mine"
    place.write_json("dataset.json", {"kind": "generated", "source": "generated", "name": "mine"})
    place.write("truth/x", "")
    before = place.read("dataset.json")
    with pytest.raises(UserError, match="mine: a data set is there already; keep it, or replace it by --replace"):
        data(*MAKE[task], "--storage", str(tmp_path))
    assert place.read("dataset.json") == before
    data(*MAKE[task], "--storage", str(tmp_path), "--replace")
    assert place.read("dataset.json") != before
    assert not data("check", task, "--storage", str(tmp_path))


def test_pictures_are_imported_over_others_only_where_that_is_asked_for(tmp_path):
    data("make", "style", "--name", "mine", "--photographs", "2", "--storage", str(tmp_path))
    words = ["import", "style", str(tmp_path / "data/style/mine/training"), "--name", "other", "--test", "1"]
    for again in ([], ["--replace"]):
        data(*words, "--storage", str(tmp_path), *again)
    with pytest.raises(UserError, match="other: a data set is there already; keep it, or replace it by --replace"):
        data(*words, "--storage", str(tmp_path))


def test_generated_rain_does_not_take_the_competitions_place(tmp_path):
    with pytest.raises(UserError, match="--name w4c22: tables read other data under such a name"):
        data("make", "weather", "--name", "w4c22", "--size", "24", "--storage", str(tmp_path))
