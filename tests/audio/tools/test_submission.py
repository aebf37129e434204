"""Submissions: what is written is read back, and captions that cannot be read are a line."""

import csv

import pandas
import pytest

from retable.platform.errors import UserError
from retable.tasks.audio.tools.challenge import submission

NAMES = tuple(f"sound {n}, loud &amp; clear.wav" for n in range(12))
ROWS = [
    ("a dog barks, twice", NAMES[:10]),
    ('he says "hé"', NAMES[2:]),
    ("雨が降る", NAMES[1:11]),
    ("rain\rfalls", NAMES[:10]),
]


def read(path):
    """Return a submission's captions and their recordings."""
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file, strict=True)
    assert tuple(header) == submission.HEADER and all(len(row) == len(header) for row in rows)
    return [(row[0], tuple(row[1:])) for row in rows]


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "out.csv"
    submission.write(path, ROWS)
    return path


def test_a_submission_is_what_the_organisers_example_looks_like(written):
    table = pandas.read_csv(written)
    assert list(table.columns) == ["caption", *(f"file_name_{n}" for n in range(1, 11))]
    assert [(row[0], tuple(row[1:])) for row in table.itertuples(index=False)] == ROWS


def test_what_was_written_is_read(written):
    assert read(written) == ROWS


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
        (b"", "no column caption; it has none"),
        (b"text\nrain\n", "no column caption; it has text"),
        (b"caption\n", "no captions"),
        (b"caption,n\nrain,1\n ,2\n", "caption 2 is empty"),
        (b"n,caption\n1,rain\n2\n", "caption 2 is empty"),
        ("caption\nit’s rain\n".encode() + b"it\x92s rain\n", r"line 3: the byte 0x92 is no UTF-8"),
        (b"caption\nrain\na dog barks, and then rain falls\n", "line 3 has more cells than the header; put text that"),
        (b"n,caption\n1,rain\n2,a dog, barking\n", r"line 3 has more cells than the header"),
        (b'caption\n"rain\n', "not a CSV file"),
    ],
)
def test_captions_that_cannot_be_read_are_one_line(tmp_path, content, reason):
    path = tmp_path / "captions.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=reason) as raised:
        submission.read_captions(path)
    assert "\n" not in str(raised.value) and str(path) in str(raised.value)


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        submission.read_captions(tmp_path / "none.csv")
