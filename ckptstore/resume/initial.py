"""Chooses the state of another run that a launch starts from, while its own run has none."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptstore.catalog import reads
from ckptstore.catalog.runs import find_reference
from ckptstore.core.hints import Call, Command
from ckptstore.core.model import Assignment, Initial, initial_of
from ckptstore.core.text import count
from ckptstore.errors import NothingRestorableError, UnknownRunError, UsageError
from ckptstore.resume.references import choose_state
from ckptstore.resume.resolve import resolve
from ckptstore.resume.resolver import Loads, Query

if TYPE_CHECKING:
    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.reads import Called
    from ckptstore.core.model import Launch, RestorePlan

log = logging.getLogger("ckptstore")


def choose_initial(database: Database, launch: Launch, run: Called, query: Query) -> RestorePlan | None:
    """The state that `query.initial` names, for the ranks of a launch whose run has no state of its own; None: none.

    A run that began from a state of that reference before begins from the same one again, whatever it names by now,
    unless a fresh start is asked for. Raises as `choose_state` does, and `NothingRestorableError` if that state cannot
    be loaded, if it is in pieces, and if the run began from one before and none is asked for.
    """
    with database.read() as connection:
        before = initial_of(each for each in reads.launches_of(connection, run.id) if each.id != launch.id)
    if query.fresh:
        before = None
    if query.initial is None:
        if before is not None:
            again, anew = Call("resume", initial=before.reference), Call("resume", fresh=True)
            raise NothingRestorableError(
                f"run {run.name!r} began from {shown(before)}, and has no state of its own yet",
                f"{again} begins from it again, {anew} without it",
            )
        return None
    if before is not None and before.reference == query.initial:
        plan = _again(database, run, before)
    elif find_reference(database, query.initial)[0] == run.id:
        raise UsageError(
            f"initial={query.initial!r} names run {run.name!r} itself", "name a state of another run, or leave it out"
        )
    else:
        plan = choose_state(database, query.initial, loads=Loads.MINDSPORE)
    return _for_ranks(plan, launch)


def shown(initial: Initial) -> str:
    """The state, for a message."""
    return f"step {initial.global_step} of run {initial.run} (launch {initial.launch})"


def _again(database: Database, run: Called, initial: Initial) -> RestorePlan:
    """The state that a run began from before."""
    query = Query(step=initial.global_step, lineage=initial.launch, loads=Loads.MINDSPORE)
    plan: RestorePlan | None = None
    hint = f"see: {Command('resolve', initial.run, '--step', initial.global_step, '--explain')}"
    with database.read() as connection:
        known = reads.called(connection, initial.run)
    try:
        found = resolve(database, initial.run, query)
    except UnknownRunError as error:
        why = error.message if known else f"the catalog has no run {initial.run!r}"
        hint = error.hint if known else f"{Command('scan', 'DIRECTORY', '--run', initial.run)} takes it in"
    except UsageError as error:
        why = error.message
    else:
        plan = found.plan if found.plan is not None and found.plan.launch.id == initial.launch else None
        reasons = [reason.detail for rejection in found.rejections for reason in rejection.reasons]
        why = reasons[0] if reasons else "it has no such save"
    if plan is None:
        raise NothingRestorableError(
            f"run {run.name!r} began from {shown(initial)} and has no state of its own, and that one cannot be loaded "
            f"now: {why}",
            f"{hint}; {Call('resume', initial='RUN@STEP', fresh=True)} begins from another one",
        )
    return plan


def _for_ranks(plan: RestorePlan, launch: Launch) -> RestorePlan:
    """The plan for as many ranks as a launch has. Raises `NothingRestorableError` if no file holds the whole state."""
    saved = plan.launch
    if plan.in_shares or len(saved.layout.partition(saved.world_size)) > 1:
        what = "each of its files is a share of it" if plan.in_shares else f"its layout is {saved.layout.source}"
        by = count(saved.world_size, "rank", "ranks")
        raise NothingRestorableError(
            f"no file is known to hold all of step {plan.global_step} of run {saved.run!r}, saved by {by}: {what}",
            "begin from a state of one rank, or of ranks that are data parallel",
        )
    # Each of its files is the whole state.
    sources = [each.source for each in plan.ranks]
    own = (Assignment(rank, sources[rank % len(sources)]) for rank in range(launch.world_size))
    return replace(plan, ranks=tuple(own))
