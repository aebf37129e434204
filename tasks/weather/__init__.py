"""Eight hours of rain from an hour of satellite images (Belousov et al. 2022): U-Nets, Swin-UNETR, ViViT, ensembles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retable.platform.spec.task import Description, KeyNumber, lazy_task

if TYPE_CHECKING:
    from retable.tasks.weather.task import TASK as TASK

DESCRIPTION = Description(
    name="weather",
    about="eight hours of rain from one hour of satellite images",
    paper="Belousov et al., Solving the Weather4cast Challenge via Visual Transformers for 3D Images, 2022, "
    "https://arxiv.org/abs/2212.02456",
    telling="table1",
    key_number=KeyNumber(
        "table1", "BASELINE bce, improved, train all. Epoch 15", "Total", "IoU of the improved 3D U-Net's rain"
    ),
)

__getattr__ = lazy_task(__name__)
