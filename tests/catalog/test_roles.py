"""`docs/postgresql.sql`: what trainers and operators may do in the catalog, and what they may not."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from ckptstore.api import connect
from ckptstore.catalog import schema
from ckptstore.catalog.engine import open_database
from ckptstore.catalog.tables import metadata
from ckptstore.core.model import FileState
from ckptstore.errors import CatalogUnavailableError
from ckptstore.retention.policy import Policy
from ckptstore.retention.stored_policy import store
from ckptstore.verify.verify import verify
from tests.formats.layouts import write_spreads
from tests.jobs import Job, begun, set_ending
from tests.postgres_server import Server
from tests.spreads import spread

SQL = Path(__file__).parents[2] / "docs" / "postgresql.sql"
KEPT = ("runs", "launches", "resolutions", "outcomes", "saves", "checkpoints", "endings", "journals", "leases")


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose catalog was set up as the file says."""
    server = Server(tmp_path_factory.mktemp("roles"))
    server.run("CREATE ROLE ckptstore_owner LOGIN")
    server.run("CREATE DATABASE ckptstore OWNER ckptstore_owner")
    schema.upgrade(open_database(server.url("ckptstore", user="ckptstore_owner")))
    for _ in range(2):  # it may be run again
        server.psql("--set", "ON_ERROR_STOP=1", "--file", str(SQL), "ckptstore")
    for name, role in (("trainer", "ckptstore_trainer"), ("alice", "ckptstore_operator"), ("nobody", "")):
        server.run(f"CREATE ROLE {name} LOGIN {f'IN ROLE {role}' if role else ''}")
    server.run("CREATE ROLE guest LOGIN")
    server.run("GRANT CONNECT ON DATABASE ckptstore TO guest")
    server.run("CREATE ROLE busy LOGIN CONNECTION LIMIT 0 IN ROLE ckptstore_trainer")
    yield server
    server.close()


def url_of(server: Server, user: str) -> str:
    return server.url("ckptstore", user=user)


def test_every_table_was_thought_of() -> None:
    """A table that is not named can be read only: whoever adds one says here who writes it."""
    named = set(re.findall(r"\w+", "".join(re.findall(r"GRANT [^;]* ON([^;]*) TO", SQL.read_text()))))
    assert set(metadata.tables) <= named


def test_a_trainer_can_do_what_training_needs(roles: Server, tmp_path: Path) -> None:
    catalog = connect(url_of(roles, "trainer"))
    job, ranks = begun(catalog, tmp_path / "ckpt")
    strategy = write_spreads(tmp_path / "ckpt" / "strategy.ckpt", 0, [spread(grid=(2,))])
    assert ranks[0].keep_layout_file(str(strategy))
    job.save(ranks, 5)
    for launch in ranks:
        launch.recorder.postponed = True
    files = job.save(ranks, 10)
    for launch in ranks:
        launch.recorder.catch_up()
    ranks[0].renew_lease()
    set_ending(ranks[0], 10, 10, "RuntimeError")
    Path(files[0].path).unlink()
    ranks[0].recorder.mark([files[0]], FileState.MISSING)
    again = job.start()
    assert [launch.facts.start_step for launch in again] == [10, 10]  # the other rank has the same
    again[0].load_failed(files[1], "for a test")
    assert connect(url_of(roles, "alice")).pin("run", 5)
    roles.run("UPDATE journals SET read_to = 0", "ckptstore")
    roles.run("DELETE FROM pins", "ckptstore")
    journals = catalog.sync("run")  # what an operator said, and the catalog has lost
    assert roles.run("SELECT global_step FROM pins", "ckptstore") == [(5,)]
    assert journals.skipped == ()
    assert catalog.resolve("run").plan is not None


