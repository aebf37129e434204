"""Style transfer of images and videos (Shen and Wang): an image is optimised, or a network is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from retable.platform.spec.table import Figure, Table, with_claims
from retable.platform.spec.task import Description, KeyNumber, Scale, lazy_task

if TYPE_CHECKING:
    from retable.tasks.style.task import TASK as TASK


def _tables() -> Mapping[str, Table | Figure]:
    """Return the paper's tables and figures with their claims: imported when asked for, as a training needs none."""
    from retable.tasks.style.claims import CLAIMS
    from retable.tasks.style.tables import TABLES

    return with_claims(TABLES, CLAIMS)


def _scales() -> Mapping[str, Scale]:
    """Return the sizes at which the tables are run."""
    from retable.tasks.style.scales import SCALES

    return SCALES


DESCRIPTION = Description(
    name="style",
    about="pictures and videos in the manner of a painting",
    paper="Shen and Wang, Style Transfer of Images and Videos",
    telling="figure1",
    key_number=KeyNumber("table1", "256 x 256", "Speed-up over VGG-19", "times as fast: a network, over optimising"),
    tables=_tables,
    scales=_scales,
)

__getattr__ = lazy_task(__name__)
