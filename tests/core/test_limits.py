"""What a catalog's columns hold, and nothing beyond: of what callers give, and of what journals tell."""

import math
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pytest
from msgspec import ValidationError, convert

from ckptstore.core import fields, limits
from ckptstore.core.events import Event, FilesRemoved, LayoutFileKept, RemovedFile, SourceAdded, from_line, to_line
from ckptstore.core.model import Kind, Location, Source

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize("value", [0, 7, np.int64(7), limits.HIGHEST])
def test_whole_numbers(value: object) -> None:
    found = limits.whole(value)
    assert found == value
    assert type(found) is int


@pytest.mark.parametrize("value", [-1, 1.0, 1.5, math.nan, "1", None, True, limits.HIGHEST + 1, [1]])
def test_what_is_no_whole_number(value: object) -> None:
    with pytest.raises(ValueError, match=f"not a whole number from 0 to {limits.HIGHEST}"):
        limits.whole(value)


def test_finite_numbers() -> None:
    assert limits.finite(np.float32(0.5)) == 0.5
    for value in (math.nan, math.inf, "x", None, 10**400):
        with pytest.raises(ValueError, match="not a finite number"):
            limits.finite(value)


@pytest.mark.parametrize(
    ("value", "why"), [(5, "not a text"), (b"x", "not a text"), ("a\udcff", "not UTF-8"), ("a\0b", "has a NUL")]
)
def test_what_is_no_text(value: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        limits.text(value)


def test_a_path_has_so_many_bytes() -> None:
    assert limits.path("/" + "é" * 999) == "/" + "é" * 999
    with pytest.raises(ValueError, match="longer than 2000 bytes"):
        limits.path("/" + "é" * 1000)


LARGEST = 1.7976931348623157e308


@pytest.mark.parametrize(
    ("of", "good", "bad"),
    [
        (fields.Whole, (0, limits.HIGHEST), (-1, limits.HIGHEST + 1, 10**30, True, 1.5, "1", None, [1])),
        (fields.Index, (0, 2**31 - 1), (-1, 2**31)),
        (fields.Count, (1, 2**31 - 1), (0, 2**31)),
        (fields.Ranks, (1, 100_000), (0, 100_001)),
        (fields.Nanoseconds, (-limits.HIGHEST, limits.HIGHEST), (-limits.HIGHEST - 1, limits.HIGHEST + 1)),
        (fields.Finite, (0, -LARGEST, LARGEST), (math.nan, math.inf, -math.inf, "1", True)),
        (fields.Seconds, (0.0, 1e9), (-0.1, 2e9, math.nan)),
        (fields.Text, ("", "x" * 5000, "ünï ☃\n"), ("\0", "a\udcff", b"x", 5)),
        (fields.Name, ("ünï ☃", "x" * 200), ("", "x" * 201, "a\0b")),
        (fields.Word, ("", "a" * 64), ("a" * 65, "\0")),
        (fields.Id, ("", "a" * 32), ("a" * 33, "\0")),
        (fields.LayoutKind, ("strategy", "a" * 16), ("a" * 17, "\0")),
        (fields.Collection, ("gc1", "x" * 32), ("", ".", "..", ".x", "a/b", "x" * 33, "\0")),
        (fields.DirectoryId, ("", "0123456789abcdef"), ("0123456789ABCDEF", "0" * 15, "0" * 16 + "\n")),
        (fields.Remedy, ("", "--trust name --steps-per-epoch 28", "--step FILE=STEP"), ("--trust x", "$(y)")),
    ],
)
def test_the_bounds_of_what_a_journal_tells(of: Any, good: tuple[object, ...], bad: tuple[object, ...]) -> None:
    for value in good:
        assert convert(value, of) == value
    for value in bad:
        with pytest.raises(ValidationError):
            convert(value, of)


@pytest.mark.parametrize(
    "event",
    [
        LayoutFileKept("run", "L1", 0, "/d/x", "digest", "k" * 17, b""),
        FilesRemoved("run", "gc", "/d", Location.GONE, settled=True, at=NOW, files=(RemovedFile("x", 1, 1, "c" * 33),)),
        SourceAdded(Source("run", "L1", 0, "/d", Kind.PERIODIC, "p" * 256, "p", frozenset()), NOW),
    ],
    ids=["kind of a layout file", "id", "prefix"],
)
def test_a_line_that_a_column_or_an_index_cannot_hold_is_no_event(event: Event) -> None:
    """On PostgreSQL one such line kept all others of its directory from the catalog."""
    with pytest.raises(ValueError, match="Expected `str` of length"):
        from_line(to_line(event, "/d"), "/d")
