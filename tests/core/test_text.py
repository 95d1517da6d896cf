"""Counts, sizes, times and ranks as people read them."""

from datetime import timedelta

import pytest

from ckptstore.core import text


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_500_000, "1.5 MB"), (2 * 10**18, "2000.0 PB")],
)
def test_size(number: int, shown: str) -> None:
    assert text.size(number) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-5, "0 s"), (0.9, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"), (200_000, "2 d")],
)
def test_span(seconds: float, shown: str) -> None:
    assert text.span(timedelta(seconds=seconds)) == shown


def test_count() -> None:
    assert (text.count(1, "save", "saves"), text.count(0, "save", "saves")) == ("1 save", "0 saves")


@pytest.mark.parametrize(
    ("ranks", "shown"),
    [
        ({3}, "rank 3"),
        (range(8), "ranks 0-7"),
        ([0, 2, 4, 6, 8], "ranks 0, 2, 4 and 2 more"),
        ([5, 1, 2], "ranks 1-2, 5"),
    ],
)
def test_of_ranks(ranks: list[int], shown: str) -> None:
    assert text.of_ranks(ranks) == shown
