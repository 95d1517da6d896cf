"""`gc` of 1,000 saves of 2 ranks, compared with a plain unlink loop over as many files: at most twice as long.

    python -m bench.collect [--quick]

Each has its own files of 1 MB. Real checkpoints are larger, and smaller files make the budget harder to keep. The bytes
of the files are really written, because a file with only allocated space is unlinked in a fraction of the time. Both
ways of gc are measured, moving to the trash and deleting at once. Both include making the plan, as the command does.
"""

from __future__ import annotations

import itertools
import os
import shutil
from functools import partial
from pathlib import Path

from bench.measure import CKPTSTORE, Budget, Found, Row, timed, turns
from bench.task import run_alone
from ckptstore import Catalog, Policy, connect
from tests.ckpt_bytes import value

TASK = "collect"
SAVES = 1000
QUICK_SAVES = 100
RANKS = 2
BYTES = value("weight", "Float32", (500, 500), bytes(1_000_000))
BUDGET = 2.0
KEPT = 10
POLICY = Policy(keep_last=KEPT)
WAYS = {"gc, to the trash": False, "gc --now": True}
FLOOR = "unlink"


class Runs:
    """Makes one run after another. This time is not measured."""

    def __init__(self, work: Path, saves: int) -> None:
        self.work = work
        self.saves = saves
        self.numbers = itertools.count()

    def files(self) -> list[Path]:
        """The files of a new run, oldest first."""
        home = self.work / f"run-{next(self.numbers)}"
        for rank in range(RANKS):
            (home / f"rank_{rank}").mkdir(parents=True)
        steps = range(1, self.saves + KEPT + 1)
        paths = [home / f"rank_{rank}" / f"net-1_{step}.ckpt" for step in steps for rank in range(RANKS)]
        for path in paths:
            path.write_bytes(BYTES)
        os.sync()
        return paths

    def registered(self) -> Catalog:
        """The catalog of a new run."""
        paths = self.files()
        home = paths[0].parents[1]
        catalog = connect(str(home.with_suffix(".db")))
        for rank in range(RANKS):
            launch = catalog.join("run", rank=rank, world_size=RANKS, launch_id="L")
            for step, path in enumerate(paths[rank::RANKS], 1):
                launch.register(path, global_step=step, metrics={"loss": 0.5})
            launch.let_go()
        return catalog


def collected(runs: Runs, *, at_once: bool) -> float:
    """The seconds of a gc of a new run."""
    catalog = runs.registered()

    def collect() -> None:
        done = catalog.execute(catalog.plan_gc("run", POLICY), now=at_once, allow_mass_delete=True)
        assert done.files == runs.saves * RANKS, done.troubles

    took = timed(collect)
    assert len(catalog.saves("run")) == KEPT
    _clear(runs.work)
    return took


def unlinked(runs: Runs) -> float:
    """The seconds of unlinking as many files of a new run."""
    paths = runs.files()[: runs.saves * RANKS]

    def unlink() -> None:
        for path in paths:
            os.unlink(path)

    took = timed(unlink)
    _clear(runs.work)
    return took


def _clear(work: Path) -> None:
    for path in work.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def run(work: Path, *, quick: bool) -> Found:
    """Measure both ways, in turns with the unlink loop."""
    found = Found()
    (work / "runs").mkdir()
    runs = Runs(work / "runs", QUICK_SAVES if quick else SAVES)
    for at_once in WAYS.values():  # to warm up: a few saves are enough
        collected(Runs(work / "runs", QUICK_SAVES), at_once=at_once)
    ways = {name: partial(collected, runs, at_once=at_once) for name, at_once in WAYS.items()}
    taken, _ = turns({**ways, FLOOR: partial(unlinked, runs)}, warm_up=0)
    for name in WAYS:
        row = found.add(
            Row(TASK, f"{name}, saves of {RANKS} ranks", runs.saves, {CKPTSTORE: taken[name], FLOOR: taken[FLOOR]})
        )
        budget = Budget(f"{name}, of {runs.saves:,} saves / unlink", row.ratio(CKPTSTORE, FLOOR).median, BUDGET)
        found.check(budget)
    return found


if __name__ == "__main__":
    run_alone(run)
