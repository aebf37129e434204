"""Table 1 of the paper: bytes on disk."""

import pytest
import torch

from retable.tasks.rl.config import Config, Random
from retable.tasks.rl.model import build, unstack
from retable.tasks.rl.prune import masks
from retable.tasks.rl.sparse import stored_bytes

# MB of 1e6 bytes: dense, dense sparse-indexed, SNIP 95 %
TABLE = {
    "actor": (0.5287, 2.6318, 0.14297),
    "critic": (1.04492, 5.2035, 0.2824),
    "vae": (4.7621, 23.7739, 1.2303),
}


@pytest.fixture(scope="module")
def half_cheetah():
    config = Config(prune=Random(sparsity=0.95))
    networks = build([config], 17, 6, 1.0)
    return networks, masks([config], networks, lambda member, size: {})


@pytest.mark.parametrize("name", TABLE)
def test_the_bytes_are_those_of_table_1(half_cheetah, name):
    networks, found = half_cheetah
    state = unstack(getattr(networks, name), 0)
    dense, indexed, pruned = TABLE[name]
    bytes_ = stored_bytes(state)
    assert bytes_["dense"] / 1e6 == pytest.approx(dense, rel=0.005)
    assert bytes_["sparse"] / 1e6 == pytest.approx(indexed, rel=0.005)
    kept = {k: v * found[name][k[:-7]][0] if k.endswith(".weight") else v for k, v in state.items()}
    assert stored_bytes(kept)["sparse"] / 1e6 == pytest.approx(pruned, rel=0.005)
    assert stored_bytes(kept)["dense"] == bytes_["dense"]


def test_a_view_counts_without_the_rest_of_its_storage():
    whole = torch.randn(10, 500, 20)
    assert stored_bytes({"w": whole[3]}) == stored_bytes({"w": whole[3].clone()})


def test_a_kept_weight_takes_20_bytes_and_a_bias_12():
    weight, bias = torch.zeros(100, 100), torch.zeros(100)
    empty = stored_bytes({"w": weight, "b": bias})["sparse"]
    weight.view(-1)[::2], bias[::4] = 1.0, 1.0
    assert stored_bytes({"w": weight, "b": bias})["sparse"] - empty == pytest.approx(5000 * 20 + 25 * 12, abs=400)
