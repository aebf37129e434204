"""The collections' tables as they are published, with their oddities, and one's own CSV."""

import csv
import json
import re
from collections import Counter

import pytest

from retable.platform.errors import UserError
from retable.tasks.audio.collect import layouts
from retable.tasks.audio.prepare.check import check
from retable.tasks.audio.prepare.importer import survey


def touch(*paths):
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"sound")


def write_csv(path, *rows, delimiter=",", encoding="utf-8"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding=encoding) as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)


HEAD = ["file_name", *(f"caption_{n}" for n in range(1, 6))]


def test_clotho_with_all_its_oddities(tmp_path):
    root = tmp_path / "clotho"
    names = [" Rain, heavy.wav", "Fish &amp; chips.wav", "12:30 bell.wav", "absent.wav"]
    write_csv(root / "clotho_captions_development.csv", HEAD, *([n, "A  b. ", "", "c", "d", "e"] for n in names))
    meta = ["file_name", "keywords", "sound_id", "sound_link", "start_end_samples", "manufacturer", "license"]
    write_csv(
        root / "metadata/clotho_metadata_development.csv",
        meta,
        ["Rain, heavy.wav", "rain;window", "17", "x", "[1, 2]", "Müller", "cc"],
        [names[1], "fish", "Not found", "Not found", "[1, 2]", "b", "cc"],
        [names[2], "bell; tower ", "Not found", "https://freesound.org/people/x/sounds/42", "[1, 2]", "b", "cc"],
        encoding="latin-1",
    )
    write_csv(root / "clotho_captions_evaluation.csv", HEAD, ["rain.wav", *"abcde"])
    write_csv(root / "clotho_metadata_evaluation.csv", meta[:3], ["rain.wav", "a;b", "7"], delimiter=";")
    on_disk = ["Rain, heavy.wav", "Fish & chips.wav", "12_30 bell.wav"]
    touch(*(root / "development/development" / name for name in on_disk), root / "evaluation/rain.wav")
    touch(root / "evaluation/absent.wav")  # another split's: not the one that is missed
    found = layouts.clotho(root)
    assert [entry.path and entry.path.name for entry in found] == [*on_disk, None, "rain.wav"]
    assert [entry.source for entry in found] == ["freesound:17", "", "freesound:42", "", "freesound:7"]
    assert [entry.split for entry in found] == ["training"] * 4 + ["test"]
    assert found[0].captions == ("A b.", "c", "d", "e")
    assert [found[n].keywords for n in (0, 2, 4)] == ["rain;window", "bell;tower", "a;b"]
    assert found[0].title == "rain, heavy"


def test_audiocaps_rows_of_one_clip_are_its_captions(tmp_path):
    head = ["audiocap_id", "youtube_id", "start_time", "caption"]
    write_csv(tmp_path / "dataset/train.csv", head, [1, "ab-cdefghij", 30, "A man talks, then a dog barks"])
    write_csv(tmp_path / "dataset/val.csv", head, [2, "_x", 0, "one"], [3, "_x", 0, "two"], [4, "gone", 5, "three"])
    touch(tmp_path / "audio/Yab-cdefghij.flac", tmp_path / "audio/_x_0.wav")
    found = layouts.audiocaps(tmp_path)
    assert [(entry.path and entry.path.name, entry.captions) for entry in found] == [
        ("Yab-cdefghij.flac", ("A man talks, then a dog barks",)),
        ("_x_0.wav", ("one", "two")),
        (None, ("three",)),
    ]
    assert {entry.split for entry in found} == {"training"}
    assert [entry.source for entry in found] == ["youtube:ab-cdefghij@30", "youtube:_x@0", "youtube:gone@5"]


