"""Places files that nobody registered by their names and the optimizer's counter together (mindspore.md §3).

With E steps an epoch, a launch that starts after step b, and o = b % E, MindSpore names the file of global_step g

    epoch         = (g - 1) // E + 1
    step in epoch = (g - b - 1) % E + 1      hence g = (epoch - 1) * E + (step in epoch + o - 1) % E + 1

since `cb_params.cur_step_num` starts again at 0 at every launch, while the epoch goes on from `initial_epoch`
(`Model._train_process` in `train/model.py`). o is 0 in a first launch, after a resume between two epochs, and under
ckptstore's registrar. A script that gives another `initial_epoch` than b // E, or does not skip what was consumed, has
epochs of its own: they begin with the launch. Where `sink_size` is given, E is that (`train/model.py`, `batch_num`).

The counter is g less the lag: the steps until then that brought no update. Where there are none it is the step, however
the names are read; what is asked is only whether there is a way to read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

from ckptstore.core.model import Grade, Kind, Lengths
from ckptstore.scan.found import BY_HAND, PlacedFile, Trusted, Uncertain

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from ckptstore.scan.launches import Ranked

Verdict = PlacedFile | Uncertain
"""What is known of a file."""

OF_LENGTH = "--steps-per-epoch E"
"""The option of `ckptstore scan` that says how many steps an epoch has."""


@dataclass(frozen=True)
class Reading:
    """How the names of a launch are to be read: the steps an epoch that fit, and by how many it began in one.

    `offset` is None where no name of the launch tells it, or the length is not known. `begins_anew`: the launch has
    epochs of its own.
    """

    lengths: Lengths
    offset: int | None = None
    begins_anew: bool = False

    def step(self, file: Ranked) -> int | None:
        """The global_step that the name of a file stands for; None if it stands for none."""
        if file.epoch is None or not file.step_in_epoch or self.begins_anew:
            return None
        length = self.lengths.only
        if length is None:
            return file.step_in_epoch if file.epoch == 1 and self.offset == 0 else None
        if self.offset is None:
            return None
        return (file.epoch - 1) * length + (file.step_in_epoch + self.offset - 1) % length + 1


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


def fitting_lengths(files: Sequence[Ranked]) -> Lengths | None:
    """The steps an epoch with which all names of a launch say what its counters say, as MindSpore names files."""
    low, highs = 1, []
    for file in files:
        count, step, epoch = file.file.optimizer_step, file.step_in_epoch, file.epoch
        if count is None or epoch is None:
            continue
        if epoch < 1 or (step or 0) > count + (file.file.kind is Kind.DYING_GASP):
            return None
        under_way = file.file.kind is Kind.DYING_GASP or not step
        low = max(low, step or 0, -(-count // epoch) if step else count // epoch + 1)
        highs += [(count if under_way else count - 1) // (epoch - 1)] if epoch > 1 else []
    found = Lengths(low, min(highs, default=None), gcd(*_differences(files)))
    counted = found
    for file in _regular(files):
        for number in _stated(file) if file.file.kind is Kind.TTP else ():
            counted = counted.dividing(number - (file.step_in_epoch or 0))
    return counted if counted.some() else found if found.some() else None


def own_lengths(files: Sequence[Ranked], may_begin: Callable[[int], bool]) -> Lengths | None:
    """The steps an epoch with which a launch's names say what its counters say if it had epochs of its own.

    Names that are ahead of the counter are another matter: the counter began anew, or steps were left out. `may_begin`
    tells whether it may have begun after a step.
    """
    named = _named(files)
    if not named or any(count <= step or epoch < 1 for epoch, step, count in named):
        return None
    epoch, step, count = named[0]
    lengths = Lengths(
        max(each for _, each, _ in named),
        min(((done - each) // (at - 1) for at, each, done in named if at > 1), default=None),
    )
    for other_epoch, other_step, other_count in named[1:]:
        more, epochs = (other_count - other_step) - (count - step), other_epoch - epoch
        if epochs == 0:
            if more:
                return None
        elif more % epochs or more // epochs < 1:
            return None
        else:
            lengths = lengths.within(Lengths(more // epochs, more // epochs))
    if not lengths.some():
        return None
    first = min(each for each, _, _ in named)
    begins = {count - step}  # in the epoch of the first file
    if (length := lengths.only) is not None:
        begins = {count - step - (epoch - each) * length for each in range(1, first + 1)}
    return lengths if any(begin > 0 and may_begin(begin) for begin in begins) else None


def read(files: Sequence[Ranked], lengths: Lengths) -> Reading:
    """The reading of a launch whose names fit these lengths."""
    regular = _named(files)
    offset = None
    if regular and lengths.only is not None:
        offset = (regular[0][2] - regular[0][1]) % lengths.only
    elif regular and all(count == step for _, step, count in regular):
        offset = 0
    return Reading(lengths, offset)


def counts_itself(files: Sequence[Ranked]) -> bool:
    """Whether a launch never left the first epoch, and its names are the counters: that needs no length."""
    claims = [file for file in files if file.epoch is not None and file.file.optimizer_step is not None]
    return bool(claims) and all(file.epoch == 1 and _counts_itself(file) for file in claims)


def has_names(files: Iterable[Ranked]) -> bool:
    """Whether a launch has names that can be held against counters."""
    return bool(_regular(files))


def has_several_names(files: Iterable[Ranked]) -> bool:
    """Whether a launch has more than one such name."""
    return len({name[:2] for name in _named(files)}) > 1


def shows_lag(files: Sequence[Ranked], reading: Reading | None, length: int | None) -> bool:
    """Whether names and counters differ as they do when updates are skipped.

    No launch has done fewer steps than its names count in an epoch. Where the counter is beyond what the named epoch
    can hold, epochs were counted in another way, which says nothing of updates.
    """
    named = _named(files)
    if any(count < step for _, step, count in named):
        return True
    return (
        reading is None and bool(named) and all(length is None or epoch * length >= count for epoch, _, count in named)
    )


def may_begin_between_epochs(files: Sequence[Ranked], lengths: Lengths) -> bool:
    """Whether a launch may have begun at the end of an epoch, or with the run, by its names."""
    named = _named(files)
    return not named or bool(lengths.dividing(named[0][2] - named[0][1]).some())


def may_begin_after(files: Sequence[Ranked], lengths: Lengths, step: int) -> bool:
    """Whether a launch may have begun after a step, by its names."""
    first = [count - in_epoch for _, in_epoch, count in _named(files)]
    return bool(first) and step <= min(first) and bool(lengths.dividing(first[0] - step).some())


def by_counter(file: Ranked, reading: Reading, grade: Grade, doubt: str) -> Verdict:
    """The step of a file of a launch in which every step is an update, by its counter; the name must say the same."""
    count = file.file.optimizer_step
    if count is None:
        return _by_name_alone(file, reading)
    stated = _stated(file)
    if file.epoch is None and not stated:
        reason = "nothing in it or in its name confirms the optimizer's counter"
        return Uncertain(file.file.path, count, reason, Trusted.COUNTER.remedy)
    reason = _contradiction(file, count, reading, stated)
    if reason:
        return Uncertain(file.file.path, count, reason, contradicted=True)
    if count in stated:
        grade, doubt = Grade.PROVEN, ""
    return PlacedFile(file.file, file.rank, count, grade, doubt)


def without_reading(files: Sequence[Ranked], length: int | None) -> list[Verdict]:
    """What is known of a launch whose names and counters no reading explains: a counter may be trusted all the same.

    But not where names are ahead of it: then it began anew, steps were left out, or updates skipped.
    """
    reason = "the names and the optimizer's counters of its launch do not fit together"
    is_ahead = any(count < (epoch - 1) * (length or 0) + step for epoch, step, count in _named(files))
    remedy = BY_HAND if is_ahead else Trusted.COUNTER.remedy
    return [
        Uncertain(
            file.file.path,
            None if is_ahead else file.file.optimizer_step,  # then the counter is the one number that it is not
            reason,
            remedy,
            contradicted=is_ahead,
        )
        for file in files
    ]


def _contradiction(file: Ranked, count: int, reading: Reading, stated: Collection[int]) -> str:
    """What in a file's name, directory or content excludes that its counter is its step; empty where nothing does."""
    others = [number for number in sorted(stated) if number != count]
    if file.epoch is not None:
        if file.file.kind is Kind.DYING_GASP and not _is_under_way(file, count, reading):
            return f"its name is not of the step at which its optimizer's counter is {count}"
        others = [number for number in others if not _is_of_launch(number, file, count, reading)]
    return f"its optimizer's counter is {count}, and it or its directory states {others[0]}" if others else ""


