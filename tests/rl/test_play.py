"""`retable rl play FILE`: what a file cannot give is refused in one line."""

import pytest
import torch

from retable.platform.errors import UserError
from retable.tasks.rl.cli import play
from retable.tasks.rl.export import write_policy
from retable.tasks.rl.model import build, unstack
from tests.rl import toys

INFO = {"max_action": 1.0, "behaviour_return": 100.0}
CONFIG = toys.config(environment="InvertedPendulum", simulator="v5")


@pytest.fixture
def weights():
    return unstack(build([CONFIG], 4, 1, 1.0), 0)


def played(folder, weights, **options):
    file = folder / "policy.rtsn"
    file.write_bytes(write_policy(CONFIG, INFO, weights, "bc", "float32"))
    play(**({"run": str(file), "storage": "", "policy": None, "episodes": 2, "epoch": 0, "env": None} | options))


def test_a_file_is_played(tmp_path, weights, capsys):
    played(tmp_path, weights, env="invertedpendulum")
    assert "a policy for InvertedPendulum-v5" in capsys.readouterr().out


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_policy_that_diverged_is_told_in_one_line(tmp_path, weights, value):
    weights["vae.d1.weight"][0] = value
    with pytest.raises(UserError, match=r"policy\.rtsn: .*actions are not finite; its training has diverged") as caught:
        played(tmp_path, weights)
    assert "\n" not in str(caught.value)


def test_a_file_has_no_epochs(tmp_path, weights):
    with pytest.raises(UserError, match=r"policy\.rtsn: .* leave out --epoch 99"):
        played(tmp_path, weights, epoch=99)
