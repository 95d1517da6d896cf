"""`docs/postgresql-rows.sql`: a trainer may add to the runs of its own login only."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from ckptstore.api import connect
from ckptstore.catalog import schema
from ckptstore.catalog.engine import open_database
from ckptstore.catalog.tables import metadata
from ckptstore.errors import CatalogForbidsError, CatalogUnavailableError, RefusedError
from ckptstore.leave.ask import look
from ckptstore.resume.resolver import Query
from ckptstore.retention.policy import Policy
from ckptstore.training.start import begin, decide
from tests.command_line import ckptstore
from tests.jobs import Job, begun
from tests.postgres_server import Server

DOCS = Path(__file__).parents[2] / "docs"
SHARED = ("runs", "strategies", "tiers", "notifications")
"""Tables without rows of one run: names, contents that are known by their digests, tiers, and what was told to whom."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with two trainers, and a run that was there before."""
    server = Server(tmp_path_factory.mktemp("rows"))
    server.run("CREATE ROLE ckptstore_owner LOGIN")
    server.run("CREATE DATABASE ckptstore OWNER ckptstore_owner")
    schema.upgrade(open_database(server.url("ckptstore", user="ckptstore_owner")))
    server.run("INSERT INTO runs (name) VALUES ('before')", "ckptstore")
    for _ in range(2):  # they may be run again
        for file in ("postgresql.sql", "postgresql-rows.sql"):
            server.psql("--set", "ON_ERROR_STOP=1", "--file", str(DOCS / file), "ckptstore")
    server.run("CREATE ROLE team")
    for name, role in (("ann", "trainer"), ("bob", "trainer"), ("olga", "operator")):
        server.run(f"CREATE ROLE {name} LOGIN IN ROLE ckptstore_{role}")
    yield server
    server.close()


def url_of(server: Server, user: str) -> str:
    return server.url("ckptstore", user=user)


def trained(server: Server, user: str, run: str, directory: Path) -> Job:
    return begun(connect(url_of(server, user)), directory, 5, 10, 15, 20, run=run, layout="data_parallel")[0]


def test_every_table_was_thought_of() -> None:
    text = (DOCS / "postgresql-rows.sql").read_text()
    assert {name for name in metadata.tables if f"'{name}'" not in text} == set(SHARED)


def test_each_trains_and_an_operator_collects(rows: Server, tmp_path: Path) -> None:
    for user in ("ann", "bob"):
        job = trained(rows, user, f"run-of-{user}", tmp_path / user)
        assert [launch.facts.start_step for launch in job.start()] == [20, 20]
    catalog = connect(url_of(rows, "olga"))
    assert catalog.pin("run-of-ann", 5)
    assert catalog.execute(catalog.plan_gc("run-of-ann", Policy(keep_last=2))).files == 2
    assert catalog.undo("run-of-ann").files == 2
    assert catalog.scan(tmp_path / "bob").run == "run-of-bob"


def test_nobody_adds_to_anothers_run(rows: Server, tmp_path: Path) -> None:
    job = trained(rows, "ann", "mine", tmp_path)
    for run in ("mine", "before"):
        with pytest.raises(CatalogUnavailableError, match="row-level security policy"):
            connect(url_of(rows, "bob")).join(run, rank=0, world_size=1)
    rows.run(
        "UPDATE run_logins SET login = 'team' WHERE run_id = (SELECT id FROM runs WHERE name = 'mine')", "ckptstore"
    )
    rows.run("GRANT team TO ann, bob")
    job.save(job.begin(), 25)
    job.catalog = connect(url_of(rows, "bob"))
    job.save(job.begin(), 30)
    assert job.catalog.resolve("mine").plan.global_step == 30


def test_a_run_begins_from_a_state_of_another_login(rows: Server, tmp_path: Path) -> None:
    """It writes rows of its own run alone, and gc of the other one heeds them."""
    trained(rows, "ann", "base", tmp_path)
    bob = connect(url_of(rows, "bob"))
    settled = bob.join("tuned", rank=0, world_size=1).decide_start(bob.database, Query(initial="base@10"))
    assert settled.initial is not None
    plan = connect(url_of(rows, "olga")).plan_gc("base", Policy(keep_last=1))
    assert [each.state.global_step for each in plan.decision.remove] == [5]


