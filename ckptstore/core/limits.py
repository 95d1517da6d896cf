"""Limits of the values in a catalog's columns. A journal with values beyond them could not be read into any catalog."""

from __future__ import annotations

import math
import operator
from datetime import datetime, timedelta

HIGHEST = 2**63 - 1
"""The highest number of steps, bytes and nanoseconds."""

TOO_LATE = "its modification time is beyond the year 2262"
"""Why a file is not taken: its time in nanoseconds is above `HIGHEST`."""

HIGHEST_INTEGER = 2**31 - 1
"""The highest number of epochs, steps in an epoch, ranks and launches."""

MOST_RANKS = 100_000
"""The most ranks of a launch. Layouts and plans list every rank: a mistyped number would fill each reader's memory."""

LONGEST_NAME = 200
"""The most characters in the name of a run, a launch or a tag."""

LONGEST_PATH = 2000
"""The most bytes of a path. An index entry of PostgreSQL holds 2,704: a directory and its launch, rank and prefix."""

MOST_PARTS = 200
"""The most directories in a path: each is opened in the one above it."""

FIRST_YEAR, LAST_YEAR = 1900, 9000
"""The years that moments may have. A time can be added to any of them without an overflow."""

LEASE = timedelta(hours=24)
"""How long a launch without further signs of life holds the state that it starts from."""

CLOCKS_DIFFER = timedelta(minutes=10)
"""By how much the clocks of nodes may differ: leases and grace periods last that much longer than recorded."""


def purged_from(purge_after: datetime) -> datetime:
    """The moment from which gc and purge delete trash whose grace ends at `purge_after`."""
    return purge_after + CLOCKS_DIFFER


def whole(value: object, highest: int = HIGHEST, *, lowest: int = 0) -> int:
    """A whole number, numpy's too, from `lowest` to `highest`. Raises `ValueError`, which names the range."""
    needed = f"{value!a}, not a whole number from {lowest} to {highest}"
    if isinstance(value, bool):
        raise ValueError(needed)  # noqa: TRY004 — one error for all that a column does not hold
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # it rejects other types itself
    except TypeError:
        raise ValueError(needed) from None
    if not lowest <= number <= highest:
        raise ValueError(needed)
    return number


def finite(value: object) -> float:
    """A finite number. Raises `ValueError`, which says so."""
    try:
        number = float(value)  # type: ignore[arg-type]  # it rejects other types itself
    except (TypeError, OverflowError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{value!a}, not a finite number")
    return number


def text(value: object) -> str:
    """A text that UTF-8 can encode and databases can store. Raises `ValueError` with the reason.

    Names of files may fail this check: their bytes need not be UTF-8.
    """
    if not isinstance(value, str):
        raise ValueError(f"{value!a}, not a text")  # noqa: TRY004 — one error for all that a column does not hold
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{value!a}, which is not UTF-8") from None
    if "\0" in value:
        raise ValueError(f"{value!a}, which has a NUL")
    return value


def is_text(value: str) -> bool:
    """Whether `text` accepts it. No column has any other: the name of a file need not be UTF-8."""
    try:
        return text(value) == value
    except ValueError:
        return False


def path(value: object) -> str:
    """The path of a file or a directory. Raises `ValueError`."""
    found = text(value)
    if len(found.encode("utf-8")) > LONGEST_PATH:
        raise ValueError(f"{found[:80]!a}…, longer than {LONGEST_PATH} bytes")
    if found.count("/") > MOST_PARTS:
        raise ValueError(f"{found[:80]!a}…, of more than {MOST_PARTS} directories")
    return found
