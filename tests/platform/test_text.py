"""Lists as people group them."""

from retable.platform.text import grouped


def test_groups_keep_the_order_of_keys_and_values():
    assert list(grouped([("b", 1), ("a", 2), ("b", 3)]).items()) == [("b", [1, 3]), ("a", [2])]
    assert grouped([]) == {}
