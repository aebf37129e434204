"""A data set that is there is made or imported anew only where that is asked for, by the same option in every task."""

import time
import wave
from dataclasses import replace
from threading import Thread

import pytest

from retable.platform.cli import app
from retable.platform.errors import UserError
from retable.platform.store import download, lease
from retable.platform.store.storage import Storage
from retable.tasks.audio.world.generate import SIZES
from retable.tasks.weather.w4c.prepare import CENTRAL, GENERATED, Preset

MAKE = {
    "audio": ("make", "audio", "--name", "mine"),
    "style": ("make", "style", "--name", "mine", "--photographs", "1"),
    "weather": ("make", "weather", "--name", "mine", "--size", "24"),
}


def data(*words):
    return app.app(["data", *words], standalone_mode=False)


@pytest.fixture(autouse=True)
def little(monkeypatch):
    """Make less than the smallest sizes have."""
    monkeypatch.setitem(GENERATED, "24", Preset(regions=CENTRAL[:1], years=(2019,), training=1, validation=1, tests=1))
    monkeypatch.setitem(SIZES, "tiny", replace(SIZES["tiny"], clotho=(4, 2, 2), audiocaps=2, wavcaps=4))


@pytest.mark.parametrize("task", MAKE)
def test_what_is_there_is_replaced_only_where_that_is_asked_for(tmp_path, task):
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


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (MAKE["weather"], "weather/mine"),
        pytest.param(
            ("make", "rl", "--env", "hopper", "--transitions", "1000"), "rl/Hopper/recorded", marks=pytest.mark.slow
        ),
        (("import", "audio", "sounds.csv", "--name", "mine"), "audio/mine"),
    ],
    ids=lambda words: words if isinstance(words, str) else "",
)
def test_while_a_data_set_is_made_the_same_command_waits(tmp_path, monkeypatch, capfd, words, where):
    """Two wrote into one folder, and each removed what the other had written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lease, "POLL_SECONDS", 0.01)
    with wave.open("sound.wav", "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(bytes(range(256)) * 500)
    (tmp_path / "sounds.csv").write_text("file,caption\nsound.wav,a hum\n")
    root = Storage.open(tmp_path)
    command = Thread(target=data, args=(*words, "--storage", str(tmp_path)))
    with lease.one_maker(root, where):
        command.start()
        said = ""
        while "another command makes it" not in said and command.is_alive():
            said += capfd.readouterr().err
            time.sleep(0.01)
        assert command.is_alive() and not root.list(f"data/{where}")
    command.join()
    assert root.exists(f"data/{where}/dataset.json")


def test_a_download_into_a_data_set_waits_for_another_command(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(lease, "POLL_SECONDS", 0.01)
    begun = []
    monkeypatch.setattr(download, "fetch", lambda wanted, *_, **__: begun.append(wanted.name))
    monkeypatch.setattr("retable.tasks.style.files.prepare.index_folder", lambda *_: {})
    monkeypatch.setattr("retable.tasks.style.files.prepare.describe", lambda _: "pictures")
    command = Thread(target=data, args=("fetch", "style", "coco2017", "--yes", "--storage", str(tmp_path)))
    with lease.one_maker(Storage.open(tmp_path), "style/coco2017"):
        command.start()
        said = ""
        while "another command makes it" not in said and command.is_alive():
            said += capfd.readouterr().err
            time.sleep(0.01)
        assert command.is_alive() and not begun
    command.join()
    assert begun == ["coco2017"]


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
