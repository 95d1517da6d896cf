"""Prints for people: tables, lines and moments."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, TypeVar

import click

from ckptstore.core.text import span
from ckptstore.outside import os, utc_now

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ckptstore.core.model import Kind

Item = TypeVar("Item")


def kinds(of: tuple[Kind, ...]) -> str:
    """The kinds of the files of a state."""
    return " + ".join(kind.value for kind in of)


_BETWEEN = "  "


class Rows:
    """A table for printing. A column whose name begins with ">" is aligned to the right.

    A row may have a colour, which only a terminal shows. A heading is a line of its own, above the rows added after it.
    """

    def __init__(self, *columns: str) -> None:
        self._right = [column.startswith(">") for column in columns]
        self._rows = [tuple(column.lstrip(">") for column in columns)]
        self._colours = [""]
        self._headings: dict[int, str] = {}

    def add_heading(self, text: str) -> None:
        """Add a heading above the rows that are added next."""
        self._headings[len(self._rows)] = plain(text)

    def add_row(self, *cells: str, colour: str = "") -> None:
        """Add a row."""
        self._rows.append(tuple(map(plain, cells)))
        self._colours.append(colour)

    def print(self, if_empty: str) -> None:
        """Print the table; if it has no rows, the line `if_empty`."""
        if len(self._rows) == 1:
            line(if_empty)
        else:
            click.echo("\n".join(self._lines()))

    def _lines(self) -> Iterator[str]:
        """The lines of the table. None is wrapped, so that a launch or a path can be copied as a whole."""
        from rich.cells import cell_len

        widths = [max(map(cell_len, column)) for column in zip(*self._rows, strict=True)]
        for place, cells in enumerate(self._rows):
            if place in self._headings:
                yield self._headings[place]
            pads = [" " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)]
            padded = [
                pad + cell if right else cell + pad for cell, pad, right in zip(cells, pads, self._right, strict=True)
            ]
            text = _BETWEEN.join(padded).rstrip()
            yield _coloured(text, self._colours[place])


def is_read() -> bool:
    """Whether the output may have a reader. A pipe has none after its reader has ended, as `grep -m1` does."""
    return not getattr(getattr(getattr(sys.stdout, "buffer", None), "raw", None), "has_failed", False)


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def _coloured(text: str, colour: str) -> str:
    has_colours = colour and _is_terminal() and not os.environ.get("NO_COLOR")
    return click.style(text, fg=colour) if has_colours else text


def line(text: str, *, err: bool = False) -> None:
    """Print one line, on stderr if `err`. It is not wrapped or cut, and its control characters are escaped."""
    click.echo(plain(text), err=err)


def error(message: str, hint: str, code: int, *, as_json: bool) -> None:
    """Print an error on stderr: one line, or one JSON object."""
    if as_json:
        click.echo(json.dumps({"error": message, "hint": hint, "exit_code": code}), err=True)
    else:
        line(f"ckptstore: {message}{'; ' if hint else ''}{hint}", err=True)


def first(items: Sequence[Item], what: str, most: int = 20, *, indent: str = "") -> Iterator[Item]:
    """Yield the first `most` items; then print a line with the number of further ones, if there are any."""
    yield from items[:most]
    more(len(items), what, most, indent=indent)


def more(there: int, what: str, most: int, *, indent: str = "") -> None:
    """Print by how many `there` exceeds the `most` that were shown; nothing if these were all."""
    if there > most:
        line(f"{indent}… and {there - most} more{what and ' '}{what}; --json has all")


def lines(texts: Iterable[str]) -> None:
    """Print several lines at once."""
    click.echo("\n".join(map(plain, texts)))


def marked(mark: str, text: str, colour: str = "") -> None:
    """Print a line that begins with a mark. On a terminal the mark is coloured."""
    click.echo(f"{_coloured(f'{mark:<8}', colour)} {plain(text)}")


def plain(text: str) -> str:
    """The text, with control characters and other unprintable ones escaped: names come from other users."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


_asked_for_utc: list[bool] = []


def show_in_utc(is_utc: bool) -> None:  # noqa: FBT001
    """Show moments in UTC from now on, or in the time of this machine."""
    _asked_for_utc[:] = [is_utc]


def moment(when: datetime | None, *, seconds: bool = True) -> str:
    """A moment as text: in the time of this machine on a terminal, else in UTC. `show_in_utc` overrides this."""
    if when is None:
        return "-"
    is_utc = _asked_for_utc[0] if _asked_for_utc else not _is_terminal()
    form = f"%Y-%m-%d %H:%M{':%S' if seconds else ''}{'Z' if is_utc else ''}"
    return when.astimezone(timezone.utc if is_utc else None).strftime(form)


def age(when: datetime) -> str:
    """How long ago a moment was."""
    return f"{span(utc_now() - when)} ago"
