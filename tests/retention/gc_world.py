"""A run with all that gc meets: saves of two launches, a graceful exit, a directory of TTP, debris; and its looks."""

import multiprocessing
import os
import re
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from ckptstore.api import Catalog, connect
from ckptstore.catalog.engine import Database
from ckptstore.core.model import Kind
from ckptstore.retention.policy import Policy
from tests import ckpt_bytes
from tests.jobs import Job, begun
from tests.trash_calls import CHANGES, before_each

POLICY = Policy(keep_last=2)
LONG_AGO = 1_700_000_000
CLEAN = multiprocessing.get_context("forkserver")
CLEAN.set_forkserver_preload([__name__, "ckptstore.scan.scan"])  # who is nobody may not read the standard library
_COLLECTION = re.compile(r"\d{8}T\d{6}-[0-9a-f]{6}")


NOBODY = 65534
"""The number of a user who has nothing."""


def give(home: Path, user: int) -> None:
    """Have a directory, and all that is below it, belong to a user."""
    for path in (home, *home.rglob("*")):
        os.lchown(path, user, user)


def give_to_nobody(home: Path) -> None:
    """Have it belong to that user, who may also come there."""
    give(home, NOBODY)
    for path in home.parents:
        if path.stat().st_mode & 0o001 == 0:
            path.chmod(path.stat().st_mode | 0o011)


def ended_apart(target: Callable[..., None], *args: object, **asked: object) -> int | None:
    """Call it in a clean process, which may become another user for good, or be killed; how that ended."""
    child = CLEAN.Process(target=target, args=args, kwargs=asked)
    child.start()
    child.join()
    return child.exitcode


def do_apart(target: Callable[..., None], *args: object, **asked: object) -> None:
    """The same, to its end."""
    assert ended_apart(target, *args, **asked) == 0


def build(catalog: Catalog, directory: Path) -> Job:
    """Steps 10 to 50 of the first launch, and 60 to 80 of the second, which has the newest two whole states."""
    job, first = begun(catalog, directory)
    for launch in first:
        launch.add_source(str(directory / "ttp"), kind=Kind.TTP, prefix="", breakpoint_prefix="", names_before=())
        launch.add_source(
            str(directory / f"exit_{launch.rank}"),
            kind=Kind.GRACEFUL_EXIT,
            prefix="net",
            breakpoint_prefix="",
            names_before=(),
        )
    job.save(first, 10, 20, 30, 40)
    for launch in first:
        path = ckpt_bytes.write(directory / f"exit_{launch.rank}" / "net_train-step_45.ckpt", 45, 45)
        path.with_suffix(".mindir").write_bytes(b"graph")
        launch.register(path, kind="graceful_exit", global_step=45)
        ttp = directory / "ttp" / "ttp_saved_checkpoints-step_50" / f"rank_{launch.rank}"
        path = ckpt_bytes.write(ttp / f"ttp_rank_{launch.rank}-5_10.ckpt", 50, 50)
        launch.register(path, kind="ttp", global_step=50)
    job.save(job.begin(), 60, 70, 80)
    for name in ("net-9_9.tmp", "net-graph.meta"):
        old = job.folder(0) / name
        old.write_bytes(b"left behind")
        os.utime(old, (LONG_AGO, LONG_AGO))
    for path in job.directory.rglob("*.ckpt"):
        path.chmod(0o400)  # as MindSpore leaves them
    return job


class World:
    """One that can be put back as it was, at the same paths: SQLite, and files."""

    def __init__(self, home: Path) -> None:
        self.home = home / "world"
        self._kept = home / "kept"
        self.data = self.home / "data"
        self.url = str(self.home / "catalog.db")
        self.home.mkdir()

    def keep(self) -> None:
        """From now on `restore` brings back what is there now."""
        with closing(sqlite3.connect(self.url)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.rmtree(self._kept, ignore_errors=True)
        shutil.copytree(self.home, self._kept)

    def restore(self) -> None:
        shutil.rmtree(self.home)
        shutil.copytree(self._kept, self.home)

    @property
    def catalog(self) -> Catalog:
        return connect(self.url)

    def seen(self) -> dict[str, Any]:
        """All that is on disk and in the catalog; gcs are not told apart."""
        with closing(sqlite3.connect(self.url)) as connection:
            rows = connection.execute("SELECT path, state FROM checkpoints ORDER BY path, id").fetchall()
            found = f"SELECT root, place, wanted, settled FROM trash WHERE {_OPEN} ORDER BY root, place"
            trash = connection.execute(found).fetchall()
            with_files = f"SELECT collection_id FROM trash WHERE {_OPEN}"
            gcs = connection.execute(f"SELECT ended FROM collections WHERE id IN ({with_files})").fetchall()
            locks = connection.execute("SELECT owner FROM gc_locks").fetchall()
        return {"files": tree(self.data), "rows": rows, "trash": trash, "gcs": gcs, "locks": locks}


_OPEN = "(NOT settled OR wanted = 'trash')"


def tree(directory: Path) -> dict[str, str]:
    """What is below a directory: files with their bytes, directories; the names of gcs taken out."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.suffix == ".jsonl":
            continue
        name = _COLLECTION.sub("GC", str(path.relative_to(directory)))
        found[name] = "directory" if path.is_dir() else f"{path.stat().st_mtime_ns}:{path.read_bytes().hex()}"
    return found


class Points:
    """Counts the points at which a process may die, and is killed at one of them."""

    def __init__(self, last: int) -> None:
        self.count = 0
        self.last = last

    def pass_one(self) -> None:
        self.count += 1
        if self.count > self.last:
            os.kill(os.getpid(), signal.SIGKILL)


class KilledError(BaseException):
    """The process ends here, as far as what is done in it can tell: it handles errors, and this is none."""


class PointsInProcess(Points):
    """The same in this process, for a thousandth of the time. What it holds is closed, as SIGKILL would not do."""

    def pass_one(self) -> None:
        self.count += 1
        if self.count > self.last:
            raise KilledError


def mortal_catalog(points: Points) -> None:
    write = Database.write

    @contextmanager
    def mortal(self: Database, *, is_kept: bool = False) -> Iterator[sa.Connection]:
        with write(self, is_kept=is_kept) as connection:
            yield connection
            points.pass_one()
        points.pass_one()

    Database.write = mortal


def die(action: Callable[[], object], last: int) -> int | None:
    """Do it in a process of its own, which is killed after so many points; how it ended.

    That process is forked from a clean one, not from this one, which may have loaded MindSpore with its threads: a
    child of those crashes by itself now and then. So the action must be one that can be pickled.
    """
    return ended_apart(_live, action, last)


def _live(action: Callable[[], object], last: int) -> None:
    points = Points(last)
    mortal_catalog(points)
    with before_each(CHANGES, points.pass_one):
        action()
