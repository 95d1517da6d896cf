"""Where the command prints: a reader that goes away, as `head` does, changes nothing of what it does or ends with."""

from __future__ import annotations

import io
import logging
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _Stream(io.FileIO):
    """A file that takes what its reader does not: it goes nowhere, and the command keeps its exit code.

    Any other error is raised once: Python writes what is left again when it ends, and would complain once more.
    """

    _has_failed = False

    def write(self, data: Buffer, /) -> int:
        """As the file's."""
        if not self._has_failed:
            try:
                return super().write(data)
            except BrokenPipeError:
                self._has_failed = True
            except OSError:
                self._has_failed = True
                raise
        return memoryview(data).nbytes


class _Lines(logging.Handler):
    """Prints each warning as one line on stderr, whatever is in the names that it tells of."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print it."""
        from ckptstore.cli.terminal import line

        line(record.getMessage(), err=True)


def log_lines() -> None:
    """From now on warnings are lines on stderr."""
    logging.getLogger().addHandler(_Lines(logging.WARNING))


def outlive_readers() -> None:
    """From now on writing to stdout or stderr does not fail where nobody reads it any more."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):  # None where the caller has closed it
            stream.flush()
            _replaced.append(stream)
            setattr(sys, name, _outliving(stream))


_replaced: list[io.TextIOWrapper] = []
"""Kept: one that is dropped closes its descriptor, and what is opened next would get what is printed."""


def _outliving(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    raw = _Stream(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
