"""The retention policy: as a value, as text and as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any

from ckptstore.core import validate
from ckptstore.core.model import Kind
from ckptstore.errors import UsageError

_SECONDS = {"w": 7 * 86400, "d": 86400, "h": 3600, "m": 60}
_DURATION = re.compile(r"(?:\d{1,20}[wdhm])+", re.ASCII)  # Python refuses to convert thousands of digits
_LONGEST_SECONDS = 100 * 366 * 86400
_MODES = ("min", "max")
_NUMBER = "give how many states, or every how many steps"
_RULES = ("keep_last", "keep_every", "keep_hourly", "keep_daily", "keep_weekly", "keep_best")
_MANY = 1000  # states: no disk is expected to hold so many
GRACE = timedelta(hours=24)
"""The default grace: how long removed states can be restored."""

FLOOR = 2
"""The default floor: how many of the newest restorable states every policy keeps."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The rules of retention. A state is kept if any rule keeps it.

    `keep_last`: the newest N states. `keep_every`: the first state at or after each multiple of N steps.
    `keep_within`: younger states. `keep_hourly`, `keep_daily`, `keep_weekly`: the newest state of each of the last
    N hours, days, weeks (of UTC) that have one. `keep_best`: the N states whose `metric`, the mean over the ranks, is
    the lowest or the highest (`mode` "min" or "max"). `keep_kind`: the newest N of a kind. `keep_parents`: every
    state that a launch resumed from. `drop_branches`: the newest state of an abandoned branch is not kept.
    `floor`: so many of the newest restorable states are kept whatever the rules say. `grace`: how long removed files
    stay in the trash; they take space on the disk until then. Raises `UsageError` for invalid rules, as an unknown
    kind.
    """

    keep_last: int = 0
    keep_every: int = 0
    keep_within: timedelta | None = None
    keep_hourly: int = 0
    keep_daily: int = 0
    keep_weekly: int = 0
    keep_best: int = 0
    metric: str = ""
    mode: str = ""
    keep_kind: Mapping[Kind, int] = field(default_factory=dict)
    keep_parents: bool = False
    drop_branches: bool = False
    floor: int = FLOOR
    grace: timedelta = GRACE

    def __post_init__(self) -> None:
        """Raise `UsageError` for invalid rules."""
        object.__setattr__(self, "keep_kind", _by_kind(self.keep_kind))  # the class is frozen
        for name in (*_RULES, "floor"):
            object.__setattr__(self, name, validate.number(name.replace("_", "-"), getattr(self, name), _NUMBER))
        for name in ("keep_parents", "drop_branches"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name.replace('_', '-')} is {getattr(self, name)!r}", "give True or False")
        for name, length in (("keep-within", self.keep_within), ("grace", self.grace)):
            if length is not None and not isinstance(length, timedelta):
                raise UsageError(f"{name} is {length!r}", "give a datetime.timedelta, as timedelta(days=7)")
            if length is not None and not timedelta() < length <= timedelta(seconds=_LONGEST_SECONDS):
                raise UsageError(f"{name} is {length}", "give a time as 7d or 12h")
        if self.keep_best and (not self.metric or not isinstance(self.metric, str) or self.mode not in _MODES):
            raise UsageError(
                "keep-best needs a metric, and a mode: whether lower or higher values are better", _BEST_HINT
            )
        if not self.keep_best and (self.metric or self.mode):
            raise UsageError("a metric and a mode need keep-best, the number of states to keep by them", _BEST_HINT)

    @property
    def is_empty(self) -> bool:
        """Whether no rule keeps a state by itself: only the floor and states that launches resumed from would stay."""
        return not (any(getattr(self, name) for name in _RULES) or self.keep_within or any(self.keep_kind.values()))

    def beyond(self, newest: int) -> str:
        """A rule that keeps states older than the newest so many; empty if there is none."""
        if self.keep_last > newest:
            return "keep_last"
        rules = (*_RULES, "keep_within") if newest < _MANY else ()
        return next((name for name in rules if name != "keep_last" and getattr(self, name)), "")

    def to_json(self) -> dict[str, Any]:
        """The settings that differ from the defaults, as the catalog and `policy --json` show them."""
        shown: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, timedelta):
                value = show_duration(value) if value != each.default else ""
            if each.name == "keep_kind":
                value = {kind.value: count for kind, count in sorted(value.items()) if count}
            if value or each.name == "floor":
                shown[each.name] = value
        return shown


_BEST_HINT = "as in --keep-best 3 --metric loss --mode min"


def from_json(value: Mapping[str, Any]) -> Policy:
    """The inverse of `Policy.to_json`. Raises `UsageError` for rules that this program does not know."""
    known = {each.name for each in fields(Policy)}
    unknown = sorted(set(value) - known)
    if unknown:
        raise UsageError(
            f"the policy has unknown rules: {', '.join(unknown)}", "check their names; a newer ckptstore may know them"
        )
    given = dict(value)
    for name in ("keep_within", "grace"):
        if name in given:
            given[name] = parse_duration(given[name])
    return Policy(**given)


def parse_duration(text: str) -> timedelta:
    """A length of time as in "7d", "12h", "1w2d", "90m" (weeks, days, hours, minutes). Raises `UsageError`."""
    if not isinstance(text, str) or not _DURATION.fullmatch(text):
        raise UsageError(f"{text!r} is not a duration", "give one as 7d, 12h or 1w2d")
    seconds = sum(int(number) * _SECONDS[unit] for number, unit in re.findall(r"(\d+)([wdhm])", text, re.ASCII))
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise UsageError(f"{text!r} is not between 1 minute and 100 years", "give one as 7d, 12h or 1w2d")
    return timedelta(seconds=seconds)


def show_duration(length: timedelta) -> str:
    """The inverse of `parse_duration`, in whole minutes."""
    left = int(length.total_seconds())
    shown = ""
    for unit in ("d", "h", "m"):
        count, left = divmod(left, _SECONDS[unit])
        shown += f"{count}{unit}" if count else ""
    return shown or "1m"


def _by_kind(given: object) -> dict[Kind, int]:
    """Numbers by kind, given as `Kind` or its name. Raises `UsageError` for a mistyped one: it would keep nothing."""
    if not isinstance(given, Mapping):
        raise UsageError(f"keep-kind is {given!r}", "give numbers by kind, as {'dying_gasp': 2}")
    found = {}
    for kind, number in given.items():
        try:
            known = Kind(kind)
        except ValueError:
            raise UsageError(f"{kind!r} is no kind of checkpoint", f"give one of {', '.join(Kind)}") from None
        found[known] = validate.number(f"keep-kind of {known.replace('_', '-')}", number, _NUMBER)
    return found
