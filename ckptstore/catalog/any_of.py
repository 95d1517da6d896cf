"""Ask for rows with one of many values, however many they are, in one statement.

A list of parameters would be compiled anew for each length, and SQLite takes so many only.
"""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles


def any_of(column: sa.ColumnElement[Any], parameter: str) -> sa.ColumnElement[bool]:
    """Whether a column of texts or numbers is one of the values of a list, which that parameter gets."""
    # Of whatever length: a cast to the column's would cut a longer text to one that may be there.
    item = sa.Text() if isinstance(column.type, sa.String) else column.type
    return _Among(column, sa.bindparam(parameter, type_=_Values(item)))


def one_of(column: sa.ColumnElement[Any], *fixed: str) -> sa.ColumnElement[bool]:
    """Whether a column is one of a few values that never change: `in_` is compiled anew each time it is run."""
    return sa.or_(*(column == each for each in fixed))


class _Values(sa.types.TypeDecorator[Any]):
    """A list: JSON on SQLite, an array on PostgreSQL."""

    impl = sa.Text
    cache_ok = True

    def __init__(self, item: sa.types.TypeEngine[Any]) -> None:
        super().__init__()
        self.item = item

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        return dialect.type_descriptor(sa.Text() if dialect.name == "sqlite" else sa.ARRAY(self.item))

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:
        return json.dumps(value) if dialect.name == "sqlite" else value


class _Among(sa.sql.functions.FunctionElement[bool]):
    inherit_cache = True
    type = sa.Boolean()

    def self_group(self, against: Any = None) -> _Among:  # noqa: ARG002
        return self  # else "= 1" is added where the database has no booleans, and no index is used


@compiles(_Among, "sqlite")
def _in_json(element: _Among, compiler: Any, **options: Any) -> str:
    column, values = (compiler.process(each, **options) for each in element.clauses)
    return f"({column} IN (SELECT value FROM json_each({values})))"  # noqa: S608 — names and places of parameters


@compiles(_Among, "postgresql")
def _any_of(element: _Among, compiler: Any, **options: Any) -> str:
    column, values = (compiler.process(each, **options) for each in element.clauses)
    return f"({column} = ANY({values}))"
