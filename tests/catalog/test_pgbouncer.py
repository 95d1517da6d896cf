"""Through a real PgBouncer that gives each transaction another connection to the server."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from ckptstore.api import connect
from ckptstore.retention.policy import Policy
from tests.jobs import begun, started
from tests.postgres_server import Server, free_port, wait_for

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="needs the program pgbouncer (apt install pgbouncer)")

SETTINGS = """
[databases]
* = host={socket} port={server} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 3
max_client_conn = {clients}
server_reset_query_always = 0
server_round_robin = 1
admin_users = admin
"""
"""All that is not named is as it is shipped; least of all `ignore_startup_parameters` is set."""


class Pooler:
    def __init__(self, server: Server, directory: Path, clients: int = 100) -> None:
        assert PGBOUNCER is not None
        self.port = free_port()
        directory.mkdir()
        settings = directory / "pgbouncer.ini"
        settings.write_text(SETTINGS.format(socket=server.socket, server=server.port, port=self.port, clients=clients))
        as_user = ["-u", "nobody"] if os.geteuid() == 0 else []  # it does not start as root
        self._log = (directory / "log").open("wb")
        self._process = subprocess.Popen([PGBOUNCER, *as_user, str(settings)], stdout=self._log, stderr=self._log)
        wait_for(self._listens)

    def url(self, database: str = "ckptstore") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _listens(self) -> bool:
        assert self._process.poll() is None, "pgbouncer has ended"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def pooler(server: Server, tmp_path: Path) -> Iterator[Pooler]:
    server.run("CREATE DATABASE ckptstore")
    started = Pooler(server, tmp_path / "pgbouncer")
    yield started
    started.close()


def test_it_does_give_each_transaction_another_connection(pooler: Pooler) -> None:
    """Else the next test proves nothing."""
    with psycopg.connect(pooler.url(), prepare_threshold=None) as one, psycopg.connect(pooler.url()) as other:
        other.execute("SELECT 1")  # holds a connection to the server until its transaction ends
        one.execute("SELECT 1")
        one.rollback()
        other.rollback()
        seen = set()
        for _ in range(6):
            row = one.execute("SELECT pg_backend_pid()").fetchone()
            one.rollback()
            seen.add(row)
        assert len(seen) > 1


def test_everything_works_through_a_pooler(pooler: Pooler, tmp_path: Path) -> None:
    catalog = connect(pooler.url())  # the schema, too
    job, ranks = begun(catalog, tmp_path / "ckpt", 5, 10, 15, 20, world_size=4, layout="data_parallel")
    ranks[0].renew_lease()
    for launch in ranks:
        launch.recorder.postponed = True
    job.save(ranks, 25)
    for launch in ranks:
        launch.recorder.catch_up()
    assert job.start()[0].facts.start_step == 25
    assert catalog.pin("run", 5)
    assert catalog.execute(catalog.plan_gc("run", Policy(keep_last=2))).files == 8
    assert catalog.undo("run").files == 8
    catalog.scan(tmp_path / "ckpt")
    synced = catalog.sync(tmp_path)
    assert synced.journals > 4  # the ranks', and what was said of the run
    assert (synced.records, synced.skipped) == (0, ())
    assert {save.tally.global_step for save in catalog.saves("run")} == {5, 10, 15, 20, 25}


def test_nothing_of_a_session_is_left_behind(pooler: Pooler, tmp_path: Path) -> None:
    """What we set for a transaction must not be met by whoever gets that connection next."""
    started(connect(pooler.url()), tmp_path / "ckpt", 5, world_size=1)
    with psycopg.connect(pooler.url(), prepare_threshold=None) as other:
        for _ in range(9):
            for name, value in (("lock_timeout", "0"), ("statement_timeout", "0")):
                assert other.execute(f"SHOW {name}").fetchone() == (value,)
            assert other.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
            assert other.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (0,)
            other.rollback()


def test_a_pooler_that_is_full_is_waited_for(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.new_database()
    pooler = Pooler(server, tmp_path / "pgbouncer", clients=2)
    try:
        catalog = connect(pooler.url())
        held = [psycopg.connect(pooler.url()) for _ in range(2)]
        pauses: list[float] = []

        def let_one_go(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 2:
                held.pop().close()

        monkeypatch.setattr("ckptstore.catalog.engine.time.sleep", let_one_go)
        assert catalog.runs() == []
        assert len(pauses) >= 2
        held.pop().close()
    finally:
        pooler.close()
