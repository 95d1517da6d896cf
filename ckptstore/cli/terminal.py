"""How anything is printed for people: tables, lines, moments, and a count that grows."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from ckptstore.core.words import span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ckptstore.core.model import Kind

_WIDE = 4096


@contextmanager
def progress(verb: str, unit: str) -> Iterator[Callable[[int], None]]:
    """A count that grows on stderr, on a terminal only."""
    console = Console(stderr=True)
    columns = (TextColumn(verb), TextColumn("{task.completed}"), TextColumn(unit), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task(verb, total=None)
        yield lambda more: shown.advance(task, more)


@contextmanager
def progress_of(verb: str, *, in_bytes: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar with rate and rest on stderr, on a terminal only; it is told how much is done, and of how much."""
    console = Console(stderr=True)
    amounts = (DownloadColumn(), TransferSpeedColumn()) if in_bytes else (MofNCompleteColumn(), TextColumn("files"))
    columns = (TextColumn(verb), BarColumn(), *amounts, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task(verb, total=None)
        yield lambda done, every: shown.update(task, completed=done, total=every)


def kinds(of: tuple[Kind, ...]) -> str:
    """The kinds of the files of a state."""
    return " + ".join(kind.value for kind in of)


def _console() -> Console:
    """On a terminal, its width; elsewhere lines are never broken or cut."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDE)


class Rows:
    """A table that is being filled; a column whose name begins with ">" is flush right."""

    def __init__(self, *columns: str) -> None:
        self._right = [column.startswith(">") for column in columns]
        self._rows = [tuple(column.lstrip(">") for column in columns)]

    def add_row(self, *cells: str) -> None:
        """Add a row, of plain text."""
        self._rows.append(cells)

    def print(self, if_empty: str) -> None:
        """Print the table, or a line where it has no rows."""
        if len(self._rows) == 1:
            line(if_empty)
        elif (console := _console()).is_terminal:
            console.print(self._folded())
        else:
            line("\n".join(self._lines()))

    def _folded(self) -> Table:
        """What is too wide for a terminal goes on in the next line of its cell."""
        header, *rows = self._rows
        made = Table(box=None, pad_edge=False, header_style="bold")
        for name, right in zip(header, self._right, strict=True):
            made.add_column(name, justify="right" if right else "left", overflow="fold")
        for cells in rows:
            made.add_row(*map(Text, cells))
        return made

    def _lines(self) -> Iterator[str]:
        """The same in whole lines; rich takes a millisecond for two of them."""
        widths = [max(map(cell_len, column)) for column in zip(*self._rows, strict=True)]
        for cells in self._rows:
            pads = [" " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)]
            padded = [
                pad + cell if right else cell + pad for cell, pad, right in zip(cells, pads, self._right, strict=True)
            ]
            yield "  ".join(padded).rstrip()


def line(text: str) -> None:
    """Print a line, as it is."""
    _console().print(text, markup=False, soft_wrap=True)


def marked(mark: str, text: str, style: str) -> None:
    """Print a line that begins with a mark, in a colour where there are colours; it can be read without."""
    _console().print(Text(f"{mark:<8} ", style=style) + Text(text, style="default"), soft_wrap=True)


def moment(when: datetime | None) -> str:
    """A moment in UTC."""
    return "-" if when is None else f"{when.astimezone(timezone.utc):%Y-%m-%d %H:%M:%SZ}"


def age(when: datetime) -> str:
    """How long ago a moment was."""
    return f"{span(datetime.now(timezone.utc) - when)} ago"
