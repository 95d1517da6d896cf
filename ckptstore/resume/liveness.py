"""Which launch of a run is alive, how it ended, how long it has been silent, and which of its ranks lag.

`runs`, `history`, `doctor`, `advise`, `exit` and a second start of the same job all ask here.
"""

from __future__ import annotations

from datetime import timedelta
from enum import Enum, auto
from itertools import pairwise, takewhile
from statistics import median
from typing import TYPE_CHECKING

from ckptstore.catalog import leases, reads
from ckptstore.catalog.engine import clock
from ckptstore.core.limits import CLOCKS_DIFFER
from ckptstore.core.model import BRANCH, IMPORTED, SCANNED
from ckptstore.core.text import span
from ckptstore.disk.owner import is_dead, is_here

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence
    from datetime import datetime

    from ckptstore.catalog.engine import Connection
    from ckptstore.catalog.leases import Sign
    from ckptstore.core.model import Launch, LaunchKey

SILENT = timedelta(seconds=60)
"""A launch that gave no sign of life for so long is not alive, unless its process is on this machine."""

SILENT_BY_HAND = timedelta(hours=2)
"""The same for one that registers by hand: it gives no signs, but renews its lease once an hour."""

FRUITLESS = 3
"""So many launches in a row that saved nothing are a restart loop."""

TRAINING, FINISHED, EXITED, KILLED, NEVER_SAVED, SCANNED_ONLY, IMPORTED_ONLY = (
    "training",
    "finished",
    "exited on request",
    "killed",
    "never saved",
    "scanned",
    "imported",
)
RESTART_LOOP, ENDED, SILENT_FOR, JOINED = "restart loop: ", "ended: ", "silent for ", "joined "
"""How these texts begin."""

_NOT_BEGUN = (SCANNED, IMPORTED, BRANCH)
_DAY = timedelta(days=1)
_PAUSES = 3  # times the usual one
_PATIENCE = timedelta(minutes=10)


class Life(Enum):
    """The condition of a process, as its last sign of life shows it."""

    ALIVE = auto()
    HERE = auto()  # it is on this machine, and has given no sign for a minute: it may hang
    SILENT = auto()
    GONE = auto()  # it was on this machine


def life(process: str, silent: timedelta) -> Life:
    """Whether a process whose last sign of life came `silent` ago is alive."""
    if is_dead(process):
        return Life.GONE
    if silent <= SILENT:
        return Life.ALIVE
    return Life.HERE if is_here(process) else Life.SILENT


def last_sign(connection: Connection, run_id: int | None) -> tuple[Sign | None, datetime]:
    """The newest sign of life of a run's launches, and the time now by the clock that dated the sign."""
    return None if run_id is None else leases.last_sign(connection, run_id), clock(connection)


def may_be_alive(sign: Sign | None, now: datetime) -> bool:
    """Whether the process that gave a sign may still be there."""
    return sign is not None and life(sign.process, now - sign.seen_at) in (Life.ALIVE, Life.HERE)


def may_go_on(heard_at: datetime, now: datetime, *, gives_signs: bool) -> bool:
    """Whether a launch may be training, given when it was last heard of. Allows for clocks that differ."""
    return now - heard_at < (SILENT if gives_signs else SILENT_BY_HAND) + CLOCKS_DIFFER


def living(connection: Connection, run_id: int) -> LaunchKey | None:
    """The launch of a run that may be alive: the newest one, since none begins beside a living one."""
    sign, now = last_sign(connection, run_id)
    if sign is None or not may_be_alive(sign, now):
        return None
    newest = newest_begun(connection, run_id)
    return sign.key if newest and newest.id == sign.launch else None


def newest_begun(connection: Connection, run_id: int) -> Launch | None:
    """The launch of a run that began last; None if all launches were found by scans or imported."""
    begun = [each for each in reads.launches_of(connection, run_id) if not each.id.startswith(_NOT_BEGUN)]
    return begun[-1] if begun else None


