"""Which ranks stopped saving while the others went on, and whether all of them did."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

_TIMES = 3
_PATIENCE = timedelta(minutes=10)


@dataclass(frozen=True)
class Laggard:
    """A rank whose newest save is older than the others': its last step (None: it has none), and how many it lacks."""

    rank: int
    last_step: int | None
    lacks: int


def laggards(ranks: Iterable[int], last_steps: Mapping[int, int], steps: Iterable[int]) -> list[Laggard]:
    """Those of `ranks`, which save, that lack any of the newest of the `steps` that the job saved, worst first.

    `last_steps` has the newest step of each rank. A rank that left out a step and saved a later one is no laggard.
    """
    every = sorted(set(steps), reverse=True)
    found = []
    for rank in sorted(set(ranks)):
        last = last_steps.get(rank)
        lacks = sum(last is None or step > last for step in every)
        if lacks:
            found.append(Laggard(rank, last, lacks))
    return sorted(found, key=lambda laggard: (-laggard.lacks, laggard.rank))


def usual_pause(moments: Iterable[datetime]) -> timedelta | None:
    """How long it is from one save to the next, by the moments of several; None where fewer than three tell."""
    ordered = sorted(moments)
    pauses = [(later - earlier).total_seconds() for earlier, later in pairwise(ordered)]
    return timedelta(seconds=median(pauses)) if len(pauses) > 1 else None


def is_overdue(moments: Sequence[datetime], now: datetime) -> bool:
    """Whether a job that goes on would have saved again long ago: three times its usual pause, ten minutes at least."""
    pause = usual_pause(moments)
    return pause is not None and now - max(moments) > max(_TIMES * pause, _PATIENCE)