def skipping(file: Ranked, length: int | None) -> Verdict:
    """What is known of a file of a tree where updates may have been skipped: how many, nothing tells."""
    if file.file.updates_every_step:
        reason = "the names and the optimizer's counters of its tree do not fit together"
        count = file.file.optimizer_step
        named = None if length is None else Reading(Lengths(length, length), 0).step(file)
        if named is not None and named > (count or 0):
            return Uncertain(file.file.path, None, reason, contradicted=True)
        return Uncertain(file.file.path, count, reason, OF_LENGTH if length is None else Trusted.COUNTER.remedy)
    guess = Reading(Lengths() if length is None else Lengths(length, length), 0).step(file)
    reason = "updates may have been skipped (loss scale or gathered gradients): only its name tells its step"
    return Uncertain(file.file.path, guess, reason, Trusted.NAME.remedy)


def assumed(file: Ranked, length: int | None, trusted: Collection[Trusted]) -> tuple[int, str] | None:
    """The step of a file by one witness that the user trusts, and which; None where it has none of these.

    A name is read as that of a launch that began between epochs. What MindSpore notes as `step_num` is the step where
    the script, or MindFormers, gave it the base (mindspore.md §3).
    """
    count, noted = file.file.optimizer_step, whole_number(file.file.info.get("step_num"))
    if Trusted.COUNTER in trusted and count is not None:
        return count, "the optimizer's counter alone says so"
    if Trusted.INFO in trusted and noted is not None:
        return noted, "step_num in it alone says so"
    named = file.file.named_step
    if named is None and file.file.kind is not Kind.DYING_GASP:
        lengths = Lengths() if length is None else Lengths(length, length)
        named = Reading(lengths, 0).step(file)
    if Trusted.NAME in trusted and named is not None:
        return named, "its name alone says so"
    return None


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


