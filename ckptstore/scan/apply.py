"""Writes what a scan has planned into the shared journal of the tree, and into the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.core.events import FileRecorded, LaunchStarted
from ckptstore.core.model import FileState, Launch, Rule
from ckptstore.core.replicas import stand_alone
from ckptstore.disk.places import remember_place, root_of
from ckptstore.journal.writers import shared

if TYPE_CHECKING:
    from ckptstore.catalog.engine import Database
    from ckptstore.scan.found import ScannedLaunch
    from ckptstore.scan.plan import ScanPlan


def apply(database: Database, plan: ScanPlan) -> None:
    """Record what the plan says, and remember on this machine where the run's checkpoints are."""
    damaged = [file.amended(state=FileState.DAMAGED, problem=Rule.SIZE_MISMATCH) for file in plan.damaged]
    gone = [file.amended(state=FileState.MISSING, problem=None) for file in (*plan.missing, *plan.overwritten)]
    recorder = shared(database)
    recorder.home(plan.root)
    try:
        recorder.record([LaunchStarted(_launch(plan.run, launch)) for launch in plan.launches])
        recorder.record([FileRecorded(file) for file in (*gone, *damaged)])
        recorder.adopt([*plan.adopted, *plan.back])
    finally:
        recorder.close()
    homes = {file.path.rpartition("/")[0] for file in plan.adopted}
    for directory in sorted({root_of(home) for home in homes}):
        remember_place(database.name, plan.run, directory)


def _launch(run: str, launch: ScannedLaunch) -> Launch:
    return Launch(
        id=launch.id,
        run=run,
        order=0,
        world_size=launch.world_size,
        layout=stand_alone(),
        steps_per_epoch=launch.steps_per_epoch,
        created_at=launch.began,
    )
