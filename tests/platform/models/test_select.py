"""Which data sets count as real when a run is selected: those that say so, and older ones in their tasks' words."""

import pytest

from retable.platform.errors import UserError
from retable.platform.models import select
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


def test_a_name_without_a_number_takes_no_other_with_it(monkeypatch, capsys):
    """One painting whose photographs were gone made the zoo be served in place of all of them."""

    def choose(name, runs, *given, **options):
        if not runs:
            raise UserError(f"no run for {name}: none can be judged")
        return runs[0]

    monkeypatch.setattr(select, "choose", choose)
    assert select.choose_each({"a": ["run"], "b": []}, len, "length") == {"a": "run"}
    assert capsys.readouterr().err == "note: no run for b: none can be judged\n"
    assert select.choose_each({}, len, "length") == {}
    with pytest.raises(UserError, match="no run for b"):
        select.choose_each({"b": [], "c": []}, len, "length")
