"""The interface of all stores. An object has a key below the URL of its store, visible once all its bytes are there.

A key contains the digest of its file, or the offsets of its part of a journal. So an object never changes, and copying
it again changes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from blake3 import blake3

from ckptstore.disk.aside import clear_unfinished, named_once
from ckptstore.disk.files import digest as digest_of
from ckptstore.disk.files import facts_if_seen
from ckptstore.errors import RefusedError, reason_of
from ckptstore.objects.errors import NoRoomError, SourceError, WrongBytesError
from ckptstore.outside import Path, ThreadPoolExecutor, open_file, os

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ckptstore.outside import Future

    Limit = Callable[[int], object]

PIECE = 8 << 20
"""Bytes that are read, sent and fetched at a time."""


class Seen(NamedTuple):
    """An object in a store: its size in bytes, and the store's checksum, if any."""

    key: str
    size: int
    tag: str = ""


class Finding(NamedTuple):
    """A fault of a store, or a remark about it, and what to do."""

    what: str
    remedy: str
    is_fault: bool = True  # False: a remark


class Store(ABC):
    """A directory or a bucket; `name` is its URL or path for messages. All calls may come from several threads."""

    name: str

    def prepare(self) -> None:  # noqa: B027 — the owner makes a bucket
        """Create everything that `put` needs: called once, when a tier is declared. Raises `StoreError`."""

    @abstractmethod
    def put(self, path: str, key: str, size: int, digest: str, limit: Limit | None = None) -> None:
        """Copy a file of this size and BLAKE3, and prove that its bytes have arrived. If it is there, only prove it.

        `limit` is called before each piece is sent, with its number of bytes: it may wait, or raise to end the copying.
        Raises `SourceError` if the file is not as recorded, another `StoreError` if the store fails.
        """

    @abstractmethod
    def head(self, key: str) -> Seen | None:
        """The object with a key; None if there is none. Raises `StoreError`."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[Seen]:
        """Every object whose key begins with `prefix`, in no order. Raises `StoreError`."""

    @abstractmethod
    def remove(self, key: str) -> None:
        """Delete an object, if there is one. Raises `StoreError`."""

    @abstractmethod
    def check(self) -> tuple[Finding, ...]:
        """Find problems that would keep a tier from working. Writes, reads and deletes one small object.

        Raises `StoreError` if that fails.
        """

    @abstractmethod
    def pieces(self, key: str, begin: int, end: int) -> Iterator[memoryview | bytes]:
        """The bytes of an object from one offset to another, in order.

        Raises `StoreError`, and `WrongBytesError` if the object is shorter.
        """

    def get(self, key: str, path: str, size: int, digest: str, *, replaces: bool = False) -> None:
        """Fetch an object to a path. The file gets its name once all bytes are there, with this size and BLAKE3.

        After an interruption, the next call continues. If the file is there, nothing is fetched. If another process
        fetches the same file, the call waits for it. Raises `RefusedError` if another file is at the path, unless this
        `replaces` it; `NoRoomError`, `StoreError`.
        """
        if _is_there(path, size, digest):
            with suppress(OSError, RefusedError):  # another process is at it
                clear_unfinished(path)
            return
        receive = partial(self._receive, key, size, digest)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            named_once(path, digest[:32], receive, lambda: _is_there(path, size, digest), replaces=replaces)
        except OSError as error:
            raise NoRoomError(f"cannot write {path}: {reason_of(error)}", "make room, or mend the disk") from None

    def digest_of(self, key: str, size: int) -> str:
        """Read an object back, and return its BLAKE3. Raises `StoreError`."""
        hasher = blake3()
        for piece in self.pieces(key, 0, size):
            hasher.update(piece)
        return hasher.hexdigest()

    def _receive(self, key: str, size: int, digest: str, path: str) -> None:
        """Continue a partly fetched file; start anew if its bytes prove to be wrong."""
        while True:
            done = os.path.getsize(path) if os.path.exists(path) else 0
            room = os.statvfs(os.path.dirname(path))
            lacking = size - done - room.f_bavail * room.f_frsize
            if lacking > 0:
                raise NoRoomError(
                    f"{os.path.dirname(path)} has no room for {key} of {self.name}: {lacking} bytes are lacking",
                    "free space there",
                )
            if done <= size and self._append(key, path, done, size) == digest:
                return
            os.unlink(path)
            if not done:
                raise WrongBytesError(
                    f"{key} of {self.name} does not hold the bytes that were recorded",
                    "another copy is needed; nothing was written",
                )

    def _append(self, key: str, path: str, begin: int, end: int) -> str:
        """Append a part of an object to the file with the bytes before it; return the digest of the whole file."""
        hasher = blake3()
        with open_file(path, "ab") as file, Beside(hasher.update) as hashed:
            if begin:
                with open_file(path, "rb") as there:
                    while piece := there.read(PIECE):
                        hashed.give(piece)
            for each in self.pieces(key, begin, end):
                hashed.give(each)
                file.write(each)
        return hasher.hexdigest()


class Beside:
    """Processes pieces in order on a thread of its own, while the caller reads the next one."""

    def __init__(self, work: Callable[[memoryview | bytes], object]) -> None:
        self._work = work
        self._pool = ThreadPoolExecutor(1, "ckptstore-digest")
        self._before: Future[object] | None = None

    def __enter__(self) -> Beside:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the last piece. Raises what the work raised."""
        self._pool.shutdown(wait=True)
        self.wait()

    def give(self, piece: memoryview | bytes) -> None:
        """Wait until the piece before is done, then hand over a piece."""
        self.wait()
        self._before = self._pool.submit(self._work, piece)

    def wait(self) -> None:
        """Wait until every piece is done."""
        before, self._before = self._before, None
        if before is not None:
            before.result()


def limited(pieces: Iterator[bytes], limit: Limit | None) -> Iterator[bytes]:
    """Yield the pieces. Before each, call `limit` with its number of bytes."""
    for piece in pieces:
        if limit is not None:
            limit(len(piece))
        yield piece


def read_pieces(path: str, size: int, digest: str, use: Iterable[Callable[[bytes], object]] = ()) -> Iterator[bytes]:
    """The pieces of a local file; the last one only if the file has this size and digest. `use` are called with each.

    Raises `SourceError`.
    """
    hasher = blake3()

    def work(piece: memoryview | bytes) -> None:
        hasher.update(piece)
        for each in use:
            each(bytes(piece))

    try:
        with open_file(path, "rb", buffering=0) as file, Beside(work) as hashed:
            if os.fstat(file.fileno()).st_size != size:
                raise _other(path, "it has another size")
            done = 0
            while done < size:
                piece = os.pread(file.fileno(), PIECE, done)
                if not piece:
                    raise _other(path, "it was cut")
                hashed.give(piece)
                done += len(piece)
                if done >= size:
                    hashed.wait()
                    if done > size or hasher.hexdigest() != digest:
                        raise _other(path, "it has other bytes")
                yield piece
            if not size and hasher.hexdigest() != digest:
                raise _other(path, "it has other bytes")
    except OSError as error:
        raise SourceError(f"cannot read {path}: {reason_of(error)}", "it is not copied") from None


def _other(path: str, why: str) -> SourceError:
    return SourceError(f"{path} is not the file that was recorded: {why}", "it is not copied")


def _is_there(path: str, size: int, digest: str) -> bool:
    """Whether a path has a file with this size and digest."""
    found = facts_if_seen(path)
    if found is None or found.size != size:
        return False
    try:
        return Path(path).is_file() and digest_of(path) == digest
    except OSError:
        return False
