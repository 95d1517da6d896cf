"""When a loop saves, and when its ranks ask each other."""

from datetime import timedelta
from typing import Literal

import pytest

from ckptstore.core.interval import Cost, best_interval
from ckptstore.training.rhythm import SHORTEST, Question, Rhythm


def rhythm(every: int | timedelta | Literal["auto"], *, rank: int = 0, alone: bool = False) -> Rhythm:
    return Rhythm(every, step=0, now=100.0, rank=rank, alone=alone)


def test_by_steps_the_number_of_the_step_tells() -> None:
    """So that every rank saves at the same one, from wherever it started."""
    for start in (0, 3):
        counted = Rhythm(5, step=start, now=100.0, rank=0, alone=True)
        assert [step for step in range(start + 1, 21) if counted.is_due(step)] == [5, 10, 15, 20]
    sunk = rhythm(5)
    assert [step for step in (4, 8, 9, 15, 31) if sunk.is_due(step)] == [8, 15, 31]  # several steps end at once
    assert not rhythm(timedelta(seconds=1)).is_due(5)


def test_by_time_rank_0_says_so_and_no_other() -> None:
    every = timedelta(seconds=30)
    late, other = rhythm(every), rhythm(every, rank=1)
    assert late.question(1, 129.9, leaves=False).saves == 0
    assert late.question(1, 130.0, leaves=False).saves == 1
    assert other.question(1, 1000.0, leaves=False) == Question(0, 0, 0)
    late.saved(130.0)
    assert late.question(2, 159.9, leaves=False).saves == 0


def test_by_itself_it_saves_once_and_then_as_often_as_loses_least() -> None:
    adapting = rhythm("auto")
    assert not adapting.is_due(5)
    minute = SHORTEST.total_seconds()
    assert adapting.question(1, 100 + minute - 0.1, leaves=False).saves == 0
    assert adapting.question(1, 100 + minute, leaves=False).saves == 1
    adapting.saved(200.0)
    cost = Cost(4.0, 30.0)
    adapting.adapt(cost, 86400.0)
    seconds = best_interval(cost, 86400.0)
    assert 800 < seconds < 850
    assert adapting.question(2, 200 + seconds - 0.1, leaves=False).saves == 0
    assert adapting.question(2, 200 + seconds + 0.1, leaves=False).saves == 1


def test_by_itself_it_does_not_save_all_the_time() -> None:
    """A save that costs nearly nothing still takes the disk, and room on it."""
    adapting = rhythm("auto")
    adapting.adapt(Cost(1e-6, 0.01), 60.0)
    assert adapting.every == SHORTEST


@pytest.mark.parametrize(("seconds", "after"), [(10.0, [1, 2, 3, 4]), (0.1, [1, 5, 15, 25]), (1e-6, [1, 5, 21, 85])])
def test_the_ranks_ask_about_once_a_second(seconds: float, after: list[int]) -> None:
    """The first step says little: it was compiled in it. So the distance grows step by step."""
    asking, asked = rhythm(5), []
    for step in range(1, 100):
        if asking.asks(step):
            asked.append(step)
            now = 100 + step * seconds
            asking.heard(step, now, asking.question(step, now, leaves=False))
    assert asked[:4] == after


def test_one_rank_alone_asks_itself_after_every_step() -> None:
    alone = rhythm(5, alone=True)
    for step in range(1, 10):
        assert alone.asks(step)
        alone.heard(step, 100.0, alone.question(step, 100.0, leaves=False))


def test_whoever_is_told_to_leave_says_so() -> None:
    assert rhythm(5, rank=3).question(1, 101.0, leaves=True) == Question(1, 0, 0)
