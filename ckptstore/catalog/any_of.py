"""Conditions on a column that has one of many values: one statement for any number of values.

`IN` with a parameter for each value is compiled again for each length, and SQLite limits the number of parameters.
"""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles

from ckptstore.core.limits import is_text


def any_of(column: sa.ColumnElement[Any], parameter: str) -> sa.ColumnElement[bool]:
    """Whether a column of texts or numbers equals one of the values in the list that `parameter` is bound to."""
    # Text without a length: a cast to the column's length would cut a longer text, and the rest may be in the column.
    item = sa.Text() if isinstance(column.type, sa.String) else column.type
    return _Among(column, sa.bindparam(parameter, type_=_Values(item)))


def one_of(column: sa.ColumnElement[Any], *fixed: str) -> sa.ColumnElement[bool]:
    """Whether a column equals one of a few fixed values. `in_` would be compiled again at each execution."""
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
        if dialect.name == "sqlite":
            return json.dumps(value)
        if isinstance(self.item, sa.String):
            return list(filter(is_text, value))
        return value


class _Among(sa.sql.functions.FunctionElement[bool]):
    inherit_cache = True
    type = sa.Boolean()

    def self_group(self, against: Any = None) -> _Among:  # noqa: ARG002
        return self  # else SQLAlchemy adds "= 1" on SQLite, which has no booleans, and no index is used


@compiles(_Among, "sqlite")
def _in_json(element: _Among, compiler: Any, **options: Any) -> str:
    column, values = (compiler.process(each, **options) for each in element.clauses)
    return f"({column} IN (SELECT value FROM json_each({values})))"  # noqa: S608 — names and places of parameters


@compiles(_Among, "postgresql")
def _any_of(element: _Among, compiler: Any, **options: Any) -> str:
    column, values = (compiler.process(each, **options) for each in element.clauses)
    return f"({column} = ANY({values}))"
