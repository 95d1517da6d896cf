"""Checks the arguments of callers, and converts them to values that a catalog can hold. Raises `UsageError`."""

from __future__ import annotations

from ckptstore.core import limits
from ckptstore.errors import UsageError

_MOST_DIGITS = 1000


def number(what: str, value: object, hint: str, highest: int = limits.HIGHEST, *, lowest: int = 0) -> int:
    """A whole number, numpy's too. Raises `UsageError`."""
    try:
        return limits.whole(value, highest, lowest=lowest)
    except ValueError as error:
        raise UsageError(f"{what} is {error}", hint) from None


def switch(what: str, value: object) -> bool:
    """True or False, also of numpy, or 1 or 0. Raises `UsageError`: a text as "False" would count as True."""
    if value not in (True, False):
        raise UsageError(f"{what} is {value!r}", "give True or False")
    return bool(value)


def step_of(step: object) -> int:
    """A global step. Raises `UsageError`."""
    return number("step", step, "steps are counted from 0")


def step_in(digits: str) -> int:
    """A global step from its digits. Raises `UsageError`: Python itself reads no number of more than 4,300 digits."""
    return step_of(int(digits) if len(digits) <= _MOST_DIGITS else digits)


def ranks(what: str, value: object) -> int:
    """How many ranks a launch has. Raises `UsageError`."""
    return number(what, value, f"a launch has 1 to {limits.MOST_RANKS} ranks", limits.MOST_RANKS, lowest=1)


def rank_of(rank: object, world_size: object) -> tuple[int, int]:
    """A rank, and of how many ranks it is one. Raises `UsageError`."""
    hint = "ranks are counted from 0 to world_size - 1"
    many = ranks("world_size", world_size)
    found = number("rank", rank, hint, limits.HIGHEST_INTEGER)
    if found >= many:
        raise UsageError(f"rank {found} of {many} ranks", hint)
    return found, many


def metric(name: object, value: object) -> tuple[str, float]:
    """The name and the value of a metric. Raises `UsageError`."""
    hint = "a metric has a name in UTF-8 and a finite number"
    if name == "":
        raise UsageError("a metric has no name", hint)
    try:
        return limits.text(name), limits.finite(value)
    except ValueError as error:
        raise UsageError(f"metric {name!a} is {error}", hint) from None


def text(what: str, value: object) -> str:
    """A text that a catalog can hold. Raises `UsageError`."""
    try:
        return limits.text(value)
    except ValueError as error:
        raise UsageError(f"{what} is {error}", "give it in UTF-8") from None


def path(what: str, value: object) -> str:
    """The text of a path, unchanged. Raises `UsageError`."""
    try:
        return limits.path(value.__fspath__() if hasattr(value, "__fspath__") else value)
    except (TypeError, ValueError) as error:
        hint = f"give it and its directory names in UTF-8, of {limits.LONGEST_PATH} bytes together"
        raise UsageError(f"{what} is {error}", hint) from None
