"""Tables as text, in the encodings that spreadsheets write; needs no library of sounds."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator
from pathlib import Path

from retable.platform.errors import UserError


def read_text(table: Path, lenient: bool = False) -> str:
    """Return the text of a table: UTF-8, UTF-16 with its mark, or Windows-1252, as Excel writes it.

    Args:
        table: the file.
        lenient: read what is neither as Latin-1, in which every byte is a letter.

    Raises:
        UserError: where it cannot be read, is no text, or holds a byte that is of neither; the line names it.
    """
    try:
        data = table.read_bytes()
    except OSError as error:
        raise UserError(f"{table}: cannot be read ({error.strerror}); give a CSV file") from error
    try:
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return data.decode("utf-16")
        if b"\0" in data:
            raise UserError(f"{table}: not a text file; give a CSV file")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        wrong = error
    is_utf8 = _is_utf8(data)
    try:
        if not is_utf8:
            return data.decode("cp1252")
    except UnicodeDecodeError as error:
        wrong = error
    if lenient:
        return data.decode("latin-1")
    line, byte = data.count(b"\n", 0, wrong.start) + 1, data[wrong.start]
    written = "UTF-8" if is_utf8 else "UTF-8 or Windows-1252"
    raise UserError(f"{table}: line {line}: the byte 0x{byte:02x} is no {written}; write the line anew, as UTF-8")


def _is_utf8(data: bytes) -> bool:
    """Return whether bytes that are not all UTF-8 are meant as such.

    A capital letter before a quotation mark in Windows-1252 chances to be a letter from U+0100 to U+07FF. Where there
    are no other ones, and no more of these than bytes that are no UTF-8, it is Windows-1252.
    """
    letters = [letter for letter in data.decode("utf-8-sig", errors="surrogateescape") if ord(letter) > 127]
    wrong = sum("\udc80" <= letter <= "\udcff" for letter in letters)
    by_chance = sum("\u0100" <= letter <= "\u07ff" for letter in letters)
    return by_chance > wrong or by_chance + wrong < len(letters)


def read_cells(text: str, delimiter: str, skipinitialspace: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV that are not blank, each with the number of its last line.

    Text behind a closing quotation mark belongs to its cell. A row that spans several lines must be strictly correct:
    else a quotation mark that somebody forgot to close would swallow the rows below it.

    Raises:
        csv.Error: where the text is no CSV, or a quotation mark is not closed.
    """
    # The blank lines at the end make an open cell of the last line span several, too.
    lines = io.StringIO(text + "\n\n", newline="").readlines()
    reader, start = csv.reader(lines, delimiter=delimiter, skipinitialspace=skipinitialspace), 0
    for row in reader:
        if reader.line_num > start + 1:
            here = lines[start : reader.line_num]
            try:
                list(csv.reader(here, delimiter=delimiter, skipinitialspace=skipinitialspace, strict=True))
            except csv.Error as error:
                raise csv.Error(f"line {start + 1}: a quotation mark is not closed") from error
        start = reader.line_num
        if row:
            yield start, row
