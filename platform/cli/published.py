"""Reads a paper's table from a CSV file: labels, published numbers, and each row's changes of the defaults."""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from retable.platform.errors import UserError

SET = "set:"
"""A column `set:model.width` says what a row changes, as `--set model.width=64` does."""
NUMBER = re.compile(r"([-+−]?)((?:\d[\d.,]*|[.,]\d+))([eE][-+]?\d+)?([kKMG](?![A-Za-z]))?")
"""Sign, digits with their marks, exponent, and a factor: 2k, 1.5M."""
FACTORS = {"k": "e3", "K": "e3", "M": "e6", "G": "e9"}
MARKS = re.compile(r"\\(?:(?:text|math)(?:bf|it)|underline|emph)|[{}$*%\\~<>≈≤≥]|\s")
COMMAND = re.compile(r"\\(?!times|cdot)[A-Za-z]+")
POWER = re.compile(r"(?:×|x|·|times|cdot)10\^([-+−]?\d+)")
RAISED = re.compile("[⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+")
RANGE = re.compile(rf"(?:[-–—−/]|\.\.|to)+{NUMBER.pattern}")
"""What follows the first number of a range or fraction."""
PLACES = 20
"""Most digits after the point that a column is printed with."""
NONE = ("", "-", "–", "—", "n/a", "N/A", "nan")
MOST = 1_000_000
"""Most bytes of such a file: a paper's table has a few thousand."""


@dataclass(frozen=True)
class Line:
    """One row of the table."""

    label: str
    published: dict[str, float]
    """Column header -> the number."""
    overrides: dict[str, object] | None
    """Config path -> value; None where the file has no column that says so."""


@dataclass(frozen=True)
class Published:
    """A table as it was printed."""

    headers: tuple[str, ...]
    """Of the columns of numbers."""
    places: dict[str, int]
    """Header -> digits after the point, the most that a number of the column has."""
    lines: tuple[Line, ...]
    joined: tuple[str, ...] = ()
    """Headers of the columns of text, which describe the labels further."""


def read_published(path: Path) -> Published:
    """Read a table: its first row holds the headers, its first column the labels.

    Columns of text further describe a label. Of `81.2 ± 0.3` the first number counts; bold marks and percent signs are
    left away, and so are `~` and `<`; 2k is 2,000; `-` is no number. Separators are commas, semicolons (with decimal
    commas or points) or tabs. Letters after a number must be a unit that the header names; else the column is of text.
    A range such as `81-83` in a column of numbers is refused.

    Raises:
        UserError: where it is no such file: which line, and what should stand there.
    """
    (header, *body), comma = _read_cells(path)
    header = [" ".join(name.split()) for name in header]
    doubled = [name for name, count in Counter(header[1:]).items() if count > 1 or not name]
    if doubled:
        raise UserError(f"{path}: the columns need names of their own: {doubled[0]!r} stands there twice or is empty")
    settings = [column for column, name in enumerate(header) if column and name.startswith(SET)]
    others = [column for column in range(1, len(header)) if column not in settings]
    numeric = [column for column in others if _is_numeric(path, header[column], body, column, comma)]
    if not numeric:
        raise UserError(f"{path}: no column holds numbers; the first is for labels, the others for what was published")
    lines = []
    for line in body:
        words = [line[0], *(line[column] for column in others if column not in numeric)]
        label = ", ".join(" ".join(MARKS.sub(" ", word).split()) for word in words if word.strip() not in NONE)
        values = {header[column]: number(line[column], comma) for column in numeric}
        changes = {
            header[column].removeprefix(SET): value(line[column], comma) for column in settings if line[column].strip()
        }
        try:
            json.dumps([values, changes], allow_nan=False)
        except ValueError as error:
            raise UserError(f"{path}: row {label!r} holds a number that is not finite; correct it") from error
        published = {name: amount for name, amount in values.items() if amount is not None}
        lines.append(Line(label, published, changes if settings else None))
    _check_labels(path, lines)
    places = {header[column]: max(digits(line[column], comma) for line in body) for column in numeric}
    joined = tuple(header[column] for column in others if column not in numeric)
    return Published(tuple(places), places, tuple(lines), joined)


