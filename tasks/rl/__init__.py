"""Single-shot pruning for offline RL (Arnob et al. 2021): BCQ and BC on MuJoCo data, pruned by SNIP and GraSP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from retable.platform.spec.table import Figure, Table, with_claims
from retable.platform.spec.task import Description, KeyNumber, Scale, lazy_task

if TYPE_CHECKING:
    from retable.tasks.rl.task import TASK as TASK


def _tables() -> Mapping[str, Table | Figure]:
    """Return the paper's tables and figures with their claims: imported when asked for, as a training needs none."""
    from retable.tasks.rl import claims
    from retable.tasks.rl.learning import claims as learning_claims
    from retable.tasks.rl.tables import TABLES

    return with_claims(TABLES, {**claims.CLAIMS, **learning_claims.CLAIMS})


def _scales() -> Mapping[str, Scale]:
    """Return the sizes at which the tables are run."""
    from retable.tasks.rl.scales import SCALES

    return SCALES


DESCRIPTION = Description(
    name="rl",
    about="single-shot pruning before offline reinforcement learning",
    paper="Arnob et al., Single-Shot Pruning for Offline Reinforcement Learning, 2021, https://arxiv.org/abs/2112.15579",
    telling="figure1",
    key_number=KeyNumber("table1", "SNIP 95 %", "Actor", "MB of the actor's file, SNIP at 95 %"),
    tables=_tables,
    scales=_scales,
)

__getattr__ = lazy_task(__name__)