def test_wavcaps_finds_equal_numbers_of_different_sources_apart(tmp_path):
    tables = {
        "FreeSound/fsd_final.json": [
            {"id": "12", "caption": " Rain. ", "file_name": "Rain at night.WAV", "tags": ["a"]}
        ],
        "BBC_Sound_Effects/bbc_final.json": [{"id": "12", "caption": "Wind."}],
        "SoundBible/sb_final.json": [{"id": 12, "caption": "", "title": "Bell"}],
        "AudioSet_SL/as_final.json": [{"id": "Yabc.wav", "caption": "Talk."}],
    }
    for name, data in tables.items():
        path = tmp_path / "json_files" / name
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"num_captions_per_audio": 1, "data": data}))
    for file in ("FreeSound/12.flac", "BBC_Sound_Effects/12.flac", "AudioSet_SL/Yabc.mp3"):
        touch(tmp_path / "Zip_files" / file)
    found = layouts.wavcaps(tmp_path)
    assert [entry.source for entry in found] == ["freesound:12", "bbc:12", "soundbible:12", "youtube:abc"]
    assert [entry.path and entry.path.parent.name for entry in found] == [
        "FreeSound",
        "BBC_Sound_Effects",
        None,
        "AudioSet_SL",
    ]
    assert [entry.captions for entry in found] == [("Rain.",), ("Wind.",), (), ("Talk.",)]
    assert [entry.title for entry in found] == ["rain at night", "12", "bell", "Yabc"]
    assert found[0].keywords == "a"


def test_the_challenges_folders_give_training_first(tmp_path):
    with pytest.raises(UserError, match="none of the folders clotho, audiocaps, wavcaps"):
        layouts.challenge(tmp_path)
    write_csv(tmp_path / "clotho/clotho_captions_evaluation.csv", HEAD, ["a.wav", *"abcde"])
    write_csv(tmp_path / "audiocaps/test.csv", ["youtube_id", "start_time", "caption"], ["x", 0, "b"])
    assert [entry.corpus for entry in layouts.challenge(tmp_path)] == ["audiocaps", "clotho"]
    (tmp_path / "wavcaps").mkdir()
    with pytest.raises(UserError, match=r"no fsd_final.json"):
        layouts.challenge(tmp_path)


def test_own_tables_of_both_forms(tmp_path):
    table = tmp_path / "mine.csv"
    write_csv(
        table, ["File", "Caption"], ["a, b.wav", "x"], ["a, b.wav", "y"], ["sub/ü.wav", "犬が吠える"], ["no.wav", " "]
    )
    touch(tmp_path / "a, b.wav", tmp_path / "sub/ü.wav")
    found = {entry.file: entry for entry in layouts.own(table)}
    assert found["a, b.wav"].captions == ("x", "y")
    assert found["sub/ü.wav"].captions == ("犬が吠える",)
    assert found["sub/ü.wav"].path == tmp_path / "sub/ü.wav"
    assert found["no.wav"].path is None
    assert found["no.wav"].captions == ()
    write_csv(table, ["file_name", "caption_1", "caption_2", "split"], ["a, b.wav", "x", "y", "dev"], delimiter=";")
    assert [(entry.captions, entry.split) for entry in layouts.own(table)] == [(("x", "y"), "training")]


def test_own_recordings_are_dealt_out_by_source_and_always_alike(tmp_path):
    table = tmp_path / "mine.csv"
    rows = [[f"{n}.wav", f"caption {n}", f"freesound:{n // 3}"] for n in range(60)]
    write_csv(table, ["file", "caption", "source"], *rows)
    found = {entry.file: entry for entry in layouts.own(table)}
    write_csv(table, ["file", "caption", "source"], *rows[::-1])
    assert {entry.file: entry for entry in layouts.own(table)} == found
    splits = {source: {e.split for e in found.values() if e.source == source} for source in {r[2] for r in rows}}
    assert all(len(here) == 1 for here in splits.values())
    counts = [sum(entry.split == split for entry in found.values()) for split in ("validation", "test")]
    assert all(6 <= count <= 8 for count in counts)
    write_csv(table, ["file", "caption"], ["a.wav", "x"], ["b.wav", "y"])
    assert [entry.split for entry in layouts.own(table)] == ["training", "training"]


