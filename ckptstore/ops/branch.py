"""Have the next launch of a run go back to an older state, whoever starts it."""

from __future__ import annotations

import secrets
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, writes
from ckptstore.errors import RefusedError, UsageError
from ckptstore.ops import lease
from ckptstore.ops.records import Began
from ckptstore.ops.settle import plan_files, sources_of
from ckptstore.ops.writers import directory_to_tell, for_decision

if TYPE_CHECKING:
    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import RestorePlan


def branch(database: Database, plan: RestorePlan) -> str:
    """Make the plan's state the one that its run goes on from; the id of the launch that stands for that decision.

    It saves nothing: the next launch that asks goes on from the plan's state, and what came after that is given up.
    Until then the state is held as one that a launch starts from. Raises `RefusedError` where it was removed since.
    """
    now = datetime.now(timezone.utc)
    files = plan_files(plan)
    launch_id = f"branch-{plan.global_step}-{secrets.token_hex(3)}"
    with database.write() as connection:
        run_id = reads.run_id(connection, plan.launch.run)
        if run_id is None:
            raise UsageError(f"there is no run {plan.launch.run!r} any more")
        writes.add_launch(
            connection,
            run_id=run_id,
            launch_id=launch_id,
            world_size=plan.launch.world_size,
            layout=plan.launch.layout,
            now=now,
        )
        if not lease.settle(connection, run_id, launch_id, sources_of(plan), now):
            raise RefusedError(
                f"step {plan.global_step} of run {plan.launch.run!r} was removed since it was chosen",
                "if gc did that, ckptstore undo brings it back while it is in the trash",
            )
        if plan.launch.steps_per_epoch is not None:
            writes.set_steps_per_epoch(
                connection,
                launch_id,
                plan.launch.steps_per_epoch,
                batch_size=plan.launch.batch_size,
                shards=plan.launch.shards,
            )
        writes.store_resolution(
            connection,
            launch_id=launch_id,
            parent=(plan.launch.id, plan.global_step),
            start_step=plan.global_step,
            files=files,
            branched=True,
            now=now,
        )
        facts = reads.launch(connection, launch_id)
    if facts is not None:
        _journal(database, Began(facts, now, plan.launch, tuple((each.rank, each.source) for each in plan.ranks)))
    return launch_id


def _journal(database: Database, began: Began) -> None:
    """Beside the files of the state, in one of their directories: a catalog made anew has it again."""
    ledger = for_decision(database, began)
    ledger.tell(began.launch.id, [directory_to_tell(file.path for _, file in began.plan)])
    ledger.close()
