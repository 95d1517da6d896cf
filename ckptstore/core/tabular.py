"""Values that show as tables in a notebook, and give their rows as dicts, as `pandas.DataFrame` takes them."""

from __future__ import annotations

from abc import abstractmethod
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Row = TypeVar("Row")

_ROWS_SHOWN = 100


class Tabular:
    """A value with rows."""

    @abstractmethod
    def to_dicts(self) -> list[dict[str, Any]]:
        """A dict a row, with the field names of the command line's JSON. Moments are in UTC."""

    def _repr_html_(self) -> str:
        return html_table(self.to_dicts())


class Listing(list[Row], Tabular, Generic[Row]):
    """A list of rows."""

    def __init__(self, rows: Iterable[Row], to_dict: Callable[[Row], dict[str, Any]]) -> None:
        super().__init__(rows)
        self._to_dict = to_dict

    def to_dicts(self) -> list[dict[str, Any]]:
        """A dict a row, with the field names of the command line's JSON. Moments are in UTC."""
        return self.dicts_of(self)

    def dicts_of(self, rows: Iterable[Row]) -> list[dict[str, Any]]:
        """A dict for each of these rows."""
        return [self._to_dict(row) for row in rows]


def html_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table of these rows, at most the first 100; columns that are empty in all of them are left out."""
    shown = rows[:_ROWS_SHOWN]
    names = [name for name in (rows[0] if rows else ()) if any(row[name] not in _NOTHING for row in shown)]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(map(_cell, (row[name] for name in names)))}</tr>" for row in shown)
    more = len(rows) - len(shown)
    foot = (
        f'<tr><td colspan="{len(names)}">… {more} more</td></tr>' if more else "" if rows else "<tr><td>none</td></tr>"
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}{foot}</tbody></table>"


_NOTHING: tuple[Any, ...] = (None, "", (), [], {})


def _cell(value: Any) -> str:
    style = ' style="text-align: right"' if isinstance(value, (int, float)) and not isinstance(value, bool) else ""
    return f"<td{style}>{escape(_shown(value))}</td>"


def _shown(value: Any) -> str:
    if value in _NOTHING:
        return ""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_shown, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