@pytest.mark.parametrize("grown", [61, 80, 200])
def test_what_was_trained_on_is_never_held_out_when_a_listing_grows(tmp_path, grown):
    """Who goes on from an earlier fine-tuning would be scored on what it heard."""
    table = tmp_path / "mine.csv"
    write_csv(table, ["file", "caption"], *([f"{n}.wav", "x"] for n in range(60)))
    before = {layouts.origin(entry.source, entry.file): entry.split for entry in layouts.own(table)}
    write_csv(table, ["file", "caption"], *([f"{n}.wav", "x"] for n in range(grown)))
    after = {layouts.origin(entry.source, entry.file): entry.split for entry in layouts.own(table, None, before)}
    assert {key: after[key] for key in before} == before and len(after) == grown
    assert all(abs(Counter(after.values())[split] - grown / 10) <= 1.5 for split in ("validation", "test"))


def test_numbers_of_any_length_are_read(tmp_path):
    """Python makes no number of more than 4,300 digits."""
    table, number = tmp_path / "mine.csv", "1" * 5000
    write_csv(table, ["file", f"caption_{number}", "caption_2"], ["a.wav", "x", "y"])
    assert layouts.own(table)[0].captions == ("y", "x")
    assert layouts.freesound_source({"sound_id": number}) == f"freesound:{number}"
    assert layouts.freesound_source({"sound_id": "007.0"}) == "freesound:7"


@pytest.mark.parametrize("grown", [2, 3, 4, 5])
def test_a_listing_that_grows_from_two_recordings_is_dealt(tmp_path, grown):
    table, before = tmp_path / "mine.csv", {"0.wav": "training", "1.wav": "training"}
    write_csv(table, ["file", "caption"], *([f"{n}.wav", "x"] for n in range(grown)))
    found = Counter(entry.split for entry in layouts.own(table, None, before))
    assert found["training"] >= 2 and found["test"] + found["validation"] == min(grown - 2, 2)


@pytest.mark.parametrize("sites", range(8))
def test_a_source_larger_than_its_share_is_trained_on(tmp_path, sites):
    """Wherever its hash puts it in the order."""
    table = tmp_path / "mine.csv"
    rows = [[f"{n}.wav", f"caption {n}", f"site{sites}" if n < 90 else f"single{n}"] for n in range(100)]
    write_csv(table, ["file", "caption", "source"], *rows)
    assert Counter(entry.split for entry in layouts.own(table)) == {"training": 90, "test": 9, "validation": 1}
    rows = [[f"{n}.wav", f"caption {n}", f"site{n % 3}"] for n in range(90)]
    write_csv(table, ["file", "caption", "source"], *rows)
    assert Counter(entry.split for entry in layouts.own(table)) == dict.fromkeys(("training", "test", "validation"), 30)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (["file", "caption", "caption"], "has two columns 'caption'"),
        (["file", "caption", "caption.1"], "column 'caption.1' would not be read; call it caption_1"),
        (["file", "caption", "caption 2"], "column 'caption 2' would not be read"),
    ],
)
def test_no_captions_are_dropped_without_a_word(tmp_path, header, words):
    table = tmp_path / "mine.csv"
    write_csv(table, header, ["a.wav", "x", "y"])
    with pytest.raises(UserError, match=re.escape(words)):
        layouts.own(table)
    write_csv(table, ["file", "caption", "caption_id", "note", "note"], ["a.wav", "x", "7", "y", "z"])
    assert layouts.own(table)[0].captions == ("x",), "what is no caption may be there"


def test_a_file_in_two_splits_is_refused(tmp_path):
    table = tmp_path / "mine.csv"
    write_csv(table, ["file", "caption", "split"], ["a.wav", "x", "train"], ["a.wav", "y", "test"])
    with pytest.raises(UserError, match=r"a.wav is in test and in training; leave it in one split"):
        layouts.own(table)


