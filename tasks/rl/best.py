"""Which policies are served: of each environment and pruning, the one that plays best, with seeds of no table."""

from __future__ import annotations

from collections.abc import Sequence

from retable.platform.api import TrainedRun
from retable.platform.config import choice_name
from retable.platform.models.select import Choice, choose_each, group_by_name, info_of
from retable.tasks.rl.config import Bc, Config
from retable.tasks.rl.data import simulator
from retable.tasks.rl.export import own_policy

SEED = 1_000_000
"""Of the first episode; tables play from 100 on."""
EPISODES = 10


def best(runs: Sequence[TrainedRun], episodes: int = EPISODES, samples: int = 100) -> dict[str, Choice]:
    """Return the best policies by `name`: each is compared with those of its environment and pruning.

    There is no validation split: policies are played, in episodes that no table shows.

    Args:
        runs: finished ones of this task.
        episodes: how many each plays.
        samples: candidate actions that BCQ draws at each step.

    Raises:
        UserError: where there is none that can be played.
    """

    def score(run: TrainedRun) -> float:
        return run.score({"policy": own_policy(run.config), "seed": SEED, "episodes": episodes, "samples": samples})[
            "return"
        ]

    def one(run: TrainedRun) -> object:
        return simulator(run.config.environment, info_of(run))

    metric = f"return over {episodes} episodes of no table"
    named = group_by_name(runs, lambda run: name(run.config))
    return choose_each(named, score, metric, comparable=one)


def name(config: Config) -> str:
    """Return what a policy is served as: environment, pruning and sparsity, `HalfCheetah-snip-95`.

    Of one network pruned alone that, too: `HalfCheetah-snip-95-vae`; of raw states as well: `HalfCheetah-snip-95-raw`.
    """
    pruning = choice_name(type(config.prune)).replace("_", "-")
    sparsity = getattr(config.prune, "sparsity", None)
    share = "" if sparsity is None else f"-{100 * sparsity:g}"
    networks = getattr(config.prune, "networks", "all")
    only = "" if networks == "all" else f"-{networks}"
    raw = "-raw" if config.states == "raw" else ""
    behaviour = "-bc" if isinstance(config.algorithm, Bc) else ""
    return f"{config.environment}-{pruning}{share}{only}{raw}{behaviour}"
