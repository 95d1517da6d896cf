"""Finds the step of an unregistered file by its witnesses: the optimizer's counter, its name, numbers that it states.

With E steps an epoch, MindSpore puts two numbers into the name of the file of global_step g (mindspore.md §3,
`Model._train_process` in `train/model.py`):

- the epoch, (g - 1) // E + 1: it goes on from `initial_epoch`;
- a step in the epoch. It follows from the steps since the launch began: `cb_params.cur_step_num` starts again at 0.

If each step is an update, the counter is g, and the name can only contradict it. A script that gives a lower
`initial_epoch` has epochs of its own: the name is then behind the counter. A name is ahead of the counter only if
updates or steps were skipped. If `sink_size` is given, E is the sink size (`train/model.py`).
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from ckptstore.core.limits import HIGHEST
from ckptstore.core.model import Grade, Kind
from ckptstore.core.naming import parse_name
from ckptstore.evidence.unregistered import OF_LENGTH, PlacedFile, Trusted, Uncertain

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from ckptstore.core.model import State
    from ckptstore.core.naming import CheckpointName
    from ckptstore.evidence.launch_groups import Ranked

Verdict = PlacedFile | Uncertain


class Claim(NamedTuple):
    """The epoch and the step in it that a name states. `is_next`: they may be those of the step that was in progress.

    MindSpore names breakpoints like that (`_save_final_ckpt` in `train/model.py`). The step is 0 if an epoch had just
    begun.
    """

    epoch: int
    step_in_epoch: int
    is_next: bool

    @property
    def counts(self) -> int:
        """The fewest steps that were done."""
        return max(0, self.step_in_epoch - self.is_next)

    def against(self, step: int, length: int) -> int:
        """0 if a file of this step may have the name; 1 if the name's epoch is ahead of it, -1 if it is behind."""
        of_next = step // length + 1
        first = -(-step // length) if self.step_in_epoch else of_next
        last = of_next if self.is_next else first
        return (self.epoch > last) - (self.epoch < first)


def whole_number(value: object) -> int | None:
    """An appended value as a number that a catalog can hold; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= HIGHEST else None


def may_lag(files: Iterable[Ranked]) -> bool:
    """Whether a file with a counter may hold fewer updates than steps, by its content."""
    return any(file.file.optimizer_step is not None and not file.file.updates_every_step for file in files)


def shows_lag(files: Sequence[Ranked]) -> bool:
    """Whether the names of a launch count more steps than its counters do: since the epoch began, or between saves."""
    lines: dict[object, list[tuple[int, int]]] = {}
    for file in files:
        claim, counter = _claim(file), file.file.optimizer_step
        if claim is not None and counter is not None and not claim.is_next:
            line = (file.line, file.file.relaunch, claim.epoch)
            lines.setdefault(line, [(0, 0)]).append((counter, claim.step_in_epoch))
    return any(
        step - step_before > counter - before
        for line in lines.values()
        for (before, step_before), (counter, step) in pairwise(sorted(line))
    )


def shortest_epoch(files: Iterable[Ranked]) -> int:
    """The fewest steps that an epoch has by the names."""
    return max((file.step_in_epoch or 0 for file in files if file.file.kind is not Kind.DYING_GASP), default=0) or 1


def by_counter(file: Ranked, length: int | None, shortest: int, *, is_first: bool) -> Verdict:
    """The step of a file if each step is an update: its counter, unless its name or a number in it contradicts that.

    `length` is the steps an epoch (None: not known, at least `shortest`); `is_first`: no launch was before its own.
    """
    counter, stated, claim = file.file.optimizer_step, _stated(file), _claim(file)
    if counter is None:
        return Uncertain(file.file.path, by_name(file, length), "nothing in it counts its updates", Trusted.NAME.remedy)
    if claim is None and not stated:
        reason = "nothing in it or in its name confirms the optimizer's counter"
        return Uncertain(file.file.path, counter, reason, Trusted.COUNTER.remedy)
    known = _own_length(file) or length
    place = 0 if claim is None else claim.against(counter, known or shortest)
    place = max(0, place) if known is None else place
    contradicting = [number for number in stated if number != counter and not _is_of_launch(number, file, counter)]
    if contradicting or place > 0 or (place < 0 and is_first) or (claim and claim.counts > counter):
        told = (
            f"the number that it or its directory states, {min(contradicting)}"
            if contradicting
            else f"its name, which is of epoch {file.epoch}"
        )
        guess = None if place > 0 else counter
        reason = f"its optimizer's counter, {counter}, does not fit {told}"
        return Uncertain(file.file.path, guess, reason, contradicted=True)
    is_proven = counter in stated or (known and place == 0) or (file.epoch == 1 and claim and claim.counts == counter)
    if is_proven:
        return PlacedFile(file.file, file.rank, counter)
    doubt = (
        "the steps per epoch are unknown until your script starts"
        if place == 0
        else "epochs began anew with its launch"
    )
    return PlacedFile(file.file, file.rank, counter, Grade.CONSISTENT, doubt)


def as_others(launch: Sequence[Ranked], verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Gives files without a counter, such as shares, the step of a file of their launch with the same name."""
    named: dict[object, PlacedFile] = {
        (file.file.kind, file.file.family, file.epoch, file.step_in_epoch): one
        for file, one in zip(launch, verdicts, strict=True)
        if isinstance(one, PlacedFile) and file.step_in_epoch
    }
    found: list[Verdict] = []
    for file, one in zip(launch, verdicts, strict=True):
        other = named.get((file.file.kind, file.file.family, file.epoch, file.step_in_epoch))
        if other is not None and file.file.optimizer_step is None and isinstance(one, Uncertain):
            found.append(PlacedFile(file.file, file.rank, other.global_step, other.grade, other.doubt))
        else:
            found.append(one)
    return found


def skipping(file: Ranked, length: int | None) -> Uncertain:
    """The verdict on a file of a tree where an unknown number of updates may have been skipped."""
    guess = by_name(file, length)
    if not file.file.updates_every_step:
        reason = "updates may have been skipped (loss scale or gathered gradients), so only the name tells the step"
        return Uncertain(file.file.path, guess, reason, Trusted.NAME.remedy)
    reason, counter = "the names and the optimizer's counters of its tree do not fit together", file.file.optimizer_step
    if guess is not None and guess > (counter or 0):
        return Uncertain(file.file.path, None, reason, contradicted=True)
    return Uncertain(file.file.path, counter, reason, OF_LENGTH if length is None else Trusted.COUNTER.remedy)


def assumed(file: Ranked, length: int | None, trusted: Collection[Trusted]) -> tuple[int, str] | None:
    """The step of a file by one witness that the user trusts, and the doubt about it; None if it has no such witness.

    `step_num`, which MindSpore notes, is the step if the script, or MindFormers, gave it the base (mindspore.md §3).
    """
    counter, noted = file.file.optimizer_step, whole_number(file.file.info.get("step_num"))
    if Trusted.COUNTER in trusted and counter is not None:
        return counter, "the optimizer's counter alone says so"
    if Trusted.INFO in trusted and noted is not None:
        return noted, "step_num in it alone says so"
    named = by_name(file, length)
    if Trusted.NAME in trusted and named is not None:
        return named, "its name alone says so"
    return None


def by_name(file: Ranked, length: int | None) -> int | None:
    """The step of a file by its name alone, as if its launch began between two epochs; None if the name has no step."""
    if file.file.named_step is not None:
        return whole_number(file.file.named_step)
    claim = _claim(file)
    if claim is None or claim.is_next or not claim.step_in_epoch:
        return None
    if claim.epoch == 1:
        return whole_number(claim.step_in_epoch)
    step = None if length is None else (claim.epoch - 1) * length + (claim.step_in_epoch - 1) % length + 1
    return whole_number(step)


def other_epochs(state: State, steps_per_epoch: int | None) -> str:
    """Why a scanned state does not fit a dataset with this number of steps an epoch; empty if it does."""
    if steps_per_epoch is None:
        return ""
    scanned = (file for file in state.files if file.grade is Grade.CONSISTENT)
    for path, step in ((file.path, file.global_step) for file in scanned):
        if not fits(path, step, steps_per_epoch, state.launch.order):
            return (
                f"its optimizer's counter is {step}, and the dataset has {steps_per_epoch} steps an epoch, so the name "
                f"of {path} is of another epoch; with sink_size, the epoch in a name may count sinks"
            )
    return ""


def fits(path: str, step: int, steps_per_epoch: int, launch_order: int) -> bool:
    """Whether a file of this step may have its name. Only launches after the first may have epochs of their own."""
    named = parse_name(path.rpartition("/")[2])
    if named is None:
        return True
    place = Claim(named.epoch, named.step_in_epoch, named.is_breakpoint).against(step, steps_per_epoch)
    return place == 0 or (place < 0 and launch_order > 1)


def _claim(file: Ranked) -> Claim | None:
    if file.epoch is None:
        return None
    return Claim(file.epoch, file.step_in_epoch or 0, file.file.kind is Kind.DYING_GASP)


def _is_of_launch(number: int, file: Ranked, counter: int) -> bool:
    """Whether a stated step can be MindSpore's count since the launch began: it then agrees with the name."""
    length = _own_length(file)
    return (
        file.epoch is not None
        and 0 < number < counter
        and not (length and (number - (file.step_in_epoch or 0)) % length)
    )


def _own_length(file: Ranked) -> int | None:
    """Steps an epoch as MindSpore noted it in the file of a graceful exit or a fault."""
    noted = whole_number(file.file.info.get("batch_num")) if file.file.kind in (Kind.GRACEFUL_EXIT, Kind.TTP) else None
    return noted if noted and noted > 0 else None


def _stated(file: Ranked) -> set[int]:
    """The steps stated by a name, and by the content of a graceful exit or TTP: that of other files is unreliable."""
    is_counted = file.file.kind in (Kind.GRACEFUL_EXIT, Kind.TTP)
    numbers = [file.file.named_step, whole_number(file.file.info.get("step_num")) if is_counted else None]
    return {number for number in numbers if number is not None}


# Files of a launch that announced itself: where it began, its steps an epoch and its skipped updates are known.


def unwitnessed_step(
    name: CheckpointName, *, steps_per_epoch: int, base_step: int, optimizer_step: int, lag: int
) -> int | None:
    """The global_step of a file of a launch that started at `base_step`; None if its witnesses contradict each other.

    `lag` is global_step minus optimizer_step in the newest state that was witnessed: the batches without an update.

    - A breakpoint is named after the step in progress. If the optimizer counted this step, it was done. If not, it was
      not done, or its update was skipped: nothing shows which.
    - An optimizer at 0 in a launch from 0 is an untrained network.
    - A file of `base_step` is of the launch before, unless it is a breakpoint at the beginning of an epoch: this launch
      has saved nothing else before its first step.
    """
    if optimizer_step == 0 and base_step == 0:
        return 0
    step = optimizer_step + lag
    named = (name.epoch - 1) * steps_per_epoch + name.step_in_epoch
    is_own = step > base_step or (step == base_step and name.step_in_epoch == 0)
    possible = {named, base_step} if name.step_in_epoch == 0 else {named}
    return step if is_own and step in possible else None


def is_named_after(name: CheckpointName, *, steps_per_epoch: int, global_step: int) -> bool:
    """Whether a breakpoint's name is of this step, or of the next one, which was in progress."""
    return (name.epoch - 1) * steps_per_epoch + name.step_in_epoch in (global_step, global_step + 1)


def witnessed_by_mindspore(step_num: object, named: int | None, *, optimizer_step: int | None, lag: int) -> int | None:
    """The global_step of a graceful exit's or a TTP file of a launch with a registrar; None if it is not proved.

    The file holds MindSpore's own count, `step_num`, which the registrar continues over restarts. Only the second save
    of an exit by a signal has none (mindspore.md §3). The step in the name is from the TTP controller or from
    ckptstore. Neither step may be behind the updates that the optimizer counted.
    """
    step = step_num if isinstance(step_num, int) else named
    if step is None or named not in (None, step):
        return None
    return step if optimizer_step is None or optimizer_step + lag <= step else None
