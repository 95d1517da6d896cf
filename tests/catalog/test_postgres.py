"""PostgreSQL as it is in a cluster: few connections, a server that is busy, goes away and comes back."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from ckptstore.api import Catalog, connect
from ckptstore.catalog import engine as module
from ckptstore.catalog import reads
from ckptstore.catalog.engine import Database, open_database
from ckptstore.cli.main import cli
from ckptstore.errors import CatalogBusyError, CatalogUnavailableError
from ckptstore.objects.directory import DirectoryStore
from ckptstore.replicate import replicator
from ckptstore.training.start import begin, follow
from tests import ckpt_bytes
from tests.conftest import new_postgres_database
from tests.jobs import Job, started
from tests.postgres_server import Server, wait_for
from tests.replicate.rounds import one_round
from tests.tiers.jobs import declared


@pytest.fixture
def url(postgres: str) -> str:
    return new_postgres_database(postgres)


@pytest.fixture
def opened() -> Iterator[list[object]]:
    """The connections that this process opens from now on."""
    seen: list[object] = []

    def note(connection: object, _: object) -> None:
        seen.append(connection)

    sa.event.listen(sa.pool.Pool, "connect", note)
    yield seen
    sa.event.remove(sa.pool.Pool, "connect", note)


def in_threads(work: Callable[[int], None], count: int) -> None:
    """Do this at once in so many threads: each gets a number from 0."""
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(work, range(count)))


def connections(url: str) -> int:
    """How many of ours the server has."""
    ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'ckptstore' AND datname = current_database()"
    with psycopg.connect(url) as connection:
        return int(connection.execute(ours).fetchone()[0])


def test_what_a_rank_does_costs_one_connection_each_time_and_an_idle_process_holds_none(
    url: str, tmp_path: Path, opened: list[object]
) -> None:
    """To join, to record a save, to catch up with ten."""
    job = Job(connect(url), tmp_path / "ckpt", world_size=1)
    first = begin(job.catalog.database, "run", rank=0, world_size=2, launch_id="L1", layout=None)
    opened.clear()
    launch = follow(job.catalog.database, first.facts, 0, None, away=False)
    assert len(opened) == 1
    job.announce(launch)
    opened.clear()
    job.save([launch], 5)
    assert len(opened) == 1
    launch.recorder.postponed = True
    job.save([launch], *range(10, 60, 5))
    assert len(job.catalog.saves("run")) == 1
    opened.clear()
    launch.recorder.catch_up()
    assert len(opened) == 1
    assert connections(url) == 0
    assert len(job.catalog.saves("run")) == 11


def test_threads_of_a_process_share_one_connection(url: str, opened: list[Any]) -> None:
    """Counted here: the server may show a connection for a moment after it was closed."""
    database = connect(url).database
    most: list[int] = []

    def work(_: object) -> None:
        for _ in range(5):
            with database.read():
                most.append(sum(not each.closed for each in opened))

    in_threads(work, 4)
    assert most == [1] * 20


def test_a_server_keeps_connections_and_replaces_those_that_ended(url: str, opened: list[object]) -> None:
    """Two transactions at once; then each thread after them takes a connection that is open."""
    connect(url)
    database = open_database(url, connections=2)
    both = threading.Barrier(2)

    def look(_: object) -> None:
        with database.read() as connection:
            assert connection.execute(sa.text("SELECT 1")).scalar_one() == 1
            both.wait(30)

    def looks() -> None:
        in_threads(look, 2)

    opened.clear()
    looks()
    looks()
    assert len(opened) == 2
    ours = "FROM pg_stat_activity WHERE application_name = 'ckptstore' AND datname = current_database()"
    with psycopg.connect(url, autocommit=True) as other:
        other.execute(f"SELECT pg_terminate_backend(pid) {ours}")
    wait_for(lambda: connections(url) == 0)
    looks()
    assert len(opened) == 4
    with pytest.raises(ZeroDivisionError), database.read():
        raise ZeroDivisionError
    wait_for(lambda: connections(url) == 1)
    database.disconnect()
    wait_for(lambda: connections(url) == 0)


def test_a_connection_is_not_kept_over_a_failure(url: str) -> None:
    database = connect(url).database
    with database.connected():
        with pytest.raises(ZeroDivisionError), database.read():
            raise ZeroDivisionError
        wait_for(lambda: connections(url) == 0)  # the server notices a moment later
        with database.read() as connection:
            assert connection.execute(sa.text("SELECT 1")).scalar_one() == 1
        assert connections(url) == 1
    assert connections(url) == 0


def test_one_that_was_not_used_for_a_while_is_not_trusted(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is between us and the server may have cut it: it is noticed only when it is used."""
    monkeypatch.setattr(module, "_TRUSTED_SECONDS", 0.0)
    database = connect(url).database
    servers = []
    with database.connected():
        for _ in range(2):
            with database.read() as connection:
                servers.append(connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one())
            with psycopg.connect(url, autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(%s)", (servers[-1],))
    assert len(set(servers)) == 2


def test_a_transaction_costs_two_questions_more_than_what_is_asked(url: str, tmp_path: Path) -> None:
    database = connect(url).database
    told = tmp_path / "told"
    with database.connected(), told.open("w+") as file:
        with database.read() as connection:
            server = connection.connection.driver_connection.pgconn
        server.trace(file.fileno())
        with database.read() as connection:
            connection.execute(sa.text("SELECT 1"))
        server.untrace()
    assert told.read_text().count("ReadyForQuery") == 3


def test_a_read_sees_one_state_and_cannot_write(database_url: str) -> None:
    catalog = connect(database_url)
    count = sa.text("SELECT count(*) FROM runs")
    with catalog.database.read() as connection:
        assert connection.execute(count).scalar_one() == 0
        connect(database_url).join("run", launch_id="L1")
        assert connection.execute(count).scalar_one() == 0
    if not catalog.database.is_sqlite:
        with pytest.raises(CatalogUnavailableError, match="read-only"), catalog.database.read() as connection:
            connection.execute(sa.text("DELETE FROM runs"))


def test_a_transaction_that_another_one_spoils_is_done_again(url: str) -> None:
    """Where an administrator made the strictest isolation the default."""
    catalog = connect(url)
    name = sa.make_url(url).database
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'".encode())
    runs = sa.text("SELECT count(*) FROM runs")
    tries: list[int] = []

    def work(connection: sa.Connection) -> None:
        tries.append(connection.execute(runs).scalar_one())
        if len(tries) == 1:
            with open_database(url).write() as other:
                other.execute(runs)
                other.execute(sa.text("INSERT INTO runs (name) VALUES ('other')"))
        connection.execute(sa.text("INSERT INTO runs (name) VALUES ('own')"))

    catalog.database.in_write(work)
    assert tries == [0, 1]
    assert {row.run for row in catalog.runs()} == {"other", "own"}


def test_a_deadlock_is_untied(url: str) -> None:
    catalog = connect(url)
    for name in ("a", "b"):
        catalog.join(name, launch_id=name)
    both_hold_one = threading.Barrier(2)
    tries: list[str] = []

    def lock(first: int) -> None:
        def work(connection: sa.Connection) -> None:
            tries.append("")
            reads.lock_run(connection, 1 + first)
            if len(tries) <= 2:
                both_hold_one.wait()
            reads.lock_run(connection, 2 - first)

        open_database(url).in_write(work)

    in_threads(lock, 2)
    assert len(tries) >= 3, "a slow machine may bring a second deadlock"


@pytest.mark.parametrize("rows", [1, 3])
def test_a_text_that_cannot_be_sent_is_no_lost_connection(url: str, rows: int) -> None:
    given = [{"name": f"run{number}\udce8"} for number in range(rows)]
    with pytest.raises(UnicodeEncodeError), connect(url).database.write() as connection:
        connection.execute(sa.text("INSERT INTO runs (name) VALUES (:name)"), given)


def test_a_lock_that_others_hold_is_no_server_that_cannot_be_reached(url: str) -> None:
    """They may be in the middle of a long change, as a dump that is restored."""
    catalog = connect(url)
    catalog.join("run", launch_id="L1")
    with catalog.database.write() as holder:
        reads.lock_run(holder, 1)
        with (
            pytest.raises(CatalogUnavailableError, match="refuses .* due to lock timeout") as late,
            Database(catalog.database.url, answer_within=1).write() as other,
        ):
            reads.lock_run(other, 1)
    assert late.value.hint == "other processes keep it busy: try again"


def test_what_the_server_ended_is_done_again(url: str) -> None:
    catalog = connect(url)
    tries: list[int] = []

    def work(connection: sa.Connection) -> None:
        tries.append(connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one())
        if len(tries) == 1:
            with psycopg.connect(url, autocommit=True) as admin:
                admin.execute("SELECT pg_terminate_backend(%s)", (tries[0],))
        connection.execute(sa.text("INSERT INTO runs (name) VALUES ('own')"))

    catalog.database.in_write(work)
    assert len(set(tries)) == 2
    assert [row.run for row in catalog.runs()] == ["own"]


def test_it_is_not_tried_for_ever(url: str) -> None:
    database = Database(open_database(url).url, answer_within=2)

    def spoil(connection: sa.Connection) -> None:
        connection.execute(sa.text("SELECT pg_terminate_backend(pg_backend_pid())"))

    with pytest.raises(CatalogBusyError):
        database.in_write(spoil)
    assert connections(url) == 0


def test_a_server_that_has_no_connection_left_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(tmp_path / "own", max_connections=5, superuser_reserved_connections=1)
    try:
        url = server.new_database()
        connect(url)
        pauses: list[float] = []

        def let_one_go(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                held.pop().close()
                wait_for(lambda: clients() == 3)

        def clients() -> int:
            return admin.execute("SELECT 1 FROM pg_stat_activity WHERE backend_type = 'client backend'").rowcount

        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute("CREATE ROLE somebody LOGIN IN ROLE pg_read_all_data")
            wait_for(lambda: clients() == 1)  # the server shows one for a moment after it was closed
            held = [psycopg.connect(server.url("ckptstore", user="somebody")) for _ in range(3)]
            monkeypatch.setattr(module.time, "sleep", let_one_go)
            assert connect(server.url("ckptstore", user="somebody")).runs() == []
            assert len(pauses) >= 3
            for each in held:
                each.close()
    finally:
        server.close()


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_records_reach_a_server_that_was_away_by_themselves(server: Server, tmp_path: Path, mode: str) -> None:
    """Without the registrar and its thread: `register` looks again, now and then."""
    job = Job(connect(server.new_database()), tmp_path / "ckpt", world_size=1)
    launch = job.catalog.join("run", launch_id="L1")
    job.announce(launch)
    job.save([launch], 5)
    server.stop(mode)
    for step in (10, 15):
        job.save([launch], step)
    assert launch.recorder.is_late
    server.start()
    step = 20
    while launch.recorder.is_late:
        job.save([launch], step)
        step += 5
        assert step < 10_000
    assert [save.tally.global_step for save in job.catalog.saves("run")] == list(range(step - 5, 0, -5))


def test_a_server_that_is_paused_is_given_up_and_found_again(server: Server, tmp_path: Path) -> None:
    url = server.new_database()
    connect(url)
    catalog = Catalog(Database(open_database(url).url, answer_within=3))  # seconds: a busy machine answers in time
    launch = catalog.join("run", launch_id="L1")
    server.pause()
    path = ckpt_bytes.write(tmp_path / "net-1_5.ckpt", 5)
    launch.register(path, global_step=5)
    assert launch.recorder.is_late
    server.go_on()
    launch.recorder.catch_up()
    assert [file.path for file in connect(url).files("run")] == [str(path)]


def test_a_command_opens_one_connection_to_look_at_the_schema_and_one_to_work(
    url: str, tmp_path: Path, opened: list[object]
) -> None:
    started(connect(url), tmp_path / "ckpt", *range(5, 55, 5))
    for command in ("gc run --keep-last 2 --apply", "undo run", "list", "runs", "sync run", "metrics"):
        opened.clear()
        assert CliRunner().invoke(cli, ["--db", url, *command.split()]).exit_code == 0, command
        assert len(opened) <= 2, command
        assert connections(url) == 0


def test_a_copy_to_a_tier_opens_few_connections_and_holds_none_while_it_sends(
    url: str, tmp_path: Path, opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread of the process may need the only one that it may have: a save is recorded meanwhile."""
    catalog = connect(url)
    job, ranks = started(catalog, tmp_path / "ckpt", 5, world_size=1)
    declared(catalog, tmp_path / "far")
    put = DirectoryStore.put

    def copied(store: DirectoryStore, *arguments: Any) -> None:
        assert all(each.closed for each in opened)
        put(store, *arguments)  # the lease is renewed at each piece
        assert all(each.closed for each in opened)

    monkeypatch.setattr(DirectoryStore, "put", copied)
    monkeypatch.setattr(replicator, "_RENEW_SECONDS", 0)
    assert one_round(catalog).files == 1
    few = len(opened)
    job.save(ranks, *range(10, 60, 5))
    opened.clear()
    assert one_round(catalog).files == 10
    assert len(opened) - few <= 3 * 9
