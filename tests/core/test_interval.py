"""The interval that is advised loses least: the formula is held against a simulated training that fails at random."""

import math
import random

import pytest

from ckptstore.core.interval import Cost, Failures, best_interval, best_steps, lost

MANY = 8_000


def simulated(interval: float, cost: Cost, mtbf: float, *, seed: int = 1, failures: int = MANY) -> float:
    """The part of the time that a training loses which starts over after each of so many failures.

    It trains, stands still for a save, and goes on; the save is safe when it is on the disk, and one that would begin
    before that waits. After a failure it goes on from the newest that is safe, at once.
    """
    draw = random.Random(seed)  # noqa: S311 — it is to be the same each time
    useful = total = 0.0
    for _ in range(failures):
        until = draw.expovariate(1 / mtbf)
        total += until
        now = free_at = kept = trained = 0.0
        while now < until:
            now += interval
            trained += interval
            begun = max(now, free_at)
            free_at = begun + cost.written
            now = begun + cost.pause
            if free_at <= until:
                kept = trained
        useful += kept
    return 1 - useful / total


SYNCHRONOUS = [Cost(pause, pause) for pause in (0.1, 1.0, 5.0, 20.0)]
ASIDE = [Cost(1.0, 4.0), Cost(0.5, 30.0), Cost(2.0, 60.0)]


@pytest.mark.parametrize("cost", [*SYNCHRONOUS, *ASIDE])
def test_what_is_lost_is_what_a_simulated_training_loses(cost: Cost) -> None:
    mtbf = 100.0
    for interval in (5.0, 15.0, 50.0):
        assert lost(interval, cost, mtbf) == pytest.approx(simulated(interval, cost, mtbf), rel=0.03, abs=0.004)


@pytest.mark.parametrize("cost", [*SYNCHRONOUS[1:], *ASIDE])
def test_no_other_interval_loses_noticeably_less(cost: Cost) -> None:
    """Seen by the simulation, at the same failures for each interval of a grid."""
    mtbf = 100.0
    best = best_interval(cost, mtbf)
    advised = simulated(best, cost, mtbf)
    for factor in (0.25, 0.5, 0.7, 0.85, 1.2, 1.5, 2.0, 4.0):
        assert advised <= simulated(best * factor, cost, mtbf) * 1.02
    assert advised < simulated(best / 4, cost, mtbf) * 0.98
    assert advised < simulated(best * 4, cost, mtbf) * 0.98


def test_young_is_what_is_left_where_a_save_costs_little() -> None:
    assert best_interval(Cost(1.0, 1.0), 1e8) == pytest.approx(math.sqrt(2e8), rel=1e-3)


def test_a_save_never_waits_for_the_one_before() -> None:
    assert best_interval(Cost(0.001, 100.0), 3600.0) == pytest.approx(99.999)
    assert best_steps(Cost(0.001, 100.0), 3600.0, 0.3) == 334
    assert best_steps(Cost(0.0, 0.0), 3600.0, 0.3) == 1


def test_a_failure_before_the_first_save_is_safe_takes_all() -> None:
    assert lost(1000.0, Cost(1.0, 1.0), 1.0) == 1.0
    assert lost(1.0, Cost(1.0, 1e6), 1.0) == 1.0


@pytest.mark.parametrize(
    ("count", "low", "high"), [(0, 1 / 2.996, None), (1, 1 / 4.744, 1 / 0.0513), (10, 1 / 16.96, 1 / 5.425)]
)
def test_few_failures_say_little(count: int, low: float, high: float | None) -> None:
    """Held against the tables of the Poisson distribution."""
    failures = Failures(count, 1.0)
    assert failures.between == (pytest.approx(low, rel=1e-3), high and pytest.approx(high, rel=1e-3))
    assert failures.mtbf == (1 / count if count else None)
