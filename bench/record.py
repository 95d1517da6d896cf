"""One durable record, and no file work: `register` against the same insert through bare sqlite3, synced at each commit.

    python -m bench.record [--quick]

`register` takes size and digest of the file, appends to the journal beside it, synced, and writes the catalog, synced.
`record` is the same without looking at the file. At most 3 times the insert.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from bench import files
from bench.measure import CKPTSTORE, Budget, Found, Row, turns
from bench.peers.sqlite import INSERT, TABLE, connected, row
from bench.task import run_alone
from ckptstore.core.model import Checkpoint, Kind
from ckptstore.ops.connect import connect
from ckptstore.ops.register import describe, measured

TASK = "record"
BLOCK = 50
REPEATS = 15
QUICK_REPEATS = 7
TIMES_THE_INSERT = 3
FLOOR = "sqlite3"


class Records:
    """A run whose files are written before the clock runs."""

    def __init__(self, work: Path) -> None:
        self.directory = work / "ckpt"
        self.directory.mkdir()
        self._steps = itertools.count(1)
        self.launch = connect(str(work / "catalog.db")).join("run")
        self.launch.set_steps_per_epoch(files.STEPS_PER_EPOCH)
        source = str(self.directory)
        self.launch.add_source(source, kind=Kind.PERIODIC, prefix="net", breakpoint_prefix="net", names_before=[])
        self.bare = connected(work / "floor.db")
        self.bare.executescript(TABLE)

    def _written(self) -> list[tuple[int, Path]]:
        steps = list(itertools.islice(self._steps, BLOCK))
        paths = [self.directory / files.name(step) for step in steps]
        for step, path in zip(steps, paths, strict=True):
            files.write(path, step, synced=False)
        return list(zip(steps, paths, strict=True))

    def register(self) -> float:
        """The seconds of one call, as a script of a user's own makes it."""
        written = self._written()
        begin = time.perf_counter()
        for step, path in written:
            self.launch.register(path, global_step=step)
        return (time.perf_counter() - begin) / BLOCK

    def record(self) -> float:
        """The seconds of one record of a file that was looked at before."""
        known: Sequence[Checkpoint | None] = [
            measured(describe(self.launch.facts, rank=0, path=path, kind=Kind.PERIODIC, global_step=step))
            for step, path in self._written()
        ]
        begin = time.perf_counter()
        for file in known:
            assert file is not None
            self.launch.record([file])
        return (time.perf_counter() - begin) / BLOCK

    def insert(self) -> float:
        """The seconds of one insert that is on the disk when it returns."""
        rows = [row(path, step) for step, path in self._written()]
        begin = time.perf_counter()
        for each in rows:
            self.bare.execute(INSERT, each)
        return (time.perf_counter() - begin) / BLOCK


def run(work: Path, *, quick: bool) -> Found:
    """In turns, and counted afterwards."""
    found = Found()
    records = Records(work)
    repeats = QUICK_REPEATS if quick else REPEATS
    ways = {"register": records.register, "record": records.record, FLOOR: records.insert}
    taken, _ = turns(ways, repeats=repeats)
    with closing(records.bare):
        assert records.bare.execute("SELECT count(*) FROM saves").fetchone() == ((1 + repeats) * BLOCK,)
    known = connect(str(work / "catalog.db")).files("run")
    assert len(known) == 2 * (1 + repeats) * BLOCK
    for way in ("register", "record"):
        seconds = {CKPTSTORE: taken[way], FLOOR: taken[FLOOR]}
        found.add(Row(TASK, f"{way} one file, of", len(known), seconds))
    ratio = found.rows[0].ratio(CKPTSTORE, FLOOR).median
    found.check(Budget("register, one durable record / the insert through bare sqlite3", ratio, TIMES_THE_INSERT))
    return found


if __name__ == "__main__":
    run_alone(run)
