"""Converts the step of a saved state to that of a launch with more ranks, fewer ranks, or another batch size.

`global_step` counts the batches of one rank. Samples are dealt to the `shards` in turn, and a step of all ranks takes
`batch_size` samples of each shard. So after n samples of an epoch the same ones are consumed, whatever the batch size
and the number of shards. For data that is dealt in another way only the end of an epoch can be converted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptstore.core.text import count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptstore.core.model import Launch


@dataclass(frozen=True)
class NoPosition:
    """The saved step has no counterpart in the steps of the new launch."""

    reason: str


def first_step(global_step: int, saved: Launch, now: Launch) -> int | NoPosition:
    """The step of launch `now` at the data position of `global_step` of launch `saved`, in batches of one rank.

    Finished epochs stay finished, however many steps an epoch has now. Inside an epoch the samples consumed must make
    up whole steps. If the data of `now` is not known, the step is not converted.
    """
    if now.steps_per_epoch is None or _same_steps(saved, now):
        return global_step
    if saved.steps_per_epoch is not None:
        return _converted(global_step, saved, saved.steps_per_epoch, now, now.steps_per_epoch)
    if saved.world_size == now.world_size:
        return global_step
    return NoPosition(
        f"it was saved by {count(saved.world_size, 'rank', 'ranks')}, and its number of steps per epoch is not known"
    )


def other_data(saved: Launch, now: Launch) -> str:
    """The evidence that launch `now` has other data than launch `saved`; empty if there is none."""
    if saved.steps_per_epoch is None or now.steps_per_epoch is None or _same_steps(saved, now):
        return ""
    samples = _samples_a_step(saved, now)
    if samples is None or _may_be_one(samples[0], saved.steps_per_epoch, samples[1], now.steps_per_epoch):
        return ""
    return f"{_counts(samples, saved.steps_per_epoch, now.steps_per_epoch)}: it is not the same data"


def _converted(global_step: int, saved: Launch, an_epoch_then: int, now: Launch, an_epoch: int) -> int | NoPosition:
    epochs, rest = divmod(global_step, an_epoch_then)
    if rest == 0:  # no sample counts are needed
        return epochs * an_epoch
    samples = _samples_a_step(saved, now)
    why = other_data(saved, now)
    if samples is None:
        why = "the number of samples per step is not known for both launches"
    elif not why:
        then, after = samples
        if then * an_epoch_then != after * an_epoch:
            counts = _counts(samples, an_epoch_then, an_epoch)
            why = f"{counts}, and the rest of a started epoch cannot be divided into new steps"
        else:
            steps, left = divmod(rest * then, after)
            if not left:
                return epochs * an_epoch + steps
            why = f"the {rest * then} samples already trained in that epoch do not divide into steps of {after}"
    if saved.world_size == now.world_size:
        more = an_epoch != an_epoch_then
        change = f"an epoch had {count(an_epoch_then, 'step', 'steps')}, now it has {an_epoch}; " if more else ""
        return NoPosition(f"{change}{why}")
    verb = "takes" if now.world_size == 1 else "take"
    before, ranks = (count(launch.world_size, "rank", "ranks") for launch in (saved, now))
    return NoPosition(f"{before} took {an_epoch_then} steps an epoch, now {ranks} {verb} {an_epoch}; {why}")


def _counts(samples: tuple[int, int], steps_then: int, steps: int) -> str:
    return f"an epoch had {samples[0] * steps_then} samples, now it has {samples[1] * steps}"


def shift(launch: Launch, launches: Mapping[str, Launch]) -> int:
    """How many steps a launch is ahead of the run's first launch after the same number of optimizer updates.

    Each conversion of steps changes it, since the optimizer's counter is not converted.
    """
    beyond = 0
    each: Launch | None = launch
    while each is not None:
        if each.start_step is not None and each.parent_step is not None:
            beyond += each.start_step - each.parent_step
        parent = launches.get(each.parent or "")
        each = parent if parent is not None and parent.order < each.order else None
    return beyond


def _same_steps(saved: Launch, now: Launch) -> bool:
    """Whether a step takes as many samples in both launches, as far as is known."""
    if saved.steps_per_epoch != now.steps_per_epoch:
        return False
    pairs = ((saved.batch_size, now.batch_size), (saved.shards, now.shards))
    if saved.world_size == now.world_size:
        return all(one is None or other is None or one == other for one, other in pairs)
    return all(one is not None and one == other for one, other in pairs)


def _samples_a_step(saved: Launch, now: Launch) -> tuple[int, int] | None:
    """Samples per step of each launch: of all ranks, or of one rank if both have as many ranks and shards."""
    if saved.batch_size is None or now.batch_size is None:
        return None
    if saved.world_size == now.world_size and saved.shards == now.shards:
        return saved.batch_size, now.batch_size
    if saved.shards is None or now.shards is None:
        return None
    return saved.batch_size * saved.shards, now.batch_size * now.shards


def _may_be_one(then: int, steps_then: int, after: int, steps: int) -> bool:
    """Whether both epochs can be of the same data, by samples per step and number of steps.

    The last batch may be partial, or left out.
    """
    return (steps_then - 1) * then < (steps + 1) * after and (steps - 1) * after < (steps_then + 1) * then
