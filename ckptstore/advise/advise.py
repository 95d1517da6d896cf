"""Computes how often a run should save, from the cost of its saves and its failures, and the disk space it needs."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, recent
from ckptstore.catalog.runs import find_run
from ckptstore.core.interval import Cost, Failures, best_steps, lost
from ckptstore.core.model import BRANCH, IMPORTED, SCANNED
from ckptstore.errors import CkptstoreError, UsageError
from ckptstore.resume.history import history
from ckptstore.resume.liveness import ENDED, KILLED
from ckptstore.retention import stored_policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.recent import SaveCost
    from ckptstore.resume.history import LaunchRow
    from ckptstore.retention.policy import Policy

log = logging.getLogger("ckptstore")

WEEK = 7 * 86400
ASSUMED = 86400.0
"""The mean time between failures, in seconds, that is assumed for a run that has not failed."""

_SEEN = 20
"""The number of newest saves that are looked at."""
_GUESSES = (3600, 6 * 3600, 86400, WEEK)
"""Mean times between failures, in seconds: each gets a best interval if the run's own is not known."""
_LOOK, _END = 1.0, 5.0
_MARGIN = 1.5
_PART_OF_GRACE = 0.9
_ON_PURPOSE = {"KeyboardInterrupt", "SystemExit"}


@dataclass(frozen=True)
class Room:
    """The disk space that a run needs at an interval, in bytes, at most."""

    states: int  # of the states that the policy keeps
    trash: int  # of the states in the trash, until their grace is over
    each_week: int  # by which the kept states grow in a week


@dataclass(frozen=True)
class Interval:
    """An interval between two saves, and its consequences."""

    steps: int  # from one save to the next
    seconds: float  # that these steps take
    mtbf: float | None  # mean seconds between two failures; None: not known
    lost_steps: float | None  # in a week, compared with a training without saves and failures; None: not known
    room: Room


@dataclass(frozen=True, kw_only=True)
class Advice:
    """How often a run should save. All times are in seconds."""

    run: str
    cost: Cost  # of a save
    is_written: bool  # whether `cost.written` was measured
    step: float  # the time of a step
    state_bytes: int  # the size of a state
    policy: Policy | None  # the stored one
    failures: Failures  # in the catalog
    mtbf: float | None  # the mean time between failures that the advice is for; None: not known
    is_given: bool  # whether the caller gave the mtbf; else it is computed from `failures`
    present: Interval | None  # at which the run saves now; None: it saved only once
    best: Interval | None  # at which it loses least; None: the mtbf is not known
    others: tuple[Interval, ...]  # the best ones for several assumed mtbfs, if the mtbf is not known
    grace: float  # the grace period that a container of the run needs, so that its last state is saved


def advise(database: Database, run: str, *, mtbf: timedelta | None) -> Advice:
    """How often `run` should save. `mtbf` is the mean time between failures (None: by the failures in the catalog).

    Raises `UsageError`, `UnknownRunError`, and `CkptstoreError` if the cost of its saves was not measured.
    """
    if mtbf is not None and not (isinstance(mtbf, timedelta) and mtbf > timedelta()):
        raise UsageError(f"mtbf is {mtbf!r}", "give a time above 0, as datetime.timedelta(hours=12)")
    run_id = find_run(database, run)
    failures = failures_of(history(database, run))  # `history` also takes up the journals
    with database.read() as connection:
        saving = recent.newest_saving(connection, run_id)
        launch = next((each for each in reads.launches_of(connection, run_id) if each.id == saving), None)
        costs = recent.costs_of(connection, launch.key, _SEEN) if launch else []
    pauses = [each.pause for each in costs if each.pause is not None]
    step = _step_of(costs)
    if not pauses or step is None:
        raise CkptstoreError(
            f"nothing tells what a save of run {run!r} costs",
            "let it train with ckptstore for some saves: a loop, launch.save and the registrar measure them",
        )
    written = [each.written for each in costs if each.written is not None]
    pause = median(pauses)
    cost = Cost(pause, max(pause, median(written)) if written else pause)
    known = mtbf.total_seconds() if mtbf else failures.mtbf
    policy = stored_policy.show(database, run)
    size = max((each.size for each in costs[:2]), default=0)
    steps = [newer.step - older.step for newer, older in pairwise(costs) if newer.step > older.step]

    def at(steps: int, mtbf: float | None) -> Interval:
        seconds = steps * step
        part = None if mtbf is None else lost(seconds, cost, mtbf) * WEEK / step
        room = _room(policy, size, steps, max(seconds + cost.pause, cost.written))
        return Interval(steps, seconds, mtbf, part, room)

    return Advice(
        run=run,
        cost=cost,
        is_written=bool(written),
        step=step,
        state_bytes=size,
        policy=policy,
        failures=failures,
        mtbf=known,
        is_given=mtbf is not None,
        present=at(int(median(steps)), known) if steps else None,
        best=at(best_steps(cost, known, step), known) if known else None,
        others=() if known else tuple(at(best_steps(cost, guess, step), guess) for guess in _GUESSES),
        grace=grace(max([step, *(each.step_took or 0 for each in costs)]), max([cost.written, *pauses, *written])),
    )


