"""Precisions of compact files: what tables and options name, without what writes them."""

from __future__ import annotations

from typing import Literal

Precision = Literal["float32", "float16", "int8"]
TYPES = {"float32": ("<u4", "<f4"), "float16": ("<u2", "<f2"), "int8": ("u1", "i1")}
"""Precision -> the type of the bits and of the number."""
COMPACT: dict[str, Precision] = {"compact": "float32", "compact_float16": "float16", "compact_int8": "int8"}
"""Format -> its precision."""