def _read_cells(path: Path) -> tuple[list[list[str]], bool]:
    """Return a file's rows of cells, all of one length, without empty rows; and whether 1,234 has a decimal comma.

    Raises:
        UserError: where there are none, or it is no text.
    """
    try:
        if path.stat().st_size > MOST:
            raise UserError(f"{path}: more than {MOST:,} bytes is no paper's table; is it the right file?")
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a readable text file; save the table as CSV in UTF-8") from error
    if "\0" in text:
        raise UserError(f"{path}: not a text file; save the table as CSV in UTF-8")
    first = re.sub('"[^"]*"', "", text.lstrip()).partition("\n")[0]
    separator = next((mark for mark in "\t;" if mark in first), ",")
    try:
        cells = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        rows = [row for row in cells if any(map(str.strip, row))]
    except csv.Error as error:
        raise UserError(f"{path}: not CSV ({error})") from error
    if len(rows) < 2 or len(rows[0]) < 2:
        raise UserError(f"{path}: it needs a row of headers, a column of labels, and at least one row of numbers")
    for index, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise UserError(
                f"{path}: row {index} has {len(row)} cells, the headers are {len(rows[0])}; quote texts with commas"
            )
    return rows, separator != ","


def first_number(cell: str, comma: bool = False) -> str:
    """Return the first number of a cell as Python writes it; "" where it has none.

    Args:
        cell: such as `**81,2** ± 0,3`, `1,234,567` or `1.234,5`: where both marks stand, the last is the decimal one.
        comma: whether the one comma of 1,234 is a decimal one; else it is one at thousands.
    """
    match = NUMBER.match(_unmarked(cell))
    if match is None:
        return ""
    sign, text, exponent = match[1].replace("−", "-"), match[2].rstrip(".,"), match[3] or ""
    grouped = re.fullmatch(r"\d{1,3}((?:,\d{3})+(?:\.\d*)?|(?:\.\d{3})+(?:,\d*)?)", text)
    alone = len(re.findall("[.,]", text)) == 1
    if grouped and not (alone and (comma or "." in text)):
        thousands = grouped[1][0]
        text = text.replace(thousands, "").replace(",", ".")
    elif not alone and not text.isdecimal():
        return ""
    return f"{sign}{text.replace(',', '.')}{exponent or FACTORS.get(match[4] or '', '')}"


def number(cell: str, comma: bool = False) -> float | None:
    """Return the first number of a cell, or None where it has none; see `first_number`."""
    text = first_number(cell, comma)
    return float(text) if text else None


def digits(cell: str, comma: bool = False) -> int:
    """Return how many digits stand after the point of a cell's first number; see `first_number`."""
    text = first_number(cell, comma)
    return min(PLACES, max(0, -int(Decimal(text).as_tuple().exponent))) if text else 0


def _unmarked(cell: str) -> str:
    """Return a cell without marks and spaces, 1.2×10⁻³ as 1.2e-3."""
    raised = RAISED.sub(lambda digits: "^" + unicodedata.normalize("NFKC", digits[0]), cell)
    return POWER.sub(lambda power: "e" + power[1].replace("−", "-"), MARKS.sub("", raised))


def _is_numeric(path: Path, header: str, body: Sequence[Sequence[str]], column: int, comma: bool) -> bool:
    """Return whether a column holds numbers: every cell does that is not empty, and one is not.

    Raises:
        UserError: where some of its numbers are ranges.
    """
    filled = [line for line in body if line[column].strip() not in NONE]
    ranges = [line for line in filled if RANGE.match(NUMBER.sub("", _unmarked(line[column]), count=1))]
    cells = [line[column] for line in filled if line not in ranges]
    numeric = bool(cells) and all(first_number(cell, comma) and _unit(cell) in header.lower() for cell in cells)
    if numeric and ranges:
        what = f"row {ranges[0][0]!r}, {header!r}: {ranges[0][column]!r} is a range or fraction"
        raise UserError(f"{path}: {what}; write one number, or - for none")
    return numeric


def _unit(cell: str) -> str:
    """Return the letters right after a cell's first number, in lower case: `3D U-Net` and `2 x V100` are no numbers."""
    return re.sub(r"[\W\d_].*", "", NUMBER.sub("", _unmarked(COMMAND.sub("", cell)), count=1)).lower()


def value(cell: str, comma: bool = False) -> object:
    """Return a setting's value, read as `--set` reads it; a number that is all of it may have a decimal comma."""
    try:
        parsed: object = json.loads(re.sub(r"^(\s*-?\d+),(\d+\s*)$", r"\1.\2", cell) if comma else cell)
    except (ValueError, RecursionError):
        return cell.strip()
    return parsed


def _check_labels(path: Path, lines: Sequence[Line]) -> None:
    """Raise a UserError where a label is empty or stands there twice."""
    for label, count in Counter(line.label for line in lines).items():
        if not label or count > 1:
            raise UserError(f"{path}: each row needs a label of its own: {label!r} stands there {count} times")
