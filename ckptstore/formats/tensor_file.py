"""The tensors of a checkpoint file by name. The header is read at once, the bytes of a tensor on request."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ckptstore.errors import CkptstoreError, DamageError, UsageError, reason_of
from ckptstore.formats.header import Header, certainly_appended
from ckptstore.formats.inspect import look_into
from ckptstore.outside import os

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ckptstore.formats.header import Entry
    from ckptstore.outside import Path

    Read = Callable[[Entry, int, memoryview], None]
    """Fills writable memory with the bytes of a tensor, from an offset in the tensor on."""


class TensorFile:
    """A `.ckpt` or `.safetensors` file; its bytes tell the format. `tensors` are its parameters by name.

    Values that were certainly appended are left out: they are in `header.info`. Raises `UsageError` if there is no such
    file, or if it holds no tensors; `UnreadableError` if it is cut, damaged or encrypted; `CkptstoreError` if it cannot
    be read.
    """

    _stamp: tuple[int, ...] = ()

    def __init__(self, path: Path) -> None:
        with suppress(OSError):  # `look_into` tells it
            self._stamp = _stamp_of(os.stat(path))  # before the header is read: later, it may be that of another file
        found = look_into(path)
        if not isinstance(found, Header):
            raise UsageError(f"{path} holds no tensors", "give a checkpoint; this file tells how ranks share one")
        self.path = path
        self.header = found
        appended = certainly_appended(found)
        self.tensors = {entry.name: entry for entry in found.entries if entry.name not in appended}

    @contextmanager
    def opened(self) -> Iterator[Read]:
        """Open the file to read bytes of its tensors.

        Raises `DamageError` if the file was replaced or cut since its header was read; `CkptstoreError` if it cannot be
        read.
        """
        descriptor = -1

        def read(entry: Entry, begin: int, view: memoryview) -> None:
            for offset, size in entry.slices:
                if not view.nbytes:
                    return
                if begin < size:
                    part, view = view[: size - begin], view[size - begin :]
                    _fill(descriptor, part, offset + begin)
                begin = max(0, begin - size)
            if view.nbytes:
                raise EOFError

        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            if _stamp_of(os.fstat(descriptor)) != self._stamp:
                raise DamageError(f"{self.path} was replaced since its header was read", "open it again")
            yield read
        except OSError as error:
            raise CkptstoreError(
                f"cannot read {self.path}: {reason_of(error)}", "check permissions and the disk"
            ) from None
        except EOFError:
            raise DamageError(f"{self.path} ends too early", "it was cut since its header was read") from None
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def _stamp_of(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _fill(descriptor: int, view: memoryview, offset: int) -> None:
    while view.nbytes:
        count = os.preadv(descriptor, [view], offset)
        if not count:
            raise EOFError
        view, offset = view[count:], offset + count
