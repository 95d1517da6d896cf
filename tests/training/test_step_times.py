"""What a save of MindSpore's own callbacks costs is seen from the steps around it."""

import pytest

from ckptstore.core.model import Timing
from ckptstore.training.step_times import StepTimes


class Clock:
    """Steps of 1 s, half a second after each other, or as long as is said."""

    def __init__(self) -> None:
        self.times, self.now, self.step = StepTimes(), 100.0, 0

    def goes(self, seconds: float = 1.0, *, saves: bool = False, steps: int = 1) -> Timing | None:
        self.times.begins(self.now)
        self.now += seconds
        self.step += steps
        self.times.ends(self.now, self.step)
        timing = self.times.of_save() if saves else None
        self.times.done(saved=saves)
        self.now += 0.5
        return timing


def test_a_save_took_what_its_step_took_longer_than_others() -> None:
    """Than most of them."""
    clock = Clock()
    for seconds in (1.0, 1.0, 0.1, 1.0, 9.0, 1.0):
        clock.goes(seconds)
    assert clock.goes(4.0, saves=True) == Timing(3.0, step=1.5)


def test_the_first_step_was_compiled_and_an_evaluation_is_no_save() -> None:
    clock = Clock()
    clock.goes(600.0)
    for _ in range(2):
        clock.goes()
    clock.now += 300  # between two epochs
    clock.goes()
    assert clock.goes(2.0, saves=True) == Timing(1.0, step=1.5)


@pytest.mark.parametrize("plain", [0, 1, 3])
def test_too_few_steps_without_a_save_tell_nothing(plain: int) -> None:
    """The first one is not counted."""
    clock = Clock()
    for _ in range(plain):
        clock.goes()
    assert clock.goes(2.0, saves=True) is None


def test_a_save_after_every_step_has_nothing_to_be_compared_with() -> None:
    clock = Clock()
    assert {clock.goes(2.0, saves=True) for _ in range(9)} == {None}


def test_where_data_sinks_a_step_is_a_part_of_what_is_heard_of() -> None:
    clock = Clock()
    for _ in range(5):
        clock.goes(9.5, steps=10)
    assert clock.goes(12.5, saves=True, steps=10) == Timing(3.0, step=1.0)


def test_what_is_found_between_two_steps_is_of_none() -> None:
    clock = Clock()
    for _ in range(5):
        clock.goes()
    assert clock.times.of_save() is None


def test_a_save_that_took_no_longer_took_nothing() -> None:
    clock = Clock()
    for _ in range(5):
        clock.goes()
    assert clock.goes(0.9, saves=True) == Timing(0.0, step=1.5)
