"""How often a run should save, by what its saves cost and how often it failed, and the room that takes."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, recent
from ckptstore.catalog.runs import find_run
from ckptstore.core.interval import Cost, Failures, best_steps, lost
from ckptstore.core.model import BRANCH, IMPORTED, SCANNED
from ckptstore.errors import CkptstoreError
from ckptstore.resume.history import history
from ckptstore.resume.liveness import ENDED, KILLED
from ckptstore.retention import stored_policy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.recent import SaveCost
    from ckptstore.resume.history import LaunchRow
    from ckptstore.retention.policy import Policy

log = logging.getLogger("ckptstore")

WEEK = 7 * 86400
ASSUMED = 86400.0
"""The seconds between two failures of a run that has not failed."""

_SEEN = 20
"""How many of the newest saves are looked at."""
_GUESSES = (3600, 6 * 3600, 86400, WEEK)
"""Mean times between failures that are shown where none is known."""
_LOOK, _END = 1.0, 5.0
_MARGIN = 1.5
_PART_OF_GRACE = 0.9
_ON_PURPOSE = {"KeyboardInterrupt", "SystemExit"}


@dataclass(frozen=True)
class Room:
    """What the states take on the disk at an interval, in bytes."""

    states: int  # that are kept, at most
    trash: int  # that waits for its grace to be over
    each_week: int  # added to the states, week by week


@dataclass(frozen=True)
class Interval:
    """Saving so often."""

    steps: int  # from one save to the next
    seconds: float  # that these steps take
    mtbf: float | None  # seconds between two failures; None: not known
    lost_steps: float | None  # that are trained fewer in a week than without saves and failures; None: not known
    room: Room


@dataclass(frozen=True, kw_only=True)
class Advice:
    """How often a run should save.

    `cost` is what a save costs, `is_written` tells whether it is known when it was on the disk; `step` is the time of a
    step, `state_bytes` the size of a state. `failures` are those that the catalog has seen; `mtbf` counts, which is
    theirs unless somebody gave another one (None: there were none). `present` is how the run saves now (None: it saved
    once), `best` what loses least, and `others` what would, if failures came so often, where nothing tells. `grace` is
    the time that a container of the run needs to end in, for its last state to be saved.
    """

    run: str
    cost: Cost
    is_written: bool
    step: float
    state_bytes: int
    policy: Policy | None
    failures: Failures
    mtbf: float | None
    is_given: bool
    present: Interval | None
    best: Interval | None
    others: tuple[Interval, ...]
    grace: float


def advise(database: Database, run: str, *, mtbf: timedelta | None = None) -> Advice:
    """How often `run` should save; `mtbf` is the mean time between failures, if not those that the catalog has seen.

    Raises `UnknownRunError`, and `CkptstoreError` where nothing tells what its saves cost.
    """
    run_id = find_run(database, run)
    failures = failures_of(history(database, run))  # it takes up the journals too
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
    """The seconds that a rank needs to hear that it must leave, end its step, save, and end; with half of it more.

    A look for the request is a second old at most; the step that has begun then ends, and one more may, in which the
    ranks agree. What follows the save (records, the interpreter's end) has five seconds. The preStop hook waits for
    nine tenths of the grace period.
    """
    return math.ceil((_MARGIN * (_LOOK + 2 * step + save) + _END) / _PART_OF_GRACE)


def mtbf_of(database: Database, run: str) -> tuple[float, bool]:
    """The seconds between two failures of a run, and whether it has failed: else, or without a catalog, `ASSUMED`."""
    try:
        found = failures_of(history(database, run)).mtbf
    except CkptstoreError as error:
        log.warning("how often run %s failed is not known: %s", run, error)
        found = None
    return (ASSUMED, False) if found is None else (found, True)


def failures_of(launches: Sequence[LaunchRow]) -> Failures:
    """How often these launches of a run, oldest first, failed while they trained.

    One that ended before its first step lost nothing, and one that a person ended did not fail. One that said nothing
    failed if another one came after it.
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
    """Seconds a step, as they were measured, or from save to save."""
    measured = [each.step_took for each in costs if each.step_took]
    between = [
        (newer.at - older.at).total_seconds() / (newer.step - older.step)
        for newer, older in pairwise(costs)
        if newer.step > older.step and newer.at > older.at
    ]
    return median(measured or between) if measured or between else None


def _room(policy: Policy | None, size: int, steps: int, period: float) -> Room:
    """At most, since a state may be kept by several rules. `size` is that of a state, one is saved each `period`."""
    a_week = WEEK / period
    if policy is None:
        return Room(0, 0, round(a_week * size))
    within = policy.keep_within.total_seconds() / period if policy.keep_within else 0.0
    by_time = policy.keep_hourly + policy.keep_daily + policy.keep_weekly
    states = policy.keep_last + math.ceil(within) + by_time + policy.keep_best + sum(policy.keep_kind.values())
    forever = a_week * steps / max(policy.keep_every, steps) if policy.keep_every else 0.0
    waiting = math.ceil(policy.grace.total_seconds() / period)
    return Room(max(states, policy.floor) * size, waiting * size, round(forever * size))
