"""Where a launch begins, and how far it has come.

Rank 0 decides where, by the catalog or by journals, and sends its decision to all ranks as one value.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from msgspec import convert, to_builtins

from ckptstore.core.copies import Copy
from ckptstore.core.events import (
    FileRecorded,
    LaunchStarted,
    file_from_line,
    from_line,
    launch_from_json,
    launch_to_json,
    to_line,
)
from ckptstore.core.model import Assignment, Launch, RestorePlan, epoch_and_step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from ckptstore.core.events import Line, TrainingEnded
    from ckptstore.core.model import Checkpoint
    from ckptstore.training.recorder_thread import RecorderThread

_ROOT = "/"
"""Ranks may run on several hosts: what they send each other names files by whole paths."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where training goes on.

    `plan` names the file of each rank; it is None where the launch is `fresh`. `initial` is the same of the state of
    another run that a fresh launch begins from (None: of none). `append_info` holds what this rank's file had beside
    parameters: what `CheckpointConfig(append_info=…)` put there.

    `launch` is the launch that starts, decided `at` that moment, `by_journals` where the catalog could not be used.
    `known` are the launches that the run had then, with the highest step that each had saved (0: none). `offset` is how
    far the launch's steps are ahead of the counter of an optimizer that never left out an update. `lost` are the
    records of the files that ranks saved of that state themselves, and that others' files stand in for. `parts` are
    those of all its files, of a state that is the directory of an iteration of MindFormers.
    """

    launch: Launch
    plan: RestorePlan | None
    at: datetime
    by_journals: bool = False
    known: Mapping[str, int] = field(default_factory=dict)
    offset: int = 0
    append_info: Mapping[str, Any] = field(default_factory=dict)
    lost: tuple[Checkpoint, ...] = ()
    parts: tuple[Checkpoint, ...] = ()
    initial: RestorePlan | None = None

    def __str__(self) -> str:
        """The decision in one line, as the training prints it."""
        if self.plan is None:
            of = self.initial
            return "starting at step 0" + (f", from step {of.global_step} of run {of.launch.run}" if of else "")
        saved, length = self.plan.launch, self.plan.launch.steps_per_epoch
        saved_as = "" if self.global_step == self.plan.global_step else f" as step {self.plan.global_step}"
        epochs = f", whose epochs had {length} steps" if length not in (None, self.launch.steps_per_epoch) else ""
        return (
            f"going on after step {self.global_step} (epoch {self.epoch}, step {self.step_in_epoch} of "
            f"{self.launch.steps_per_epoch}), saved{saved_as} by launch {saved.id}{epochs}"
        )

    @property
    def fresh(self) -> bool:
        """Whether the run had no complete checkpoint to start from; it may begin from another run's (`initial`)."""
        return self.plan is None

    @property
    def global_step(self) -> int:
        """Batches consumed since the run began, in steps of this launch."""
        return self.launch.start_step or 0

    @property
    def epoch(self) -> int:
        """Epoch of the last step done, from 1; 0 when fresh."""
        return epoch_and_step(self.global_step, self.launch.steps_per_epoch)[0] or 0

    @property
    def step_in_epoch(self) -> int:
        """Step in that epoch, from 1; 0 when fresh."""
        return epoch_and_step(self.global_step, self.launch.steps_per_epoch)[1] or 0

    @property
    def initial_epoch(self) -> int:
        """What `Model.train` needs to go on there."""
        return self.global_step // (self.launch.steps_per_epoch or 1)

    def to_json(self) -> Line:
        """As rank 0 sends it. `append_info` is not part of it: each rank has its own.

        Lines of a journal leave out the order of launches.
        """
        origin = self.plan.launch if self.plan else None
        chosen = self.plan or self.initial
        files = chosen.ranks if chosen else ()
        return {
            "launch": to_line(LaunchStarted(self.launch, self.at, origin), _ROOT),
            "saved_by": launch_to_json(chosen.launch) if chosen else None,
            "orders": [self.launch.order, chosen.launch.order if chosen else 0],
            "files": [[rank, to_line(FileRecorded(source), _ROOT)] for rank, source in files],
            "by_journals": self.by_journals,
            "known": dict(self.known),
            "offset": self.offset,
            "lost": [to_line(FileRecorded(file), _ROOT) for file in self.lost],
            "parts": [to_line(FileRecorded(file), _ROOT) for file in self.parts],
            "copies": to_builtins(chosen.copies) if chosen else {},
        }


@dataclass
class Progress:
    """How far a launch has trained in this process: shared by all its registrars, through all its trainings.

    `start` is what `resume` returned; None before, and where the script does not call it. `global_step` counts the
    batches consumed since the run began. `has_trained` tells that training has begun, `has_failed` that an exception
    ended the last one, and `ending` at which state, where that is known. `seed` is that of random layers, each step of
    which draws by its number (None: MindSpore's own way). While a training is under way, `recorder` records
    for it, and `evaluated`, where MindSpore runs it, gets what an evaluation found.
    """

    start: Start | None = None
    global_step: int = 0
    has_trained: bool = False
    has_failed: bool = False
    ending: TrainingEnded | None = None
    seed: int | None = None
    recorder: RecorderThread | None = None
    evaluated: Callable[[Mapping[str, Any]], None] | None = None


def start_from_json(sent: Line) -> Start:
    """The inverse of `Start.to_json`. What rank 0 sends needs no check: a `ValueError` is an error in this program."""
    began = from_line(sent["launch"], _ROOT)
    if not isinstance(began, LaunchStarted) or began.at is None:
        raise ValueError(f"{sent['launch']} does not say where a launch starts")
    order, order_of_origin = sent["orders"]
    plan = None
    launch = began.launch
    if sent["saved_by"] is not None:
        origin = replace(launch_from_json(sent["saved_by"]), order=order_of_origin)
        ranks = tuple(Assignment(rank, file_from_line(file, _ROOT)) for rank, file in sent["files"])
        step = launch.initial.global_step if launch.initial else launch.parent_step or 0
        copies = convert(sent["copies"], dict[str, tuple[Copy, ...]])
        plan = RestorePlan(launch=origin, global_step=step, ranks=ranks, copies=copies)
    return Start(
        launch=replace(launch, order=order),
        plan=None if launch.initial else plan,
        initial=plan if launch.initial else None,
        at=began.at,
        by_journals=sent["by_journals"],
        known=sent["known"],
        offset=sent["offset"],
        lost=tuple(file_from_line(file, _ROOT) for file in sent["lost"]),
        parts=tuple(file_from_line(file, _ROOT) for file in sent["parts"]),
    )
