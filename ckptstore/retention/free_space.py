"""Frees space for the next save if it would not fit: the trash goes first, then the oldest states that may go."""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, tallies
from ckptstore.catalog.runs import find_run
from ckptstore.core.model import FileState
from ckptstore.outside import os
from ckptstore.retention.execute import execute
from ckptstore.retention.plan import plan_gc
from ckptstore.retention.policy import Policy
from ckptstore.retention.worker import at_work

if TYPE_CHECKING:
    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Checkpoint
    from ckptstore.retention.decide import Key
    from ckptstore.retention.plan import GcPlan

_SPARE = 1 << 20  # bytes beside the save itself: journals, and the catalog if it is on the same disk


@dataclass(frozen=True)
class Disk:
    """A file system that the newest state has files on."""

    directory: str
    device: int
    needed: int  # bytes, for the next save

    @property
    def free(self) -> int:
        """Bytes that this user may still write.

        Raises `OSError`, also if another disk is there by now, or if it is read-only: then nothing can be deleted.
        """
        opened = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if os.fstat(opened).st_dev != self.device:
                raise OSError(errno.ENODEV, "its disk is not mounted any more")
            found = os.statvfs(opened)
        finally:
            os.close(opened)
        if found.f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return found.f_bavail * found.f_frsize

    def has(self, directory: str) -> bool:
        """Whether a directory is on it."""
        try:
            return os.stat(directory).st_dev == self.device
        except OSError:
            return False

    @property
    def is_short(self) -> bool:
        """Whether the next save does not fit."""
        try:
            return self.free < self.needed
        except OSError:
            return False


@dataclass(frozen=True)
class Freed:
    """The files deleted to free space on a disk."""

    disk: Disk
    trash: int  # bytes that were purged before their grace was over
    states: tuple[int, ...]  # steps of the states that were deleted at once
    is_enough: bool  # whether the next save fits now


def free_space(database: Database, run: str, policy: Policy) -> list[Freed]:
    """Free the space that a save as large as the last one needs, if it would not fit, and little more.

    First the trash is purged, the oldest gc first. Then the oldest states that only a rule of the policy keeps are
    deleted at once. The floor and protected states stay. Raises as `execute` and `purge` do.
    """
    run_id = find_run(database, run)
    return [_free_on(database, run, policy, disk) for disk in _disks(database, run_id) if disk.is_short]


def _disks(database: Database, run_id: int) -> list[Disk]:
    """The file systems that the last save of all ranks is on."""
    with database.read() as connection:
        files: list[Checkpoint] = []
        for launch in reversed(reads.launches_of(connection, run_id)):
            step = tallies.newest_of_all_ranks(connection, launch)
            if step is not None:
                files = [file for file in reads.files_at(connection, launch, step) if file.state is FileState.COMPLETE]
                break
    found: dict[int, Disk] = {}
    for file in files:
        directory = file.path.rpartition("/")[0] or "/"
        with suppress(OSError):  # it may be on the disk of another node
            device = os.stat(file.path).st_dev
            before = found.get(device, Disk(directory, device, _SPARE))
            found[device] = replace(before, needed=before.needed + (file.size or 0))
    return list(found.values())


def _free_on(database: Database, run: str, policy: Policy, disk: Disk) -> Freed:
    # Training goes on saving meanwhile: states go only if the save did not fit once all of the trash was gone.
    trash, fits = _purge_trash(database, run, disk)
    states: list[int] = []
    if not fits:
        plan = plan_gc(database, run, Policy(keep_last=max(1, policy.floor), floor=policy.floor))
        for verdict in reversed(plan.decision.remove):
            key = verdict.state.key
            if not fits and disk.device in {target.identity[0] for target in plan.targets[key] if target.identity}:
                # The floor's digests were taken as it was saved: to read it again may take longer than the next save.
                done = execute(database, _only(plan, key), at_once=True, allow_mass_delete=True, trusts_floor=True)
                states += [step for _, step in done.removed]
                fits = not disk.is_short
    return Freed(disk, trash, tuple(states), fits)


def _purge_trash(database: Database, run: str, disk: Disk) -> tuple[int, bool]:
    """Delete trash until the next save fits, the oldest first. Returns how many bytes went, and whether it fits."""
    with at_work(database, run) as worker:
        worker.refuse_unless_all_is_read()
        worker.recover()
        fits = not disk.is_short
        for collection in sorted(worker.collections(), key=lambda each: each.created_at):
            if not fits and not worker.may_need({collection.id}):
                worker.purge({collection.id}, disk.has)
                fits = not disk.is_short
    return worker.done.purged["bytes"], fits


def _only(plan: GcPlan, key: Key) -> GcPlan:
    """The plan to remove one of its states."""
    others = tuple(each for each in plan.decision.remove if each.state.key != key)
    one = tuple(each for each in plan.decision.remove if each.state.key == key)
    decision = replace(plan.decision, keep=(*plan.decision.keep, *others), remove=one)
    return replace(plan, decision=decision, targets={key: plan.targets[key]}, debris=())
