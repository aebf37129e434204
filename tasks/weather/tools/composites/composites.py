"""Real rain composites as rain rates on pixels of about 2 km; `published` knows the layouts of their providers.

Reflectivity becomes a rate by the file's relation, else the product's; an accumulation by its own minutes. Pixels finer
than the layout's are averaged, those of equal angle resampled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from retable.platform.spec.arrays import Array
from retable.tasks.weather.tools.composites import published
from retable.tasks.weather.tools.composites.published import Grid, Quantity, Relation
from retable.tasks.weather.tools.composites.resample import PIXEL, coarse

PRODUCTS = published.PRODUCTS
SUFFIXES = published.SUFFIXES


@dataclass(frozen=True)
class Composite:
    """One file, its rain not yet read."""

    path: Path
    product: str
    """Whose layout it is, of `PRODUCTS`; region names begin with it."""
    time: datetime
    """What the file calls its own (nominal) time, UTC; of an accumulation, its end."""
    grid: Grid
    """The pixels that `read` gives."""
    quantity: Quantity = "rate"
    """What the file holds."""
    minutes: float = 0.0
    """Interval of an accumulation."""
    relation: Relation | None = None
    """a and b of Z = a R^b, by which `read` turns reflectivity into a rate."""
    finer: int = 1
    """How many of the file's pixels lie across one."""
    resampled: str = ""
    """What the reader did to the file's pixels, in words; empty: nothing."""

    def read(self, rows: slice = slice(None), columns: slice = slice(None)) -> Array:
        """Return the rain rate of a window, float32 (rows, columns) in mm/h, with `MISSING` and `UNDETECTED`.

        A pixel of several is the mean of those that were measured, and `MISSING` where they are less than half; dry
        ones count as 0. NWC-SAF's and others' dry pixels are 0 where they have no other word for them.

        Raises:
            UserError: where the file cannot be read.

        """
        (height, width), finer = self.grid.shape, self.finer
        window = scaled(rows, height, finer), scaled(columns, width, finer)
        return coarse(published.read(self.path, *window, self.relation), finer)


def scaled(window: slice, size: int, factor: int) -> slice:
    """Return the window of fine pixels that one of coarse pixels means."""
    start, stop, _ = window.indices(size)
    return slice(start * factor, stop * factor)


def describe(path: Path) -> Composite:
    """Read what a file says of itself.

    Raises:
        UserError: where the file is truncated, foreign, or holds nothing that is rain.

    """
    found = published.describe(path)
    finer = max(1, round(PIXEL / found.grid.pixel)) if found.grid.pixel else 1
    height, width = found.grid.shape
    shape, pixel = (height // finer, width // finer), found.grid.pixel and found.grid.pixel * finer
    grid = replace(found.grid, shape=shape, pixel=pixel)
    about = (found.quantity, found.minutes, found.relation)
    return Composite(path, found.product, found.time, grid, *about, finer, found.resampled)