def _differences(files: Iterable[Ranked]) -> list[int]:
    """What an epoch's length divides: a launch has done whole epochs between two files whose names are alike."""
    begun = [count - step for _, step, count in _named(files)]
    return [each - begun[0] for each in begun]


def _counts_itself(file: Ranked) -> bool:
    """Whether the name of a file of the first epoch is its counter, or the next step's where that was under way."""
    ahead = (file.step_in_epoch or 0) - (file.file.optimizer_step or 0)
    return ahead == 0 or (ahead == 1 and file.file.kind is Kind.DYING_GASP)


def _stated(file: Ranked) -> set[int]:
    """The steps that a name, and the content of a graceful exit's or TTP's file, state; others' lie in many ways."""
    counted = file.file.kind in (Kind.GRACEFUL_EXIT, Kind.TTP)
    numbers = [file.file.named_step, whole_number(file.file.info.get("step_num")) if counted else None]
    return {number for number in numbers if number is not None}


def _is_of_launch(number: int, file: Ranked, count: int, reading: Reading) -> bool:
    """Whether a stated step can be MindSpore's count since the launch began: the name follows the same count."""
    if file.step_in_epoch is None or not 0 < number < count:
        return False
    return bool(reading.lengths.dividing(number - file.step_in_epoch).some())


def _is_under_way(file: Ranked, count: int, reading: Reading) -> bool:
    """Whether a breakpoint's name is that of the last step that is in it, or of the next, which was under way.

    MindSpore: `_save_final_ckpt` in `train/model.py`; its step is 0 where an epoch had begun and no step of it. With
    no other file of the launch, only the epoch can be held against the counter, which its lengths were found by.
    """
    step = reading.step(file)
    if step is not None:
        return step in (count, count + 1)
    length, epoch = reading.lengths.only, file.epoch or 0
    if length is None or reading.begins_anew:
        return True
    last = epoch * length
    return last - length <= count <= (last if file.step_in_epoch else last - 1)


def _by_name_alone(file: Ranked, reading: Reading) -> Verdict:
    """A file without a counter, such as a share, in a launch whose other files prove how names are to be read."""
    step = reading.step(file) if reading.lengths.only is not None else None
    if step is None or file.file.kind is Kind.DYING_GASP:
        return Uncertain(file.file.path, step, "nothing in it counts its updates", Trusted.NAME.remedy)
    return PlacedFile(file.file, file.rank, step)
