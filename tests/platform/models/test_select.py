"""Which data sets count as real when a run is selected: those that say so, and older ones in their tasks' words."""

import pytest

from retable.platform.models.select import is_real


@pytest.mark.parametrize(
    ("info", "real"),
    [
        ({"real": True, "kind": "generated"}, True),
        ({"real": False, "source": "w4c22"}, False),
        ({"kind": "own"}, True),
        ({"kind": "generated"}, False),
        ({"source": "d4rl", "generated": False}, True),
        ({"source": "recorded", "generated": True}, False),
        ({"source": "coco"}, True),
        ({"source": "generated"}, False),
        ({"source": "w4c22", "simulated_satellite": False}, True),
        ({"source": "imported", "simulated_satellite": True}, False),
        ({"source": "own"}, True),
    ],
)
def test_a_data_set_says_whether_it_is_real_and_older_ones_in_other_words(info, real):
    assert is_real(info) is real
