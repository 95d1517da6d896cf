"""Adds metrics to a recorded state, as those of an evaluation after the save."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.catalog import reads
from ckptstore.core.events import FileRecorded
from ckptstore.journal.recorder import record_of_run
from ckptstore.resume.resolve import choose_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.core.model import Checkpoint


def measure(database: Database, reference: str, metrics: Mapping[str, float]) -> None:
    """Add metrics to the state that a reference names.

    The record of its first rank's file holds them for the whole state. Of several values of a metric the one recorded
    last counts. Raises as `choose_state` does.
    """
    first = choose_state(database, reference).ranks[0].source

    def decide(connection: Connection) -> tuple[list[FileRecorded], list[Checkpoint]]:
        known = reads.files_by_id(connection, [first.id])[first.id]
        return [FileRecorded(known.amended(metrics={**known.metrics, **metrics}))], [known]

    record_of_run(database, decide)
