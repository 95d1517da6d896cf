"""Dates the launches that a scan found, so that they sort correctly among those of the catalog."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING

from ckptstore.core.groups import grouped
from ckptstore.core.hints import Command
from ckptstore.core.model import SCANNED, Content, FileState, Grade
from ckptstore.evidence.launch_groups import NEAR_NS
from ckptstore.evidence.unregistered import ScannedLaunch
from ckptstore.scan.experiments import home_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from ckptstore.core.model import Checkpoint, Launch


_TICK = timedelta(microseconds=1)


def in_order_of_time(launches: Iterable[ScannedLaunch], more: Iterable[ScannedLaunch]) -> list[ScannedLaunch]:
    """The launches in their order, and `more` inserted by the time when each began."""
    ordered = list(launches)
    for each in sorted(more, key=lambda launch: (launch.began, launch.id)):
        later = (place for place, other in enumerate(ordered) if other.began > each.began)
        ordered.insert(next(later, len(ordered)), each)
    return ordered


def dated(
    known: Sequence[Launch], found: Sequence[ScannedLaunch], last_saved: Mapping[str, datetime] = MappingProxyType({})
) -> list[ScannedLaunch]:
    """The found launches; each new one gets a time of its beginning, so that they sort in the order of `found`.

    This time is that of the launch's first file, or the nearest one that keeps the order. Known launches keep their
    times, and new ones of weights give way to those after them. A new launch sorts before a known one that was still
    saving when the new launch's first file was written: launches of a run do not overlap, so the new one was not the
    later one. `last_saved` is when each known launch saved last.
    """
    fixed = {launch.id: launch.created_at for launch in known if launch.created_at is not None}
    moments = [fixed.get(launch.id) or _after_equals(launch, known, last_saved) for launch in found]
    for place, (before, launch) in enumerate(pairwise(found), 1):
        gives_way = before.id not in fixed and {file.content for file in before.files} == {Content.WEIGHTS}
        if launch.id not in fixed and not gives_way:
            moments[place] = max(moments[place], moments[place - 1] + _TICK)
    shown = {launch.id for launch in found}
    for place, launch in reversed(list(enumerate(found))):
        if launch.id not in fixed:
            others = [each for each in known if each.id not in shown and each.id in fixed]
            limits = [fixed[each.id] for each in others if still_saved(each, launch, last_saved)]
            limits += moments[place + 1 : place + 2]
            moments[place] = min([moments[place], *(limit - _TICK for limit in limits)])
    return [replace(launch, began=at) for launch, at in zip(found, moments, strict=True)]


def not_ahead(known: Sequence[Launch], found: Sequence[ScannedLaunch], now: datetime) -> list[ScannedLaunch]:
    """The dated launches in the same order, new ones of files of the future as if they began now.

    Each later launch of the run begins after these, by the catalog, and adopts no file that was written before it.
    """
    fixed = {launch.id: launch.created_at for launch in known if launch.created_at is not None}
    moments = [(at, at) for at in fixed.values()]  # before and now
    began = {}
    for launch in sorted(found, key=lambda each: each.began):
        began[launch.id] = launch.began
        if launch.id not in fixed and launch.began > now:
            began[launch.id] = max([now, *(at + _TICK for before, at in moments if before < launch.began)])
        moments.append((launch.began, began[launch.id]))
    return [replace(launch, began=began[launch.id]) for launch in found]


def _after_equals(new: ScannedLaunch, known: Iterable[Launch], last_saved: Mapping[str, datetime]) -> datetime:
    """When a new launch began: one tick later if a known launch began at that moment and did not save on.

    Times are equal if files of one launch are copies of the other's.
    """
    is_taken = any(each.created_at == new.began and not still_saved(each, new, last_saved) for each in known)
    return new.began + _TICK if is_taken else new.began


def at_the_time_of_others(
    known: Sequence[Launch], found: Sequence[ScannedLaunch], last_saved: Mapping[str, datetime]
) -> list[str]:
    """A warning for each new launch that began while a registered launch was saving."""
    ids = {launch.id for launch in known}
    registered = [launch for launch in known if not launch.id.startswith(SCANNED)]
    warnings = []
    for launch in found:
        if launch.id in ids or _is_in_parts(launch):
            continue
        overlapping = [other.id for other in registered if still_saved(other, launch, last_saved)]
        if overlapping:
            first = min(launch.files, key=lambda file: (file.global_step, file.path))
            warnings.append(
                f"{first.path} and the files saved with it ({len(launch.files)} in all) were written while launch "
                f"{overlapping[-1]} was saving, but that launch has no record of them: they count as older than it; "
                "keep copies of its files in another directory"
            )
    return warnings


def going_back(
    run: str, known: Sequence[Launch], recorded: Sequence[ScannedLaunch], steps: Iterable[tuple[str, int]]
) -> list[str]:
    """A warning if the newest launch is a new one, and its steps are behind those of a known one.

    The run then goes on from the new launch, as after a return to an older state. `steps` are the launch and step of
    each known save.
    """
    ids = {launch.id for launch in known}
    new = [launch for launch in recorded if launch.id not in ids and not _is_in_parts(launch)]
    before = [launch for launch in known if not launch.foreign]
    if not before or not new:
        return []
    newest = max(new, key=lambda launch: launch.began)
    step = max(file.global_step for file in newest.files)
    saved = {launch.id for launch in before}
    left, highest = max((each for each in steps if each[0] in saved), key=itemgetter(1), default=("", 0))
    if step >= highest or any(each.created_at is None or each.created_at >= newest.began for each in before):
        return []
    told = f"the files of step {step} were written after those of step {highest} of launch {left}"
    back = f"run {run} is taken to have gone back, and goes on after step {step}"
    return [f"{told}: {back}; if they are copies: {Command('resolve', run, '--lineage', left, '--branch')}"]


def _is_in_parts(launch: ScannedLaunch) -> bool:
    """Whether all of its files are parts of iterations: such a launch is left out of the history."""
    return all(file.content is Content.PART for file in launch.files)


def still_saved(known: Launch, new: ScannedLaunch, last_saved: Mapping[str, datetime]) -> bool:
    """Whether a known launch had begun when the first file of a new one was written, and was still saving."""
    last = last_saved.get(known.id)
    is_over = last is None or last + timedelta(microseconds=NEAR_NS / 1000) < new.began
    return not is_over and known.created_at is not None and known.created_at <= new.began


def fill(
    found: Sequence[ScannedLaunch], known: Iterable[Checkpoint], launches: Sequence[Launch]
) -> list[ScannedLaunch]:
    """The launches that a scan found; files that complete a save of a registered launch are put into that launch."""
    registered = {launch.id: launch for launch in launches if not launch.id.startswith(SCANNED)}
    saves = grouped(
        ((file.launch, file.global_step), file)
        for file in known
        if file.launch in registered and file.state is FileState.COMPLETE and file.content is Content.FULL
    )
    new = [file for launch in found for file in launch.files]
    filled: dict[str, Checkpoint] = {}
    for (launch, _), there in saves.items():
        lacking = set(range(registered[launch].world_size)) - {file.rank for file in there}
        fitting = [file for file in new if file.rank in lacking and _is_of(file, there)] if lacking else []
        if {file.rank for file in fitting} == lacking and len(fitting) == len(lacking):
            filled |= {file.path: _as_of(file, there[0]) for file in fitting}
    rest = [replace(launch, files=tuple(file for file in launch.files if file.path not in filled)) for launch in found]
    of_launch = grouped((file.launch, file) for file in filled.values())
    owners = [
        ScannedLaunch(each.id, each.world_size, each.steps_per_epoch, each.created_at, tuple(of_launch[each.id]))
        for each in registered.values()
        if each.id in of_launch and each.created_at is not None
    ]
    return [*(launch for launch in rest if launch.files), *owners]


def _is_of(file: Checkpoint, save: Iterable[Checkpoint]) -> bool:
    """Whether a file belongs to a save: its home, name and counter are those of the save's files, its time is near."""
    return file.optimizer_step is not None and all(
        (file.kind, file.content, file.optimizer_step) == (other.kind, other.content, other.optimizer_step)
        and file.path.rpartition("/")[2] == other.path.rpartition("/")[2]
        and abs((file.mtime_ns or 0) - (other.mtime_ns or 0)) <= NEAR_NS
        and _home(file) == _home(other)  # two trainings that began together reach a step together
        for other in save
    )


def _home(file: Checkpoint) -> str:
    return home_of(file.path.rpartition("/")[0], "/").key


def _as_of(file: Checkpoint, other: Checkpoint) -> Checkpoint:
    place = replace(file, launch=other.launch, grade=Grade.PROVEN, doubt="")
    return replace(place, global_step=other.global_step, epoch=other.epoch, step_in_epoch=other.step_in_epoch)
