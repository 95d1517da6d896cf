"""Files that nobody registered, and that are proven to be what a state of a registered launch lacks: they fill the gap.

As where the journal of a rank was lost. Others that were written while a launch saved count as older than it (`order`).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptstore.core.model import SCANNED, Content, FileState, Grade
from ckptstore.evidence.launch_groups import NEAR_NS
from ckptstore.evidence.unregistered import ScannedLaunch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ckptstore.core.model import Checkpoint, Launch


def fill(
    found: Sequence[ScannedLaunch], known: Iterable[Checkpoint], launches: Sequence[Launch]
) -> list[ScannedLaunch]:
    """The launches that a scan found, with the files that fill a gap in those of the registered launch instead."""
    registered = {launch.id: launch for launch in launches if not launch.id.startswith(SCANNED)}
    saves: dict[tuple[str, int], list[Checkpoint]] = defaultdict(list)
    for file in known:
        if file.launch in registered and file.state is FileState.COMPLETE and file.content is Content.FULL:
            saves[file.launch, file.global_step].append(file)
    new = [file for launch in found for file in launch.files]
    filled: dict[str, Checkpoint] = {}
    for (launch, _), there in saves.items():
        lacking = set(range(registered[launch].world_size)) - {file.rank for file in there}
        fitting = [file for file in new if file.rank in lacking and _is_of(file, there)] if lacking else []
        if {file.rank for file in fitting} == lacking and len(fitting) == len(lacking):
            filled |= {file.path: _as_of(file, there[0]) for file in fitting}
    rest = [replace(launch, files=tuple(file for file in launch.files if file.path not in filled)) for launch in found]
    of_launch: dict[str, list[Checkpoint]] = defaultdict(list)
    for file in filled.values():
        of_launch[file.launch].append(file)
    owners = [
        ScannedLaunch(each.id, each.world_size, each.steps_per_epoch, each.created_at, tuple(of_launch[each.id]))
        for each in registered.values()
        if each.id in of_launch and each.created_at is not None
    ]
    return [*(launch for launch in rest if launch.files), *owners]


def _is_of(file: Checkpoint, save: Iterable[Checkpoint]) -> bool:
    """Whether a file was saved with others: name and counter are theirs, and it was written near each in time."""
    return file.optimizer_step is not None and all(
        (file.kind, file.content, file.optimizer_step) == (other.kind, other.content, other.optimizer_step)
        and file.path.rpartition("/")[2] == other.path.rpartition("/")[2]
        and abs((file.mtime_ns or 0) - (other.mtime_ns or 0)) <= NEAR_NS
        for other in save
    )


def _as_of(file: Checkpoint, other: Checkpoint) -> Checkpoint:
    place = replace(file, launch=other.launch, grade=Grade.PROVEN, doubt="")
    return replace(place, global_step=other.global_step, epoch=other.epoch, step_in_epoch=other.step_in_epoch)
