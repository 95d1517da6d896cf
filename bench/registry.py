"""Managing the saves of a run: add a save, list all, find the newest, delete all but ten, for growing numbers of saves.

    python -m bench.registry [--quick]

Compares ckptstore with Orbax, MLflow, Ray Train, the seeds' script, and bare sqlite3, which does only the least work.
All write the same bytes in the same way. Everything is measured twice. Once the files are synced to the disk before
they are recorded. Once they are not, as MindSpore, Orbax and Ray leave their files. The rows of ckptstore, MLflow and
bare sqlite3 are on the disk in both cases.
"""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.measure import CKPTSTORE, REPEATS, Found, Row, exponent, say, turns
from bench.task import run_alone
from bench.worker import OWN, PEERS, Worker

TASK = "registry"
SIZES = (100, 300, 1000, 5000)
QUICK_SIZES = (20, 50)
SYNCED = 1000
KEPT = 10
BLOCK = 20
ALLOWANCE = 15.0
"""The seconds that all repeats of one contender may take together. Longer work is run once, or not at all."""
FLOOR = "sqlite3"


@dataclass(frozen=True)
class Contender:
    """A program, the Python with its packages, and whether it can sync the file on request."""

    module: str
    python: Path
    syncs: bool = True


CONTENDERS = {
    CKPTSTORE: Contender("bench.peers.ckptstore", OWN),
    "orbax": Contender("bench.peers.orbax", PEERS, syncs=False),
    "mlflow": Contender("bench.peers.mlflow", PEERS),
    "ray": Contender("bench.peers.ray", PEERS, syncs=False),
    "seeds": Contender("bench.peers.seeds", OWN),
    FLOOR: Contender("bench.peers.sqlite", OWN),
}


class Population:
    """The saves of one contender. They are made once for each size, and restored before work that changes them."""

    def __init__(self, worker: Worker, size: int) -> None:
        self.worker = worker
        self.size = size
        self._added = 0
        self.kept = worker.home.with_name(f"{worker.home.name}-{size}")
        _clear(worker.home)
        worker.home.mkdir()
        worker.ask(do="fill", count=size)
        worker.home.rename(self.kept)

    def restore(self) -> None:
        """Restore the saves as they were made, with their times, at the same place."""
        _clear(self.worker.home)
        subprocess.run(["cp", "-a", str(self.kept), str(self.worker.home)], check=True)

    def save(self) -> float:
        there = self.size + self._added
        took = self.worker.ask(do="save", steps=list(range(there + 1, there + BLOCK + 1)))
        self._added += BLOCK
        return float(took["seconds"]) / BLOCK

    def check_saved(self) -> None:
        """Check that no save of `save` is missing."""
        found = self.worker.ask(do="steps")["steps"]
        assert found == list(range(1, self.size + self._added + 1)), (self.worker.home.name, found)

    def list(self) -> float:
        took = self.worker.ask(do="steps")
        assert took["steps"] == list(range(1, self.size + 1)), (self.worker.home.name, took)
        return float(took["seconds"])

    def newest(self) -> float:
        took = self.worker.ask(do="newest")
        assert took["step"] == self.size, (self.worker.home.name, took)
        return float(took["seconds"])

    def prune(self) -> float:
        self.restore()
        took = self.worker.ask(do="prune", keep=KEPT)
        left = self.worker.ask(do="steps")["steps"]
        assert len(left) == KEPT, (self.worker.home.name, left)
        assert left[-1] in (self.size, self.size + 1), (self.worker.home.name, left)
        return float(took["seconds"])


WORK: dict[str, Callable[[Population], float]] = {
    "save": Population.save,
    "list": Population.list,
    "newest": Population.newest,
    "prune": Population.prune,
}


def _clear(home: Path) -> None:
    if home.exists():
        shutil.rmtree(home)


def too_long(rows: Sequence[Row], who: str, size: int) -> float | None:
    """The expected seconds of a contender at this size, from its growth so far, if they exceed the allowance."""
    known = [row for row in rows if who in row.seconds]
    if not known:
        return None if not rows else math.inf
    last = known[-1]
    taken = last.spread(who).median
    growth = 1.0
    if len(known) > 1:
        growth = exponent([row.size for row in known[-2:]], [row.spread(who).median for row in known[-2:]])
    expected = taken * (size / last.size) ** growth
    return expected if expected > ALLOWANCE else None


def _level(work: Path, found: Found, sizes: Sequence[int], repeats: int, *, synced: bool) -> None:
    label = "synced" if synced else "as written"
    before: dict[str, list[Row]] = {what: [] for what in WORK}
    chosen = {who: each for who, each in CONTENDERS.items() if each.syncs or not synced}
    with ExitStack() as running:
        options = ["--synced"] if synced else []
        workers = {
            who: running.enter_context(Worker(each.python, each.module, work / f"{who}-{synced}", *options))
            for who, each in chosen.items()
        }
        for size in sizes:
            say(f"{TASK}, {label}: making {size:,} saves for each of {', '.join(workers)}")
            populations = {who: Population(worker, size) for who, worker in workers.items()}
            for population in populations.values():
                population.restore()
            for what in ("list", "newest", "save", "prune") if not synced else ("save",):
                skipped = {who: expected for who in workers if (expected := too_long(before[what], who, size))}
                taken, notes = turns(
                    {
                        who: lambda population=population, what=what: WORK[what](population)  # type: ignore[misc]
                        for who, population in populations.items()
                        if who not in skipped
                    },
                    repeats=repeats,
                    allowance=ALLOWANCE,
                )
                if what == "save":
                    for who in taken:
                        populations[who].check_saved()
                notes |= {who: f"not run: about {expected:.0f} s by its growth" for who, expected in skipped.items()}
                before[what].append(found.add(Row(TASK, f"{what}, {label}", size, taken, notes)))
            for population in populations.values():
                _clear(population.kept)


def run(work: Path, *, quick: bool) -> Found:
    """Measure all sizes at both levels; with `quick`, at one level."""
    found = Found()
    _level(work, found, QUICK_SIZES if quick else SIZES, REPEATS, synced=False)
    if not quick:
        _level(work, found, [SYNCED], REPEATS, synced=True)
    return found


if __name__ == "__main__":
    run_alone(run)