def test_tables_that_cannot_be_used_say_why(tmp_path):
    table = tmp_path / "mine.csv"
    with pytest.raises(UserError, match="cannot be read"):
        layouts.own(table)
    write_csv(table, ["name", "text"], ["a", "b"])
    with pytest.raises(UserError, match=r"needs columns file and caption .* has name, text"):
        layouts.own(table)
    assert not layouts.describes(table)
    write_csv(table, ["file", "caption", "split"], ["a.wav", "b", "middle"])
    with pytest.raises(UserError, match="no split 'middle'"):
        layouts.own(table)
    table.write_bytes(b"PK\0\0")
    with pytest.raises(UserError, match="not a text file"):
        layouts.own(table)
    write_csv(tmp_path / "clotho_captions_validation.csv", ["name"], ["a"])
    with pytest.raises(UserError, match="no column file_name, caption_1"):
        layouts.clotho(tmp_path)


@pytest.mark.parametrize(
    "text", ["[1]", "{}", '{"data": [{}]}', '{"data": ["an id"]}', '{"data": 7}', '{"data": {"id": 1}}', "[" * 100_000]
)
def test_a_broken_table_of_wavcaps_is_one_line(tmp_path, text):
    (tmp_path / "fsd_final.json").write_text(text)
    with pytest.raises(UserError, match="not a table of WavCaps") as raised:
        layouts.wavcaps(tmp_path)
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_never_another_folders(tmp_path):
    table = tmp_path / "mine.csv"
    listed = ["dogs/1.wav", "Dogs\\A_B.WAV", "./deep/Regen.wav", "2.wav", "3.wav", "4.wav"]
    write_csv(table, ["file", "caption"], *([file, f"caption of {file}"] for file in listed))
    there = ["cats/1.wav", "cats/a b.wav", "dogs/a b.wav", "deep/regen.wav", "cats/2.wav", "cats/3.wav", "dogs/3.wav"]
    touch(*(tmp_path / name for name in (*there, "cats/4.wav", "dogs/4.WAV")))
    found = {entry.file: entry.path and entry.path.relative_to(tmp_path).as_posix() for entry in layouts.own(table)}
    meant = [None, "dogs/a b.wav", "deep/regen.wav", "cats/2.wav", None, "cats/4.wav"]
    assert found == dict(zip(listed, meant, strict=True))
    touch(tmp_path / "audio/dogs/1.WAV")  # below another of the folders that names may be relative to
    found = {entry.file: entry.path for entry in layouts.own(table)}
    assert found["dogs/1.wav"] == tmp_path / "audio/dogs/1.WAV"


def test_rows_with_more_cells_than_the_header_are_refused(tmp_path):
    table = tmp_path / "mine.csv"
    table.write_text("file,caption\na.wav,rain\nb.wav,a dog barks, and then rain falls, hard\n")
    with pytest.raises(UserError, match=r"mine.csv: line 3 has more cells than the header; put text .* quotes"):
        layouts.own(table)
    table.write_text('file,caption\na.wav,rain,,\n"b.wav","a dog, barks"\n')  # empty cells hold nothing
    assert {entry.captions for entry in layouts.own(table)} == {("rain",), ("a dog, barks",)}


@pytest.mark.parametrize(
    ("listed", "line"),
    [
        ('a.wav,"a dog barks\nb.wav,rain falls\nc.wav,wind blows\n', 2),
        ('a.wav,rain\nb.wav,"a dog barks\nc.wav,"wind blows"\n', 3),
        ('a.wav,rain\n\nb.wav,wind\nc.wav,"a dog', 5),
        ('a.wav,rain\nb.wav,wind\nc.wav,"a dog\n', 4),
    ],
)
def test_a_quote_that_is_not_closed_swallows_no_rows(tmp_path, listed, line):
    table = tmp_path / "mine.csv"
    table.write_text(f"file,caption\n{listed}")
    with pytest.raises(UserError, match=rf"mine.csv: not a CSV file \(line {line}: .* quotation mark is not closed"):
        layouts.own(table)


