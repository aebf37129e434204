"""At 95 % masks that are found on raw states leave inputs without a path to the output; on standardized ones none."""

from functools import cache

import pytest
import torch

from retable.platform.store.storage import Storage
from retable.tasks.rl.config import Config, Grasp, Snip
from retable.tasks.rl.data import Transitions, columns, provenance
from retable.tasks.rl.model import build
from retable.tasks.rl.prune.prune import diagnose, masks
from retable.tasks.rl.recordings.record import record

torch.set_num_threads(1)
METHODS = {"snip": Snip, "grasp": Grasp}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Record what the committed experts do, long enough for the statistics to settle."""

    @cache
    def opened(environment):
        storage = Storage.open(tmp_path_factory.mktemp(environment))
        record(environment, storage, transitions=20_000)
        folder = storage / f"data/rl/{environment}/recorded"
        return columns(folder), provenance(folder)

    return opened


def blind(recorded, environment, method, states, seed):
    """Return how many entries of the observation each network is blind to."""
    rows, info = recorded(environment)
    config = Config(environment=environment, states=states, prune=METHODS[method](sparsity=0.95), seed=seed)
    networks = build([config], info["states"], info["actions"], 1.0)
    found, _ = masks([config], networks, Transitions(rows, info, [config]).sample)
    return {
        name: diagnose({layer: mask[0] for layer, mask in by_layer.items()}, info["states"]).blind
        for name, by_layer in found.items()
    }


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("environment", ["HalfCheetah", "Hopper", "Walker2d"])
def test_standardized_states_leave_no_blind_input_and_raw_ones_do(recorded, environment, method):
    for seed in (0, 1):
        ours, raw = (blind(recorded, environment, method, states, seed) for states in ("standardized", "raw"))
        assert ours["vae"] == 0 < raw["vae"], "the decoder, which acts for BC and for BCQ"
        for network in ("actor", "critic"):
            assert raw[network] > 0
            # SNIP leaves one or two of Walker2d's heavy-tailed states without a path in some seeds.
            few = 2 if (environment, method) == ("Walker2d", "snip") else 0
            assert ours[network] <= few < raw[network]
