"""The floor: one table in bare sqlite3, in WAL mode and synced at each commit, that nothing looks after."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from bench import files
from bench.peers.keeper import Keeper, serve

TABLE = """
CREATE TABLE saves (
  id TEXT PRIMARY KEY, run TEXT, launch TEXT, kind TEXT, global_step INTEGER, rank INTEGER, path TEXT, size INTEGER,
  mtime_ns INTEGER, digest TEXT, format TEXT, epoch INTEGER, step_in_epoch INTEGER, state TEXT, created_at TEXT
);
CREATE INDEX by_step ON saves (run, global_step);
"""
INSERT = f"INSERT INTO saves VALUES ({', '.join('?' * 15)})"


def connected(path: Path) -> sqlite3.Connection:
    """A connection that commits durably."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    return connection


def row(path: Path, step: int) -> tuple[object, ...]:
    """What there is to record of a file that was just written."""
    status = path.stat()
    facts = (status.st_size, status.st_mtime_ns, "0" * 64, "ckpt", 1, step, "complete", "2026-01-01 00:00:00")
    return (f"{step:032x}", "run", "L1", "periodic", step, 0, str(path), *facts)


class Sqlite(Keeper):
    """Rows of what was saved; the newest is that of the highest step whose file is there."""

    def __init__(self, home: Path, *, synced: bool) -> None:
        super().__init__(home, synced=synced)
        self.directory = home / "ckpt"

    def _connected(self) -> closing[sqlite3.Connection]:
        return closing(connected(self.home / "floor.db"))

    def _write(self, step: int) -> Path:
        path = self.directory / files.name(step)
        files.write(path, step, synced=self.synced)
        return path

    def fill(self, count: int) -> None:
        self.directory.mkdir()
        with self._connected() as connection:
            connection.executescript(TABLE)
            connection.execute("BEGIN")
            connection.executemany(INSERT, [row(self._write(step), step) for step in range(1, count + 1)])
            connection.execute("COMMIT")

    def save(self, steps: Sequence[int]) -> float:
        with self._connected() as connection:
            begin = time.perf_counter()
            for step in steps:
                connection.execute(INSERT, row(self._write(step), step))
            return time.perf_counter() - begin

    def steps(self) -> list[int]:
        with self._connected() as connection:
            return [found[4] for found in connection.execute("SELECT * FROM saves WHERE run = 'run'")]

    def newest(self) -> int:
        with self._connected() as connection:
            rows = connection.execute("SELECT global_step, path, size FROM saves ORDER BY global_step DESC")
            return next(int(step) for step, path, size in rows if os.stat(path).st_size == size)

    def prune(self, keep: int) -> None:
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            every = connection.execute("SELECT id, path FROM saves ORDER BY global_step DESC").fetchall()
            connection.executemany("DELETE FROM saves WHERE id = ?", [(key,) for key, _ in every[keep:]])
            connection.execute("COMMIT")
            for _, path in every[keep:]:
                os.unlink(path)


if __name__ == "__main__":
    serve(Sqlite)
