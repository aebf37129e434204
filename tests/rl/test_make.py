"""`retable data make rl`: what would be ignored is refused."""

import pytest

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.tasks.rl.cli import make


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mix": "expert,random", "noise": 0.3}, "--noise 0.3: only the expert's actions"),
        ({"policy": "random", "noise": 0.3}, "--noise 0.3: only the expert's actions"),
        ({"mix": "expert,random", "policy": "random"}, "--policy random: --mix names the behaviours"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(tmp_path, options, words):
    with pytest.raises(UserError, match=words):
        make("hopper", storage=str(tmp_path), **options)
    assert not Storage.open(tmp_path).list()
