"""Shows the progress of long work: one line on stderr, only on a terminal, and only after two seconds."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ckptstore.outside import time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.progress import Progress, ProgressColumn

SHOWN_AFTER_SECONDS = 2.0
"""Work that ends sooner shows nothing."""


@contextmanager
def count(verb: str, *, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """Show a growing number of files, if `shown`. Call the yielded function with the number of further ones."""

    def columns() -> Sequence[ProgressColumn]:
        from rich.progress import TextColumn, TimeElapsedColumn

        return TextColumn(verb), TextColumn("{task.completed}"), TextColumn("files"), TimeElapsedColumn()

    with _line(columns, shown=shown) as line:
        yield line.add


@contextmanager
def bar(verb: str, *, in_bytes: bool, shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Show a bar with the remaining time, if `shown`. Call the yielded function with the amount done and the total.

    Both are numbers of bytes if `in_bytes`, else of files.
    """

    def columns() -> Sequence[ProgressColumn]:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        amounts = (DownloadColumn(), TransferSpeedColumn()) if in_bytes else (MofNCompleteColumn(), TextColumn("files"))
        return TextColumn(verb), BarColumn(), *amounts, TimeRemainingColumn()

    with _line(columns, shown=shown) as line:
        yield line.update


@contextmanager
def _line(columns: Callable[[], Sequence[ProgressColumn]], *, shown: bool) -> Iterator[_Line]:
    line = _Line(columns, is_shown=shown and sys.stderr is not None and sys.stderr.isatty())
    try:
        yield line
    finally:
        line.end()


class _Line:
    """The line on the terminal. It imports `rich` only when it is first drawn: that takes a tenth of a second."""

    def __init__(self, columns: Callable[[], Sequence[ProgressColumn]], *, is_shown: bool) -> None:
        self._columns, self._is_shown = columns, is_shown
        self._bar: Progress | None = None
        self._done = 0
        self._begin = time.monotonic()

    def add(self, more: int) -> None:
        """Count `more` further items as done."""
        self.update(self._done + more, None)

    def update(self, done: int, total: int | None) -> None:
        """Show that `done` of `total` are done (None: the total is not known)."""
        self._done = done
        if not self._is_shown or time.monotonic() - self._begin < SHOWN_AFTER_SECONDS:
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(*self._columns(), console=Console(stderr=True), transient=True)
            self._bar.add_task("", total=None)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done, total=total)

    def end(self) -> None:
        """Remove the line."""
        if self._bar is not None:
            self._bar.stop()
