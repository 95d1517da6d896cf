"""What the counter says of an interrupted step, and what the times of steps say of a save, without a training."""

import pytest

from ckptstore.core.model import Timing
from ckptstore.mindspore.step_count import InterruptedStep, StepTimes, interrupted_step

NOT_DONE, DONE, HALF_DONE, UNKNOWN = InterruptedStep


@pytest.mark.parametrize(
    ("updates", "counts_all", "is_one_call", "changes_others", "raised_in_optimizer", "left"),
    [
        (1, True, True, True, False, DONE),
        (1, False, True, False, False, DONE),
        (0, True, True, True, False, NOT_DONE),
        (0, True, True, False, True, NOT_DONE),  # one call of the device: all of it or nothing
        (0, False, True, False, False, UNKNOWN),  # it leaves out updates: the step may be done without one
        (2, True, True, False, False, UNKNOWN),
        (-1, True, True, False, False, UNKNOWN),
        (1, True, False, False, False, HALF_DONE),
        (1, True, False, False, True, HALF_DONE),
        (0, True, False, False, True, HALF_DONE),
        (0, False, False, False, True, HALF_DONE),
        (0, True, False, False, False, NOT_DONE),
        (0, True, False, True, False, HALF_DONE),  # before the update, averages may have changed
        (0, False, False, True, False, UNKNOWN),
        (2, True, False, False, False, UNKNOWN),
    ],
)
def test_what_the_counter_tells(
    *,
    updates: int,
    counts_all: bool,
    is_one_call: bool,
    changes_others: bool,
    raised_in_optimizer: bool,
    left: InterruptedStep,
) -> None:
    found = interrupted_step(
        updates,
        counts_all=counts_all,
        is_one_call=is_one_call,
        changes_others=changes_others,
        raised_in_optimizer=raised_in_optimizer,
    )
    assert found is left


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


@pytest.mark.parametrize(
    ("before", "save", "found"),
    [
        ([1.0, 1.0, 0.1, 1.0, 9.0, 1.0], 4.0, Timing(3.0, step=1.5)),  # longer than most of them
        ([600.0, 1.0, 1.0, 1.0], 2.0, Timing(1.0, step=1.5)),  # the first one was compiled
        ([], 2.0, None),
        ([1.0], 2.0, None),
        ([1.0] * 3, 2.0, None),  # the first one is not counted: too few
        ([1.0] * 5, 0.9, Timing(0.0, step=1.5)),  # it took no longer
    ],
)
def test_a_save_took_what_its_step_took_longer_than_others(
    before: list[float], save: float, found: Timing | None
) -> None:
    clock = Clock()
    for seconds in before:
        clock.goes(seconds)
    assert clock.goes(save, saves=True) == found


def test_an_evaluation_is_no_save() -> None:
    clock = Clock()
    for after in (0, 0, 300, 0):  # between two epochs
        clock.goes()
        clock.now += after
    assert clock.goes(2.0, saves=True) == Timing(1.0, step=1.5)


def test_a_save_after_every_step_has_nothing_to_be_compared_with() -> None:
    clock = Clock()
    assert {clock.goes(2.0, saves=True) for _ in range(9)} == {None}


def test_where_data_sinks_a_step_is_a_part_of_what_is_heard_of() -> None:
    clock = Clock()
    for _ in range(5):
        clock.goes(9.5, steps=10)
    assert clock.times.of_save() is None, "what is found between two steps is of none"
    assert clock.goes(12.5, saves=True, steps=10) == Timing(3.0, step=1.0)
