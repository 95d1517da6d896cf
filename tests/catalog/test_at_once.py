"""Two processes that write at once: what they tell makes the same rows as when one comes after the other."""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import psycopg
import pytest
import sqlalchemy as sa

from ckptstore.api import Catalog, connect
from ckptstore.catalog import exit_requests, journals, leases, reads
from ckptstore.catalog.engine import Database
from ckptstore.catalog.project import project
from ckptstore.core.events import (
    Event,
    FileRecorded,
    FilesRemoved,
    LaunchStarted,
    LayoutFileKept,
    RemovedFile,
    TrainingEnded,
    generation,
    version_of_file,
)
from ckptstore.core.model import Checkpoint, Kind, Launch, Location, PassedOver, Rule
from ckptstore.core.replicas import data_parallel, stand_alone
from tests.conftest import new_postgres_database
from tests.contents import WORK, contents

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
FIRST = Launch(id="L1", run="run", order=0, world_size=2, layout=stand_alone(), created_at=START)
SECOND = replace(FIRST, id="L2", created_at=START + timedelta(hours=1))
DECIDED = replace(SECOND, decided=True, parent="L1", parent_step=5, start_step=5)
FILE = Checkpoint(
    run="run",
    launch="L1",
    kind=Kind.PERIODIC,
    global_step=5,
    rank=0,
    path="/run/a/x.ckpt",
    size=100,
    mtime_ns=10**9,
    created_at=START,
)
PLAN = ((0, FILE), (1, FILE))
AT = START + timedelta(hours=1, seconds=5)
GONE = FilesRemoved(
    "run",
    "gc1",
    "/run/a",
    Location.TRASH,
    settled=True,
    at=START,
    files=(RemovedFile("x.ckpt", 100, 10**9, FILE.id, generation(version_of_file(FILE))),),
)
KNOWN = [LaunchStarted(FIRST), FileRecorded(FILE), LaunchStarted(SECOND)]


@pytest.fixture
def new_catalog(postgres: str, postgres_template: str) -> Callable[[], Catalog]:
    return lambda: connect(new_postgres_database(postgres, template=postgres_template))


def at_once(
    catalog: Catalog, first: Callable[[sa.Connection], object], second: Callable[[sa.Connection], object]
) -> None:
    """Two transactions: the second one begins, and goes as far as it can, before the first one ends."""
    other = Database(catalog.database.url)
    failed: list[Exception] = []

    def work() -> None:
        try:
            with other.write() as connection:
                second(connection)
        except Exception as error:  # noqa: BLE001 — raised below
            failed.append(error)

    url = catalog.database.url.set(drivername="postgresql").render_as_string(hide_password=False)
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    thread = threading.Thread(target=work)
    with psycopg.connect(url, autocommit=True) as look:
        with catalog.database.write() as connection:
            first(connection)
            thread.start()
            while thread.is_alive() and look.execute(waiting).fetchone() is None:
                thread.join(0.01)
        thread.join()
    if failed:
        raise failed[0]


