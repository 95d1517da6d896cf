"""Reads an open file once into given memory, and takes its digest on the way."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from blake3 import blake3

from ckptstore.outside import ThreadPoolExecutor, os

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ckptstore.outside import Future

_PIECE = 4 << 20  # bytes: read while the piece before it is digested
_MOST_VIEWS = 1024  # of one call (IOV_MAX)
_THREADS = 4


def read_into(descriptor: int, views: Iterable[memoryview], told: Callable[[int], None] = lambda _: None) -> str:
    """Fill writable views of bytes, in this order, with a whole file; return the digest of its bytes.

    `told` is called now and then with the number of bytes read so far.

    Nothing is mapped: if a file is cut, touching its mapping would end the process. Two views of 4 MiB may be given in
    turn, again and again. Raises `EOFError` if the file ends before or after the views do, `OSError` if it cannot be
    read, with EFAULT if a view cannot be written to.
    """
    with suppress(OSError):  # it is a hint
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    hasher = blake3(max_threads=_THREADS)
    end = 0
    before: Future[None] | None = None

    def digest(batch: Sequence[memoryview]) -> None:
        for view in batch:
            hasher.update(view)

    with ThreadPoolExecutor(1, "ckptstore-digest") as beside:
        for batch in _batches(views):
            end = _fill(descriptor, batch, end)
            told(end)
            if before is not None:
                before.result()
            before = beside.submit(digest, batch)
        if before is not None:
            before.result()
    if os.pread(descriptor, 1, end):
        raise EOFError(f"more follows byte {end}")
    return hasher.hexdigest()


def _batches(views: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    """Group views for one read each: a piece of a large one, or many small ones."""
    batch: list[memoryview] = []
    left = _PIECE
    for view in views:
        rest = view
        while rest.nbytes:
            part, rest = rest[:left], rest[left:]
            batch.append(part)
            left -= part.nbytes
            if not left or len(batch) == _MOST_VIEWS:
                yield batch
                batch, left = [], _PIECE
    if batch:
        yield batch


def _fill(descriptor: int, batch: Sequence[memoryview], offset: int) -> int:
    """Fill views with the bytes from an offset on; return the offset where they end."""
    while batch:
        count = os.preadv(descriptor, batch, offset)
        if not count:
            raise EOFError(f"it ends at byte {offset}")
        offset += count
        batch = _rest(batch, count)
    return offset


def _rest(batch: Sequence[memoryview], count: int) -> Sequence[memoryview]:
    """The unfilled rest of views whose first bytes are filled."""
    for index, view in enumerate(batch):
        if count < view.nbytes:
            return [view[count:], *batch[index + 1 :]]
        count -= view.nbytes
    return ()
