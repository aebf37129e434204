"""Text-to-audio retrieval (Primus et al. 2023): PaSST and BERT, contrastive training, rewritten captions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retable.tasks.audio.task import TASK as TASK


def __getattr__(name: str) -> Any:
    """Import the task when it is asked for: it brings torch, which takes seconds and which a search does not need."""
    if name == "TASK":
        from retable.tasks.audio.task import TASK

        return TASK
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