def test_quotes_that_are_closed_are_read(tmp_path):
    """Line breaks inside a cell, as spreadsheets write them, and text behind a quote, as people do."""
    table = tmp_path / "mine.csv"
    table.write_text('file,caption\r\na.wav,"a dog\r\n""barks"", twice"\r\nb.wav,"dog" barks\r\nc.wav,a "dog\r\n')
    found = {entry.file: entry.captions for entry in layouts.own(table)}
    assert found == {"a.wav": ('a dog "barks", twice',), "b.wav": ("dog barks",), "c.wav": ('a "dog',)}


def test_names_that_no_file_can_have_are_missing(tmp_path):
    table = tmp_path / "mine.csv"
    write_csv(table, ["file", "caption"], *([name, "x"] for name in ("a.wav", "b" * 300 + ".wav", ".", "/", "..")))
    touch(tmp_path / "a.wav")
    assert [entry.file for entry in layouts.own(table) if entry.path] == ["a.wav"]
    assert len(layouts.own(table)) == 5


def test_rows_without_a_file_are_empty_or_refused(tmp_path):
    """Excel writes its empty last rows; they are no recordings, and have no share in the splits."""
    table, listed = tmp_path / "mine.csv", [[f"{n}.wav", "x", ""] for n in range(8)]
    write_csv(table, ["file", "caption", "source"], *listed)
    found = layouts.own(table)
    write_csv(table, ["file", "caption", "source"], *listed, ["", "", ""], [" ", "", "site1"], delimiter=";")
    assert layouts.own(table) == found
    write_csv(table, ["file", "caption", "source"], *listed, ["", "rain", ""])
    with pytest.raises(UserError, match=r"mine.csv: the row with the caption 'rain' names no file; write its name"):
        layouts.own(table)


META = ["file_name", "keywords", "sound_id"]


def test_clothos_metadata_are_those_of_the_exact_name(tmp_path):
    """Six pairs of names of the real development set are equal but for `_` and spaces."""
    names = ["Car Keys.wav", "Car_Keys.wav", "RAIN.wav", "fire &amp; wood.wav"]
    write_csv(tmp_path / "clotho_captions_development.csv", HEAD, *([name, *"abcde"] for name in names))
    write_csv(
        tmp_path / "clotho_metadata_development.csv", META,
        ["Car Keys.wav", "one", "1"], ["Car_Keys.wav", "two", "2"], ["rain.wav", "three", "3"], ["Rain.wav", "x", "4"],
        ["fire & wood.wav", "five", "5"],
    )  # fmt: skip
    touch(*(tmp_path / "development" / name for name in ("Car_Keys.wav", "Car Keys.wav", "rain.wav", "fire_wood.wav")))
    found = layouts.clotho(tmp_path)
    assert [entry.source for entry in found] == ["freesound:1", "freesound:2", "", "freesound:5"]
    assert [entry.keywords for entry in found] == ["one", "two", "", "five"]
    assert [entry.path.name for entry in found[:3]] == [*names[:2], "rain.wav"]
    assert [bool(entry.remark) for entry in found] == [False, False, True, False]
    assert found[2].remark == "its metadata may be of 'rain.wav' or 'Rain.wav': none is taken"


def test_a_listed_name_that_two_files_may_mean_is_none_of_them(tmp_path):
    write_csv(tmp_path / "clotho_captions_validation.csv", HEAD, ["Car:Keys.wav", *"abcde"], ["Door.wav", *"abcde"])
    touch(*(tmp_path / "validation" / name for name in ("Car Keys.wav", "Car_Keys.wav", "door.wav")))
    ambiguous, door = layouts.clotho(tmp_path)
    assert ambiguous.path is None and ambiguous.remark == "may be 'Car Keys.wav' or 'Car_Keys.wav': none is taken"
    assert door.path.name == "door.wav" and door.remark == ""


CURLY = "It’s a “dog” – barking…"


