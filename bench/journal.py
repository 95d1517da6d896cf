"""The price of one durable record, and of a resolve of 1,024 ranks, against what cannot be avoided.

python bench/journal.py
"""

from __future__ import annotations

import os
import sqlite3
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from ratios import ratio

from ckptstore.core.model import Checkpoint, Kind
from ckptstore.mindspore.recorder import MOST_JOBS, Recorder
from ckptstore.ops.connect import connect
from ckptstore.ops.register import describe, measured
from tests import ckpt_bytes

RECORDS = 50
RANKS = 1024


def records(home: Path) -> None:
    launch = connect(str(home / "catalog.db")).join("run")
    launch.set_steps_per_epoch(10)
    folder = home / "ckpt"
    launch.add_source(str(folder), kind=Kind.PERIODIC, prefix="net", breakpoint_prefix="net", names_before=())
    steps = iter(range(1, 10**6))

    def prepared() -> list[Checkpoint]:
        found: list[Checkpoint] = []
        for _ in range(RECORDS):
            step = next(steps)
            path = ckpt_bytes.write(folder / f"net-{step}_1.ckpt", step)
            file = measured(describe(launch.facts, rank=0, path=path, kind="periodic", global_step=step))
            assert file is not None
            found.append(file)
        return found

    bare = sqlite3.connect(home / "bare.db", isolation_level=None)
    bare.execute("PRAGMA journal_mode=WAL")
    bare.execute("PRAGMA synchronous=FULL")
    bare.execute("CREATE TABLE t (id TEXT PRIMARY KEY, save TEXT, path TEXT, size INTEGER, digest TEXT, at TEXT)")
    ready = [prepared() for _ in range(8)]

    def ours() -> None:
        for file in ready.pop():
            launch.record([file])

    def theirs() -> None:
        for _ in range(RECORDS):
            step = next(steps)
            bare.execute("BEGIN IMMEDIATE")
            bare.execute("INSERT INTO t VALUES (?,?,?,?,?,?)", (str(step), "s" * 32, "/a/path", 99, "d" * 64, "now"))
            bare.execute("COMMIT")

    print(ratio("register, one durable record", ours, theirs, repeats=5))


def resolves(home: Path, saves: int) -> None:
    catalog = connect(str(home / f"many-{saves}.db"))
    ranks = [catalog.join("run", rank=rank, world_size=RANKS, launch_id="L1") for rank in range(RANKS)]
    root = home / f"many-{saves}"
    for launch in ranks:
        folder = root / f"rank_{launch.rank}"
        launch.add_source(str(folder), kind=Kind.PERIODIC, prefix="net", breakpoint_prefix="net", names_before=())
        files = []
        for step in range(1, saves + 1):
            path = ckpt_bytes.write(folder / f"net-{step}_1.ckpt", step)
            files.append(
                measured(describe(launch.facts, rank=launch.rank, path=path, kind="periodic", global_step=step))
            )
        launch.record([file for file in files if file is not None])
        launch.ledger.close()
    paths = [str(root / f"rank_{rank}" / f"net-{saves}_1.ckpt") for rank in range(RANKS)]

    def stats() -> None:
        for path in paths:
            os.stat(path)

    begin = time.perf_counter()
    plan = catalog.resolve("run").plan
    print(f"first resolve {time.perf_counter() - begin:.3f} s")
    assert plan is not None
    assert plan.global_step == saves
    print(ratio(f"resolve, {RANKS} ranks, {saves} saves", lambda: catalog.resolve("run"), stats, repeats=3))


def hand_over(home: Path) -> None:
    """What the training thread pays for a save."""
    launch = connect(str(home / "hand-over.db")).join("run")
    path = ckpt_bytes.write(home / "hand-over" / "net-1_1.ckpt", 1)
    file = describe(launch.facts, rank=0, path=path, kind="periodic", global_step=1)
    recorder = Recorder(launch)
    go_on = threading.Event()
    recorder.call(go_on.wait)
    took = []
    for _ in range(MOST_JOBS // 2):
        begin = time.perf_counter()
        recorder.submit(file, asynchronous=False)
        took.append((time.perf_counter() - begin) * 1e6)
    go_on.set()
    took.sort()
    print(f"hand-over: p50 {took[len(took) // 2]:.1f} µs, p99 {took[len(took) * 99 // 100]:.1f} µs")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        hand_over(Path(home))
        records(Path(home))
        for saves in (2, 10):
            resolves(Path(home), saves)
