"""One process at a time moves or deletes the files of a run: it holds the run's lock, and renews it as it works."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, removals
from ckptstore.catalog.clock import clock
from ckptstore.disk.owner import is_dead, shown, this_process
from ckptstore.errors import CatalogUnavailableError, RefusedError
from ckptstore.outside import time

if TYPE_CHECKING:
    from types import TracebackType

    from ckptstore.catalog.engine import Connection, Database

LOCK = timedelta(minutes=15)
"""How long a holder that is not heard of keeps the lock, by the clock of the database."""

RENEWED_EVERY = timedelta(minutes=1)
"""How old the last sign of life of a holder may be when it changes a file."""


class GcLock:
    """The lock of a run, taken when it is made and given back at the end of the block.

    Raises `RefusedError` where another process has it. One of this machine that has died has it no more; one of another
    loses it when it was not heard of for `LOCK`.
    """

    def __init__(self, database: Database, run: str, run_id: int) -> None:
        self._database = database
        self.run = run
        self.run_id = run_id
        self._owner = this_process()
        self._renewed = 0.0

    def __enter__(self) -> GcLock:
        self._renewed = time.time()
        with self._database.write() as connection:
            reads.lock_run(connection, self.run_id)
            now = clock(connection)
            other = removals.take_lock(connection, self.run_id, self._owner, now, now + LOCK)
            if other is not None and is_dead(other):
                removals.release_lock(connection, self.run_id, other)
                other = removals.take_lock(connection, self.run_id, self._owner, now, now + LOCK)
        if other is not None:
            raise RefusedError(
                f"another gc, undo or purge of run {self.run!r} is at work ({shown(other)})",
                "wait for it; if it has died, its lock ends within 15 minutes",
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Give it back; where the catalog is gone it ends by itself."""
        with suppress(CatalogUnavailableError), self._database.write() as connection:
            removals.release_lock(connection, self.run_id, self._owner)

    def keep(self) -> None:
        """Hold it for longer, if that was last said some time ago. Raises `RefusedError` if it was lost."""
        if abs(time.time() - self._renewed) >= RENEWED_EVERY.total_seconds():
            with self._database.write() as connection:
                self.renew(connection)

    def renew(self, connection: Connection) -> None:
        """Hold it for longer, in a transaction that begins to do something. Raises `RefusedError` if it was lost."""
        reads.lock_run(connection, self.run_id)
        self._renewed = time.time()
        if not removals.renew_lock(connection, self.run_id, self._owner, clock(connection) + LOCK):
            raise RefusedError(
                f"another process has taken over the files of run {self.run!r} since this one was last heard of",
                "this one stops here; look at what is there, then do it again",
            )
