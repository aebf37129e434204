"""The shapes of the files in a bundle: what each kind must hold, so that whatever reads it later finds what it expects.

Each check raises `Malformed`.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

from retable.platform.store.bundle import ARRAYS, Member
from retable.platform.store.run import epoch_row, is_shards

LARGEST = 1 << 63
"""Whole numbers that are larger are no measurement, and overflow where they are shown."""
DIGEST = re.compile(r"[0-9]{1,9} [0-9a-f]{64}")
"""An epoch, and the SHA-256 of its weights."""
WORDS = ("host", "device", "system", "command", "commit", "started", "scale")
"""Entries of a provenance that are texts, where they are there."""


class Malformed(Exception):
    """A file does not hold what its kind asks for; the text says why."""


def check_content(member: Member, data: bytes) -> None:
    """Check the content of a member of a bundle.

    Args:
        member: which file it is.
        data: its content; unused for kinds that are verified by their digests when they are read.

    Raises:
        Malformed: if it does not hold what its kind asks for.
    """
    if member.kind in ("summary", "predictions", "weights", "checkpoint"):
        if member.kind == "summary":
            _arrays(data)
        return
    if member.kind == "log":
        _log(data)
        return
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Malformed("it is not JSON") from error
    if member.kind == "shards":
        if not is_shards(found):
            raise Malformed("it is no list of shards")
        return
    if not isinstance(found, dict):
        raise Malformed("it is no object")
    CHECKS[member.kind](found)
    if member.run and member.kind == "config" and found["task"] != member.task:
        raise Malformed("it is another task's")


def _entries(found: Mapping[str, Any], kinds: Mapping[str, type | tuple[type, ...]]) -> None:
    for name, kind in kinds.items():
        if not isinstance(found.get(name), kind) or (isinstance(found[name], bool) and kind is not bool):
            raise Malformed(f"the entry {name!r} is missing or of the wrong type")


def _numbers(found: Any, name: str) -> None:
    if not isinstance(found, dict):
        raise Malformed(f"the entry {name!r} is no object")
    for metric, value in found.items():
        if value is not None and not is_number(value):
            raise Malformed(f"{metric[:60]!r} is no number")


def is_number(value: object) -> bool:
    """Return whether a value is a number that a metric may be; NaN and infinities are."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < LARGEST)


def _config(found: Mapping[str, Any]) -> None:
    _entries(found, {"task": str, "version": int, "config": dict})


def _provenance(found: Mapping[str, Any]) -> None:
    for name in WORDS:
        if not isinstance(found.get(name), (str, type(None))):
            raise Malformed(f"the entry {name!r} is no text")
    versions, data = found.get("versions", {}), found.get("data", {"digest": ""})
    if not isinstance(versions, dict) or not all(isinstance(each, str) for each in versions.values()):
        raise Malformed("the entry 'versions' is no object of texts")
    if not isinstance(data, dict) or not isinstance(data.get("digest"), str):
        raise Malformed("the entry 'data' is no dataset's")


def _result(found: Mapping[str, Any]) -> None:
    _entries(found, {"data": str, "metrics": dict, "weights": dict, "seconds": (int, float)})
    _numbers({**found["metrics"], "seconds": found["seconds"]}, "metrics")
    _numbers(found.get("used", {}), "used")
    _numbers({"attempts": found.get("attempts", 1)}, "attempts")
    if not isinstance(found.get("diverged", ""), str):
        raise Malformed("the entry 'diverged' is no text")
    if not all(DIGEST.fullmatch(f"{epoch} {digest}") for epoch, digest in found["weights"].items()):
        raise Malformed("the entry 'weights' holds no digests by epoch")


def _scores(found: Mapping[str, Any]) -> None:
    _entries(found, {"view": dict, "weights": str, "metrics": dict})
    _numbers(found["metrics"], "metrics")


def _combination(found: Mapping[str, Any]) -> None:
    _entries(found, {"inputs": list, "metrics": dict})
    _numbers(found["metrics"], "metrics")


def _measurement(found: Mapping[str, Any]) -> None:
    _entries(found, {"metrics": dict})
    _numbers(found["metrics"], "metrics")
    made = found.get("provenance", {})
    if not isinstance(made, dict) or not isinstance(found.get("measured on", ""), str):
        raise Malformed("its provenance is no object")
    _provenance(made)


def _request(found: Mapping[str, Any]) -> None:
    _entries(found, {"table": str, "scale": str, "set": dict})


def _manifest(found: Mapping[str, Any]) -> None:
    _entries(found, {"model.safetensors": str, "state.pt": str})


CHECKS: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
    "config": _config,
    "provenance": _provenance,
    "result": _result,
    "scores": _scores,
    "combination": _combination,
    "measurement": _measurement,
    "request": _request,
    "manifest": _manifest,
}


def _log(data: bytes) -> None:
    for number, line in enumerate(data.splitlines(), 1):
        row = epoch_row(line)
        if row is None:
            raise Malformed(f"line {number} is no epoch's")
        if any(not isinstance(value, (str, type(None))) and not is_number(value) for value in row.values()):
            raise Malformed(f"line {number} holds what is neither a number nor a text")


def _arrays(data: bytes) -> None:
    """Check an .npz file without unpacking it: its arrays must not be larger than a file in a bundle may be."""
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            listed = archive.infolist()
    except Exception as error:  # a broken archive raises almost anything
        raise Malformed("it holds no arrays") from error
    if sum(each.file_size for each in listed) > ARRAYS:
        raise Malformed("its arrays are too large")
