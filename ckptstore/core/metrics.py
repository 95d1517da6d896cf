"""Metrics of states: the mean over the ranks, and the order by one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Of = TypeVar("Of")


def mean_metrics(measured: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric over the files that have it: each rank measures its own."""
    values: dict[str, list[float]] = {}
    for each in measured:
        for name, value in each.items():
            values.setdefault(name, []).append(value)
    return {name: sum(some) / len(some) for name, some in values.items()}


def best_first(measured: Iterable[tuple[Of, float]], mode: str) -> list[tuple[Of, float]]:
    """Sort by value, lowest first (highest first in mode "max"). Equal ones keep their order."""
    sign = -1 if mode == "max" else 1
    return sorted(measured, key=lambda each: sign * each[1])
