"""The collections' real layouts, with leaks and defects planted, become a data set; so does one's own CSV."""

import csv

import numpy as np
import pytest
import soundfile

from retable.platform.errors import UserError
from retable.tasks.audio.collect import layouts, leaks
from retable.tasks.audio.collect.files import decode
from retable.tasks.audio.collect.recordings import AudioShards, read_recordings
from retable.tasks.audio.config import Config
from retable.tasks.audio.prepare import importer
from retable.tasks.audio.prepare.check import check
from retable.tasks.audio.prepare.prepare import check_made, describe, folder, prepare
from retable.tasks.audio.rewrite.augment import augment_dataset
from retable.tasks.audio.world.generate import World
from tests.audio.generated_layout import write_layout

LITTLE = World(
    name="little",
    clotho=(3, 2, 2),
    audiocaps=2,
    wavcaps=6,
    clotho_seconds=(2.4, 2.6),
    audiocaps_seconds=(0.5, 0.5),
    wavcaps_seconds=(1.0, 1.5),
)


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    root = tmp_path_factory.mktemp("collections")
    return root, write_layout(LITTLE, root)


def imported(root, place, **options):
    return importer.import_entries(layouts.challenge(root), place, "dcase2023", "dcase2023", **options)


def test_the_collections_become_a_data_set_and_planted_leaks_are_found(layout, storage):
    root, planted = layout
    place = folder(storage, "dcase2023")
    info = imported(root, place)
    recordings = read_recordings(place)
    marked = {each.file.removeprefix("FreeSound/") for each in recordings if each.leak}
    assert marked == {file.rsplit("/", 1)[1].removesuffix(".flac") for file in planted["leaks"]}
    signs = {line["file"]: line["signs"] for line in place.read_json(leaks.LEAKS)}
    for file, how in planted["leaks"].items():
        wanted = {"id": "source", "name": "title", "sound": "sound"}[how["by"]]
        assert wanted in signs["FreeSound/" + file.rsplit("/", 1)[1].removesuffix(".flac")]
    assert info["leaks"] == len(marked)
    unusable = {file for file, what in planted["defects"].items() if what != "duplicate"}
    lines = place.read_json("left_out.json")
    assert all(any(file.rsplit("/", 1)[1] in line for line in lines) for file in unusable)
    assert info["left_out"] == len(lines) == len(unusable)
    assert info["rows"]["validation"] == info["rows"]["test"] == 2
    assert "held out" in describe(info)
    sounds = AudioShards(place, info)
    long = next(each for each in recordings if "70 s" in each.file)
    assert abs(len(sounds.waveform(long.recording)) / 32000 - 70) < 0.01
    whole = next((root / "clotho/evaluation").glob("*.wav"))
    copy = next(each for each in recordings if each.split == "test" and each.file.strip() == whole.name)
    assert np.abs(sounds.waveform(copy.recording) - decode(whole)).max() < 1e-4


def test_importing_again_changes_nothing_and_listens_to_nothing(layout, storage, monkeypatch):
    place = folder(storage, "dcase2023")
    first = imported(layout[0], place, features="mel")
    monkeypatch.setattr(importer, "decode", None)
    monkeypatch.setattr(leaks, "HeldOut", None)
    assert imported(layout[0], place, features="mel") == first
    with pytest.raises(UserError, match="holds other data"):
        importer.import_entries((), place, "dcase2023", "own")


def test_an_import_that_broke_off_in_the_guard_is_no_data_set(layout, storage, monkeypatch):
    place = folder(storage, "dcase2023")

    def dies(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(leaks, "HeldOut", dies)
        imported(layout[0], place)
    assert not place.exists("dataset.json")
    assert imported(layout[0], place)["leaks"] == len(layout[1]["leaks"])


def test_a_list_of_exclusions_marks_what_it_names(layout, storage, tmp_path):
    place = folder(storage, "dcase2023")
    before = imported(layout[0], place)
    free = next(
        e for e in read_recordings(place) if e.source.startswith("freesound:") and e.split == "training" and not e.leak
    )
    (tmp_path / "list.csv").write_text(f"sound_id\n{free.source.removeprefix('freesound:')}\nrain\n1\n2\n")
    after = imported(layout[0], place, exclusions=[tmp_path / "list.csv"])
    assert after["leaks"] == before["leaks"] + 1
    assert read_recordings(place)[free.recording].leak
    assert [line for line in place.read_json("remarks.json") if "list.csv" in line] == [
        f"{tmp_path / 'list.csv'}: 1 of 4 values are no ids and exclude nothing; the first: 'rain'",
        f"{tmp_path / 'list.csv'}: 1 of its 3 ids are of training recordings",
    ]


def test_own_recordings_become_a_data_set(storage, tmp_path):
    rng = np.random.default_rng(0)
    rows = [["file", "caption"]]
    for number in range(12):
        soundfile.write(tmp_path / f"a b, {number}.wav", rng.uniform(-0.1, 0.1, 4000), 8000)
        rows.append([f"a b, {number}.wav", f"noise {number}"])
    rows += [["missing.wav", "x"], ["a b, 3.wav", "again"]]
    with (tmp_path / "mine.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    place = folder(storage, "mine")
    info = importer.import_own(tmp_path / "mine.csv", place, "mine")
    assert info["kind"] == "own" and info["real"]
    assert info["rows"] == {"training": 10, "validation": 1, "test": 1}
    assert place.read_json("left_out.json") == ["missing.wav: missing"]
    assert {each.captions for each in read_recordings(place)} >= {("noise 3", "again"), ("noise 11",)}
    assert {each.seconds for each in read_recordings(place)} == {0.5}
    assert check(place) == []
    (tmp_path / "none.csv").write_text("file,caption\nx.wav,y\n")
    with pytest.raises(UserError, match=r"none of 1 recordings can be imported; the first: x.wav: missing"):
        importer.import_own(tmp_path / "none.csv", folder(storage, "none"), "none")


def test_recordings_that_are_cut_are_named(storage, tmp_path, monkeypatch):
    monkeypatch.setattr(importer, "LONGEST", 2.0)
    rng, seconds = np.random.default_rng(0), {"a.wav": 2.6, "b, c.wav": 2.0, "d.flac": 4.0, "e.wav": 3.0, "f.wav": 6.0}
    for file, length in seconds.items():
        soundfile.write(tmp_path / file, rng.uniform(-0.1, 0.1, round(8000 * length)), 8000)
    soundfile.write(tmp_path / "g.wav", np.zeros(40000), 8000)  # silent: left out, not cut
    table, place = tmp_path / "mine.csv", folder(storage, "mine")
    table.write_text("file,caption\n" + "".join(f'"{file}",x\n' for file in [*seconds, "g.wav"]))
    info = importer.import_own(table, place, "mine")
    assert {each.seconds for each in read_recordings(place)} == {2.0}
    assert dict(place.read_json(importer.CUT)) == {file: length for file, length in seconds.items() if length > 2}
    assert info["cut"].startswith("cut to their first 2 s (4): ") and info["cut"].count(" s)") == 3
    assert info["cut"].endswith(f" s), ...: see {place}/cut.json")
    table.write_text("file,caption\na.wav,x\n")
    before = place.read_json("dataset.json")
    with pytest.raises(
        UserError, match=r"of its 5 recordings 1 are listed now; choose another --name, or .* --replace"
    ):
        importer.import_own(table, place, "mine")
    assert place.read_json("dataset.json") == before
    found = importer.import_own(table, place, "mine", replacing=True)
    assert found["cut"] == "cut to their first 2 s (1): a.wav (3 s)"
    table.write_text('file,caption\n"b, c.wav",x\n')
    info = importer.import_own(table, place, "mine", replacing=True)
    assert info["cut"] == "" and place.read_json(importer.CUT) == []
    assert info["gone"] == "1 of the 1 before are listed no more"
    assert importer.import_own(table, place, "mine")["gone"] == ""


def test_what_cannot_be_made_says_where_it_is_to_be_had(storage):
    with pytest.raises(UserError, match=r"Clotho 2\.1 .*retable data import audio FOLDER --name dcase2023"):
        prepare(Config(), storage)
    with pytest.raises(UserError, match=r"retable data import audio FILE.csv --name mine"):
        prepare(Config(data="mine"), storage)
    with pytest.raises(UserError, match="no 'huge'"):
        prepare(Config(data="generated-huge"), storage)
    with pytest.raises(UserError, match="cannot name a data set"):
        prepare(Config(data="../x"), storage)


def own_files(root, rows):
    """Write a CSV of (file, seed of its noise, split); return it."""
    for file, seed, _ in rows:
        soundfile.write(root / file, np.random.default_rng(seed).uniform(-0.3, 0.3, 96000), 32000)
    table = root / "mine.csv"
    table.write_text(
        "file,caption,split\n"
        + "".join(f"{file},A dog barks loudly while rain falls.,{split}\n" for file, _, split in rows)
    )
    return table


ROWS = [("a.wav", 1, "training"), ("b.wav", 2, "training"), ("held.wav", 3, "test")]


def test_a_file_replaced_by_a_copy_of_a_held_out_one_is_heard_as_a_leak(storage, tmp_path):
    place = folder(storage, "mine")
    first = importer.import_own(own_files(tmp_path, ROWS), place, "mine")
    assert first["leaks"] == 0
    again = importer.import_own(
        own_files(tmp_path, [("a.wav", 1, "training"), ("b.wav", 3, "training"), ROWS[2]]), place, "mine"
    )
    assert [each.leak for each in read_recordings(place)] == [False, True, False]
    assert again["digest"] != first["digest"]
    # One more before it: the recordings' numbers move, and the mark with its recording.
    longer = own_files(tmp_path, [("0.wav", 4, "training"), *ROWS])
    soundfile.write(tmp_path / "b.wav", np.random.default_rng(3).uniform(-0.3, 0.3, 96000), 32000)
    importer.import_own(longer, place, "mine")
    assert {each.file: each.leak for each in read_recordings(place)}["b.wav"]


def test_rewritten_captions_outlive_another_import(storage, tmp_path):
    place, table = folder(storage, "mine"), own_files(tmp_path, ROWS)
    importer.import_own(table, place, "mine")
    augment_dataset(place, "keywords")
    before, info = read_recordings(place), place.read_json("dataset.json")
    assert any(before[0].rewrites) and "captions rewritten by rules (keywords)" in describe(info)
    assert importer.import_own(table, place, "mine") == {**info, "cut": "", "gone": ""}
    assert read_recordings(place) == before


def test_an_import_mends_a_broken_table_and_older_data_sets_are_described(storage, tmp_path):
    place, table = folder(storage, "mine"), own_files(tmp_path, ROWS)
    info = importer.import_own(table, place, "mine")
    place.write("recordings.parquet", b"broken")
    assert importer.import_own(table, place, "mine") == info
    older = {key: value for key, value in info.items() if key not in ("rewrites", "sound")}
    assert "own recordings" in describe(older)
    place.write_json("dataset.json", older)
    with pytest.raises(UserError, match="of an older version; make or import it again"):
        augment_dataset(place, "keywords")


def test_an_import_of_nothing_is_refused_and_keeps_the_set_before(storage, tmp_path):
    """Headers say nothing of silence: all was left out, and the good set of before with it."""
    place, table = folder(storage, "mine"), own_files(tmp_path, ROWS)
    importer.import_own(table, place, "mine")
    info = place.read_json("dataset.json")
    for file, _, _ in ROWS:
        soundfile.write(tmp_path / file, np.zeros(96000), 32000)
    for where in (place, folder(storage, "new")):
        with pytest.raises(UserError, match=r"none of 3 recordings can be read; the first: .*a\.wav: silent"):
            importer.import_own(table, where, "mine")
    assert place.read_json("dataset.json") == info and check(place) == []


def test_a_column_of_sources_moves_no_training_recording_to_the_test(storage, tmp_path):
    place, table, names = folder(storage, "mine"), tmp_path / "mine.csv", [f"{n}.wav" for n in range(20)]
    for number, file in enumerate(names):
        soundfile.write(tmp_path / file, np.random.default_rng(number).uniform(-0.3, 0.3, 6400), 32000)

    def splits(listing):
        table.write_text(listing)
        importer.import_own(table, place, "mine")
        return {each.file: each.split for each in read_recordings(place)}

    plain = "file,caption\n" + "".join(f"{file},x\n" for file in names)
    before = splits(plain)
    single = splits("file,caption,source\n" + "".join(f"{file},x,freesound:{file}\n" for file in names))
    assert single == before == splits(plain), "nor does taking the column away"
    pairs = splits("file,caption,source\n" + "".join(f"{f},x,site{n // 2}\n" for n, f in enumerate(names)))
    assert {file for file, split in before.items() if split == "training"} <= {
        file for file, split in pairs.items() if split == "training"
    }


@pytest.mark.parametrize("features", ["waveform", "mel"])
def test_equal_sounds_that_are_too_short_for_a_fingerprint_are_leaks(storage, tmp_path, features):
    place, table = folder(storage, "mine"), own_files(tmp_path, ROWS)
    for file, seed in (("a.wav", 1), ("b.wav", 2), ("held.wav", 2)):
        soundfile.write(tmp_path / file, np.random.default_rng(seed).uniform(-0.3, 0.3, 16000), 32000)
    info = importer.import_own(table, place, "mine", features=features)
    assert info["leaks"] == 1 and [each.leak for each in read_recordings(place)] == [False, True, False]
    assert place.read_json(leaks.LEAKS) == [{"recording": 1, "file": "b.wav", "signs": ["sound"], "of": ["held.wav"]}]
    assert check(place) == []


def sounds(root, files):
    """Write a short recording of its own noise for each file, and return a CSV of them."""
    for number, file in enumerate(files):
        (root / file).parent.mkdir(exist_ok=True)
        soundfile.write(root / file, np.random.default_rng(number).uniform(-0.3, 0.3, 6400), 32000)
    return listing(root, dict.fromkeys(files, ""))


def listing(root, files):
    """Write a CSV of files with the rest of each one's row, and return it."""
    header = "file,caption,split" if any(files.values()) else "file,caption"
    table = root / "mine.csv"
    table.write_text(header + "\n" + "".join(f"{file},A dog barks in the rain{more}\n" for file, more in files.items()))
    return table


def splits_of(place):
    return {each.file.rpartition("/")[2]: each.split for each in read_recordings(place)}


def test_files_that_are_sorted_into_a_folder_keep_their_splits(storage, tmp_path):
    """Else what was trained on would be tested on; names that two files have say nothing."""
    place, names = folder(storage, "mine"), [f"{n}.wav" for n in range(40)]
    importer.import_own(sounds(tmp_path, names), place, "mine")
    before = splits_of(place)
    (tmp_path / "kept").mkdir()
    for file in names[::2][:19]:
        (tmp_path / file).rename(tmp_path / "kept" / file)
    moved = [f"kept/{file}" if (tmp_path / "kept" / file).exists() else file for file in names]
    info = importer.import_own(listing(tmp_path, dict.fromkeys(moved, "")), place, "mine")
    assert splits_of(place) == before and info["gone"] and not place.read_json("remarks.json")


def test_a_column_that_holds_out_what_was_trained_on_is_remarked(storage, tmp_path):
    place, names = folder(storage, "mine"), [f"{n}.wav" for n in range(8)]
    sounds(tmp_path, names)
    for held, said in ((names[6:], False), (names[5:], True), (names[5:], False), (names[6:], False)):
        table = listing(tmp_path, {file: f",{'test' if file in held else 'training'}" for file in names})
        importer.import_own(table, place, "mine")
        wanted = ["held out now, trained on before (1): 5.wav; train anew, not from an earlier run"]
        assert place.read_json("remarks.json") == wanted * said


def test_an_import_that_is_killed_loses_nothing_of_the_set_before(storage, tmp_path, monkeypatch):
    """Neither rewritten captions, which may have cost money, nor the guard against other recordings."""
    place, names = folder(storage, "mine"), [f"{n}.wav" for n in range(12)]
    importer.import_own(sounds(tmp_path, names[:11]), place, "mine")
    augment_dataset(place, "keywords")
    place.write_json("dataset.json", {**place.read_json("dataset.json"), "rewriter": {"model": "m"}})
    rewritten, said = read_recordings(place), place.read_json("dataset.json")["rewrites"]

    def killed(*_):
        raise KeyboardInterrupt

    table = sounds(tmp_path, names)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(importer, "guard", killed)
        importer.import_own(table, place, "mine")
    assert not place.exists("dataset.json")
    sounds(tmp_path, ["other.wav"])
    with pytest.raises(UserError, match="of its 11 recordings 0 are listed now"):
        importer.import_own(tmp_path / "mine.csv", place, "mine")
    with pytest.raises(UserError, match="holds other data"):
        check_made(place, replace=True)
    info = importer.import_own(listing(tmp_path, dict.fromkeys(names, "")), place, "mine")
    assert info["rewrites"] == said and info["rewriter"]["model"] == "m"
    forms = {each.file: each.rewrites for each in read_recordings(place)}
    assert all(forms[each.file] == each.rewrites for each in rewritten)
    assert not place.exists("before.json")
