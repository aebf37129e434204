"""Entries of HDF5 files that strangers wrote.

Links, virtual and external datasets may point into any other file of this machine: they are refused.
"""

from __future__ import annotations

from pathlib import Path

import h5py

from retable.platform.errors import UserError

_WRITE = "write the data itself into the file"


def plain_entry(path: Path, group: h5py.Group, key: str, remedy: str) -> h5py.Group | h5py.Dataset:
    """Return a member of a group.

    Args:
        path: the file, as errors call it.
        group: the group, or the file itself.
        key: the member's name.
        remedy: how the error ends where the member is missing.

    Raises:
        UserError: if it is missing, or a link.
    """
    name = f"{group.name}/{key}".lstrip("/")
    if not group.id.links.exists(key.encode()):
        raise UserError(f"{path}: key '{name}' is missing; {remedy}")
    if group.id.links.get_info(key.encode()).type != h5py.h5l.TYPE_HARD:
        raise UserError(f"{path}: key '{name}' is a link to elsewhere; {_WRITE}")
    return group[key]


def plain_numbers(path: Path, group: h5py.Group, key: str, remedy: str, kinds: str = "fiub") -> h5py.Dataset:
    """Return a dataset of numbers whose data lie in the file; arguments as `plain_entry`.

    `kinds` are NumPy's kinds of numbers that are taken.

    Raises:
        UserError: if it is missing, a link, no array of numbers, or kept in another file.
    """
    data, name = plain_entry(path, group, key, remedy), f"{group.name}/{key}".lstrip("/")
    if not isinstance(data, h5py.Dataset) or data.dtype.kind not in kinds:
        raise UserError(f"{path}: key '{name}' is no array of numbers; {remedy}")
    if data.is_virtual or data.external:
        raise UserError(f"{path}: key '{name}' keeps its data in another file; {_WRITE}")
    return data
