"""What networks earn after 3,000 updates of BC: pruned to 95 %, on standardized and on raw states."""

import pytest

from retable.platform.api import TrainedRun
from retable.platform.config import override
from retable.platform.spec.task import find
from retable.platform.store.storage import Storage
from retable.tasks.rl.recordings.record import record
from tests.tiny import trained

SNIP = {"prune": "snip", "prune.sparsity": 0.95}
ROWS = {"dense": {"prune": "dense"}, "snip": SNIP, "raw": {**SNIP, "states": "raw"}}


@pytest.mark.slow
def test_snip_keeps_the_dense_return_on_standardized_states_and_loses_half_on_raw_ones(tmp_path):
    """As `quick` trains them, on a fifth of its data."""
    task, storage = find("rl"), Storage.open(tmp_path)
    record("HalfCheetah", storage, transitions=20_000)
    fixed = {"environment": "HalfCheetah", "data": "recorded", "algorithm": "bc", "epochs": 1, "steps": 3000}
    shares = {}
    for name, changes in ROWS.items():
        config = override(task.config(), fixed | changes)
        run = TrainedRun(task, trained("rl", config, storage, storage), config)
        shares[name] = run.score({"policy": "bc", "episodes": 5})["behaviour_share"]
    assert shares["dense"] > 0.8
    assert shares["snip"] >= 0.9 * shares["dense"]
    assert shares["raw"] < 0.5 * shares["dense"]
    print(shares)
