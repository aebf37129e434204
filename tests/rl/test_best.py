"""Policies are chosen by episodes that no table shows, each among those of its environment and pruning."""

import pytest

from retable.platform.api import TrainedRun
from retable.platform.config import override
from retable.platform.models.select import eligible_runs
from retable.platform.spec.table import Row, resolve
from retable.platform.spec.task import find
from retable.platform.store.run import RunFolder
from retable.tasks.rl.best import EPISODES, SEED, best, name
from retable.tasks.rl.config import Bc, Config, Snip, View
from tests.rl import toys

TASK = find("rl")


def finished(storage, unseen, shown, **changes):
    """Write a finished run, with its return in the episodes of the choice and in those of the tables."""
    config = toys.config(environment="InvertedPendulum", **{"states": "standardized", **changes})
    folder = RunFolder.of(storage, TASK, config)
    made = {"generated": True, "source": "recorded", "simulator": "v5"}
    folder.begin(config, TASK.version, {"scale": "small", "changed": [], "data": made})
    folder.folder.write_json("result.json", {"data": "d", "metrics": {}, "weights": {str(config.epochs): "w"}})
    policy = "bc" if isinstance(config.algorithm, Bc) else "bcq"
    for seed, value in {SEED: unseen, 100: shown}.items():
        view = override(View(), {"seed": seed, "policy": policy, "episodes": EPISODES})
        folder.save_scores(resolve(view, config), "w", {"return": value}, 0.0)
    return TrainedRun(TASK, folder, config)


def test_each_environment_and_pruning_has_its_best_by_episodes_of_no_table(storage):
    finished(storage, 10.0, 900.0, seed=1)
    dense = finished(storage, 20.0, 1.0, seed=2)
    snip = finished(storage, 5.0, 1.0, prune=Snip(sparsity=0.9))
    cloned = finished(storage, 7.0, 1.0, algorithm=Bc())
    found = best(eligible_runs("rl", storage))
    wanted = {"dense": dense, "dense-bc": cloned, "snip-90": snip}
    assert {key: choice.run.fingerprint for key, choice in found.items()} == {
        f"InvertedPendulum-{key}": run.fingerprint for key, run in wanted.items()
    }
    assert found["InvertedPendulum-dense"].among == 2 and found["InvertedPendulum-dense"].value == 20.0
    assert "return over 10 episodes of no table 20, the best of 2" in found["InvertedPendulum-dense"].line()


def test_no_table_plays_these_episodes():
    views = [
        row.view
        for table in TASK.tables().values()
        for row in table.rows
        if isinstance(row, Row) and row.view is not None
    ]
    played = {View().seed + n for n in range(View().episodes)}
    for view in views:
        chosen = override(View(), dict(view))
        played |= {chosen.seed + n for n in range(chosen.episodes)}
    assert len(views) > 10 and not played & set(range(SEED, SEED + EPISODES))


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, "HalfCheetah-dense"),
        ({"prune": "snip"}, "HalfCheetah-snip-95"),
        ({"prune": "snip", "prune.networks": "vae"}, "HalfCheetah-snip-95-vae"),
        ({"prune": "snip", "states": "raw", "algorithm": "bc"}, "HalfCheetah-snip-95-raw-bc"),
        ({"prune": "small_dense", "prune.sparsity": 0.975}, "HalfCheetah-small-dense-97.5"),
    ],
)
def test_names(changes, wanted):
    assert name(override(Config(), changes)) == wanted
