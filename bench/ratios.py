"""Ratios of two things, measured in turns in one run: a machine's own speed does not matter."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """How many times as long `subject` took as `reference`: the median over the repeats, and their spread."""

    name: str
    median: float
    low: float
    high: float
    subject_seconds: float
    reference_seconds: float

    def __str__(self) -> str:
        times = f"{self.subject_seconds:.4f} s against {self.reference_seconds:.4f} s"
        return f"{self.name}: {self.median:.3f} ({self.low:.3f} to {self.high:.3f}; {times})"


def ratio(
    name: str,
    subject: Callable[[], object],
    reference: Callable[[], object],
    *,
    repeats: int = 5,
    warm_up: int = 1,
    before: Callable[[], object] = lambda: None,
) -> Ratio:
    """Measure both in turns, `repeats` times after `warm_up` times that do not count; `before` each turn, untimed."""
    pairs = []
    for turn in range(warm_up + repeats):
        before()
        took = _seconds(subject), _seconds(reference)
        if turn >= warm_up:
            pairs.append(took)
    ratios = sorted(one / other for one, other in pairs)
    return Ratio(
        name,
        statistics.median(ratios),
        ratios[0],
        ratios[-1],
        statistics.median(one for one, _ in pairs),
        statistics.median(other for _, other in pairs),
    )


def _seconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin
