"""One process at a time moves or deletes the files of a run: it holds the run's lock, and renews it as it works."""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.catalog import trash, writes
from ckptstore.errors import CatalogUnavailableError, RefusedError

if TYPE_CHECKING:
    from types import TracebackType

    from sqlalchemy import Connection

    from ckptstore.catalog.engine import Database

LOCK = timedelta(minutes=15)
"""How long a holder that is not heard of keeps the lock; it renews it with every portion of files."""


@dataclass(frozen=True)
class _Owner:
    """A process: its host, its id there, when it began, and which of its locks this is."""

    host: str
    pid: int
    began: str
    nonce: str

    def __str__(self) -> str:
        return f"{self.host}|{self.pid}|{self.began}|{self.nonce}"


class GcLock:
    """The lock of a run, taken when it is made and given back at the end of the block.

    Raises `RefusedError` where another process has it. One of this host that has died has it no more; one of another
    host loses it when it was not heard of for `LOCK`.
    """

    def __init__(self, database: Database, run: str, run_id: int) -> None:
        self._database = database
        self._run = run
        self.run_id = run_id
        self._owner = str(_Owner(socket.gethostname(), os.getpid(), _began(os.getpid()), secrets.token_hex(4)))

    def __enter__(self) -> GcLock:
        with self._database.write() as connection:
            self.renew(connection)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Give it back; where the catalog is gone it ends by itself."""
        with suppress(CatalogUnavailableError), self._database.write() as connection:
            trash.release_lock(connection, self.run_id, self._owner)

    def renew(self, connection: Connection) -> None:
        """Hold it for longer, in a transaction that begins to do something. Raises `RefusedError` if it was lost."""
        writes.lock_run(connection, self.run_id)
        now = datetime.now(timezone.utc)
        other = trash.take_lock(connection, self.run_id, self._owner, now, now + LOCK)
        if other is not None and is_dead(other):
            trash.release_lock(connection, self.run_id, other)
            other = trash.take_lock(connection, self.run_id, self._owner, now, now + LOCK)
        if other is not None:
            host, pid, *_ = other.split("|")
            raise RefusedError(
                f"another gc, undo or purge of run {self._run!r} is at work (process {pid} on {host})",
                "wait for it; if it has died, its lock ends within 15 minutes",
            )


def is_dead(owner: str) -> bool:
    """Whether a process of this host is gone; of another host's nothing is known."""
    host, pid, began, _ = owner.split("|")
    return host == socket.gethostname() and _began(int(pid)) != began


def _began(pid: int) -> str:
    """When a process of this host began, so that a later one with its number is not taken for it; empty if it is gone.

    Where there is no /proc, only whether it is there.
    """
    try:
        state, *others = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return "" if state in ("Z", "X") else others[18]
    except (OSError, IndexError):
        if Path("/proc/self/stat").exists():
            return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        return "there"
    return "there"
