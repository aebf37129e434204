"""Scores against published values."""

from __future__ import annotations

import numpy as np
import pytest

from retable.tasks.rl.metrics import normalised_score


def test_normalised_score_is_d4rls() -> None:
    assert normalised_score("Hopper", 3000) == pytest.approx(92.80089738, abs=1e-8)
    references = {"HalfCheetah": (-280.178953, 12135.0), "Walker2d": (1.629008, 4592.3), "Hopper": (-20.272305, 3234.3)}
    for environment, returns in references.items():
        np.testing.assert_allclose(normalised_score(environment, [returns]), [[0, 100]], atol=1e-12)
    assert normalised_score("Swimmer", [1.0]) is None
