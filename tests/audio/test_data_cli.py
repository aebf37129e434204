import numpy as np
import pytest
import soundfile
import typer

from retable.platform.errors import UserError
from retable.platform.store import download
from retable.platform.store.storage import Storage
from retable.tasks.audio import data_cli
from retable.tasks.audio.collect.recordings import AudioShards, read_recordings
from retable.tasks.audio.config import SAMPLE_RATE


@pytest.fixture
def table(tmp_path):
    """Three recordings with odd names, and a broken one."""
    place = tmp_path / "mine"
    place.mkdir()
    lines = ["file,caption"]
    for number, name in enumerate(["a, b.wav", "Grüße &amp; c.flac", "雨.wav", "broken.wav"]):
        time = np.arange(SAMPLE_RATE // 2) / SAMPLE_RATE
        soundfile.write(place / name, 0.1 * np.sin(2 * np.pi * 300 * (number + 1) * time), SAMPLE_RATE)
        lines.append(f'"{name}",sound number {number}')
    (place / "broken.wav").write_text("no sound")
    (tmp_path / "mine.csv").write_text("\n".join(lines))
    return tmp_path / "mine.csv"


def test_ones_own_csv_becomes_a_data_set(table, storage, capsys):
    data_cli.import_(table, name="mine", storage=str(storage))
    said = capsys.readouterr()
    assert "broken.wav" in said.err and "--set data=mine" in said.out and "own recordings" in said.out
    place = storage / "data/audio/mine"
    found = {each.file: each for each in read_recordings(place)}
    assert set(found) == {"a, b.wav", "Grüße &amp; c.flac", "雨.wav"}
    assert found["雨.wav"].captions == ("sound number 2",)
    wave = AudioShards(place, place.read_json("dataset.json")).waveform(found["雨.wav"].recording)
    assert np.abs(np.fft.rfft(wave)).argmax() * SAMPLE_RATE / len(wave) == pytest.approx(900)
    storage.write("data/audio/.DS_Store", b"")
    for path in (str(place), None):
        data_cli.check(path, storage=str(storage))  # no typer.Exit: it is fine
    with pytest.raises(typer.Exit):
        data_cli.check(str(table), storage=str(storage))
    assert "broken.wav" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"name": "dcase2023"}, "is the name of other recordings"),
        ({"name": "generated-tiny"}, "is the name of other recordings"),
        ({"name": "../x"}, "cannot name a data set"),
        ({"name": "mine", "exclude": ["list.csv"]}, "--exclude"),
    ],
)
def test_refused_imports(table, storage, words, why):
    with pytest.raises(UserError, match=why):
        data_cli.import_(table, storage=str(storage), **words)
    if "generated" in words["name"]:
        with pytest.raises(UserError, match=why):
            data_cli.import_(table.parent, storage=str(storage), **words)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("generated-x", "is the name of other recordings"),
        ("../x", "cannot name a data set"),
        ("taken", "holds other data"),
    ],
)
def test_a_fetch_is_refused_before_its_download(storage, monkeypatch, name, why):
    storage.write_json("data/audio/taken/dataset.json", {"kind": "own"})
    monkeypatch.setattr(download, "fetch_by_name", None)
    with pytest.raises(UserError, match=why):
        data_cli.fetch(["clotho"], name=name, storage=str(storage))


def test_nothing_to_check(storage, tmp_path):
    with pytest.raises(UserError, match="no data sets"):
        data_cli.check(None, storage=str(storage))
    with pytest.raises(UserError, match="not there"):
        data_cli.check(str(tmp_path / "absent"), storage=str(storage))


@pytest.fixture
def esc(tmp_path):
    """Three recordings a fold, in ESC's form."""
    source = tmp_path / "esc"
    source.mkdir()
    lines = ["filename,fold,category"]
    for fold in (1, 2, 3):
        for kind in ("dog", "rain", "rooster"):
            time = np.arange(SAMPLE_RATE // 2) / SAMPLE_RATE
            soundfile.write(source / f"{kind}{fold}.wav", 0.2 * np.sin(2 * np.pi * 200 * fold * time), SAMPLE_RATE)
            lines.append(f"{kind}{fold}.wav,{fold},{kind}")
    (source / "esc.csv").write_text("\n".join(lines))
    return source


SCENES = {"training": 2, "validation": 1, "test_fold": 3}


def test_scenes_of_real_recordings(storage, esc, capsys):
    source, options = esc, {**SCENES, "storage": str(storage)}
    data_cli.make(scenes=source, name="scenes", **options)
    info = (storage / "data/audio/scenes").read_json("dataset.json")
    assert info["rows"] == {"training": 2, "validation": 1, "test": 3} and info["test_fold"] == 3
    assert "2 recordings to train on" in capsys.readouterr().out
    with pytest.raises(UserError, match="--name"):
        data_cli.make(scenes=source, **options)
    lines = [line for line in (source / "esc.csv").read_text().split("\n") if ",2," not in line]
    (source / "esc.csv").write_text("\n".join(lines))
    with pytest.raises(UserError, match="too few folds"):
        data_cli.make(scenes=source, name="other", **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": 7}, "--seed: only scenes"),
        ({"workers": 3}, "--workers: only scenes"),
        ({"training": 7}, "--training: only scenes"),
        ({"test_fold": 2}, "--test-fold: only scenes"),
        ({"scenes": "x", "name": "mine", "size": "small"}, "--size small: scenes have none"),
        ({"all_folds": True}, "--all-folds: only scenes"),
        ({"scenes": "x", "name": "dcase2023"}, "--name dcase2023: is the name of other recordings"),
        ({"name": "generated-small"}, "--name generated-small: tables read other data under such a name"),
    ],
)
def test_what_would_be_ignored_or_mislead_is_refused(storage, options, words):
    with pytest.raises(UserError, match=words):
        data_cli.make(storage=storage.root, **options)
    assert not storage.exists("data")


def test_own_sets_are_not_written_over(storage, esc):
    place = Storage.open(storage.root) / "data/audio/taken"
    place.write_json("dataset.json", {"kind": "own"})
    with pytest.raises(UserError, match="holds other data"):
        data_cli.make(size="tiny", name="taken", storage=str(storage))
    with pytest.raises(UserError, match="holds other data"):
        data_cli.make(scenes=esc, name="taken", **SCENES, storage=str(storage), replace=True)


def test_a_set_is_replaced_only_where_that_is_wanted(storage, esc):
    """Captions that were rewritten for money would be gone."""
    options = {**SCENES, "scenes": esc, "name": "scen", "storage": str(storage)}
    place, refused = storage / "data/audio/scen", r"scen: a data set is there already; keep it, or replace it by --repl"
    data_cli.make(**options)
    with pytest.raises(UserError, match=refused):
        data_cli.make(**{**options, "training": 3})
    with pytest.raises(UserError, match=refused):
        data_cli.make(size="tiny", name="scen", storage=str(storage))
    data_cli.make(**{**options, "training": 3}, replace=True)
    assert place.read_json("dataset.json")["rows"]["training"] == 3


def test_a_folder_of_the_collections_takes_no_other_folder(table, storage):
    with pytest.raises(UserError, match=r"--folder: is for a CSV; leave it out"):
        data_cli.import_(table.parent, storage=str(storage), folder=table.parent)
