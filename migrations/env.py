"""Run the migrations on the connection that ckptstore hands over, or on CKPTSTORE_URL for `alembic` itself."""

from __future__ import annotations

from alembic import context

from ckptstore.catalog.engine import open_database
from ckptstore.catalog.schema import VERSION_TABLE
from ckptstore.catalog.tables import metadata


def _run(connection) -> None:  # type: ignore[no-untyped-def]
    context.configure(
        connection=connection,
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        transactional_ddl=True,
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    _run(given)
else:
    with open_database(None).write() as own:
        _run(own)
