"""The state that a reference names (`core.reference`), to load, copy or compare it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.catalog import reads, user_events
from ckptstore.catalog.runs import find_reference
from ckptstore.core.hints import Command
from ckptstore.core.metrics import mean_metrics
from ckptstore.core.reference import Best, Reference
from ckptstore.errors import NothingRestorableError
from ckptstore.resume.resolve import bring_up_to_date, resolve, tagged
from ckptstore.resume.resolver import Loads, Query

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Resolution, RestorePlan

_STEPS_SHOWN = 6


def choose_state(
    database: Database, reference: str, *, loads: Loads = Loads.ALL, read_bytes: bool = False
) -> RestorePlan:
    """The restore plan of the state that a reference names (`core.reference`).

    `loads` is what the program can load; `read_bytes` checks every file's digest too. Raises `UnknownRunError`,
    `UsageError` for a reference that names nothing, and `NothingRestorableError` for a state that is not whole.
    """
    found = resolve(database, reference, Query(loads=loads, read_bytes=read_bytes))
    if found.plan is None:
        raise NothingRestorableError(no_plan(found), f"see: {Command('resolve', reference, '--explain')}")
    return found.plan


def step_named(database: Database, reference: str) -> tuple[str, int]:
    """The run and the step that a reference names. A step, or that of a tag, need not be restorable.

    Raises as `choose_state` does.
    """
    run_id, found = find_reference(database, reference)
    if found.tag is not None:
        bring_up_to_date(database, run_id)
        found = tagged(database, run_id, found)
    if found.step is not None:
        return found.run, found.step
    return found.run, choose_state(database, reference).global_step


def names_state(database: Database, reference: str) -> bool:
    """Whether a reference names one state, and not where the run goes on."""
    _, found = find_reference(database, reference)
    return found != Reference(found.run)


def states_of(database: Database, owner: str) -> list[str]:
    """References to the states of a run, or of the history of a launch (`RUN/LAUNCH`), as the catalog knows them.

    Tags and steps, the newest first; then the best by each metric.
    """
    run_id, _ = find_reference(database, owner)
    with database.read() as connection:
        tags = sorted(name for names in user_events.tags_of(connection, run_id).values() for name in names)
        steps = sorted({step for _, step in reads.steps_of(connection, run_id)}, reverse=True)
        metrics = sorted(
            {name for some in reads.metrics_of(connection, run_id).values() for name in mean_metrics(some)}
        )
    best = [Best(name, mode) for name in metrics for mode in ("min", "max")]
    return [f"{owner}@{state}" for state in (*tags, *steps, *best)]


def no_plan(found: Resolution) -> str:
    """The message that the requested state cannot be restored."""
    if found.best is not None:
        return f"no state of run {found.run} that has the metric {found.best.metric} can be restored"
    if found.step is None:
        return f"nothing of run {found.run} can be restored"
    if not found.rejections:
        return f"run {found.run} has no save of step {found.step}{_those_there(found.steps)}"
    return f"step {found.step} of run {found.run} cannot be restored"


def _those_there(steps: Sequence[int]) -> str:
    """Which steps there are instead, some of many; empty if none."""
    shown = [*steps[:2], "…", *steps[-_STEPS_SHOWN:]] if len(steps) > _STEPS_SHOWN + 2 else steps
    return f"; it has {', '.join(map(str, shown))}" if steps else ""
