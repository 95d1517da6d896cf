"""The lock of a run's files: a gc that is slow keeps it, one that lost it stops, and clocks and containers differ."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import sqlalchemy as sa

from ckptstore.api import Catalog, connect
from ckptstore.catalog import engine, removals
from ckptstore.catalog.engine import clock
from ckptstore.catalog.tables import gc_locks
from ckptstore.disk import owner
from ckptstore.disk.owner import is_dead, shown, this_process
from ckptstore.errors import CatalogBusyError, RefusedError
from ckptstore.retention import worker as lock
from ckptstore.retention.in_trash import undo
from ckptstore.retention.worker import GcLock
from tests.retention.builders import LONG_AGO, forget_the_holder, gc, names, saved
from tests.trash_calls import at, before_each


def expires(catalog: Catalog) -> datetime:
    with catalog.database.read() as connection:
        found: datetime = connection.execute(sa.select(gc_locks.c.expires_at)).scalar_one()
    return found


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("which", [1, 4])
def test_a_gc_that_lost_its_lock_stops_at_once(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int, *, late: bool
) -> None:
    """Another host undid what it had done, and somebody has pinned a state since; one move may come after that."""
    monkeypatch.setattr(lock, "RENEWED_EVERY", timedelta(0))
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    brought_back = []

    def another_host() -> None:
        forget_the_holder(catalog)
        brought_back.append(undo(catalog.database, "run").files)
        catalog.pin("run", 20)

    with (
        at(which, ("rename",), another_host, after=not late),
        pytest.raises(RefusedError, match="has taken over the files"),
    ):
        gc(catalog)
    assert brought_back == [4]
    assert len(names(job.directory)) == 8
    assert list(job.directory.rglob("trash/*")) == []
    assert {save.tally.global_step for save in catalog.saves("run")} == {10, 20, 30, 40}
    assert gc(catalog).removed == (("L1", 10),)


def test_a_slow_gc_keeps_its_lock(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "RENEWED_EVERY", timedelta(0))
    saved(catalog, tmp_path, 10, 20, 30, 40)
    seen = []

    def look() -> None:
        seen.append(expires(catalog))
        forget_the_holder(catalog)

    with before_each(("rename",), look):
        assert gc(catalog).files == 4
    assert len(seen) == 4
    assert min(seen) > LONG_AGO


def test_the_lock_goes_by_the_clock_of_the_database(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host whose clock is ahead does not take the lock of one that is at work; the one of SQLite is the machine's."""
    saved(catalog, tmp_path, 10)

    with GcLock(catalog.database, "run", 1):
        if catalog.database.file is None:
            monkeypatch.setattr(engine, "utc_now", lambda: datetime.now(timezone.utc) + timedelta(minutes=20))
        with pytest.raises(RefusedError, match="is at work"), GcLock(catalog.database, "run", 1):
            pass


def gone_here() -> str:
    """The name of a process of this machine that has ended."""
    return this_process().replace(f"|{os.getpid()}|", f"|{2**22 + 1}|")


def test_a_process_of_another_pid_namespace_is_not_called_dead() -> None:
    """Two containers may have one host name; neither sees the processes of the other."""
    gone = gone_here()
    assert not is_dead(this_process())
    assert is_dead(gone)
    namespace = f"@{Path('/proc/self/ns/pid').stat().st_ino}"
    assert namespace in gone
    assert not is_dead(gone.replace(namespace, "@1"))
    assert shown(gone.replace(namespace, "@1")) == f"process {2**22 + 1} on {socket.gethostname()}"


