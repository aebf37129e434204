"""At 95 % masks that are found on raw states leave inputs without a path to the output; on standardized ones none."""

from functools import cache

import numpy as np
import pytest
import torch
from scipy.stats import kurtosis

from retable.platform.store.storage import Storage
from retable.tasks.rl.config import Config, Grasp, Snip
from retable.tasks.rl.data import Transitions, provenance, read
from retable.tasks.rl.model import build
from retable.tasks.rl.prune.prune import diagnose, masks
from retable.tasks.rl.recordings.record import record

torch.set_num_threads(1)
METHODS = {"snip": Snip, "grasp": Grasp}
HEADS = {
    "vae": [("d1", "d2", "d3")],
    "actor": [("l1", "l2", "l3")],
    "critic": [("l1", "l2", "l3"), ("l4", "l5", "l6")],
}
"""The layers by which each network acts, first to last."""
RARE = {3, 11, 12}
"""Walker2d's right knee, and the velocities of right hip and knee: near 0 but in rare falls."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Record what the committed experts do, long enough for the statistics to settle; Walker2d falls rarely."""

    @cache
    def opened(environment):
        storage = Storage.open(tmp_path_factory.mktemp(environment))
        transitions, lanes = (20_000, 10) if environment == "Walker2d" else (5_000, 5)
        record(environment, storage, transitions=transitions, lanes=lanes)
        folder = storage / f"data/rl/{environment}/recorded"
        return read(folder), provenance(folder)

    return opened


def blind(recorded, environment, method, states, seed):
    """Return which entries of the observation each network is blind to, by counting paths to the outputs."""
    rows, info = recorded(environment)
    config = Config(environment=environment, states=states, prune=METHODS[method](sparsity=0.95), seed=seed)
    networks = build([config], info["states"], info["actions"], 1.0)
    found, _ = masks([config], networks, Transitions(rows, info, [config]).sample)
    missed = {}
    for name, by_layer in found.items():
        kept = {layer: mask[0] for layer, mask in by_layer.items()}
        layers = [[kept[layer].double() for layer in head] for head in HEADS[name]]
        paths = [(third @ second @ first).sum(0)[: info["states"]] for first, second, third in layers]
        missed[name] = set((torch.stack(paths) == 0).any(0).nonzero().ravel().tolist())
        assert diagnose(kept, info["states"]).blind == len(missed[name])
    return missed


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "environment", ["Hopper", *(pytest.param(name, marks=pytest.mark.slow) for name in ("HalfCheetah", "Walker2d"))]
)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_standardized_states_leave_no_blind_input_and_raw_ones_do(recorded, seed, environment, method):
    ours, raw = (blind(recorded, environment, method, states, seed) for states in ("standardized", "raw"))
    assert not ours["vae"] and raw["vae"], "the decoder, which acts for BC and for BCQ"
    for network in ("actor", "critic"):
        assert ours[network] <= (RARE if (environment, method) == ("Walker2d", "snip") else set())
        assert len(ours[network]) < len(raw[network])


@pytest.mark.slow
def test_the_states_that_snip_misses_are_near_0_but_in_rare_falls(recorded):
    rows, _ = recorded("Walker2d")
    heavy = kurtosis(rows["observation"])
    assert set(np.argsort(heavy)[-3:]) == RARE and heavy[[*RARE]].min() > 20
