"""The type of an array of any numbers; what its shape and its numbers mean, a docstring says."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