@pytest.mark.parametrize("told", [True, False])
def test_a_process_of_another_machine_is_not_called_dead(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, told: bool
) -> None:
    """Cloned machines have one host name, and the first PID namespace of every Linux has the same number.

    Each has another id of its boot; where that cannot be read, nothing is known of anyone.
    """
    saved(catalog, tmp_path, 10)
    gone = gone_here()
    with catalog.database.write() as connection:
        now = clock(connection)
        removals.take_lock(connection, 1, gone, now, now + timedelta(minutes=1))
    boot = tmp_path / "boot_id"
    if told:
        boot.write_text("d6a3fd9c-5a6d-4f43-8f2e-1a9f7f3d9b10\n")
    monkeypatch.setattr(owner, "BOOT", boot, raising=False)
    assert not is_dead(gone)
    with pytest.raises(RefusedError, match="is at work"), GcLock(catalog.database, "run", 1):
        pass
    assert is_dead(gone_here()) == told
    monkeypatch.undo()
    with GcLock(catalog.database, "run", 1):  # the machine that it was on knows
        pass


def test_a_process_that_is_hidden_is_not_called_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where /proc shows each user only their own processes, that of another one is not there, and runs."""
    mine, gone = this_process(), gone_here()

    def hidden(pid: int) -> str:
        raise FileNotFoundError(f"/proc/{pid}/stat")

    monkeypatch.setattr(owner, "_began", hidden)
    assert not is_dead(mine)
    assert is_dead(gone)


TRIES = """
import sys
from ckptstore.errors import RefusedError
from ckptstore.api import connect
from ckptstore.retention.worker import GcLock
try:
    with GcLock(connect(sys.argv[1]).database, "run", 1):
        print("taken")
except RefusedError as error:
    print(error.message)
"""


def test_a_living_gc_in_another_container(sqlite_url: str, tmp_path: Path) -> None:
    catalog = connect(sqlite_url)
    saved(catalog, tmp_path, 10)
    inside = ["unshare", "-Urpf", "--mount-proc", sys.executable, "-c", TRIES, sqlite_url]
    try:
        if subprocess.run([*inside[:3], "true"], capture_output=True, check=False).returncode:
            pytest.skip("namespaces are not allowed here")
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    with GcLock(catalog.database, "run", 1):
        done = subprocess.run(inside, capture_output=True, text=True, check=True)
    assert f"is at work (process {os.getpid()} on {socket.gethostname()})" in done.stdout


def test_ctrl_c_while_the_lock_is_given_back_leaves_it_to_this_process__before_for_15_minutes_to_nobody(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook lives on, so its lock was another living process's lock, also for the notebook itself."""
    saved(catalog, tmp_path, 10)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(removals, "release_lock", interrupted)
        with pytest.raises(KeyboardInterrupt):
            catalog.purge("run", now=True)
    catalog.purge("run", now=True)


def test_ctrl_c_while_the_lock_is_taken_gives_it_back__before_other_processes_waited_15_minutes(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(catalog, tmp_path, 10)
    write = engine.Database.write

    @contextmanager
    def interrupted(database: engine.Database) -> Iterator[sa.Connection]:
        with write(database) as connection:
            yield connection
        raise KeyboardInterrupt  # the commit has taken the lock

    with monkeypatch.context() as patched:
        patched.setattr(engine.Database, "write", interrupted)
        with pytest.raises(KeyboardInterrupt), GcLock(catalog.database, "run", 1):
            pass
    with catalog.database.read() as connection:
        assert connection.execute(sa.select(gc_locks)).all() == []


def test_a_lock_that_was_not_taken_is_not_given_back__a_busy_catalog_was_waited_for_twice(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(catalog, tmp_path, 10)
    released: list[GcLock] = []

    def locked(*_: object, **__: object) -> None:
        raise CatalogBusyError("it is locked")

    with GcLock(catalog.database, "run", 1), monkeypatch.context() as patched:
        patched.setattr(GcLock, "_release", released.append)
        with pytest.raises(RefusedError, match="is at work"), GcLock(catalog.database, "run", 1):
            pass
        patched.setattr(engine.Database, "_begin", locked)
        with pytest.raises(CatalogBusyError), GcLock(catalog.database, "run", 1):
            pass
    assert released == []
