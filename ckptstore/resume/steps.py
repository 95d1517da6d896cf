"""The step of a file that no callback witnessed, from its name and the optimizer's counter (mindspore.md §3)."""

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


def is_named_after(name: CheckpointName, *, steps_per_epoch: int, global_step: int) -> bool:
    """Whether a breakpoint's name is of this step, or of the next one, which was under way."""
    return (name.epoch - 1) * steps_per_epoch + name.step_in_epoch in (global_step, global_step + 1)


def witnessed_by_mindspore(step_num: object, named: int | None, *, optimizer_step: int | None, lag: int) -> int | None:
    """The global_step of a graceful exit's or a TTP file that nobody registered; None where it is not proved.

    Such a file holds MindSpore's own count of steps, `step_num`, which the registrar lets go on over restarts; only
    the second save of an exit by a signal has none (mindspore.md §3). The step in the name is the controller's or ours.
    Neither may be behind the updates that the optimizer counted.
    """
    step = step_num if isinstance(step_num, int) else named
    if step is None or named not in (None, step):
        return None
    return step if optimizer_step is None or optimizer_step + lag <= step else None
