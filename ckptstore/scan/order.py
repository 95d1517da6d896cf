"""What a scan takes into the catalog: launches that no registrar saw, and the records of their files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from hashlib import blake2b
from types import MappingProxyType
from typing import TYPE_CHECKING

from ckptstore.core.history_launches import NEAR_NS
from ckptstore.core.model import Checkpoint, Content, FileState, epoch_and_step

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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


def in_order(
    known: Sequence[Launch], found: Sequence[FoundLaunch], last_saved: Mapping[str, datetime] = MappingProxyType({})
) -> list[str]:
    """The ids of a run's launches, oldest first: those that the catalog knows in its order, new ones among them.

    Which of two launches that were registered is the newer one was settled when they were, and a clock that is ahead
    does not undo it. A new launch keeps its place among those it was found with, and else goes before the first that
    began later, or still saved when the new one's first file was written: launches of a run do not overlap, so it was
    not the later one. It may be no launch at all, but what a rank of that one saved. `last_saved` tells when known
    launches did.
    """
    ordered = [launch.id for launch in known]
    began = {launch.id: launch.created_at for launch in known} | {launch.id: launch.began for launch in found}
    shown = {launch.id for launch in found}
    lowest = 0
    for place, launch in enumerate(found):
        if launch.id not in ordered:
            next_ones = {other.id for other in found[place + 1 :]}
            later = (
                at
                for at, each in enumerate(ordered)
                if at >= lowest
                and (
                    each in next_ones
                    or _is_later(began[each], launch.began)
                    or (each not in shown and _still_saved(last_saved.get(each), launch))
                )
            )
            ordered.insert(next(later, len(ordered)), launch.id)
        lowest = max(lowest, ordered.index(launch.id) + 1)
    return ordered


def at_the_time_of_others(
    known: Sequence[Launch], found: Sequence[FoundLaunch], last_saved: Mapping[str, datetime]
) -> list[str]:
    """What a scan says of new launches that go before one that was registered and began earlier: it still saved."""
    place = {launch: at for at, launch in enumerate(in_order(known, found, last_saved))}
    ids = {launch.id for launch in known}
    registered = [launch for launch in known if not launch.id.startswith(SCANNED)]
    said = []
    for launch in found:
        if launch.id in ids or all(file.content is Content.PART for file in launch.files):
            continue
        later = [other for other in registered if place[other.id] > place[launch.id]]
        overlapping = [other.id for other in later if not _is_later(other.created_at, launch.began)]
        if overlapping:
            first = min(launch.files, key=lambda file: (file.global_step, file.path))
            said.append(
                f"{first.path} and what was saved with it, {len(launch.files)} in all, were written while launch "
                f"{overlapping[-1]} saved, and are in no record of it: they count as older than that launch; copies "
                "of its files are better kept elsewhere"
            )
    return said


def _still_saved(last: datetime | None, launch: FoundLaunch) -> bool:
    """Whether a launch that last saved then did so when the first file of another was written, or just before."""
    return last is not None and last + timedelta(microseconds=NEAR_NS / 1000) >= launch.began


def _is_later(moment: datetime | None, other: datetime) -> bool:
    return moment is not None and moment > other
