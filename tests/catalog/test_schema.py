"""The schema: made by itself, by many at once, the same by migrations as by the models, refused where it is wrong."""

import sqlite3
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from ckptstore.api import connect
from ckptstore.catalog import schema, versions
from ckptstore.catalog.engine import Database, open_database
from ckptstore.catalog.tables import metadata
from ckptstore.errors import CatalogUnavailableError, SchemaError
from tests.conftest import new_postgres_database
from tests.starting import LIBRARY, warm_python

CONNECT = "import sys, ckptstore; ckptstore.connect(sys.argv[1]).join('run'); print('joined')"
PROCESSES = 3


def shape(database: Database) -> dict[str, object]:
    """Everything that the database says of its tables, but for the table of the version."""
    with database.read() as connection:
        inspector = sa.inspect(connection)
        return {
            table: [
                sorted((each["name"], str(each["type"]), each["nullable"]) for each in inspector.get_columns(table)),
                inspector.get_pk_constraint(table),
                sorted(map(str, inspector.get_foreign_keys(table))),
                sorted(map(str, inspector.get_unique_constraints(table))),
                sorted(map(str, inspector.get_indexes(table))),
            ]
            for table in inspector.get_table_names()
            if table != schema.VERSION_TABLE
        }


def test_the_migrated_schema_is_that_of_the_models(database_url: str, tmp_path: Path, request) -> None:
    migrated = open_database(database_url)
    schema.upgrade(migrated)
    with migrated.read() as connection:
        options = {"compare_type": True, "version_table": schema.VERSION_TABLE}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []
    if migrated.is_sqlite:
        fresh = open_database(str(tmp_path / "fresh.db"))
    else:
        fresh = open_database(new_postgres_database(request.getfixturevalue("postgres")))
    with fresh.write() as connection:
        metadata.create_all(connection)
    assert shape(migrated) == shape(fresh)


def test_the_program_works_with_the_newest_revision() -> None:
    config = Config()
    config.set_main_option("script_location", str(schema.migrations()))
    assert ScriptDirectory.from_config(config).get_heads() == [schema.REVISION]


def test_many_processes_create_it_at_once(database_url: str, tmp_path: Path) -> None:
    script = tmp_path / "connect.py"
    script.write_text(CONNECT)
    command = [*warm_python(*LIBRARY), str(script), database_url]
    jobs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(PROCESSES)]
    results = [(*job.communicate(), job.returncode) for job in jobs]
    assert [(out, code) for out, _, code in results] == [(b"joined\n", 0)] * PROCESSES, results
    assert [row.launches for row in connect(database_url).runs()] == [PROCESSES]


@pytest.mark.of_files
def test_many_threads_create_catalogs_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        catalogs = list(pool.map(lambda each: connect(str(tmp_path / f"{each}.db")), range(8)))
    assert [each.runs() for each in catalogs] == [[]] * 8


def test_upgrading_again_changes_nothing(database_url: str) -> None:
    database = open_database(database_url)
    schema.upgrade(database)
    before = shape(database)
    schema.upgrade(database)
    schema.ensure(database)
    schema.check(database)
    assert shape(database) == before
    assert schema.current(database) == schema.REVISION


def set_version(database: Database, version: str) -> None:
    with database.write() as connection:
        connection.exec_driver_sql(f"UPDATE {schema.VERSION_TABLE} SET version_num = '{version}'")


def test_a_newer_schema_is_refused_with_the_command_to_run(database_url: str) -> None:
    schema.upgrade(database := open_database(database_url))
    set_version(database, "9999")
    for action in (schema.ensure, schema.check, schema.upgrade):
        with pytest.raises(SchemaError, match="newer than this program's .* update ckptstore here"):
            action(database)


def test_a_database_with_other_tables_is_not_a_catalog(database_url: str) -> None:
    database = open_database(database_url)
    with database.write() as connection:
        connection.exec_driver_sql("CREATE TABLE invoices (id INTEGER PRIMARY KEY)")
    with pytest.raises(CatalogUnavailableError, match="other tables .invoices. and is not a catalog"):
        connect(database_url)


def test_a_catalog_that_lost_a_table_is_told_with_what_to_do(database_url: str) -> None:
    """As after a dump that was restored only in part."""
    database = open_database(database_url)
    schema.upgrade(database)
    with database.write() as connection:
        connection.exec_driver_sql("DROP TABLE pins")
    with pytest.raises(CatalogUnavailableError, match=r"lacks a table of ckptstore \(.*pins.*; to create it"):
        connect(database_url).runs()
    for command in (versions.check, versions.upgrade):
        with pytest.raises(CatalogUnavailableError, match="has schema 0001, but no table pins; .*scan DIR"):
            command(database_url)


def test_a_catalog_that_lost_the_number_of_its_schema_is_not_called_empty(database_url: str) -> None:
    """As after a dump of the tables without their rows."""
    database = open_database(database_url)
    schema.upgrade(database)
    with database.write() as connection:
        connection.exec_driver_sql(f"DELETE FROM {schema.VERSION_TABLE}")
    for command in (versions.check, versions.upgrade, versions.current, connect):
        with pytest.raises(CatalogUnavailableError, match="but not the number of their schema; .*scan DIR"):
            command(database_url)


def test_an_sqlite_catalog_lets_readers_read_while_one_writes(sqlite_url: str) -> None:
    catalog = connect(sqlite_url)
    catalog.join("run")
    with catalog.database.write() as connection:
        connection.exec_driver_sql("DELETE FROM pins")
        assert [row.run for row in catalog.runs()] == ["run"]
    assert sqlite3.connect(str(catalog.database.file)).execute("PRAGMA journal_mode").fetchone() == ("wal",)