@pytest.mark.parametrize("encoding", ["cp1252", "utf-8", "utf-8-sig", "utf-16"])
def test_tables_as_excel_writes_them(tmp_path, encoding):
    table = tmp_path / "mine.csv"
    write_csv(table, ["file", "caption"], ["Dog’s bark.wav", CURLY], ["b.wav", "rain"], encoding=encoding)
    touch(tmp_path / "Dog’s bark.wav", tmp_path / "b.wav")
    found = layouts.own(table)
    assert found[0].captions == (CURLY,) and all(entry.path for entry in found)


def test_a_name_of_ones_own_table_that_two_files_may_mean_is_said_by_all(tmp_path):
    """As of Clotho: none is taken, and import and check name both."""
    write_csv(tmp_path / "mine.csv", ["file", "caption"], ["Rain 1.wav", "rain"], ["one.wav", "x"], ["gone.wav", "y"])
    touch(tmp_path / "a/rain_1.wav", tmp_path / "b/RAIN 1.wav", tmp_path / "c/one.wav", tmp_path / "d/one.wav")
    found = {entry.file: entry for entry in layouts.own(tmp_path / "mine.csv")}
    assert not any(entry.path for entry in found.values())
    assert found["Rain 1.wav"].remark == "may be a/rain_1.wav or b/RAIN 1.wav: none is taken"
    assert found["one.wav"].remark == "may be c/one.wav or d/one.wav: none is taken"
    assert found["gone.wav"].remark == ""
    lines = check(tmp_path / "mine.csv")
    assert any(line.startswith("one.wav: ") and "d/one.wav" in line for line in lines)
    _, broken = survey(list(found.values()), lambda done, total: None)
    assert any(line == f"one.wav: missing; {found['one.wav'].remark}" for line in broken)


@pytest.mark.parametrize(
    "caption", ["„Der Spaß“", "le “CAFÉ” bruyant", "«CAFÉ» et “ÉTÉ” – “NOËL”", "STRASSENMUSIK À “CAFÉ”"]
)
def test_letters_that_chance_to_be_utf_8_leave_a_table_windows_1252(tmp_path, caption):
    """Excel's own quotes behind a capital letter with an accent, or a sharp s, are such."""
    table = tmp_path / "mine.csv"
    table.write_bytes(f"file,caption\na.wav,{caption}\n".encode("cp1252"))
    with pytest.raises(UnicodeDecodeError):
        table.read_bytes().decode("utf-8")
    assert any(ord(letter) > 127 for letter in table.read_bytes().decode("utf-8", "ignore"))
    assert layouts.own(table)[0].captions == (caption,)


@pytest.mark.parametrize(
    ("text", "line", "byte"),
    [
        (f"file,caption\na.wav,{CURLY}\nb.wav,it".encode() + b"\x92s\n", 3, "92"),
        (f"file,caption\na.wav,{CURLY}\nb.wav,{CURLY}\n".encode()[:-2] + b"\nc.wav,x\n", 3, "e2"),
        ("file,caption\r\na.wav,“x”\r\nb.wav,y".encode("cp1252") + b"\x81\r\n", 3, "81"),
    ],
)
def test_a_stray_byte_names_its_line(tmp_path, text, line, byte):
    (tmp_path / "mine.csv").write_bytes(text)
    with pytest.raises(UserError, match=rf"mine.csv: line {line}: the byte 0x{byte} is no UTF-8"):
        layouts.own(tmp_path / "mine.csv")


def test_clothos_metadata_are_read_whatever_their_bytes(tmp_path):
    write_csv(tmp_path / "clotho_captions_development.csv", HEAD, ["a.wav", *"abcde"])
    table = tmp_path / "clotho_metadata_development.csv"
    table.write_bytes(b"file_name,keywords,sound_id,manufacturer\na.wav,\xc3\xa9t\xe9,7,\x9d\n")
    assert layouts.clotho(tmp_path)[0].source == "freesound:7"
