"""What a catalog's columns hold, and nothing beyond."""

import math
from collections.abc import Callable
from datetime import datetime, timezone

import numpy as np
import pytest

from ckptstore.core import limits


@pytest.mark.parametrize("value", [0, 7, np.int64(7), limits.HIGHEST])
def test_whole_numbers(value: object) -> None:
    found = limits.whole(value)
    assert found == value
    assert type(found) is int


@pytest.mark.parametrize("value", [-1, 1.0, 1.5, math.nan, "1", None, True, limits.HIGHEST + 1, [1]])
def test_what_is_no_whole_number(value: object) -> None:
    with pytest.raises(ValueError, match=f"not a whole number from 0 to {limits.HIGHEST}"):
        limits.whole(value)


def test_the_bounds_of_32_bits() -> None:
    assert limits.integer(0) == 0
    assert limits.count(1) == 1
    assert limits.integer(2**31 - 1) == limits.count(2**31 - 1) == 2147483647
    assert limits.whole(-5, 5, lowest=-5) == -5
    for check, value in ((limits.integer, 2**31), (limits.integer, -1), (limits.count, 0)):
        with pytest.raises(ValueError, match="not a whole number"):
            check(value)


def test_the_most_ranks() -> None:
    assert limits.ranks(1) == 1
    assert limits.ranks(100_000) == 100_000
    for value in (0, 100_001, "2"):
        with pytest.raises(ValueError, match="not a whole number from 1 to 100000"):
            limits.ranks(value)


def test_finite_numbers() -> None:
    assert limits.finite(np.float32(0.5)) == 0.5
    for value in (math.nan, math.inf, "x", None, 10**400):
        with pytest.raises(ValueError, match="not a finite number"):
            limits.finite(value)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (5, "not a text"),
        (b"x", "not a text"),
        ("a\udcff", "not UTF-8"),
        ("a\0b", "has a NUL"),
        ("x" * 201, "longer than"),
    ],
)
def test_what_is_no_name(value: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        limits.name(value)


def test_a_path_has_so_many_bytes() -> None:
    assert limits.path("/" + "é" * 999) == "/" + "é" * 999
    with pytest.raises(ValueError, match="longer than 2000 bytes"):
        limits.path("/" + "é" * 1000)


def test_texts() -> None:
    assert limits.text("x" * 5000) == "x" * 5000
    assert limits.name("ünï ☃") == "ünï ☃"


def test_moments() -> None:
    assert limits.moment("2026-01-01T02:00:00+02:00") == datetime(2026, 1, 1, tzinfo=timezone.utc)
    with pytest.raises(ValueError, match="has no time zone"):
        limits.moment("2026-01-01T00:00:00")
    for year in (1, 1899, 9001, 9999):
        with pytest.raises(ValueError, match="no time of this age"):
            limits.moment(f"{year:04}-12-31T23:59:59-10:00")


@pytest.mark.parametrize("check", [limits.integer, limits.text, limits.finite])
def test_what_may_be_missing(check: Callable[[object], object]) -> None:
    assert limits.optional(check, None) is None
    with pytest.raises(ValueError, match="not a"):
        limits.optional(check, [])
