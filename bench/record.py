"""`register` against what a durable record cannot do without, in bare Python and sqlite3: at most twice as long.

    python -m bench.record [--quick]

The floor looks at the file with one stat, appends a line of the record to a file and waits for the disk (`fdatasync`,
as the journal does), and inserts a row with `synchronous=FULL`. `register` also digests the file, of 4 KB.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from bench import files
from bench.measure import CKPTSTORE, Budget, Found, Row, turns
from bench.peers.ckptstore import announced
from bench.peers.sqlite import INSERT, TABLE, connected, row
from bench.task import run_alone
from ckptstore import connect

TASK = "record"
BLOCK = 50
REPEATS, QUICK_REPEATS = 15, 7
BUDGET = 2.0
FLOOR = "stat, append, insert"


def run(work: Path, *, quick: bool) -> Found:
    """In turns, and counted afterwards."""
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

    def block(record: Callable[[Path, int], object]) -> float:
        """The seconds of one record; its file is written before the clock runs."""
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
        },
        repeats=repeats,
    )
    os.close(journal)
    with closing(bare):
        assert bare.execute("SELECT count(*) FROM saves").fetchone() == ((1 + repeats) * BLOCK,)
    known = connect(str(work / "catalog.db")).files("run")
    assert len(known) == (1 + repeats) * BLOCK
    measured = found.add(Row(TASK, "register one file, of", len(known), taken))
    found.check(Budget(f"register, one durable record / {FLOOR}", measured.ratio(CKPTSTORE, FLOOR).median, BUDGET))
    return found


if __name__ == "__main__":
    run_alone(run)
