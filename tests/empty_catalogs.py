"""Empty catalogs, which most tests begin with: to make one by Alembic takes longer than most tests."""

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ckptstore.api import connect
from ckptstore.catalog import postgres, schema, sqlite


@contextmanager
def made_by_alembic_once() -> Iterator[None]:
    """Meanwhile Alembic makes one catalog of each kind of database; for others its statements are executed again."""
    by_alembic, of_kind = schema._migrate, {}

    def migrate(connection: sa.Connection) -> None:
        kind = connection.dialect.name
        if kind not in of_kind:
            of_kind[kind] = _statements(connection)
            return
        for statement, parameters in of_kind[kind]:
            connection.exec_driver_sql(statement, parameters)

    def _statements(connection: sa.Connection) -> list[tuple[str, Any]]:
        executed: list[tuple[str, Any]] = []

        def note(_: object, __: object, statement: str, parameters: Any, *___: object) -> None:
            executed.append((statement, parameters))

        sa.event.listen(connection, "before_cursor_execute", note)
        by_alembic(connection)
        sa.event.remove(connection, "before_cursor_execute", note)
        return executed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "_migrate", migrate)
        yield


@contextmanager
def statements_compiled_once() -> Iterator[None]:
    """Meanwhile a statement is compiled for the first catalog of its kind that executes it, and not for each again."""
    compiled = _Compiled()

    def with_compiled(make: Callable[..., sa.Engine]) -> Callable[..., sa.Engine]:
        def made(*asked: Any) -> sa.Engine:
            engine = make(*asked)
            engine._compiled_cache = compiled  # type: ignore[assignment]
            return engine

        return made

    with pytest.MonkeyPatch.context() as patch:
        for module in (sqlite, postgres):
            patch.setattr(module, "make_engine", with_compiled(module.make_engine))
        yield


class _Compiled(dict[Any, Any]):
    """SQLAlchemy's statements, by keys that begin with a dialect: each engine has its own, and they are alike."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get((key[0].name, *key[1:]), default)

    def __setitem__(self, key: Any, compiled: Any) -> None:
        super().__setitem__((key[0].name, *key[1:]), compiled)


@cache
def _sqlite_template() -> Path:
    home = tempfile.TemporaryDirectory()
    atexit.register(home.cleanup)
    path = Path(home.name) / "catalog.db"
    connect(str(path)).database.disconnect()
    return path


def copy_empty_catalog(path: Path) -> str:
    """Make this file an empty catalog, and return its URL."""
    shutil.copyfile(_sqlite_template(), path)
    return f"sqlite:///{path}"
