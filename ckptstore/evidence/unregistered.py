"""What a scan finds, as values: files, launches that no registrar saw, and the records of their files."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from ckptstore.core.ids import derived_id
from ckptstore.core.model import SCANNED, Checkpoint, FileState, Grade, epoch_and_step, moment
from ckptstore.core.replicas import stand_alone

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from ckptstore.core.model import Content, Kind
    from ckptstore.core.replicas import Layout

BY_HAND = "--step FILE=STEP"
"""The option of `ckptstore scan` that places any file."""
OF_LENGTH = "--steps-per-epoch E"
"""The option of `ckptstore scan` that says how many steps an epoch has."""


class Trusted(str, Enum):
    """A witness that the user trusts on its own: the optimizer's counter, the name, or MindSpore's own notes.

    `NUMBERS` are the numbers that MindSpore adds to names at a relaunch: files of one step and one number are then of
    one launch.
    """

    COUNTER = "counter"
    NAME = "name"
    INFO = "info"
    NUMBERS = "numbers"

    __str__ = str.__str__

    @property
    def remedy(self) -> str:
        """The option of `ckptstore scan` that trusts it."""
        return f"--trust {self}"


@dataclass(frozen=True, kw_only=True)
class FoundFile:
    """An unregistered checkpoint file: the facts of its path and of its content. None of them is believed yet.

    A fact is None, or empty, if nothing states it. Facts of the content are also empty if the file was not read.
    """

    path: str
    kind: Kind
    content: Content
    format: str
    family: str  # how one callback of one rank names its files, without the number of the relaunch
    relaunch: int  # that number, N of `prefix_N`; 0: none
    rank: int | None  # of its directory or name
    rank_in_name: int | None = None  # of its name
    epoch: int | None  # of its name
    step_in_epoch: int | None  # of its name
    named_step: int | None  # a global_step that its name or its directory states
    optimizer_step: int | None  # the counter of updates in it
    info: Mapping[str, object] = field(default_factory=dict)  # appended by MindSpore: `epoch_num`, `cur_rank`, …
    updates_every_step: bool = False  # no parameter is known to let a step pass without an update
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # they tell its network from another
    size: int  # bytes
    mtime_ns: int  # since 1970


@dataclass(frozen=True)
class PlacedFile:
    """A file that has a rank and a step."""

    file: FoundFile
    rank: int
    global_step: int
    grade: Grade = Grade.PROVEN  # how sure the step is
    doubt: str = ""  # the open question; empty: none


@dataclass(frozen=True)
class Uncertain:
    """A file that has no step or no rank."""

    path: str
    best_guess: int | None  # the likeliest step
    reason: str  # why it is not more than that
    remedy: str = BY_HAND  # the option of `ckptstore scan` that would place it
    contradicted: bool = False  # witnesses exclude each other


@dataclass(frozen=True)
class ScannedLaunch:
    """A launch that the files show, and the records of its files."""

    id: str
    world_size: int
    steps_per_epoch: int | None
    began: datetime
    files: tuple[Checkpoint, ...]
    layout: Layout = field(default_factory=stand_alone)  # as the user states it


def launch_id(*told: str) -> str:
    """An id that is the same in every scan, made of the launch's own facts."""
    return f"{SCANNED}{derived_id(*told, size=6)}"


def record(run: str, launch: str, placed: PlacedFile, steps_per_epoch: int | None) -> Checkpoint:
    """The record of a file that has a step."""
    file = placed.file
    epoch, step_in_epoch = epoch_and_step(placed.global_step, steps_per_epoch)
    return Checkpoint(
        run=run,
        launch=launch,
        kind=file.kind,
        global_step=placed.global_step,
        rank=placed.rank,
        path=file.path,
        optimizer_step=file.optimizer_step,
        epoch=epoch,
        step_in_epoch=step_in_epoch,
        size=file.size,
        mtime_ns=file.mtime_ns,
        format=file.format,
        content=file.content,
        state=FileState.COMPLETE,
        created_at=moment(file.mtime_ns),
        grade=placed.grade,
        doubt=placed.doubt,
    )
