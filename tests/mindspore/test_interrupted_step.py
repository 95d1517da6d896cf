"""How much of a step is in the network when an exception interrupts it, by the optimizer's counter."""

import pytest

from ckptstore.mindspore.step_count import InterruptedStep, interrupted_step

NOT_DONE, DONE, HALF_DONE, UNKNOWN = InterruptedStep


@pytest.mark.parametrize(
    ("updates", "counts_all", "is_one_call", "raised_in_optimizer", "left"),
    [
        (1, True, True, False, DONE),
        (1, False, True, False, DONE),
        (0, True, True, False, NOT_DONE),
        (0, True, True, True, NOT_DONE),  # one call of the device: all of it or nothing
        (0, False, True, False, UNKNOWN),  # it leaves out updates: the step may be done without one
        (2, True, True, False, UNKNOWN),
        (-1, True, True, False, UNKNOWN),
        (1, True, False, False, HALF_DONE),
        (1, True, False, True, HALF_DONE),
        (0, True, False, True, HALF_DONE),
        (0, False, False, True, HALF_DONE),
        (0, True, False, False, NOT_DONE),
        (0, False, False, False, UNKNOWN),
        (2, True, False, False, UNKNOWN),
    ],
)
def test_what_the_counter_tells(
    *, updates: int, counts_all: bool, is_one_call: bool, raised_in_optimizer: bool, left: InterruptedStep
) -> None:
    found = interrupted_step(
        updates, counts_all=counts_all, is_one_call=is_one_call, raised_in_optimizer=raised_in_optimizer
    )
    assert found is left
