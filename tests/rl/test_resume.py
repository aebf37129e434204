"""An rl run through the platform's loop: interrupted anywhere, it ends in the very same bits."""

import pytest
import torch

from retable.platform.config import override
from retable.platform.loop import train
from retable.platform.run import Run
from retable.platform.runs import RunFolder
from retable.platform.storage import Storage
from retable.platform.task import find
from retable.tasks.rl.data import Transitions
from retable.tasks.rl.learner import OfflineLearner
from tests.rl.toys import columns

TASK = find("rl")
SMALL = {"actor": [12, 10], "critic": [12, 10], "vae": [14, 14], "batch": 8, "updates": 5, "epochs": 3}


def transitions(config):
    """Open 64 made-up transitions of a 5-state, 2-action task."""
    return Transitions(columns(64, 5, 2), {"states": 5, "actions": 2, "max_action": 1.0}, [config])


def run(where, changes, stop_at=None, checkpoint_every=0):
    """Train to the end, or until an interruption before step `stop_at` of the call."""
    config = override(TASK.config(), SMALL | changes)
    folder = RunFolder.of(Storage.open(where), TASK, config)
    data = transitions(config)
    steps = iter(range(10_000))
    batches = data.batches

    def interrupted(*place):
        for batch in batches(*place):
            if next(steps) == stop_at:
                raise KeyboardInterrupt
            yield batch

    data.batches = interrupted
    train(TASK, [config], data, [folder], "digest", Run(), [(1, 2)], checkpoint_every)
    return folder


@pytest.mark.parametrize("changes", [{}, {"prune": "snip"}, {"prune": "grasp", "prune.batch": 16}, {"algorithm": "bc"}])
@pytest.mark.parametrize(("stop_at", "checkpoint_every"), [(5, 0), (8, 0), (12, 2), (14, 1)])
def test_interrupted_equals_uninterrupted_bit_for_bit(tmp_path, changes, stop_at, checkpoint_every):
    whole = run(tmp_path / "whole", changes)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "stopped", changes, stop_at, checkpoint_every)
    stopped = run(tmp_path / "stopped", changes, checkpoint_every=checkpoint_every)
    for epoch in (1, 2, 3):
        left, right = whole.weights(epoch), stopped.weights(epoch)
        assert left.keys() == right.keys() and left
        assert all(torch.equal(left[name], right[name]) for name in left)
    timeless = [{k: v for k, v in row.items() if k not in ("time", "seconds")} for row in whole.history()]
    assert [{k: v for k, v in row.items() if k not in ("time", "seconds")} for row in stopped.history()] == timeless


def test_a_resumed_run_starts_at_its_checkpoint(tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, {}, stop_at=12)
    count = []
    step = OfflineLearner.step
    monkeypatch.setattr(OfflineLearner, "step", lambda self, batch: count.append(1) or step(self, batch))
    run(tmp_path, {})
    assert len(count) == 5, "two epochs were done; only the third is trained"
