"""Files without their masks: what is read back is what was written, or nothing."""

import dataclasses

import pytest
import torch

from retable.platform.errors import UserError
from retable.tasks.rl.config import Bc, Erk, Random, Snip
from retable.tasks.rl.export import read_policy, write_policy
from retable.tasks.rl.formats.compact import deployable, pack, read_about, unpack
from retable.tasks.rl.model import build, unstack
from retable.tasks.rl.prune.prune import masks
from retable.tasks.rl.tools import drawn
from tests.rl import toys

INFO = {"states": 4, "actions": 1, "max_action": 1.0, "behaviour_return": 100.0, "simulator": "v5"}


def pruned(prune, **changes):
    """Return a config, and the weights of a run of it before its first update."""
    config = toys.config(environment="InvertedPendulum", prune=prune, **changes)
    networks = build([config], 4, 1, 1.0)
    found, _ = masks([config], networks, lambda member, size: {})
    weights = dict(unstack(networks, 0))
    for network, layers in found.items():
        for layer, mask in layers.items():
            weights[f"{network}.{layer}.weight"] = weights[f"{network}.{layer}.weight"].masked_fill(~mask[0], 0)
    return config, weights


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize(
    "prune", [Random(sparsity=0.9), Erk(sparsity=0.8), Random(sparsity=0.9, networks="vae"), Random(sparsity=0.0)]
)
def test_a_file_without_its_masks_holds_every_bit(prune, seed):
    config, weights = pruned(prune, seed=seed)
    data = write_policy(config, INFO, weights, "all", "float32")
    found = read_policy(data, "x")[2]
    assert found.keys() == weights.keys() and all(torch.equal(found[name], weights[name]) for name in weights)


@pytest.mark.parametrize("policy", ["bcq", "bc"])
@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_what_acting_needs_is_drawn_from_whole_networks(policy, precision):
    config, weights = pruned(Random(sparsity=0.9))
    data = write_policy(config, INFO, weights, policy, precision)
    wanted = unpack(pack(deployable(weights, policy), precision), "x")
    found = read_policy(data, "x")[2]
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


def test_a_weight_that_training_brought_to_zero_comes_back():
    config, weights = pruned(Random(sparsity=0.5))
    weights["vae.e1.weight"] = torch.zeros_like(weights["vae.e1.weight"])
    found = read_policy(write_policy(config, INFO, weights, "all", "float32"), "x")[2]
    assert not found["vae.e1.weight"].any() and torch.equal(found["vae.d2.weight"], weights["vae.d2.weight"])


@pytest.mark.parametrize(("precision", "times"), [("float32", 1.15), ("int8", 1.6)])
def test_the_places_were_a_large_part_of_the_file(precision, times):
    """At 95 % a place takes .286 / .05 = 5.7 bits by entropy, beside the 24 to 32 bits, or 8, of a value."""
    config = toys.config(prune=Random(sparsity=0.95), vae=(750, 750), algorithm=Bc())
    said = drawn.describe(config, {"states": 17, "actions": 6})
    found = drawn.masks(said)
    source = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(mask.shape, generator=source).masked_fill(~mask, 0) for name, mask in found.items()}
    assert len(pack(weights, precision)) > times * len(pack(weights, precision, {"masks": said}, found))


def test_masks_that_come_from_data_stay_in_the_file():
    assert drawn.describe(toys.config(prune=Snip()), INFO) is None
    assert drawn.describe(toys.config(), INFO) is None


def test_weights_that_are_not_masked_are_never_lost():
    with pytest.raises(ValueError, match=r"w is not 0 outside its mask"):
        pack({"w": torch.ones(2)}, masks={"w": torch.tensor([True, False])})


CONFIG, WEIGHTS = pruned(Random(sparsity=0.9))
GOOD = write_policy(CONFIG, INFO, WEIGHTS, "all", "float32")
ABOUT = read_about(GOOD, "x")
SAID = ABOUT["masks"]
BROKEN = {
    "draws other masks": {**SAID, "seed": SAID["seed"] + 1},
    "draws other masks than": {**SAID, "checksum": 0},
    "nothing that can be drawn": {**SAID, "method": "snip"},
    "nothing that can be drawn: of no weights": {**SAID, "sparsity": 1.5},
    "nothing that can be drawn: a layer without rows": {**SAID, "layers": {"vae": [["e1", 0, 5]]}},
    "nothing that can be drawn: no list": {**SAID, "layers": {"vae": "e1"}},
    "nothing that can be drawn: not said": None,
    "nothing that can be drawn: of no network": {**SAID, "layers": {"other": SAID["layers"]["vae"]}},
    "more than": {**SAID, "layers": {"vae": [["e1", 1 << 22, 1 << 22]]}},
}


@pytest.mark.parametrize("reason", BROKEN)
def test_masks_that_cannot_be_drawn_again_are_one_line(reason):
    known = drawn.masks(SAID)
    data = pack(WEIGHTS, about={**ABOUT, "masks": BROKEN[reason]}, masks=known)
    with pytest.raises(UserError, match=f"^evil: .*{reason.split(':')[0]}"):
        read_policy(data, "evil")


def test_masks_of_other_shapes_are_refused():
    known = drawn.masks(SAID)
    other = drawn.masks(drawn.describe(dataclasses.replace(CONFIG, vae=(32, 24)), INFO))
    data = pack(WEIGHTS, masks=known)
    for given in (None, lambda about: {}, lambda about: other):
        with pytest.raises(UserError, match=r"^evil: .*cannot be drawn again"):
            unpack(data, "evil", given)
