"""What an exception left of the step that it interrupted."""

from __future__ import annotations

from enum import Enum


class InterruptedStep(Enum):
    """How much of the step is in the network: nothing, all of it, perhaps a part of its update, or it is not known."""

    NOT_DONE = "not done"
    DONE = "done"
    HALF_DONE = "half done"
    UNKNOWN = "unknown"


def interrupted_step(
    updates: int, *, counts_all: bool, is_one_call: bool, raised_in_optimizer: bool
) -> InterruptedStep:
    """What the optimizer's counter tells, which is ahead of the steps that were counted by `updates`.

    `counts_all`: it left out no step so far. `is_one_call`: a step is one call of the device (GRAPH_MODE), so all of it
    is done or nothing. Otherwise an exception comes between two operators (PyNative): the optimizer may have counted
    the step, and changed only some of the parameters.
    """
    if updates == 1 and is_one_call:
        return InterruptedStep.DONE
    if not is_one_call and (updates == 1 or raised_in_optimizer):
        return InterruptedStep.HALF_DONE
    return InterruptedStep.NOT_DONE if updates == 0 and counts_all else InterruptedStep.UNKNOWN
