"""How runs are read: scores of made-up returns, and what reports say of data."""

import numpy as np
import pytest

from retable.platform.storage import Storage
from retable.platform.task import Source
from retable.tasks.rl.config import Config, View
from retable.tasks.rl.predict import describe, evaluate


@pytest.mark.parametrize(("behaviour", "share"), [(20.0, 0.75), (0.0, None), (-20.0, None)])
def test_only_a_behaviour_that_earns_something_has_a_share(behaviour, share):
    played = {"returns": np.array([10.0, 20.0]), "lengths": np.array([5, 7])}
    source = Source(Storage.open("."), {"behaviour_return": behaviour})
    found = evaluate(Config(environment="Ant"), View(), {"all": played}, source)
    assert found.get("behaviour_share") == share
    assert (found["return"], found["return_std"], found["length"]) == (15, 5, 6)


@pytest.mark.parametrize(("policy", "words"), [("expert", "by our expert"), ("random", "by random actions")])
def test_reports_say_who_recorded(policy, words):
    info = {"source": "recorded", "name": "recorded", "environment": "Hopper", "simulator": "v5", "transitions": 10}
    info |= {"behaviour": {"policy": policy}, "behaviour_return": 20.0, "behaviour_score": None}
    assert describe(info) == f"Hopper recorded here {words} (10 transitions in v5, behaviour return 20)"
