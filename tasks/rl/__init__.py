"""Single-shot pruning for offline RL (Arnob et al. 2021): BCQ and BC on MuJoCo data, pruned by SNIP and GraSP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retable.platform.spec.task import Description, KeyNumber, lazy_task

if TYPE_CHECKING:
    from retable.tasks.rl.task import TASK as TASK

DESCRIPTION = Description(
    name="rl",
    about="single-shot pruning before offline reinforcement learning",
    paper="Arnob et al., Single-Shot Pruning for Offline Reinforcement Learning, 2021, https://arxiv.org/abs/2112.15579",
    telling="figure1",
    model_suffix=".rtsn",
    key_number=KeyNumber("table1", "SNIP 95 %", "Actor", "MB of the actor's file, SNIP at 95 %"),
)

__getattr__ = lazy_task(__name__)
