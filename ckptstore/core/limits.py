"""What a catalog's columns hold: who writes more down spoils the journal for everybody who reads it."""

from __future__ import annotations

import math
import operator
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

UTC = timezone.utc
T = TypeVar("T")

HIGHEST = 2**63 - 1
"""Of steps, bytes and nanoseconds."""

HIGHEST_INTEGER = 2**31 - 1
"""Of epochs, steps in them, ranks and launches."""

MOST_RANKS = 100_000
"""Of a launch. Layouts and plans name every rank: a mistyped number would take all memory wherever they are read."""

LONGEST_NAME = 200
"""Characters of the name of a run, a launch or a tag."""

LONGEST_PATH = 2000
"""Bytes of a path: an entry of an index of PostgreSQL has 2,704, of a directory with launch, rank and prefix."""

MOST_PARTS = 200
"""Directories and name of a path: each is opened in the one above it."""

FIRST_YEAR, LAST_YEAR = 1900, 9000
"""Of moments: one may be added to."""

LEASE = timedelta(hours=24)
"""How long a launch that was not heard of again holds the state that it starts from."""

CLOCKS_DIFFER = timedelta(minutes=10)
"""By how much the clocks of nodes may differ: a lease counts so much longer than it says."""


def whole(value: object, highest: int = HIGHEST, *, lowest: int = 0) -> int:
    """A whole number, numpy's too, from `lowest` to `highest`. Raises `ValueError` that says what is needed."""
    needed = f"{value!a}, not a whole number from {lowest} to {highest}"
    if isinstance(value, bool):
        raise ValueError(needed)  # noqa: TRY004 — one error for all that a column does not hold
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # it says itself what is none
    except TypeError:
        raise ValueError(needed) from None
    if not lowest <= number <= highest:
        raise ValueError(needed)
    return number


def integer(value: object) -> int:
    """What a column of 32 bits holds, from 0. Raises `ValueError`."""
    return whole(value, HIGHEST_INTEGER)


def count(value: object) -> int:
    """What a column of 32 bits holds, from 1. Raises `ValueError`."""
    return whole(value, HIGHEST_INTEGER, lowest=1)


def ranks(value: object) -> int:
    """How many ranks a launch may have, from 1. Raises `ValueError`."""
    return whole(value, MOST_RANKS, lowest=1)


def finite(value: object) -> float:
    """A number that is finite. Raises `ValueError` that says what is needed."""
    try:
        number = float(value)  # type: ignore[arg-type]  # it says itself what is none
    except (TypeError, OverflowError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{value!a}, not a finite number")
    return number


def text(value: object, longest: int | None = None) -> str:
    """A text that UTF-8 has and databases keep, of `longest` characters at most. Raises `ValueError` that says why not.

    The name of a file may be none: its bytes need not be UTF-8.
    """
    if not isinstance(value, str):
        raise ValueError(f"{value!a}, not a text")  # noqa: TRY004 — one error for all that a column does not hold
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{value!a}, which is not UTF-8") from None
    if "\0" in value:
        raise ValueError(f"{value!a}, which has a NUL")
    if longest is not None and len(value) > longest:
        raise ValueError(f"{value[:longest]!a}…, longer than {longest} characters")
    return value


def path(value: object) -> str:
    """The path of a file or a directory. Raises `ValueError`."""
    found = text(value)
    if len(found.encode("utf-8")) > LONGEST_PATH:
        raise ValueError(f"{found[:80]!a}…, longer than {LONGEST_PATH} bytes")
    if found.count("/") > MOST_PARTS:
        raise ValueError(f"{found[:80]!a}…, of more than {MOST_PARTS} directories")
    return found


def name(value: object) -> str:
    """The name of a run, a launch or a tag. Raises `ValueError`."""
    if not value:
        raise ValueError("a name without a character")
    return text(value, LONGEST_NAME)


def moment(value: object) -> datetime:
    """A moment written down with its zone, in UTC. Raises `ValueError`."""
    found = datetime.fromisoformat(text(value))
    if found.tzinfo is None:
        raise ValueError(f"{value} has no time zone")
    if not FIRST_YEAR <= found.year <= LAST_YEAR:
        raise ValueError(f"{value} is no time of this age")
    return found.astimezone(timezone.utc)


def optional(check: Callable[[object], T], value: object) -> T | None:
    """What `check` makes of a value; None of None."""
    return None if value is None else check(value)