def test_an_operator_can_do_all_that_people_do(roles: Server, tmp_path: Path) -> None:
    job = Job(connect(url_of(roles, "trainer")), tmp_path / "ckpt", world_size=2)
    job.launches = 10  # names of launches of its own
    ranks = [
        job.catalog.join("other", rank=rank, world_size=2, launch_id="L11", layout="data_parallel") for rank in (0, 1)
    ]
    for launch in ranks:
        launch.set_steps_per_epoch(10)
        launch.resolve()
        job.announce(launch)
    job.save(ranks, 5, 10, 15, 20, 25)
    catalog = connect(url_of(roles, "alice"))
    assert catalog.pin("other", 5)
    assert catalog.unpin("other", 5)
    assert catalog.tag("other", 10, "good")
    assert catalog.untag("other", "good")
    store(catalog.database, "other", Policy(keep_last=2))
    assert catalog.execute(catalog.plan_gc("other")).files == 6
    assert catalog.undo("other").files == 6
    assert catalog.execute(catalog.plan_gc("other")).files == 6
    assert catalog.purge("other", now=True).files == 6
    assert catalog.scan(tmp_path / "ckpt", run="other") is not None
    assert catalog.sync("other").skipped == ()
    assert verify(catalog.database, "other", digest=True).damaged == ()
    plan = catalog.resolve("other", step=20).plan
    assert catalog.branch(plan)
    assert {row.run for row in catalog.runs()} >= {"other"}


@pytest.mark.parametrize("user", ["trainer", "alice"])
@pytest.mark.parametrize(
    "statement",
    [
        *(f"DELETE FROM {table}" for table in KEPT),
        *(f"TRUNCATE {table} CASCADE" for table in KEPT),
        "ALTER TABLE saves ADD COLUMN more integer",
        "DROP TABLE checkpoints",
        "CREATE TABLE own (id integer)",
        "CREATE INDEX own ON saves (id)",
        "UPDATE runs SET name = 'other'",
        "UPDATE ckptstore_version SET version_num = '9999'",
        "INSERT INTO ckptstore_version VALUES ('9999')",
        "CREATE ROLE own",
        "GRANT ckptstore_owner TO CURRENT_USER",
        "COPY runs TO PROGRAM 'true'",
    ],
)
def test_what_neither_may_do(roles: Server, user: str, statement: str) -> None:
    with psycopg.connect(url_of(roles, user)) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement.encode())


@pytest.mark.parametrize("table", ["gc_locks", "collections", "trash"])
def test_a_trainer_removes_nothing(roles: Server, table: str) -> None:
    with psycopg.connect(url_of(roles, "trainer")) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(f"DELETE FROM {table}".encode())


def test_who_is_neither_is_not_let_in(roles: Server) -> None:
    with pytest.raises(CatalogUnavailableError, match="permission denied for database"):
        connect(url_of(roles, "nobody"))


def test_who_may_not_do_it_hears_who_may(roles: Server, tmp_path: Path) -> None:
    job = Job(connect(url_of(roles, "trainer")), tmp_path / "ckpt", world_size=1, run="own")
    job.launches = 20  # names of launches of its own
    job.save(job.start(), 5, 10, 15)
    plan = job.catalog.plan_gc("own", Policy(keep_last=1, floor=1))
    for work in (lambda: job.catalog.execute(plan), lambda: job.catalog.undo("own")):
        with pytest.raises(CatalogUnavailableError, match=r"refuses \(permission denied for table .*use an operator's"):
            work()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://trainer:wrong@127.0.0.1:{port}/ckptstore", "check the user and the password"),
        ("postgresql://trainer@127.0.0.1:{port}/ckptstore", "check the user and the password"),
        ("postgresql://stranger@/ckptstore?host={socket}&port={port}", "check the user and the password"),
        ("postgresql://trainer@/elsewhere?host={socket}&port={port}", "create the database"),
        ("postgresql://guest@/ckptstore?host={socket}&port={port}", "its user may not do that"),
        ("postgresql://busy@/ckptstore?host={socket}&port={port}", "more connections"),
        (
            "postgresql://alice@/ckptstore?host={socket}&port={port}&options=-cdefault_transaction_read_only%3Don",
            "name the primary",
        ),
    ],
)
def test_a_server_that_refuses_is_not_said_to_be_away(
    roles: Server, monkeypatch: pytest.MonkeyPatch, url: str, said: str
) -> None:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    with pytest.raises(CatalogUnavailableError) as caught:
        connect(url.format(port=roles.port, socket=quote(roles.socket, safe=""))).join("read-only")
    assert said in caught.value.hint
    assert "refuses" in caught.value.message
