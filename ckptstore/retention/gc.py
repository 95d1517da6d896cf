"""gc of one run, or of all that have a policy: plan, and carry it out if asked; one that fails stops no other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, recent, user_events
from ckptstore.core.hints import Command
from ckptstore.errors import CkptstoreError, PlanChangedError, UnknownRunError, UsageError
from ckptstore.outside import Path
from ckptstore.retention import decide
from ckptstore.retention.execute import Collected, execute
from ckptstore.retention.plan import GcPlan, plan_gc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.recent import Waiting
    from ckptstore.core.copies import Tier
    from ckptstore.retention.policy import Policy


@dataclass(frozen=True)
class RunCollected:
    """The outcome of a run's gc: its plan, its actions, the error that ended it; each None if there is none."""

    run: str
    plan: GcPlan | None = None
    done: Collected | None = None
    error: CkptstoreError | None = None
    waiting: Sequence[Waiting] = ()  # the trash after it, the gc first whose grace ends first


def names(database: Database, run: str | None, *, all_runs: bool) -> Sequence[str]:
    """The runs to collect. Raises `UsageError` where none was named, and says what to do in a new catalog."""
    with database.read() as connection:
        is_empty = not reads.first_names(connection)
        is_known = run is not None and reads.run_id(connection, run) is not None
        with_policy = user_events.runs_with_policy(connection)
    if is_empty:
        where = run if run is not None and Path(run).is_dir() else "DIRECTORY"
        raise UsageError(
            f"{database.name} has no checkpoints yet", f"to record those of a directory: {Command('scan', where)}"
        )
    if run is not None and not is_known and Path(run).is_dir():
        raise UnknownRunError(
            f"{run!r} is a directory, not a run",
            f"to list the runs: {Command('runs')}; to take in a directory: {Command('scan', run)}",
        )
    if run is not None:
        return [run]
    if not all_runs:
        raise UsageError("no run is named", f"name one of those that {Command('runs')} shows, or give --all")
    return with_policy


def collect(
    database: Database,
    run: str,
    policy: Policy | None,
    *,
    floor: int | None = None,
    grace: timedelta | None = None,
    apply_it: bool = False,
    at_once: bool = False,
    allow_mass_delete: bool = False,
    agreed: str | None = None,
    tier: Tier | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> RunCollected:
    """Plan, and carry the plan out if `apply_it`. Refusals and failures are in the outcome.

    `tier` is one of the nodes' own disks: what goes there must be in a tier above.
    `agreed` is the digest of the plan that somebody has seen: another plan is not carried out.
    """
    plan: GcPlan | None = None
    try:
        plan = plan_gc(database, run, policy, floor=floor, grace=grace, tier=tier)
        if not apply_it:
            decide.check(plan.decision, allow_mass_delete=allow_mass_delete)
            return RunCollected(run, plan, waiting=_waiting(database, plan))
        if agreed not in (None, plan.digest):
            raise PlanChangedError(f"the plan for run {run!r} has changed since it was shown", "look at the new one")
        done = execute(database, plan, at_once=at_once, allow_mass_delete=allow_mass_delete, progress=progress)
    except CkptstoreError as error:
        return RunCollected(run, plan, error=error)
    return RunCollected(run, plan, done, waiting=_waiting(database, plan))


def _waiting(database: Database, plan: GcPlan) -> Sequence[Waiting]:
    with database.read() as connection:
        return recent.waiting(connection, plan.run_id)
