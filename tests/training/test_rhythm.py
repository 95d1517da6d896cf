"""When a loop saves, and when its ranks ask each other."""

from datetime import timedelta

import pytest

from ckptstore.training.rhythm import Question, Rhythm


def rhythm(every: int | timedelta, *, rank: int = 0, alone: bool = False) -> Rhythm:
    return Rhythm(every, step=0, now=100.0, rank=rank, alone=alone)


def test_by_steps_the_number_of_the_step_tells() -> None:
    """So that every rank saves at the same one, from wherever it started."""
    assert [step for step in range(1, 21) if rhythm(5).is_due(step)] == [5, 10, 15, 20]
    assert not rhythm(timedelta(seconds=1)).is_due(5)


def test_by_time_rank_0_says_so_and_no_other() -> None:
    every = timedelta(seconds=30)
    late, other = rhythm(every), rhythm(every, rank=1)
    assert late.question(1, 129.9, leaves=False).saves == 0
    assert late.question(1, 130.0, leaves=False).saves == 1
    assert other.question(1, 1000.0, leaves=False) == Question(0, 0, 0)
    late.saved(130.0)
    assert late.question(2, 159.9, leaves=False).saves == 0


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
