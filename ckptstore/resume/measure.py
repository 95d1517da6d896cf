"""Adds metrics to a state that is there: those of an evaluation that came after the save."""

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
    """Add metrics to the state that a reference names: to the file of its first rank, for all of it.

    The value counts that was recorded last. Raises as `choose_state` does.
    """
    first = choose_state(database, reference).ranks[0].source

    def decide(connection: Connection) -> tuple[list[FileRecorded], list[Checkpoint]]:
        known = reads.files_by_id(connection, [first.id])[first.id]
        return [FileRecorded(known.amended(metrics={**known.metrics, **metrics}))], [known]

    record_of_run(database, decide)
