"""The step of a file that no callback witnessed, from its name and the optimizer's counter (domain §3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckptstore.core.naming import CheckpointName


def unwitnessed_step(
    name: CheckpointName, *, steps_per_epoch: int, base_step: int, optimizer_step: int, lag: int
) -> int | None:
    """The global_step of a file of a launch that started at `base_step`; None if its sources contradict each other.

    `lag` is global_step minus optimizer_step in the newest state that was witnessed: how many batches brought no
    update. A breakpoint is named after the step that was under way: where the optimizer counted that step, it was
    done; where it did not, the step was not done or its update was skipped, and nothing in the file tells which. An
    optimizer at 0 in a launch from 0 is an untrained network: step 0.
    """
    if optimizer_step == 0 and base_step == 0:
        return 0
    counted = optimizer_step + lag
    named = (name.epoch - 1) * steps_per_epoch + name.step_in_epoch
    possible = {named, base_step} if name.step_in_epoch == 0 else {named}
    return counted if counted in possible and counted >= base_step else None
