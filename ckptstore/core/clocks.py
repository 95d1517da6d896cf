"""How far clocks are apart, by what ranks recorded of the same saves.

The ranks of a job save a step together. Each stamps its record by its own host's clock, after its file was written; the
file has the time that its file system gave it. What a rank is late by, as for a digest of a large file, only ever makes
its stamp later, and differs from save to save; a clock that is wrong is wrong in each of them by the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

FEWEST_SAVES = 2
"""One record alone may be late for many reasons: a file that was adopted later, a disk that was busy."""


@dataclass(frozen=True)
class Stamp:
    """A rank's record of its file of a step: by whose clock (`clock` names the host), when, and the file's own time."""

    clock: str
    step: int
    at: datetime
    written: datetime | None = None


@dataclass(frozen=True)
class Offset:
    """By how much a clock is ahead of the others (below zero: behind), as far as every save says so."""

    clock: str
    ahead: timedelta


def offsets(stamps: Iterable[Stamp]) -> list[Offset]:
    """How far each clock is from the others', the farthest first; those of which too few saves tell are left out.

    In each save a clock's moment is the median of its ranks', and is held against the median of the other clocks'. What
    is told is the smallest of these differences, nothing where they do not all point to one side: an estimate that errs
    to the small side. With two clocks each is off from the other; which one is wrong cannot be told.
    """
    by_save: dict[int, dict[str, list[float]]] = {}
    for stamp in stamps:
        by_save.setdefault(stamp.step, {}).setdefault(stamp.clock, []).append(stamp.at.timestamp())
    differences: dict[str, list[float]] = {}
    for clocks in by_save.values():
        moments = {clock: median(every) for clock, every in clocks.items()}
        for clock, own in moments.items():
            others = [moment for other, moment in moments.items() if other != clock]
            if others:
                differences.setdefault(clock, []).append(own - median(others))
    found = [
        Offset(clock, timedelta(seconds=_common(every)))
        for clock, every in differences.items()
        if len(every) >= FEWEST_SAVES
    ]
    return sorted(found, key=lambda offset: (-abs(offset.ahead), offset.clock))


def behind_files(stamps: Iterable[Stamp]) -> Mapping[str, timedelta]:
    """By how much, at least, each clock is behind that of the file system: it says that a record was before its file.

    That is no estimate: a file is looked at after it was written. Clocks of which nothing proves it are left out.
    """
    found: dict[str, timedelta] = {}
    for stamp in stamps:
        if stamp.written is not None and stamp.written > stamp.at:
            found[stamp.clock] = max(found.get(stamp.clock, timedelta(0)), stamp.written - stamp.at)
    return found


def in_the_future(stamps: Iterable[Stamp], now: datetime) -> Mapping[str, timedelta]:
    """By how much, at least, each clock is ahead of the one that says `now`."""
    found: dict[str, timedelta] = {}
    for stamp in stamps:
        if stamp.at > now:
            found[stamp.clock] = max(found.get(stamp.clock, timedelta(0)), stamp.at - now)
    return found


def _common(differences: Sequence[float]) -> float:
    if min(differences) > 0 or max(differences) < 0:
        return min(differences, key=abs)
    return 0.0
