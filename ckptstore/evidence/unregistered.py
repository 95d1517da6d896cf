"""What a scan finds, as values: files, launches that no registrar saw, and the records of their files."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import TYPE_CHECKING

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
    """A witness that the user takes for enough alone: the optimizer's counter, the name, or MindSpore's own notes.

    `NUMBERS` are those that MindSpore gives names at a relaunch: files of one step and one number are of one start.
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

    `rank` is that of its directory or name (None: neither says one). `family` is what one callback of one rank calls
    its files, without the number of the relaunch, so that files of several ranks and relaunches compare; `relaunch`
    is that number, N of `prefix_N` (0: none). `epoch` and `step_in_epoch` are the name's, `named_step` a global_step
    that the name or its directory states; each is None where the name has none. `info` is what MindSpore appended
    (`epoch_num`, `step_num`, `batch_num`, `cur_rank`, …), `optimizer_step` the counter of updates in it; None and
    empty where the file was not read or has none. `updates_every_step`: the file was read, and nothing in it is known
    to let a step pass without an update: no loss scale (`scale_sense`, MindSpore: `nn/wrap/loss_scale.py`) and no
    gathered gradients (`tree.py`). `shapes` are those of the parameters that tell its network from another
    (`experiments.py`). `size` in bytes, `mtime_ns` in nanoseconds since 1970.
    """

    path: str
    kind: Kind
    content: Content
    format: str
    family: str
    relaunch: int
    rank: int | None
    epoch: int | None
    step_in_epoch: int | None
    named_step: int | None
    optimizer_step: int | None
    info: Mapping[str, object] = field(default_factory=dict)
    updates_every_step: bool = False
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class PlacedFile:
    """A file, its rank, and the batches consumed since the run began when it was saved.

    `grade` says how sure that step is, `doubt` names the open question (empty: none).
    """

    file: FoundFile
    rank: int
    global_step: int
    grade: Grade = Grade.PROVEN
    doubt: str = ""


@dataclass(frozen=True)
class Uncertain:
    """A file that has no step or no rank: the likeliest step (None: no idea), and why it is not more than that.

    `remedy` is the option of `ckptstore scan` that would place it. `contradicted`: witnesses exclude each other.
    """

    path: str
    best_guess: int | None
    reason: str
    remedy: str = BY_HAND
    contradicted: bool = False


@dataclass(frozen=True)
class ScannedLaunch:
    """A launch that the files show: when it began, the records of its files, the steps an epoch if known.

    `layout` is what the user says of it.
    """

    id: str
    world_size: int
    steps_per_epoch: int | None
    began: datetime
    files: tuple[Checkpoint, ...]
    layout: Layout = field(default_factory=stand_alone)


def launch_id(*told: str) -> str:
    """An id that is the same in every scan, made of the launch's own facts."""
    return f"{SCANNED}{blake2b(chr(31).join(told).encode('utf-8', 'surrogatepass'), digest_size=6).hexdigest()}"


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
