"""Measures contenders in turns, in one run, so that the machine's speed and other work on it affect all of them."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

REPEATS = 5
CKPTSTORE = "ckptstore"


@dataclass(frozen=True)
class Spread:
    """The median over the repeats, the lowest and the highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of values, at least one."""
        return cls(statistics.median(values), min(values), max(values))

    @classmethod
    def paired(cls, values: Sequence[float], others: Sequence[float]) -> Spread:
        """The ratios of values to others, turn by turn; the ratio of the medians if their numbers differ."""
        if len(values) == len(others):
            return cls.of([one / other for one, other in zip(values, others, strict=True)])
        return cls.of([statistics.median(values) / statistics.median(others)])


@dataclass(frozen=True)
class Row:
    """One piece of work: the seconds that each contender took for it, turn by turn; bytes if `unit` is "B".

    `notes` has remarks about contenders, for example why one was run only once, or not at all.
    """

    task: str
    what: str
    size: int
    seconds: Mapping[str, Sequence[float]]
    notes: Mapping[str, str] = field(default_factory=dict)
    unit: str = "s"

    def spread(self, who: str) -> Spread:
        """The seconds of a contender."""
        return Spread.of(self.seconds[who])

    def ratio(self, who: str, other: str) -> Spread:
        """The ratio of a contender's time to that of `other`, turn by turn; of the medians if it ran only once."""
        return Spread.paired(self.seconds[who], self.seconds[other])

    def __str__(self) -> str:
        said = [f"{who} {amount(self.spread(who).median, self.unit)}" for who in self.seconds]
        return f"{self.what}, {self.size:,}: {', '.join(said)}"


@dataclass(frozen=True)
class Budget:
    """A figure that must not be above its limit; with `at_least`, not below it."""

    name: str
    value: float
    limit: float
    unit: str = "×"
    at_least: bool = False

    @property
    def kept(self) -> bool:
        """Whether the figure is within its limit."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        bound = "at least" if self.at_least else "at most"
        verdict = "kept" if self.kept else "BROKEN"
        return f"{self.name}: {self.value:.3g} {self.unit}, {bound} {self.limit:g} {self.unit}: {verdict}"


@dataclass(frozen=True)
class Verdict:
    """The result of a contender in a case: "right", "wrong" or "refuses", and an explanation."""

    case: str
    who: str
    verdict: str
    detail: str


@dataclass
class Found:
    """The results of a task."""

    rows: list[Row] = field(default_factory=list)
    budgets: list[Budget] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    def add(self, row: Row) -> Row:
        """Keep a row, and print it."""
        self.rows.append(row)
        say(str(row))
        return row

    def check(self, budget: Budget) -> None:
        """Keep a budget, and print it."""
        self.budgets.append(budget)
        say(f"  {budget}")


def say(text: str) -> None:
    """Print a line of progress at once."""
    print(text, flush=True)


_PARTS = {
    "s": (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)),
    "B": (("GB", 1e9), ("MB", 1e6)),
}


def amount(value: float, unit: str) -> str:
    """A time or a size in a readable unit."""
    name, size = next((part for part in _PARTS[unit] if value >= part[1]), _PARTS[unit][-1])
    return f"{value / size:.3g} {name}"


def timed(action: Callable[[], object]) -> float:
    """The seconds that an action takes."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def turns(
    contenders: Mapping[str, Callable[[], float]],
    *,
    repeats: int = REPEATS,
    warm_up: int = 1,
    allowance: float = math.inf,
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """The seconds of each contender, by turn, and notes. The order of the contenders alternates between turns.

    A contender returns the seconds that it took. The `warm_up` turns do not count, with one exception: if the repeats
    of a contender would take longer than `allowance` seconds, only its first run counts, and a note says so.
    """
    taken: dict[str, list[float]] = {who: [] for who in contenders}
    notes: dict[str, str] = {}
    order = list(contenders)
    for turn in range(warm_up + repeats):
        for who in order if turn % 2 else order[::-1]:
            if who in notes:
                continue
            took = contenders[who]()
            if turn >= warm_up:
                taken[who].append(took)
            elif took * repeats > allowance:
                notes[who] = "run once"
                taken[who].append(took)
    return taken, notes


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The b of the line log(values) = a + b * log(sizes): 0 if values do not depend on sizes, 1 if proportional."""
    return statistics.linear_regression([math.log(size) for size in sizes], [math.log(value) for value in values]).slope
