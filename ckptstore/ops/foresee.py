"""What a catalog would know of a directory if its journals were taken up: for who may not write that down."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, replay, writes
from ckptstore.catalog.engine import in_memory

if TYPE_CHECKING:
    from pathlib import Path

    from ckptstore.catalog.engine import Database


def copy_below(database: Database, root: Path, run: str) -> Database:
    """A catalog in memory with what this one has of the files below a directory, of their runs and of another one.

    Of the journals it has all, so that one below the directory is taken up from where it was read to, and a second path
    of one is known. What becomes of a launch (its plan, its end) is not in it.
    """
    now = datetime.now(timezone.utc)
    prefix = f"{str(root).rstrip('/')}/"
    with database.read() as connection:
        files = reads.files_below(connection, str(root))
        journals = replay.every_journal(connection)
        below = {name for name, known in journals.items() if any(path.startswith(prefix) for path in known)}
        named = {name: reads.run_id(connection, name) for name in below | {file.run for file in files} | {run}}
        ids = {name: run_id for name, run_id in named.items() if run_id is not None}
        launches = [launch for run_id in ids.values() for launch in reads.launches_of(connection, run_id)]
        sources = [source for run_id in ids.values() for source in reads.sources_of(connection, run_id)]
    copy = in_memory()
    with copy.write() as connection:
        new_ids = {name: writes.add_run(connection, name, now) for name in ids.keys() | journals.keys()}
        replay.put_launches(connection, launches)
        for source in sources:
            own = {**source._asdict(), "launch_id": source.launch, "names_before": sorted(source.names_before)}
            del own["launch"]
            writes.add_source(connection, **own)
        replay.put_checkpoints(connection, files)
        for name, known in journals.items():
            replay.set_taken_up(connection, known, dict.fromkeys(known, (new_ids[name],)))
    return copy
