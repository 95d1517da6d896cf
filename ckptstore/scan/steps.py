"""Proves the steps of unregistered files by their names and the optimizer's counter together (mindspore.md §3).

With E steps an epoch, a launch that starts after step b, and o = b % E, MindSpore names the file of global_step g

    epoch         = (g - 1) // E + 1
    step in epoch = (g - b - 1) % E + 1      hence g = (epoch - 1) * E + (step in epoch + o - 1) % E + 1

since `cb_params.cur_step_num` starts again at 0 at every launch, while the epoch goes on from `initial_epoch`
(`Model._train_process` in `train/model.py`). o is 0 in a first launch, after a resume between two epochs, and under
ckptstore's registrar. The counter is g less the lag: the steps until then that brought no update.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import gcd
from typing import TYPE_CHECKING

from ckptstore.core.model import Kind
from ckptstore.scan.found import ProvenFile, Uncertain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ckptstore.scan.launches import Ranked

_MOST_DIVISORS = 10_000

Verdict = ProvenFile | Uncertain
"""What is known of a file."""


@dataclass(frozen=True)
class Reading:
    """How the names of a launch are to be read: steps an epoch, and by how many steps the launch began in an epoch.

    `offset` is None where no name of the launch tells it; `steps_per_epoch` is None where no name went beyond the first
    epoch.
    """

    steps_per_epoch: int | None
    offset: int | None

    def step(self, file: Ranked) -> int | None:
        """The global_step that the name of a file stands for; None if it stands for none."""
        if self.offset is None or file.epoch is None or not file.step_in_epoch:
            return None
        steps = self.steps_per_epoch
        if steps is None:
            return file.step_in_epoch
        return (file.epoch - 1) * steps + (file.step_in_epoch + self.offset - 1) % steps + 1


def whole_number(value: object) -> int | None:
    """An appended value as a number; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def may_lag(files: Iterable[Ranked]) -> bool:
    """Whether a file that has a counter may hold fewer updates than steps, as far as its content tells."""
    return any(file.file.optimizer_step is not None and not file.file.updates_every_step for file in files)


def stated_length(files: Iterable[Ranked]) -> int | None:
    """Steps an epoch as `batch_num` of graceful exits and TTP files says; None if none does, or they differ."""
    stated = {number for file in files if (number := whole_number(file.file.info.get("batch_num"))) is not None}
    return stated.pop() if len(stated) == 1 and min(stated) > 0 else None


