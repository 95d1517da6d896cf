"""Ask for rows with one of many values, however many they are, in one statement.

A list of parameters would be compiled anew for each length, and SQLite takes so many only.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Iterable


def among(connection: sa.Connection, column: sa.ColumnElement[Any], values: Iterable[Any]) -> sa.ColumnElement[bool]:
    """Whether a column of texts or numbers is one of these values."""
    if connection.dialect.name == "sqlite":
        listed = sa.func.json_each(json.dumps(list(values))).table_valued("value")
        return column.in_(sa.select(listed.c.value))
    return column == sa.any_(sa.literal(list(values), sa.ARRAY(column.type)))
