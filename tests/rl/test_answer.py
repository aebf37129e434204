"""`retable predict rl`: an array of observations, its actions."""

import numpy as np
import pytest

from retable.platform.errors import UserError
from retable.tasks.rl.answer import Options, answer
from tests.serve import toys


def test_an_array_without_a_row_is_one_line(tmp_path):
    np.save(tmp_path / "empty.npy", np.zeros((0, 4), np.float32))
    with pytest.raises(UserError, match=r"empty.npy: no row"):
        answer(toys.policy(0), Options(), tmp_path / "empty.npy")
