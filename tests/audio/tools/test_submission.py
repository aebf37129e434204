"""Submissions: what is written is read back, and every fault is named in a line."""

import csv

import pandas
import pytest

from retable.platform.errors import UserError
from retable.tasks.audio.tools.challenge import submission

NAMES = tuple(f"sound {n}, loud &amp; clear.wav" for n in range(12))
ROWS = [("a dog barks, twice", NAMES[:10]), ('he says "hé"', NAMES[2:]), ("雨が降る", NAMES[1:11])]


def read(path):
    """Return a submission's captions and their recordings; raise UserError where it is not of this form."""
    rows = submission.read_csv(path)
    if reasons := submission.defects(rows):
        raise UserError(f"{path}: {reasons[0]}")
    return [(row[0], tuple(row[1:])) for row in rows[1:]]


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "out.csv"
    submission.write(path, ROWS)
    return path


def test_a_submission_is_what_the_organisers_example_looks_like(written):
    table = pandas.read_csv(written)
    assert list(table.columns) == ["caption", *(f"file_name_{n}" for n in range(1, 11))]
    assert [(row[0], tuple(row[1:])) for row in table.itertuples(index=False)] == ROWS


def test_what_was_written_is_read_and_found_right(written):
    assert read(written) == ROWS
    assert submission.check(written, [caption for caption, _ in reversed(ROWS)], NAMES) == []


def test_the_baselines_numbered_header_is_read_too(written, tmp_path):
    for first in (0, 1):
        path = tmp_path / "numbered.csv"
        header = ",".join(["caption", *(str(n) for n in range(first, first + 10))])
        path.write_text(written.read_text().replace(",".join(submission.HEADER), header))
        assert read(path) == ROWS


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda rows: rows[0].pop(), "header"),
        (lambda rows: rows.clear(), "header"),
        (lambda rows: rows.__delitem__(slice(1, None)), "holds no captions"),
        (lambda rows: rows[2].pop(), "row 2: names 9 recordings, not 10"),
        (lambda rows: rows[2].append("more.wav"), "row 2: names 11 recordings, not 10"),
        (lambda rows: rows[1].__setitem__(4, " "), "row 1: names 9 recordings, not 10"),
        (lambda rows: rows[1].__setitem__(4, rows[1][5]), "row 1: names 'sound 4, loud &amp; clear.wav' twice"),
        (lambda rows: rows[3].__setitem__(0, ""), "row 3: the caption is empty"),
        (lambda rows: rows[3].__setitem__(1, "folder/a.wav"), "is a path"),
    ],
)
def test_faults_of_form_are_named_and_not_read(written, change, reason):
    rows = list(csv.reader(written.read_text().splitlines()))
    change(rows)
    with written.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    assert reason in submission.check(written)[0]
    with pytest.raises(UserError, match=r"out\.csv"):
        read(written)


def test_captions_and_recordings_must_be_the_challenges(written):
    wanted = [ROWS[0][0], ROWS[0][0], ROWS[1][0], "thunder"]
    found = submission.check(written, wanted, NAMES[:11])
    assert found == [
        "caption 'a dog barks, twice' is missing",
        "caption 'thunder' is missing",
        "caption '雨が降る' is not asked for",
        f"{NAMES[11]!r} is none of the recordings",
    ]


def test_a_caption_without_ten_recordings_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="9 recordings, not 10"):
        submission.write(tmp_path / "out.csv", [("rain", NAMES[:9])])
    assert list(tmp_path.iterdir()) == []


def test_captions_are_those_of_the_column_of_that_name(tmp_path):
    path = tmp_path / "retrieval_captions.csv"
    path.write_bytes('\ufeffnumber,caption\r\n1,"Rain, and wind."\r\n2, a dog \r\n\r\n'.encode())
    assert submission.read_captions(path) == ["Rain, and wind.", "a dog"]
    path.write_bytes("caption\n“it’s” rain – and wind\n".encode("cp1252"))
    assert submission.read_captions(path) == ["“it’s” rain – and wind"]
    path.write_text("caption,,\nrain,,\n")  # empty cells hold nothing
    assert submission.read_captions(path) == ["rain"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no column 'caption'"),
        (b"text\nrain\n", "no column 'caption' but text"),
        (b"caption\n", "no captions"),
        (b"caption,n\nrain,1\n ,2\n", "caption 2 is empty"),
        (b"n,caption\n1,rain\n2\n", "caption 2 is empty"),
        ("caption\nit’s rain\n".encode() + b"it\x92s rain\n", r"line 3: the byte 0x92 is no UTF-8"),
        (b"caption\nrain\na dog barks, and then rain falls\n", r"line 3 has more cells than the header; put a caption"),
        (b"n,caption\n1,rain\n2,a dog, barking\n", r"line 3 has more cells than the header"),
        (b'caption\n"rain\n', "no CSV file"),
    ],
)
def test_captions_that_cannot_be_read_are_one_line(tmp_path, content, reason):
    path = tmp_path / "captions.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=reason) as raised:
        submission.read_captions(path)
    assert "\n" not in str(raised.value) and str(path) in str(raised.value)


def test_a_missing_file_is_one_line(tmp_path):
    assert "No such file" in submission.check(tmp_path / "none.csv")[0]