def length_without_lag(files: Sequence[Ranked]) -> int | None:
    """The one number of steps an epoch with which names and counters of a launch fit, each step being an update."""
    named = _named(files)
    if not named:
        return None
    low = max(max(step, -(-count // epoch)) for epoch, step, count in named)
    high = min(((count - 1) // (epoch - 1) for epoch, _, count in named if epoch > 1), default=0)
    base = named[0][2] - named[0][1]
    common = gcd(*(count - step - base for _, step, count in named))
    if common == 0 or low == high:
        return low if low == high and common % low == 0 else None
    if common // low > _MOST_DIVISORS:
        return None
    lengths = {common // parts for parts in range(1, common // low + 1) if common % parts == 0}
    fitting = {length for length in lengths if length >= low and (length <= high or not high)}
    return fitting.pop() if len(fitting) == 1 else None


def without_lag(files: Sequence[Ranked], length: int | None) -> Reading | None:
    """How all names of a launch are to be read so that they say what the counters say; None if there is no such way.

    A launch that never left the first epoch, and whose names are the counters, needs no length.
    """
    if length is None:
        claims = [file for file in files if file.epoch is not None and file.file.optimizer_step is not None]
        simple = bool(claims) and all(file.epoch == 1 and _counts_itself(file) for file in claims)
        return Reading(None, 0) if simple else None
    regular = _regular(files)
    if not regular:
        return Reading(length, None)
    ((_, step, count),) = _named(regular[:1])
    reading = Reading(length, (count - step) % length)
    return reading if all(reading.step(file) == file.file.optimizer_step for file in regular) else None


def shows_lag(files: Sequence[Ranked], length: int | None, reading: Reading | None) -> bool:
    """Whether names and counters differ as they do when updates are skipped.

    No launch has done fewer steps than its names count in an epoch. Where the counter is beyond what the named epoch
    can hold, epochs were counted from 1 again, which says nothing of updates.
    """
    named = _named(files)
    if any(count < step for _, step, count in named):
        return True
    return length is not None and reading is None and all(epoch * length >= count for epoch, _, count in named)


def possible_starts(files: Sequence[Ranked], reading: Reading | None) -> range | None:
    """The steps that a launch may have begun after, by its names; None if it may have been at the end of an epoch."""
    if reading is None or not reading.offset or reading.steps_per_epoch is None:
        return None
    latest = min(count - step for _, step, count in _named(files))
    return range(reading.offset, latest + 1, reading.steps_per_epoch)


def exact(file: Ranked, reading: Reading | None) -> Verdict:
    """The step of a file of a launch in which every step is an update, by its counter; the name must say the same."""
    count = file.file.optimizer_step
    if count is None:
        return _by_name_alone(file, reading)
    stated = _stated(file)
    if file.epoch is None:
        agreed, reason = count in stated, "nothing in it or in its name confirms the optimizer's counter"
    elif reading is None:
        agreed, reason = False, "the names and the optimizer's counters of its launch do not fit together"
    elif file.file.kind is Kind.DYING_GASP:
        agreed, reason = _is_under_way(file, count, reading), "its name and the optimizer's counter do not agree"
    else:
        agreed, reason = reading.step(file) == count, "its name and the optimizer's counter do not agree"
    if agreed and not all(number == count or _is_of_launch(number, file, count, reading) for number in stated):
        agreed, reason = False, "the step that it or its directory states and the optimizer's counter do not agree"
    return ProvenFile(file.file, file.rank, count) if agreed else Uncertain(file.file.path, count, reason)


def truthful(files: Sequence[Ranked], length: int) -> list[Verdict]:
    """The steps of a first launch: names tell them, if the counters follow with one lag that does not shrink."""
    reading = Reading(length, 0)
    regular = _regular(files)
    steps = [(reading.step(file) or 0, file.file.optimizer_step or 0) for file in regular]
    lags = sorted((step, step - count) for step, count in steps)
    good = all(lag >= 0 for _, lag in lags) and all(one[1] <= other[1] for one, other in pairwise(lags))
    verdicts: list[Verdict] = []
    reason = "updates may have been skipped, and no other file shows how many"
    for file in files:
        step = reading.step(file)
        count = file.file.optimizer_step
        if file in regular and good and step is not None and count is not None:
            lag = step - count
            if lag == 0 or any(other == lag and at != step for at, other in lags):
                verdicts.append(ProvenFile(file.file, file.rank, step))
                continue
        verdicts.append(Uncertain(file.file.path, step, reason))
    return verdicts


def bounded(files: Sequence[Ranked], length: int) -> list[Verdict]:
    """The steps that epochs and counters leave no choice for, whatever the launch began at and however it lagged.

    The step of a file is not below its counter, not beyond its epoch's last; and the lag never shrinks.
    """
    ordered = sorted(
        (file for file in files if file.epoch is not None and file.file.optimizer_step is not None),
        key=lambda file: (file.file.optimizer_step or 0, file.epoch or 0),
    )
    epochs = [(file.epoch or 0, file.file.optimizer_step or 0) for file in ordered]
    least, most = 0, None
    lower: list[int] = []
    for file, (epoch, count) in zip(ordered, epochs, strict=True):
        in_a_step = file.file.kind is Kind.DYING_GASP or not file.step_in_epoch
        least = max(least, (epoch - 1) * length + (0 if in_a_step else 1) - count)
        lower.append(least)
    proven: dict[str, int] = {}
    for file, (epoch, count), lag in reversed(list(zip(ordered, epochs, lower, strict=True))):
        most = epoch * length - count if most is None else min(most, epoch * length - count)
        if most < 0:
            return [_skipping(file, length) for file in files]
        if lag == most:
            proven[file.file.path] = count + lag
    return [
        ProvenFile(file.file, file.rank, proven[file.file.path])
        if file.file.path in proven
        else _skipping(file, length)
        for file in files
    ]


def _skipping(file: Ranked, length: int) -> Verdict:
    count = file.file.optimizer_step
    guess = count if count is not None else Reading(length, 0).step(file)
    return Uncertain(file.file.path, guess, "updates may have been skipped, and its name does not tell how many")


def _regular(files: Iterable[Ranked]) -> list[Ranked]:
    """The files whose names are those of the step that was done last."""
    return [
        file
        for file in files
        if file.file.kind is not Kind.DYING_GASP and file.step_in_epoch and file.file.optimizer_step is not None
    ]


def _named(files: Iterable[Ranked]) -> list[tuple[int, int, int]]:
    """Epoch, step in epoch and counter of those."""
    return [(file.epoch or 0, file.step_in_epoch or 0, file.file.optimizer_step or 0) for file in _regular(files)]


def _counts_itself(file: Ranked) -> bool:
    """Whether the name of a file of the first epoch is its counter, or the next step's where that was under way."""
    ahead = (file.step_in_epoch or 0) - (file.file.optimizer_step or 0)
    return ahead == 0 or (ahead == 1 and file.file.kind is Kind.DYING_GASP)


def _stated(file: Ranked) -> set[int]:
    """The steps that a name, and the content of a graceful exit's or TTP's file, state; others' lie in many ways."""
    counted = file.file.kind in (Kind.GRACEFUL_EXIT, Kind.TTP)
    numbers = [file.file.named_step, whole_number(file.file.info.get("step_num")) if counted else None]
    return {number for number in numbers if number is not None}


def _is_of_launch(number: int, file: Ranked, count: int, reading: Reading | None) -> bool:
    """Whether a stated step can be MindSpore's count since the launch began: the name follows the same count."""
    if file.step_in_epoch is None or reading is None or reading.steps_per_epoch is None:
        return False
    return 0 < number < count and (number - file.step_in_epoch) % reading.steps_per_epoch == 0


def _is_under_way(file: Ranked, count: int, reading: Reading) -> bool:
    """Whether a breakpoint's name is that of the last step that is in it, or of the next, which was under way.

    MindSpore: `_save_final_ckpt` in `train/model.py`; its step is 0 where an epoch had begun and no step of it. With
    no other file of the launch, only the epoch can be held against the counter.
    """
    epoch = file.epoch or 0
    step = reading.step(file)
    length = reading.steps_per_epoch
    if step is not None or length is None:
        return (step or 0) in (count, count + 1)
    last = epoch * length
    return last - length <= count <= (last if file.step_in_epoch else last - 1)


def _by_name_alone(file: Ranked, reading: Reading | None) -> Verdict:
    """A file without a counter, such as a share, in a launch whose other files prove how names are to be read."""
    step = reading.step(file) if reading is not None and reading.steps_per_epoch is not None else None
    if step is None or file.file.kind is Kind.DYING_GASP:
        return Uncertain(file.file.path, step, "nothing in it counts its updates")
    return ProvenFile(file.file, file.rank, step)
