"""The files that writers of this process have open: not more than so many at once, and none of its parent's.

A run may save to a directory of its own each time, and a process may drop a writer without closing it.
"""

from __future__ import annotations

from typing import Protocol

from ckptstore.outside import os

MOST_OPEN = 64


class Writer(Protocol):
    """Who has a file open, and opens it again when it needs it."""

    def close_unless_busy(self) -> None:
        """Close it, if no thread writes."""

    def forget(self) -> None:
        """Close it without waiting for anyone: whoever wrote is not in this process."""


_opened: dict[Writer, None] = {}


def add(writer: Writer) -> None:
    """A writer has opened its file: those that did so longest ago close theirs where there are too many."""
    _opened[writer] = None
    for oldest in list(_opened)[:-MOST_OPEN]:
        oldest.close_unless_busy()


def discard(writer: Writer) -> None:
    """A writer has closed its file."""
    _opened.pop(writer, None)


def _let_go_in_child() -> None:
    """A child of a fork has its parent's files, and would hold their locks when the parent is dead."""
    for writer in list(_opened):
        writer.forget()


os.register_at_fork(after_in_child=_let_go_in_child)
