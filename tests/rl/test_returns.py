"""What networks earn after 3,000 updates of BC: pruned to 95 %, on standardized and on raw states."""

import csv
from pathlib import Path

import pytest

from retable.platform.api import TrainedRun
from retable.platform.config import override
from retable.platform.spec.task import find
from retable.platform.store.storage import Storage
from retable.tasks.rl.recordings.record import record
from tests.tiny import trained

SNIP = {"prune": "snip", "prune.sparsity": 0.95}
ROWS = {"dense": {"prune": "dense"}, "SNIP 95 %": SNIP, "SNIP 95 %, raw states": {**SNIP, "states": "raw"}}
MEASURED = Path(__file__).parents[2] / "docs" / "results" / "rl-small" / "rl-learning-small.csv"


def judge(shares):
    dense, snip, raw = (shares[row] for row in ROWS)
    assert dense > 0.9
    assert snip >= 0.9 * dense
    assert raw < 0.5 * dense


@pytest.mark.parametrize("environment", ["HalfCheetah", "Hopper", "Walker2d"])
def test_the_committed_results_keep_the_dense_return_on_standardized_states_alone(environment):
    with MEASURED.open() as file:
        lines = [line for line in csv.DictReader(file) if line["environment"] == environment]
    at = [line for line in lines if (line["view.policy"], line["view.epoch"], line["step"]) == ("bc", "3", "3000")]
    seeds = {line["seed"] for line in at}
    assert seeds == {"0", "1", "2"}
    for seed in seeds:
        judge({line["row"]: float(line["behaviour_share"]) for line in at if line["seed"] == seed})


@pytest.mark.slow
def test_snip_keeps_the_dense_return_on_standardized_states_and_loses_half_on_raw_ones(tmp_path):
    """As `quick` trains and plays them."""
    task, storage = find("rl"), Storage.open(tmp_path)
    record("HalfCheetah", storage)
    fixed = {"environment": "HalfCheetah", "data": "recorded", "algorithm": "bc", "epochs": 1, "steps": 3000}
    shares = {}
    for row, changes in ROWS.items():
        config = override(task.config(), fixed | changes)
        run = TrainedRun(task, trained("rl", config, storage, storage), config)
        shares[row] = run.score({"policy": "bc", "episodes": 5})["behaviour_share"]
    judge(shares)
