"""Eight hours of rain from an hour of satellite images (Belousov et al. 2022): U-Nets, Swin-UNETR, ViViT, ensembles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from retable.platform.spec.table import Figure, Table, with_claims
from retable.platform.spec.task import Description, KeyNumber, Scale, lazy_task

if TYPE_CHECKING:
    from retable.tasks.weather.task import TASK as TASK


def _tables() -> Mapping[str, Table | Figure]:
    """Return the paper's tables and figures with their claims: imported when asked for, as a training needs none."""
    from retable.tasks.weather.claims import CLAIMS
    from retable.tasks.weather.tables import TABLES

    return with_claims(TABLES, CLAIMS)


def _scales() -> Mapping[str, Scale]:
    """Return the sizes at which the tables are run."""
    from retable.tasks.weather.scales import SCALES

    return SCALES


DESCRIPTION = Description(
    name="weather",
    about="eight hours of rain from one hour of satellite images",
    paper="Belousov et al., Solving the Weather4cast Challenge via Visual Transformers for 3D Images, 2022, "
    "https://arxiv.org/abs/2212.02456",
    telling="table1",
    key_number=KeyNumber(
        "table1", "BASELINE bce, improved, train all. Epoch 15", "Total", "IoU of the improved 3D U-Net's rain"
    ),
    tables=_tables,
    scales=_scales,
)

__getattr__ = lazy_task(__name__)
