"""The facts that `watch` reports: present findings of doctor, and states recorded as damaged or quarantined."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from ckptstore.catalog import gauges
from ckptstore.catalog.runs import find_run, run_names
from ckptstore.core.hints import Command
from ckptstore.core.ids import derived_id
from ckptstore.doctor.check_launch import damage, newest_launch
from ckptstore.doctor.check_storage import disks
from ckptstore.doctor.checkup import Status
from ckptstore.doctor.run_facts import gather
from ckptstore.doctor.unanswered import unanswered_of
from ckptstore.errors import UnknownRunError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from datetime import datetime

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.gauges import BadState
    from ckptstore.doctor.checkup import Check

DAMAGED, QUARANTINED, SILENT, RESTART_LOOP, DISK = KINDS = ("damaged", "quarantined", "silent", "restart_loop", "disk")

_NEWS = timedelta(days=7)
"""A silence that began earlier is not reported. Otherwise a first watch would report every run given up long ago."""

_GRAVEST_FIRST = (Status.PROBLEM, Status.WARNING)


@dataclass(frozen=True)
class Notice:
    """One fact about a run, for a person: the finding, and what to do. A fact keeps its `id` from look to look."""

    id: str
    kind: str
    run: str
    status: Status
    detail: str
    hint: str = ""


@dataclass(frozen=True)
class Look:
    """The facts that are true now, and the ids of facts about full disks that are over."""

    notices: tuple[Notice, ...]
    has_room: frozenset[str]
    """The ids that facts about full disks have, for disks with enough room now."""

    def over(self, kind: str, told: Collection[str]) -> set[str]:
        """The reported facts of a kind that are no longer true. Silences and restart loops are reported once ever."""
        if kind in (DAMAGED, QUARANTINED):
            return set(told) - {notice.id for notice in self.notices}
        return set(self.has_room.intersection(told))


def look(database: Database, kinds: Collection[str], now: datetime) -> Look:
    """Look for facts of these kinds about all runs. Nothing is changed."""
    with database.read() as connection:
        damaged = gauges.damaged_states(connection) if DAMAGED in kinds else []
        quarantined = gauges.quarantined_states(connection) if QUARANTINED in kinds else []
    notices = [*map(_damaged, damaged), *map(_quarantined, quarantined)]
    has_room: list[str] = []
    if {SILENT, RESTART_LOOP, DISK} & set(kinds):
        with database.connected():
            unanswered_of(database, None)  # all at once: then none of them is waited for again
            for run in run_names(database, None):
                try:
                    run_id = find_run(database, run)
                    facts = gather(database, run, run_id, now)
                except UnknownRunError:  # it was renamed or forgotten since
                    continue
                of_disk = [check for check in disks(facts) if check.name == DISK]
                full = [check for check in of_disk if check.fact]
                fullest = sorted(full, key=lambda check: _GRAVEST_FIRST.index(check.status))[:1]
                notices += _of_checks(run, run_id, [newest_launch(facts), *fullest], kinds, now)
                has_room += _has_room(run_id, of_disk)
    return Look(tuple(notices), frozenset(has_room))


def _of_checks(
    run: str, run_id: int, checks: Sequence[Check], kinds: Collection[str], now: datetime
) -> Iterator[Notice]:
    for check in checks:
        fact = check.fact
        if fact is None or fact.kind not in kinds or (fact.since is not None and now - fact.since > _NEWS):
            continue
        yield Notice(derived_id(fact.kind, run_id, fact.of), fact.kind, run, check.status, check.detail, check.hint)


def _has_room(run_id: int, of_disk: Sequence[Check]) -> Iterator[str]:
    """The ids of facts about full disks that are over for a run; none if the room on one of its disks is not known."""
    if not of_disk or any(check.fact is None and check.status is not Status.OK for check in of_disk):
        return
    found = {check.status for check in of_disk if check.fact}
    for status in _GRAVEST_FIRST:
        if status in found:
            return
        yield derived_id(DISK, run_id, status.value)


def _damaged(state: BadState) -> Notice:
    hint = f"{Command('resolve', state.run, '--explain')} shows where the run would go on"
    notice_id = derived_id(DAMAGED, state.run_id, f"{state.launch} {state.global_step}")
    return Notice(notice_id, DAMAGED, state.run, Status.PROBLEM, damage(state), hint)


def _quarantined(state: BadState) -> Notice:
    detail = f"step {state.global_step} of launch {state.launch} is quarantined: {state.why}"
    hint = f"no start takes it; {Command('resolve', state.run, '--explain')} shows where the run would go on"
    notice_id = derived_id(QUARANTINED, state.run_id, f"{state.launch} {state.global_step}")
    return Notice(notice_id, QUARANTINED, state.run, Status.WARNING, detail, hint)
