"""Grouping of values by keys."""

from ckptstore.core.groups import grouped


def test_keys_and_values_keep_the_order_of_the_pairs() -> None:
    found = grouped([("b", 2), ("a", 1), ("b", 1)])
    assert list(found.items()) == [("b", [2, 1]), ("a", [1])]
