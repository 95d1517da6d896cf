"""Counts, sizes, times and ranks as text for people."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import timedelta

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_THOUSAND = 1000
_SPANS = ((86400, "d"), (3600, "h"), (60, "min"))


def count(number: int, one: str, many: str) -> str:
    """A number and the counted word."""
    return f"{number} {one if number == 1 else many}"


def size(number: int) -> str:
    """Bytes, in the unit that reads best."""
    value = float(number)
    for unit in _UNITS[:-1]:
        if value < _THOUSAND:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= _THOUSAND
    return f"{value:.1f} {_UNITS[-1]}"


def span(length: timedelta) -> str:
    """A length of time, rounded down, in the unit that reads best."""
    seconds = max(0, int(length.total_seconds()))
    for unit_seconds, unit in _SPANS:
        if seconds >= 2 * unit_seconds:
            return f"{seconds // unit_seconds} {unit}"
    return f"{seconds} s"


def some(names: Sequence[str], most: int = 3) -> str:
    """The first of several names, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def of_ranks(ranks: Collection[int]) -> str:
    """Ranks with their word: `rank 3`, `ranks 0-7, 12`. Of more than three ranges only the first are named."""
    named = some(ranges(ranks).split(", "))
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {named}"


def ranges(ranks: Iterable[int]) -> str:
    """Ranks for people, neighbours as "3-7"."""
    ordered = sorted(set(ranks))
    breaks = [0, *(at for at, (one, other) in enumerate(pairwise(ordered), 1) if other != one + 1), len(ordered)]
    runs = [ordered[start:stop] for start, stop in pairwise(breaks) if start < stop]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
