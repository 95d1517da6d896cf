"""Have the next launch of a run go back to an older state, whoever starts it."""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ckptstore.catalog import reads
from ckptstore.catalog.project import project
from ckptstore.core.events import LaunchStarted
from ckptstore.errors import RefusedError, UsageError
from ckptstore.journal.writers import record_of_run
from ckptstore.resume import lease
from ckptstore.resume.start import sources_of, started

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.core.events import Event
    from ckptstore.core.model import RestorePlan


def branch(database: Database, plan: RestorePlan) -> str:
    """Make the plan's state the one that its run goes on from; the id of the launch that stands for that decision.

    It saves nothing: the next launch that asks goes on from the plan's state, and what came after that is given up.
    Until then the state is held as one that a launch starts from. Raises `RefusedError` where it was removed since.
    """
    launch_id = f"branch-{plan.global_step}-{secrets.token_hex(3)}"
    run = plan.launch.run

    def decide(connection: Connection) -> tuple[list[Event], Mapping[str, str]]:
        now = datetime.now(timezone.utc)
        run_id = reads.run_id(connection, run)
        if run_id is None:
            raise UsageError(f"there is no run {run!r} any more")
        launch = replace(plan.launch.undecided(), id=launch_id, created_at=reads.next_moment(connection, run, now))
        project(connection, [LaunchStarted(launch)])
        if not lease.settle(connection, run_id, launch_id, sources_of(plan), now):
            raise RefusedError(
                f"step {plan.global_step} of run {run!r} was removed since it was chosen",
                "if gc did that, ckptstore undo brings it back while it is in the trash",
            )
        files = {each.source.path: plan.launch.id for each in plan.ranks}
        return [started(launch, plan, now, start_step=plan.global_step, branched=True)], files

    record_of_run(database, decide)
    return launch_id