@pytest.mark.parametrize(
    ("before", "one", "other"),
    [
        pytest.param(
            KNOWN,
            LaunchStarted(DECIDED, AT, FIRST, PLAN, passed=(PassedOver("L1", 10, Rule.SIZE_MISMATCH, "it was cut"),)),
            LaunchStarted(DECIDED, AT, FIRST),
            id="rank 0 and rank 1 say where they start",
        ),
        pytest.param(
            KNOWN,
            LaunchStarted(DECIDED, AT, FIRST, PLAN),
            LaunchStarted(replace(DECIDED, parent_step=6), AT + timedelta(seconds=3), FIRST, PLAN),
            id="two say that they start at different states",
        ),
        pytest.param(
            [*KNOWN, LaunchStarted(DECIDED, AT + timedelta(seconds=9), FIRST)],
            LaunchStarted(DECIDED, AT, FIRST, PLAN),
            LaunchStarted(DECIDED, AT + timedelta(seconds=3), FIRST, PLAN),
            id="both are before what was known",
        ),
        pytest.param(
            KNOWN[:1],
            LaunchStarted(replace(SECOND, layout=data_parallel(2))),
            LaunchStarted(SECOND),
            id="a new launch, of which one knows the layout",
        ),
        pytest.param(
            KNOWN,
            LaunchStarted(replace(SECOND, steps_per_epoch=10), data_at=START),
            LaunchStarted(replace(SECOND, steps_per_epoch=20), data_at=AT),
            id="the steps of an epoch",
        ),
        pytest.param(
            KNOWN,
            LaunchStarted(replace(SECOND, created_at=START - timedelta(hours=1))),
            LaunchStarted(replace(SECOND, created_at=START - timedelta(hours=2))),
            id="when a launch began",
        ),
        pytest.param(KNOWN[:1], FileRecorded(FILE), GONE, id="a file, and that gc removed it"),
    ],
)
def test_events_of_two_transactions_at_once_make_the_rows_of_both(
    new_catalog: Callable[[], Catalog], before: list[Event], one: Event, other: Event
) -> None:
    made = []
    for first, second in ((one, other), (other, one)):
        catalog = new_catalog()
        with catalog.database.write() as connection:
            project(connection, before)
        at_once(
            catalog,
            lambda connection, event=first: project(connection, [event]),  # type: ignore[misc]
            lambda connection, event=second: project(connection, [event]),  # type: ignore[misc]
        )
        made.append(contents(catalog, but=WORK))
    catalog = new_catalog()
    with catalog.database.write() as connection:
        project(connection, [*before, one, other])
    assert made == [contents(catalog, but=WORK)] * 2


@pytest.mark.parametrize(
    "say",
    [
        lambda connection: exit_requests.ask(connection, FIRST.key, "the node is drained"),
        lambda connection: leases.hold(connection, FIRST.key, AT),
        lambda connection: leases.hold_if_new(connection, FIRST.key, AT),
        lambda connection: leases.give_sign(connection, FIRST.key, "a process", AT),
    ],
    ids=["ask to exit", "hold", "hold if new", "give a sign"],
)
def test_two_who_say_the_same_first_are_both_heard(
    new_catalog: Callable[[], Catalog], say: Callable[[sa.Connection], object]
) -> None:
    """The hooks of two pods ask a launch to exit at once: the second one said that it cannot reach the catalog."""
    catalog = new_catalog()
    with catalog.database.write() as connection:
        project(connection, KNOWN)
    at_once(catalog, say, say)


def test_a_layout_file_is_kept_beside_another_rank_that_records(new_catalog: Callable[[], Catalog]) -> None:
    """The row of either rank locks the row of the launch. Ranks that all waited for each other were a deadlock."""
    catalog = new_catalog()
    with catalog.database.write() as connection:
        project(connection, KNOWN)
    ended = TrainingEnded("run", "L1", 0, 5, None, None, "", START)
    kept = LayoutFileKept("run", "L1", 1, "/run/strategy.ckpt", "digest", "strategy", b"")
    with catalog.database.write() as one, Database(catalog.database.url, answer_within=1).write() as other:
        project(one, [ended])
        project(other, [kept], lambda *_: data_parallel(2))
    with catalog.database.read() as connection:
        launch = reads.launch(connection, FIRST.key)
    assert launch is not None
    assert launch.layout.groups == ((0, 1),)


def test_a_run_is_locked_beside_a_rank_that_begins_a_journal(new_catalog: Callable[[], Catalog]) -> None:
    """Both lock paths too, the one after the run and the other before it: that was a deadlock."""
    catalog = new_catalog()
    with catalog.database.write() as connection:
        project(connection, KNOWN)
        run = reads.run_id(connection, "run") or 0
    with catalog.database.write() as one, Database(catalog.database.url, answer_within=1).write() as other:
        assert journals.move_read_to(one, {"run"}, "/run/a/.ckptstore/rank_0-1-2.jsonl", 0, 100)
        reads.lock_run(other, run)
