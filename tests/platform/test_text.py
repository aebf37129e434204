"""Lists as people group them, and bytes as they read them."""

import pytest

from retable.platform.text import grouped, size


def test_groups_keep_the_order_of_keys_and_values():
    assert list(grouped([("b", 1), ("a", 2), ("b", 3)]).items()) == [("b", [1, 3]), ("a", [2])]
    assert grouped([]) == {}


@pytest.mark.parametrize(
    ("amount", "shown"),
    [(999.7, "1.0 kB"), (99_949, "99.9 kB"), (99_960, "100 kB"), (999_999, "1.0 MB")],
)
def test_sizes_have_three_digits_at_most(amount, shown):
    assert size(amount) == shown
