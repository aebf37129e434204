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


def test_numbers_beyond_float32_are_one_line(tmp_path, recwarn):
    np.save(tmp_path / "large.npy", np.full((1, 4), 1e300))
    with pytest.raises(UserError, match=r"large.npy: numbers that are not finite in float32"):
        answer(toys.policy(0), Options(), tmp_path / "large.npy")
    assert not recwarn
