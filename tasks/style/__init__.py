"""Style transfer of images and videos (Shen and Wang): an image is optimised, or a network is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retable.platform.spec.task import Description, KeyNumber, lazy_task

if TYPE_CHECKING:
    from retable.tasks.style.task import TASK as TASK

DESCRIPTION = Description(
    name="style",
    about="pictures and videos in the manner of a painting",
    paper="Shen and Wang, Style Transfer of Images and Videos",
    telling="figure1",
    key_number=KeyNumber("table1", "256 x 256", "Speed-up over VGG-19", "speed-up of a network over optimization"),
)

__getattr__ = lazy_task(__name__)