def grace(step: float, save: float) -> float:
    """The grace period that a rank needs to leave on request, in seconds. `step` and `save` are the longest times seen.

    A rank looks for a request once a second. It ends the current step, and perhaps one more, in which the ranks agree.
    Then it saves. This sum is multiplied by 1.5. Records and the end of the interpreter get five more seconds. The
    preStop hook waits only for nine tenths of the grace period.
    """
    return math.ceil((_MARGIN * (_LOOK + 2 * step + save) + _END) / _PART_OF_GRACE)


def mtbf_of(database: Database, run: str) -> tuple[float, bool]:
    """The mean seconds between two failures of a run, and whether that is measured.

    `ASSUMED`, and False, if the run has not failed, or if the catalog cannot be used.
    """
    try:
        found = failures_of(history(database, run)).mtbf
    except CkptstoreError as error:
        log.warning("how often run %s failed is not known: %s", run, error)
        found = None
    return (ASSUMED, False) if found is None else (found, True)


def failures_of(launches: Sequence[LaunchRow]) -> Failures:
    """How often these launches of a run, oldest first, failed while they trained.

    - A launch that ended before its first step is no failure: it lost no work.
    - A launch that a person ended is no failure.
    - A launch without a recorded end failed if a later launch began.
    """
    begun = [row for row in launches if not row.launch.id.startswith((BRANCH, SCANNED, IMPORTED))]
    trained = [row for row in begun if row.ran]
    count = sum(_has_failed(row, is_newest=row is begun[-1]) for row in trained)
    return Failures(count, sum(row.ran.total_seconds() for row in trained if row.ran))


def _has_failed(row: LaunchRow, *, is_newest: bool) -> bool:
    if not row.ending:
        return not is_newest
    if row.ending.startswith(ENDED):
        errors = set(row.ending.removeprefix(ENDED).split(", "))
        return (row.last_step or 0) > (row.launch.start_step or 0) and not errors <= _ON_PURPOSE
    return row.ending == KILLED


def _step_of(costs: Sequence[SaveCost]) -> float | None:
    """The seconds that a step takes: the measured ones, else by the time and the steps between two saves."""
    measured = [each.step_took for each in costs if each.step_took]
    between = [
        (newer.at - older.at).total_seconds() / (newer.step - older.step)
        for newer, older in pairwise(costs)
        if newer.step > older.step and newer.at > older.at
    ]
    return median(measured or between) if measured or between else None


def _room(policy: Policy | None, size: int, steps: int, period: float) -> Room:
    """The largest space that may be needed: the rules may keep fewer states, since one state may count for several.

    `size` is the size of a state in bytes. One state is saved each `period` seconds.
    """
    a_week = WEEK / period
    if policy is None:
        return Room(0, 0, round(a_week * size))
    within = policy.keep_within.total_seconds() / period if policy.keep_within else 0.0
    by_time = policy.keep_hourly + policy.keep_daily + policy.keep_weekly
    states = policy.keep_last + math.ceil(within) + by_time + policy.keep_best + sum(policy.keep_kind.values())
    forever = a_week * steps / max(policy.keep_every, steps) if policy.keep_every else 0.0
    waiting = math.ceil(policy.grace.total_seconds() / period)
    return Room(max(states, policy.floor) * size, waiting * size, round(forever * size))
