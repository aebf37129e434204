"""Tables as text, in the encodings that spreadsheets write; needs no library of sounds."""

from __future__ import annotations

import codecs
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
