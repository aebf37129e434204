"""Text-to-audio retrieval (Primus et al. 2023): PaSST and BERT, contrastive training, rewritten captions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from retable.platform.spec.table import Figure, Table, with_claims
from retable.platform.spec.task import Description, KeyNumber, Scale, lazy_task

if TYPE_CHECKING:
    from retable.tasks.audio.task import TASK as TASK


def _tables() -> Mapping[str, Table | Figure]:
    """Return the paper's tables and figures with their claims: imported when asked for, as a training needs none."""
    from retable.tasks.audio.claims import CLAIMS
    from retable.tasks.audio.tables import TABLES

    return with_claims(TABLES, CLAIMS)


def _scales() -> Mapping[str, Scale]:
    """Return the sizes at which the tables are run."""
    from retable.tasks.audio.scales import SCALES

    return SCALES


DESCRIPTION = Description(
    name="audio",
    about="the recording that a sentence describes",
    paper="Primus et al., CP-JKU's submission to task 6b of the DCASE 2023 challenge, 2023",
    telling="table2",
    key_number=KeyNumber("table2", "ensemble", "mAP@10", "mAP@10 of the ensemble (paper: of 8), %"),
    tables=_tables,
    scales=_scales,
)

__getattr__ = lazy_task(__name__)
