"""`gc` of 1,000 saves of 8 ranks against a plain unlink loop over the same files: at most twice as long.

    python bench/collect.py [--saves 1000] [--megabytes 1]

Each of the two has its own files, of 1 MB: smaller than any real checkpoint, and the smaller the harder. Moving to the
trash and deleting at once are measured; the first includes making the plan, as the command does.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from pathlib import Path

from ratios import ratio

sys.path.insert(0, str(Path(__file__).parents[1]))
from ckptstore.core.model import Checkpoint, FileState, Kind
from ckptstore.core.policy import Policy
from ckptstore.ops.collect import execute
from ckptstore.ops.connect import Catalog, connect
from ckptstore.ops.register import record
from ckptstore.ops.retention import plan_gc
from ckptstore.ops.trash import purge

RANKS = 8
BUDGET = 2.0
KEPT = 10
POLICY = Policy(keep_last=KEPT)


class Runs:
    """Makes one run after another, and times nothing of that."""

    def __init__(self, work: Path, saves: int, size: int) -> None:
        self.work = work
        self.saves = saves
        self.content = os.urandom(size)
        self.numbers = itertools.count()

    def files(self) -> list[Path]:
        home = self.work / f"run-{next(self.numbers)}"
        paths = []
        for rank in range(RANKS):
            (home / f"rank_{rank}").mkdir(parents=True)
        for step in range(1, self.saves + KEPT + 1):
            for rank in range(RANKS):
                path = home / f"rank_{rank}" / f"net-1_{step}.ckpt"
                path.write_bytes(self.content)
                paths.append(path)
        os.sync()
        return paths

    def registered(self) -> Catalog:
        paths = self.files()
        catalog = connect(str(paths[0].parents[2] / f"{paths[0].parents[1].name}.db"))
        launch = catalog.join("run", world_size=RANKS, launch_id="L").facts
        stats = [path.stat() for path in paths]
        record(
            catalog.database,
            [
                Checkpoint(
                    run="run",
                    launch=launch.id,
                    kind=Kind.PERIODIC,
                    global_step=at // RANKS + 1,
                    rank=at % RANKS,
                    path=str(path),
                    size=status.st_size,
                    mtime_ns=status.st_mtime_ns,
                    digest="0" * 64,
                    metrics={"loss": 0.5},
                    state=FileState.COMPLETE,
                )
                for at, (path, status) in enumerate(zip(paths, stats, strict=True))
            ],
        )
        return catalog


def collect(catalog: Catalog, saves: int, *, at_once: bool) -> None:
    plan = plan_gc(catalog.database, "run", POLICY)
    done = execute(catalog.database, plan, at_once=at_once, allow_mass_delete=True)
    assert done.files == saves * RANKS, done.troubles


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--saves", type=int, default=1000)
    parser.add_argument("--megabytes", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    within = True
    with tempfile.TemporaryDirectory() as work:
        runs = Runs(Path(work), asked.saves, int(asked.megabytes * 1e6))
        print(f"{asked.saves} saves of {RANKS} ranks, files of {asked.megabytes:g} MB")
        for name, at_once in (("gc --apply --now / unlink loop", True), ("gc --apply / unlink loop", False)):
            made: list[Catalog] = []
            bare: list[list[Path]] = []

            def gc(at_once: bool = at_once, made: list[Catalog] = made) -> None:  # noqa: FBT001
                collect(made[-1], asked.saves, at_once=at_once)

            def unlink(bare: list[list[Path]] = bare) -> None:
                for path in bare[-1][: asked.saves * RANKS]:
                    path.unlink()

            def prepare(made: list[Catalog] = made, bare: list[list[Path]] = bare) -> None:
                made.append(runs.registered())
                bare.append(runs.files())

            found = ratio(name, gc, unlink, repeats=asked.repeats, warm_up=0, before=prepare)
            print(found)
            within = within and found.median <= BUDGET
            if not at_once:
                began = time.perf_counter()
                gone = purge(made[-1].database, "run", at_once=True)
                print(f"purge of {gone.files} files afterwards: {time.perf_counter() - began:.3f} s")
    print("within the budget" if within else "OVER THE BUDGET")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