def test_a_run_of_another_login_is_read_though_its_journals_are_ahead(
    rows: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its newer records are for logins that may write them; a start and a command take what the catalog has."""
    job = Job(connect(url_of(rows, "ann")), tmp_path, run="ahead", layout="data_parallel")
    ranks = job.begin()
    job.save(ranks, 20)
    rows.run("ALTER ROLE ann SET default_transaction_read_only = on")
    job.save(ranks, 25)
    rows.run("ALTER ROLE ann RESET default_transaction_read_only")
    bob = connect(url_of(rows, "bob"))
    caplog.clear()
    assert bob.resolve("ahead").plan.global_step == 20
    assert "from the catalog alone, without newer lines of its journals" in caplog.text
    assert "belongs to another login" in caplog.text
    assert [row.last_step for row in bob.history("ahead")] == [20]
    settled = bob.join("tuned-from-ahead", rank=0, world_size=1).decide_start(bob.database, Query(initial="ahead"))
    assert settled.initial.global_step == 20
    with pytest.raises(CatalogForbidsError):
        bob.sync("ahead")
    with pytest.raises(CatalogForbidsError):  # `exit --wait` then reads the journals, which have all saves
        look(bob.database, "ahead", ranks[0].facts)
    assert connect(url_of(rows, "olga")).resolve("ahead").plan.global_step == 25


def test_a_start_under_another_login_does_not_begin_anew(rows: Server, tmp_path: Path) -> None:
    """It may read that the run has states; without the journals that have them it would begin at step 0."""
    trained(rows, "ann", "hers", tmp_path)
    bob = open_database(url_of(rows, "bob"))
    launch = begin(bob, "hers", rank=0, world_size=1, launch_id="B1", layout=None)
    with pytest.raises(RefusedError, match="'hers' has saved up to step 20, .* may not write to it"):
        decide(launch)
    assert decide(launch, query=Query(fresh=True)).fresh
    seeing = begin(bob, "hers", rank=0, world_size=2, launch_id="B2", layout=None, directories=[tmp_path])
    assert decide(seeing, [tmp_path]).global_step == 20


def test_a_write_that_is_refused_is_told_in_one_line(rows: Server, tmp_path: Path) -> None:
    job = Job(connect(url_of(rows, "ann")), tmp_path, run="told", layout="data_parallel")
    ranks = job.begin()
    job.save(ranks, 5)
    rows.run("ALTER ROLE ann SET default_transaction_read_only = on")
    job.save(ranks, 10, 15)
    rows.run("ALTER ROLE ann RESET default_transaction_read_only")
    said = ckptstore("--db", url_of(rows, "bob"), "sync", "told")
    assert said.code == 4
    assert len(said.err.splitlines()) == 1, said.err
    assert "the run belongs to another login" in said.err


@pytest.fixture(scope="module")
def victim(rows: Server, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A run of one trainer, with a step that the operator pinned."""
    job = trained(rows, "ann", "victim", tmp_path_factory.mktemp("victim"))
    assert connect(url_of(rows, "olga")).pin("victim", 5)
    return job


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE launches SET owner = 0",
        "UPDATE checkpoints SET path = '/root/thesis.tar'",
        "UPDATE saves SET global_step = 99",
        "DELETE FROM pins",
        "UPDATE policies SET rules = NULL",
        "INSERT INTO policies SELECT id, '{}', '9' FROM runs WHERE name = 'victim'",
        "INSERT INTO tags SELECT id, 'x', 5, '9' FROM runs WHERE name = 'victim'",
        "INSERT INTO outcomes SELECT id, 9, 'failed', 'x', 'x', now(), '9' FROM launches",
        "INSERT INTO leases SELECT id, now() + interval '9 years' FROM launches ON CONFLICT DO NOTHING",
        "INSERT INTO views SELECT id, 0, 'h', '{}' FROM launches",
        "INSERT INTO exit_requests SELECT id, now(), '' FROM launches",
        "INSERT INTO saves SELECT md5(id), id, 'periodic', 99, now() FROM launches",
        "INSERT INTO trash SELECT 'x', id, 'gc', 'x', '', '/', 'x', 1, 1, 'trash', true, now(), '9' FROM runs LIMIT 9",
    ],
)
def test_what_a_trainer_writes_past_ckptstore(rows: Server, victim: Job, statement: str) -> None:
    """Nothing of another login's run is changed, whatever it says; of its own all may be."""
    before = written(rows)
    with psycopg.connect(url_of(rows, "bob")) as connection, suppress(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement.encode())
    assert written(rows) == before
    assert victim.catalog.resolve("victim").plan.global_step == 20


def written(server: Server) -> dict[str, list[str]]:
    """Every row of the victim's run."""
    run = "(SELECT id FROM runs WHERE name = 'victim')"
    launch = f"(SELECT id FROM launches WHERE run_id = {run})"
    save = f"(SELECT id FROM saves WHERE launch_id IN {launch})"
    found = {}
    for table in metadata.sorted_tables:
        for column, keys in (("run_id", run), ("launch_id", launch), ("save_id", save)):
            if column in table.c:
                rows = server.run(f"SELECT * FROM {table.name} WHERE {column} IN {keys}", "ckptstore")
                found[table.name] = sorted(map(repr, rows))
    return found
