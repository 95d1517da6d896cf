"""Real databases for every test that touches the catalog."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings

from ckptstore.api import Catalog, connect
from ckptstore.disk import notes
from ckptstore.training.life_signs import LifeSigns
from tests import hints, starting, written_lines
from tests.docs import printed_json
from tests.empty_catalogs import copy_empty_catalog, made_by_alembic_once, statements_compiled_once
from tests.postgres_server import Server

WORLD = Path(__file__).parent / "world"
_numbers = itertools.count()
hints.note()
written_lines.note()
printed_json.note()

# A busy machine is slow, and right.
settings.register_profile("ckptstore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ckptstore")

collect_ignore = ["browser", "frameworks", "mindformers", "objects/server"]  # their targets have them

SQLITE_SHOWS_IT = ("advise", "doctor", "journal", "leave", "resume", "retention", "scan", "training")
"""Folders of which `make test` runs on PostgreSQL only what is named below; `make test-long` runs all."""

ON_BOTH = (
    *("test_gc.py", "test_gc_lock.py", "test_gc_safety.py", "test_grades.py"),  # about locks
    *("test_initial.py", "test_register.py", "test_resolve.py", "test_resolve_scale.py"),  # what a job needs
    "test_a_command_that_waits_for_a_disk_says_so",
    "test_a_catalog_made_anew_has_all_that_the_old_one_had",
    "test_of_starts_in_one_moment_one_goes_on",
)


def pytest_configure(config: pytest.Config) -> None:
    """Workers share what starts programs. Their configuration has an input; that of who starts them has none."""
    if config.getoption("numprocesses", default=None) and not hasattr(config, "workerinput"):
        starting.share()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is about files is the same on every database: the quicker one shows it. The slowest tests begin first.

    Before all others those of the simulated world: the tests after them leave threads of killed jobs in the process.
    """
    items[:] = [item for item in items if not (item.get_closest_marker("of_files") and "postgres" in item.name)]
    for item in items:
        is_on_both = item.path.name in ON_BOTH or item.name.partition("[")[0] in ON_BOTH
        if item.path.parent.name in SQLITE_SHOWS_IT and not is_on_both and "postgres" in item.name:
            item.add_marker(pytest.mark.long)
    items.sort(key=lambda item: (WORLD not in item.path.parents, item.get_closest_marker("msrun") is None))


@pytest.fixture(autouse=True, scope="session")
def _no_memory_of_this_machines_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fixtures that live as long as the tests start jobs too: nothing is remembered in the user's own directory."""
    with pytest.MonkeyPatch.context() as session:
        session.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _what_is_alike_is_made_once() -> Iterator[None]:
    with made_by_alembic_once(), statements_compiled_once():
        yield


@pytest.fixture(autouse=True)
def _what_is_advised_can_be_done() -> Iterator[None]:
    yield
    hints.check_made()


@pytest.fixture(autouse=True)
def _what_is_written_can_be_read() -> Iterator[None]:
    yield
    written_lines.check()


@pytest.fixture(autouse=True)
def _no_memory_of_other_tests(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user's machine remembers of runs is empty at the start of each test."""
    state = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.setattr(notes, "_folder", lambda: state / "notes")


@pytest.fixture(autouse=True)
def _no_signs_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A launch that no training ended gives signs of life until its process ends: not into the next tests."""
    begun: list[LifeSigns] = []
    begin = LifeSigns.begin

    def noted(signs: LifeSigns) -> None:
        begun.append(signs)
        begin(signs)

    monkeypatch.setattr(LifeSigns, "begin", noted)
    yield
    for signs in begun:
        signs.end()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A PostgreSQL server that lives as long as the tests."""
    server = Server(tmp_path_factory.mktemp("pg"), port=5432, listen_addresses="")
    yield server
    server.close()


@pytest.fixture(scope="session")
def postgres(shared_server: Server) -> str:
    """The socket directory of that server."""
    return shared_server.socket


def new_postgres_database(socket: str, *, template: str = "template1") -> str:
    """The URL of a new database on the server of the tests: empty, but for what the template has."""
    import psycopg

    name = f"test_{next(_numbers)}"
    with psycopg.connect(host=socket, user="postgres", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    return f"postgresql://postgres@/{name}?host={quote(socket, safe='')}"


@pytest.fixture(scope="session")
def postgres_template(postgres: str) -> str:
    """The name of a database that is an empty catalog."""
    url = new_postgres_database(postgres)
    connect(url)
    return str(sa.make_url(url).database)


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database, of each of the two kinds in turn; of an empty catalog for a test that wants one."""
    is_catalog = "catalog" in request.fixturenames
    if request.param == "sqlite":
        path = tmp_path / "catalog.db"
        if is_catalog:
            copy_empty_catalog(path)
        return f"sqlite:///{path}"
    template = request.getfixturevalue("postgres_template") if is_catalog else "template1"
    return new_postgres_database(request.getfixturevalue("postgres"), template=template)


@pytest.fixture
def catalog(database_url: str) -> Catalog:
    """An empty catalog, on each of the two databases in turn."""
    return connect(database_url)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """An empty SQLite catalog, for tests that the database makes no difference to."""
    return copy_empty_catalog(tmp_path / "catalog.db")


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A PostgreSQL server of the test's own, to be stopped, paused and restarted."""
    own = Server(tmp_path_factory.mktemp("own"))
    yield own
    own.close()


@pytest.fixture
def other(catalog: Catalog, tmp_path: Path, request: pytest.FixtureRequest) -> Catalog:
    """A second, empty catalog on a database of the same kind."""
    if catalog.database.is_sqlite:
        return connect(copy_empty_catalog(tmp_path / "other.db"))
    template = request.getfixturevalue("postgres_template")
    return connect(new_postgres_database(request.getfixturevalue("postgres"), template=template))
