"""What a scan takes into the catalog: launches that no registrar saw, and the records of their files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from hashlib import blake2b
from typing import TYPE_CHECKING

from ckptstore.core.model import Checkpoint, FileState, epoch_and_step

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ckptstore.core.history import ProvenFile
    from ckptstore.core.model import Launch

SCANNED = "scan-"
"""How the ids of launches begin that a scan found."""


@dataclass(frozen=True)
class FoundLaunch:
    """A launch that the files show, and its records."""

    id: str
    world_size: int
    steps_per_epoch: int | None
    began: datetime
    files: tuple[Checkpoint, ...]


def launch_id(*told: str) -> str:
    """An id that is the same in every scan, made of what makes the launch what it is."""
    return f"{SCANNED}{blake2b(chr(31).join(told).encode('utf-8', 'surrogatepass'), digest_size=6).hexdigest()}"


def moment(mtime_ns: int) -> datetime:
    """A modification time, in nanoseconds since 1970, as a time of day."""
    return datetime.fromtimestamp(mtime_ns / 1e9, timezone.utc)


def record(run: str, launch: str, proven: ProvenFile, steps_per_epoch: int | None) -> Checkpoint:
    """The record of a file whose step is proven."""
    file = proven.file
    epoch, step_in_epoch = epoch_and_step(proven.global_step, steps_per_epoch)
    return Checkpoint(
        run=run,
        launch=launch,
        kind=file.kind,
        global_step=proven.global_step,
        rank=proven.rank,
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
    )


def in_order_of_time(launches: Iterable[FoundLaunch], more: Iterable[FoundLaunch]) -> list[FoundLaunch]:
    """The launches in the order they have, and more of them among them by the time they began."""
    ordered = list(launches)
    for each in sorted(more, key=lambda launch: (launch.began, launch.id)):
        later = (place for place, other in enumerate(ordered) if other.began > each.began)
        ordered.insert(next(later, len(ordered)), each)
    return ordered


def in_order(known: Sequence[Launch], found: Sequence[FoundLaunch]) -> list[str]:
    """The ids of a run's launches, oldest first: those that the catalog knows in its order, new ones among them.

    Which of two launches that were registered is the newer one was settled when they were, and a clock that is ahead
    does not undo it. A new launch keeps its place among those it was found with, and else goes before the first that
    began later.
    """
    ordered = [launch.id for launch in known]
    began = {launch.id: launch.created_at for launch in known} | {launch.id: launch.began for launch in found}
    lowest = 0
    for place, launch in enumerate(found):
        if launch.id not in ordered:
            next_ones = {other.id for other in found[place + 1 :]}
            later = (
                at
                for at, each in enumerate(ordered)
                if at >= lowest and (each in next_ones or _is_later(began[each], launch.began))
            )
            ordered.insert(next(later, len(ordered)), launch.id)
        lowest = max(lowest, ordered.index(launch.id) + 1)
    return ordered


def _is_later(moment: datetime | None, other: datetime) -> bool:
    return moment is not None and moment > other
