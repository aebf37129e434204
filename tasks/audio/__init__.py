"""Text-to-audio retrieval (Primus et al. 2023): PaSST and BERT, contrastive training, rewritten captions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retable.platform.spec.task import Description, KeyNumber, lazy_task

if TYPE_CHECKING:
    from retable.tasks.audio.task import TASK as TASK

DESCRIPTION = Description(
    name="audio",
    about="the recording that a sentence describes",
    paper="Primus et al., CP-JKU's submission to task 6b of the DCASE 2023 challenge, 2023",
    telling="table2",
    key_number=KeyNumber("table2", "ensemble", "mAP@10", "mAP@10 of the ensemble (paper: of 8), %"),
)

__getattr__ = lazy_task(__name__)