def course(
    errors: Sequence[str | None], process: str | None, silent: timedelta | None, *, was_asked_to_exit: bool
) -> str:
    """Whether a launch is training or how it ended, in a few words; empty if that is not known.

    `errors` has one entry for each rank that recorded how its training ended. `process` gave the last sign of life
    (None: there is none, or training has ended), `silent` ago. A sign of life overrides a recorded end, since a script
    may train again.
    """
    known = None if process is None or silent is None else life(process, silent)
    if known is Life.ALIVE:
        return TRAINING
    return how_ended(errors, was_asked_to_exit=was_asked_to_exit) or (KILLED if known is Life.GONE else "")


def how_ended(errors: Sequence[str | None], *, was_asked_to_exit: bool) -> str:
    """How a launch ended, by the ends that its ranks recorded; empty if none did, as after a kill."""
    named = sorted({error for error in errors if error})
    if named:
        return f"{ENDED}{', '.join(named)}"
    if not errors:
        return ""
    return EXITED if was_asked_to_exit else FINISHED


def is_emptied(launch: Launch, saved: Container[str | None]) -> bool:
    """Whether a scan found all files of a launch before the ranks that saved them registered them. It has none now."""
    return launch.id.startswith(SCANNED) and launch.id not in saved


def restart_loop(launches: Sequence[Launch], saved: Container[str], errors: Sequence[str | None], now: datetime) -> int:
    """How many of the newest launches saved nothing, if they are a restart loop; else 0.

    In a restart loop the newest launch began less than a day ago. A finished job that is started again saves nothing,
    but ends well: that is no restart loop.
    """
    fruitless = list(
        takewhile(lambda each: each.id not in saved and not each.id.startswith(BRANCH), reversed(launches))
    )
    ended_well = bool(errors) and not any(errors)
    if len(fruitless) < FRUITLESS or ended_well or not is_of_last_day(fruitless[0], now):
        return 0
    return len(fruitless)


def is_of_last_day(launch: Launch, now: datetime) -> bool:
    """Whether it began less than a day ago."""
    return launch.created_at is not None and now - launch.created_at < _DAY


def status(newest: str, course: str, *, loop: int, has_saved: bool, has_begun: bool, silent: timedelta | None) -> str:
    """What a run is doing, by the id and the course of its newest launch, last heard of `silent` ago (None: never).

    `has_saved`: a launch of the run has saved; `has_begun`: the newest one gave a sign of life, or has saved.
    """
    if loop:
        return f"{RESTART_LOOP}{loop} launches saved nothing"
    if course:
        return course
    if not has_saved or silent is None:
        return NEVER_SAVED
    if newest.startswith(SCANNED):
        return SCANNED_ONLY
    if newest.startswith(IMPORTED):
        return IMPORTED_ONLY
    return f"{SILENT_FOR}{span(silent)}" if has_begun else f"{JOINED}{span(silent)} ago"


def laggards(ranks: Iterable[int], last_steps: Mapping[int, int], newest: int) -> dict[int | None, list[int]]:
    """The ranks whose last step is below the job's `newest`, by last step (None: they have none), lowest first."""
    behind: dict[int | None, list[int]] = {}
    for rank in sorted(ranks, key=lambda rank: (last_steps.get(rank, -1), rank)):
        if last_steps.get(rank, -1) < newest:
            behind.setdefault(last_steps.get(rank), []).append(rank)
    return behind


def usual_pause(moments: Iterable[datetime]) -> timedelta | None:
    """The median time from one save to the next, given when each was made; None for fewer than three saves."""
    ordered = sorted(moments)
    pauses = [(later - earlier).total_seconds() for earlier, later in pairwise(ordered)]
    return timedelta(seconds=median(pauses)) if len(pauses) > 1 else None


def is_overdue(moments: Sequence[datetime], now: datetime) -> bool:
    """Whether the last save is older than three times the usual pause, and than ten minutes."""
    pause = usual_pause(moments)
    return pause is not None and now - max(moments) > max(_PAUSES * pause, _PATIENCE)


def trouble(status: str) -> int:
    """How much a run of this status needs an operator: 2 now, 1 perhaps, 0 not at all."""
    if status.startswith((RESTART_LOOP, ENDED)) or status == KILLED:
        return 2
    return 1 if status.startswith((SILENT_FOR, JOINED)) or status == NEVER_SAVED else 0
