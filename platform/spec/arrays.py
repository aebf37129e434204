"""The types of an array of any numbers, and of some by name; what shape and numbers mean, a docstring says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
