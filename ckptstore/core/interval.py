"""How often to save: the interval at which a training loses the least time.

The formulas and their sources are in docs/explanation/interval.md.

All times are in seconds. Failures come at random, on average one in each `mtbf`. An interval is the training time
between two saves, without the pause for a save.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

_ONE_SIDE = 0.05
_MOST_EXPONENT = 700.0
_BISECTIONS = 60


class Cost(NamedTuple):
    """What a save costs: how long training pauses for it, and when it is on the disk, counted from the same moment."""

    pause: float
    written: float

    @property
    def shortest(self) -> float:
        """The interval below which a save would wait for the one before it."""
        return max(0.0, self.written - self.pause)


def best_interval(cost: Cost, mtbf: float) -> float:
    """The interval that loses the least time: Daly's estimate, which equals Young's if a save costs little."""
    if cost.pause >= 2 * mtbf:
        found = mtbf
    else:
        part = math.sqrt(cost.pause / (2 * mtbf))
        found = math.sqrt(2 * cost.pause * mtbf) * (1 + part / 3 + part * part / 9) - cost.pause
    return max(found, cost.shortest)


def best_steps(cost: Cost, mtbf: float, step: float) -> int:
    """The best interval as a number of steps, each of which takes `step` seconds."""
    return max(1, round(best_interval(cost, mtbf) / step), math.ceil(cost.shortest / step))


def lost(interval: float, cost: Cost, mtbf: float) -> float:
    """The share of the time, from 0 to 1, that is lost to pauses and to repeating steps after failures."""
    period = max(interval + cost.pause, cost.written)
    if period > _MOST_EXPONENT * mtbf:
        return 1.0
    until_safe = max(0.0, interval + cost.written - period)
    return 1 - interval / mtbf * math.exp(-until_safe / mtbf) / math.expm1(period / mtbf)


@dataclass(frozen=True)
class Failures:
    """How many times a training failed, in how many seconds."""

    count: int
    seconds: float

    @property
    def mtbf(self) -> float | None:
        """The mean time between two failures; None if there were none."""
        return self.seconds / self.count if self.count else None

    @property
    def between(self) -> tuple[float, float | None]:
        """Bounds that hold the true `mtbf` in nine of ten cases, if failures come at random (None: no upper bound)."""
        most = _mean_for(self.count, _ONE_SIDE)
        fewest = _mean_for(self.count - 1, 1 - _ONE_SIDE) if self.count else 0.0
        return self.seconds / most, self.seconds / fewest if fewest else None


def _mean_for(count: int, chance: float) -> float:
    """The mean of a Poisson distribution that gives `count` or fewer with this chance."""
    low, high = 0.0, count + 10 * math.sqrt(count + 1) + 10
    for _ in range(_BISECTIONS):
        mean = (low + high) / 2
        at_most = math.fsum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count + 1))
        low, high = (mean, high) if at_most > chance else (low, mean)
    return high
