"""`register`, compared with two floors: the least work that a durable record needs.

    python -m bench.record [--quick]

The first floor is bare Python and sqlite3. It makes one stat of the file, appends a line to a file, waits for the disk
(`fdatasync`, as the journal does), and inserts a row with `synchronous=FULL`. `register` may take twice as long.

The second floor does the same through SQLAlchemy. It has as many statements as `register` (one query and three writes),
and tables with as many columns. It digests the file of 4 KB, as `register` does. `register` may take 1.2 times as long.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from bench import files
from bench.measure import CKPTSTORE, Budget, Found, Row, turns
from bench.peers.ckptstore import announced
from bench.peers.sqlite import INSERT, TABLE, connected, row
from bench.task import run_alone
from ckptstore import connect

TASK = "record"
BLOCK = 50
REPEATS, QUICK_REPEATS = 15, 7
BUDGET, BUDGET_OF_SQLALCHEMY = 2.0, 1.2
FLOOR = "stat, append, insert"
OF_SQLALCHEMY = "the same through SQLAlchemy"


class OfSqlalchemy:
    """Records a file, its save, and the read position of a journal with plain SQLAlchemy."""

    def __init__(self, path: Path) -> None:
        metadata = sa.MetaData()
        key = sa.Column("id", sa.String, primary_key=True)
        launch, created = sa.Column("launch", sa.String), sa.Column("created_at", sa.String)
        step = sa.Column("global_step", sa.Integer)
        self._saves = sa.Table("saves", metadata, key, launch, sa.Column("kind", sa.String), step, created)
        more = [sa.Column(f"fact_{number}", sa.String) for number in range(25)]
        file_path = sa.Column("path", sa.String, index=True)
        self._files = sa.Table("files", metadata, sa.Column("id", sa.String, primary_key=True), file_path, *more)
        read_to = sa.Column("read_to", sa.Integer)
        self._journals = sa.Table("journals", metadata, sa.Column("path", sa.String, primary_key=True), read_to)
        new_save, new_file = insert(self._saves), insert(self._files)
        self._to_saves = new_save.on_conflict_do_update(["id"], set_={"created_at": new_save.excluded.created_at})
        facts = {each.name: new_file.excluded[each.name] for each in more}
        self._to_files = new_file.on_conflict_do_update(["id"], set_=facts)
        given: sa.BindParameter[str] = sa.bindparam("own_path")
        self._known = sa.select(sa.exists().where(self._files.c.path == given))
        self._read = self._journals.update().where(self._journals.c.path == given)
        self._engine = sa.create_engine(f"sqlite:///{path}")
        sa.event.listen(self._engine, "connect", self._prepare)
        with self._engine.begin() as connection:
            metadata.create_all(connection)
            connection.execute(self._journals.insert(), {"path": "journal", "read_to": 0})

    @staticmethod
    def _prepare(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")

    def record(self, facts: tuple[object, ...], read_to: int) -> None:
        """Run one query and three writes in one transaction."""
        id_, _, launch, kind, step, _, path, *others = facts
        file = {"id": id_, "path": path}
        file |= {f"fact_{number}": str(others[number % len(others)]) for number in range(25)}
        save = {"id": id_, "launch": launch, "kind": kind, "global_step": step, "created_at": others[-1]}
        with self._engine.begin() as connection:
            assert not connection.execute(self._known, {"own_path": path}).scalar_one()
            connection.execute(self._to_saves, save)
            connection.execute(self._to_files, file)
            connection.execute(self._read, {"own_path": "journal", "read_to": read_to})

    def count(self) -> int:
        """The number of recorded files."""
        with self._engine.connect() as connection:
            return connection.execute(sa.select(sa.func.count()).select_from(self._files)).scalar_one()


def run(work: Path, *, quick: bool) -> Found:
    """Measure in turns, then count the records."""
    found = Found()
    repeats = QUICK_REPEATS if quick else REPEATS
    directory = work / "ckpt"
    directory.mkdir()
    launch = announced(connect(str(work / "catalog.db")).join("run"), directory)
    bare = connected(work / "floor.db")
    bare.executescript(TABLE)
    journal = os.open(work / "floor.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    steps = itertools.count(1)

    def least(path: Path, step: int) -> None:
        facts = row(path, step)
        os.write(journal, json.dumps(facts).encode() + b"\n")
        os.fdatasync(journal)
        bare.execute(INSERT, facts)

    sqlalchemy = OfSqlalchemy(work / "sqlalchemy.db")

    def through_sqlalchemy(path: Path, step: int) -> None:
        facts = (*row(path, step)[:-1], hashlib.sha256(path.read_bytes()).hexdigest())
        size = os.write(journal, json.dumps(facts).encode() + b"\n")
        os.fdatasync(journal)
        sqlalchemy.record(facts, step * size)

    def block(record: Callable[[Path, int], object]) -> float:
        """The mean seconds of one record. The files are written before the clock starts."""
        written = [(directory / files.name(step), step) for step in itertools.islice(steps, BLOCK)]
        for path, step in written:
            files.write(path, step, synced=False)
        begin = time.perf_counter()
        for path, step in written:
            record(path, step)
        return (time.perf_counter() - begin) / BLOCK

    taken, _ = turns(
        {
            CKPTSTORE: lambda: block(lambda path, step: launch.register(path, global_step=step)),
            FLOOR: lambda: block(least),
            OF_SQLALCHEMY: lambda: block(through_sqlalchemy),
        },
        repeats=repeats,
    )
    os.close(journal)
    with closing(bare):
        assert bare.execute("SELECT count(*) FROM saves").fetchone() == ((1 + repeats) * BLOCK,)
    assert sqlalchemy.count() == (1 + repeats) * BLOCK
    known = connect(str(work / "catalog.db")).files("run")
    assert len(known) == (1 + repeats) * BLOCK
    measured = found.add(Row(TASK, "register one file, of", len(known), taken))
    for floor, budget in ((FLOOR, BUDGET), (OF_SQLALCHEMY, BUDGET_OF_SQLALCHEMY)):
        found.check(Budget(f"register, one durable record / {floor}", measured.ratio(CKPTSTORE, floor).median, budget))
    return found


if __name__ == "__main__":
    run_alone(run)
