"""Values that no training or rollout could take are refused before anything runs, in one line that names the field."""

import pytest

from retable.platform.config import fingerprint, override
from retable.platform.errors import UserError
from retable.tasks.rl.config import Config, View

WRONG = [
    ({"actor": [0, 5]}, "actor 0 is below 1"),
    ({"critic": [5, -1]}, "critic -1 is below 1"),
    ({"vae": [5, 0]}, "vae 0 is below 1"),
    ({"seed": -1}, "seed -1 is below 0"),
    ({"steps": 0}, "steps 0 is below 1"),
    ({"learning_rate": -1}, "learning_rate -1.0 is not above 0"),
    ({"learning_rate": 0}, "learning_rate 0.0 is not above 0"),
    ({"algorithm.discount": 7}, r"discount 7.0 is outside \[0, 1\]"),
    ({"algorithm.target_rate": -0.1}, r"target_rate -0.1 is outside \[0, 1\]"),
    ({"algorithm.minimum_weight": 1.5}, r"minimum_weight 1.5 is outside \[0, 1\]"),
    ({"algorithm.perturbation": -0.05}, "perturbation -0.05 is below 0"),
    ({"algorithm.target_samples": 0}, "target_samples 0 is below 1"),
    ({"prune": "snip", "prune.batch": 0}, "batch 0 is below 1"),
    ({"prune": "snip", "prune.batch": -1}, "batch -1 is below 1"),
    ({"prune": "grasp", "prune.batch": 1}, "batch 1 is below 2"),
]
UNSEEN = [
    ({"episodes": 0}, "episodes 0 is below 1"),
    ({"samples": 0}, "samples 0 is below 1"),
    ({"epoch": -1}, "epoch -1 is below 0"),
    ({"seed": -1}, "seed -1 is below 0"),
]


@pytest.mark.parametrize(
    ("default", "changes", "why"), [*((Config(), *case) for case in WRONG), *((View(), *case) for case in UNSEEN)]
)
def test_a_value_out_of_range_is_refused_by_name(default, changes, why):
    with pytest.raises(UserError, match=why) as caught:
        override(default, changes)
    *_, path = changes
    assert path.split(".")[0] in str(caught.value) and "\n" not in str(caught.value)


def test_the_smallest_values_are_taken():
    small = {"actor": [1, 1], "batch": 1, "algorithm.discount": 0, "algorithm.target_rate": 1, "learning_rate": 1e-9}
    assert override(Config(), {**small, "prune": "grasp", "prune.batch": 2}).prune.batch == 2
    assert override(View(), {"episodes": 1, "samples": 1, "seed": 0}).episodes == 1


def test_runs_keep_their_names():
    assert fingerprint("rl", 3, Config()) == "c352b39a4f079d7b"
    assert fingerprint("rl", 3, override(Config(), {"prune": "grasp", "prune.sparsity": 0.9})) == "44d553c7a9a15c3d"
    alone = override(Config(), {"prune": "grasp", "prune.sparsity": 0.9, "prune.networks": "vae"})
    assert fingerprint("rl", 3, alone) != "44d553c7a9a15c3d"
    rounds = override(Config(), {"prune": "grasp", "prune.sparsity": 0.9, "prune.iterations": 3})
    assert fingerprint("rl", 3, rounds) != "44d553c7a9a15c3d"
    assert fingerprint("rl", 3, override(Config(), {"initialisation": "xavier"})) != "c352b39a4f079d7b"
