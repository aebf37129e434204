"""Schemas of the files in a bundle: what each kind must hold.

Each check raises `Malformed`.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Mapping
from io import BytesIO

from retable.platform.store.bundle import ARRAYS, HEAVY, Member
from retable.platform.store.run import epoch_row, is_shards
from retable.platform.store.storage import Record

LARGEST = 1 << 63
"""Whole numbers that are larger are no measurement, and overflow where they are shown."""
DIGEST = re.compile(r"[0-9]{1,9} [0-9a-f]{64}")
"""An epoch, and the SHA-256 of its weights."""
_WORDS = ("host", "device", "system", "command", "commit", "started", "scale")
"""Entries of a provenance that are texts, where they are there."""


class Malformed(Exception):
    """A file does not match the schema of its kind; the text says why."""


_ENTRIES: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "config": {"task": str, "version": int, "config": dict},
    "provenance": {},
    "result": {"data": str, "metrics": dict, "weights": dict, "seconds": (int, float)},
    "scores": {"view": dict, "weights": str, "metrics": dict},
    "combination": {"inputs": list, "metrics": dict},
    "measurement": {"metrics": dict},
    "request": {"table": str, "scale": str, "set": dict},
    "manifest": {"model.safetensors": str, "state.pt": str},
}
"""Kind of a JSON object -> the entries that it must have."""


def check_content(member: Member, data: bytes) -> None:
    """Check the content of a member of a bundle.

    Args:
        member: which file it is.
        data: its content; unused for kinds that are verified by their digests when they are read.

    Raises:
        Malformed: if it does not hold what its kind asks for.
    """
    if member.kind == "summary":
        _arrays(data)
    elif member.kind == "log":
        _log(data)
    elif member.kind not in HEAVY:
        _check_json(member, data)


def _check_json(member: Member, data: bytes) -> None:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Malformed("it is not JSON") from error
    if member.kind == "shards":
        if not is_shards(content):
            raise Malformed("it is no list of shards")
        return
    if not isinstance(content, dict):
        raise Malformed("it is no object")
    for name, kind in _ENTRIES[member.kind].items():
        if not isinstance(content.get(name), kind) or isinstance(content[name], bool):
            raise Malformed(f"the entry {name!r} is missing or of the wrong type")
    if "metrics" in _ENTRIES[member.kind]:
        _numbers(content["metrics"], "metrics")
    if member.kind in _CHECKS:
        _CHECKS[member.kind](content)
    if member.run and member.kind == "config" and content["task"] != member.task:
        raise Malformed("it is another task's")


def _numbers(values: object, name: str) -> None:
    if not isinstance(values, dict):
        raise Malformed(f"the entry {name!r} is no object")
    for metric, value in values.items():
        if value is not None and not _is_number(value):
            raise Malformed(f"{metric[:60]!r} is no number")


def _is_number(value: object) -> bool:
    """Return whether a value is a number that a metric may be; NaN and infinities are."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < LARGEST)


def _provenance(record: Mapping[str, object]) -> None:
    for name in _WORDS:
        if not isinstance(record.get(name), (str, type(None))):
            raise Malformed(f"the entry {name!r} is no text")
    versions, data = record.get("versions", {}), record.get("data", {"digest": ""})
    if not isinstance(versions, dict) or not all(isinstance(version, str) for version in versions.values()):
        raise Malformed("the entry 'versions' is no object of texts")
    if not isinstance(data, dict) or not isinstance(data.get("digest"), str):
        raise Malformed("the entry 'data' is no dataset's")
    own = record.get("own", {"name": "", "commit": ""})
    if not isinstance(own, dict) or not all(isinstance(own.get(name), str) for name in ("name", "commit")):
        raise Malformed("the entry 'own' names no task and commit")


def _result(record: Record) -> None:
    spent = {"seconds": record["seconds"], "attempts": record.get("attempts", 1)}
    for values, name in ((spent, "metrics"), (record.get("used", {}), "used")):
        _numbers(values, name)
        for what, value in values.items():
            if value is None or not 0 <= value < LARGEST:
                raise Malformed(f"{what[:60]!r} is no number of 0 or more")
    if not isinstance(record.get("diverged", ""), str):
        raise Malformed("the entry 'diverged' is no text")
    if not all(DIGEST.fullmatch(f"{epoch} {digest}") for epoch, digest in record["weights"].items()):
        raise Malformed("the entry 'weights' holds no digests by epoch")


def _measurement(record: Mapping[str, object]) -> None:
    made = record.get("provenance", {})
    if not isinstance(made, dict) or not isinstance(record.get("measured on", ""), str):
        raise Malformed("its provenance is no object")
    _provenance(made)


_CHECKS: Mapping[str, Callable[[Record], None]] = {
    "provenance": _provenance,
    "result": _result,
    "measurement": _measurement,
}
"""Kind of a JSON object -> what is checked of it besides its entries and metrics."""


def _log(data: bytes) -> None:
    for number, line in enumerate(data.splitlines(), 1):
        row = epoch_row(line)
        if row is None:
            raise Malformed(f"line {number} is no epoch's")
        if any(not isinstance(value, (str, type(None))) and not _is_number(value) for value in row.values()):
            raise Malformed(f"line {number} holds what is neither a number nor a text")


def _arrays(data: bytes) -> None:
    """Check an .npz file without unpacking it: its arrays must not be larger than a file in a bundle may be."""
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            listed = archive.infolist()
    except Exception as error:  # a broken archive raises almost anything
        raise Malformed("it holds no arrays") from error
    if sum(member.file_size for member in listed) > ARRAYS:
        raise Malformed("its arrays are too large")
