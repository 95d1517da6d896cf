"""A directory as a store: on this machine, or shared by several machines."""

from __future__ import annotations

import errno
import logging
from contextlib import contextmanager, suppress
from stat import S_ISREG
from typing import TYPE_CHECKING

from ckptstore.disk.aside import clear_unfinished, named_last
from ckptstore.disk.files import sync
from ckptstore.disk.name_claims import FOLDER
from ckptstore.disk.presence import sync_above
from ckptstore.disk.waiting import hanging
from ckptstore.disk.walk import LOST_AND_FOUND
from ckptstore.errors import RefusedError, reason_of
from ckptstore.objects.errors import (
    BusyError,
    DeniedError,
    FullError,
    MissingError,
    SourceError,
    StoreError,
    UnreachableError,
    WrongBytesError,
)
from ckptstore.objects.store import PIECE, Finding, Seen, Store, limited, read_pieces
from ckptstore.outside import open_file, os, token_hex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptstore.objects.store import Limit

log = logging.getLogger("ckptstore")

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


class DirectoryStore(Store):
    """Objects are files below a directory with a `.ckptstore` in it. An empty mount point has none: it gets no file."""

    def __init__(self, directory: str) -> None:
        self.name = self._directory = directory.rstrip("/") or "/"

    def prepare(self) -> None:
        """Make the directory, and the `.ckptstore` that tells it from a mount point without its disk."""
        with self._named("be made"):
            os.makedirs(f"{self._directory}/{FOLDER}", exist_ok=True)
            sync_above(f"{self._directory}/{FOLDER}")

    def put(self, path: str, key: str, size: int, digest: str, limit: Limit | None = None) -> None:
        """Copy a file under a temporary name, sync it, read it back, and give it its name."""
        target = self._at(key)
        if self.head(key) is not None:
            self._prove(target, key, size, digest)
            self._keep(target, key)  # the process that copied it may have been killed before that
            with self._named(f"take {key}"), suppress(RefusedError):  # another process is at it
                clear_unfinished(target)
            return
        with self._named(f"take {key}"):
            self._ensure_present()
            os.makedirs(os.path.dirname(target), exist_ok=True)
            try:
                with named_last(target) as aside:
                    self._copy(path, aside, size, digest, limit)
                    self._prove(aside, key, size, digest)
            except RefusedError as error:  # another process copies the same file, or has done so by now
                raise BusyError(error.message, "it is tried again") from None
        self._keep(target, key)

    def head(self, key: str) -> Seen | None:
        """The file of a key."""
        with self._named(f"be asked for {key}"):
            self._ensure_present()
            try:
                status = os.stat(self._at(key), follow_symlinks=False)
            except (FileNotFoundError, NotADirectoryError):
                return None
        return Seen(key, status.st_size) if S_ISREG(status.st_mode) else None

    def list(self, prefix: str = "") -> Iterator[Seen]:
        """Every file below the directory, without those that are being written.

        A directory that cannot be read is named in a warning: several users may share a tier.
        """
        with self._named("be listed"):
            self._ensure_present()
            start = f"{self._directory}/{prefix.rpartition('/')[0]}".rstrip("/")
            for above, folders, names in os.walk(start, onerror=self._pass_over):
                folders[:] = [each for each in folders if each not in (FOLDER, LOST_AND_FOUND)]
                for name in names:
                    path = f"{above}/{name}"
                    key = path[len(self._directory.rstrip("/")) + 1 :]
                    if not key.startswith(prefix):
                        continue
                    with suppress(FileNotFoundError):
                        status = os.stat(path, follow_symlinks=False)
                        if S_ISREG(status.st_mode):
                            yield Seen(key, status.st_size)

    def remove(self, key: str) -> None:
        """Delete a file."""
        with self._named(f"delete {key}"):
            self._ensure_present()
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(self._at(key))

    def check(self) -> tuple[Finding, ...]:
        """Whether this user may write there. A disk that does not answer is not waited for."""
        if hanging({self._directory}):
            raise UnreachableError(f"{self.name} does not answer", "see that its server is there")
        path = self._at(f"{FOLDER}/check-{token_hex(8)}")
        with self._named("be written to"):
            self._ensure_present()
            with open_file(path, "xb") as file:
                file.write(b"ckptstore")
            os.unlink(path)
        return ()

    def pieces(self, key: str, begin: int, end: int) -> Iterator[bytes]:
        """The bytes of a file, in pieces."""
        with self._named(f"give {key}"):
            self._ensure_present()
            try:
                file = open_file(self._at(key), "rb", buffering=0)
            except FileNotFoundError:
                raise MissingError(f"{self.name} has no {key}", "another copy is needed") from None
            with file:
                while begin < end:
                    piece = os.pread(file.fileno(), min(PIECE, end - begin), begin)
                    if not piece:
                        raise WrongBytesError(f"{key} of {self.name} ends at byte {begin}", "another copy is needed")
                    begin += len(piece)
                    yield piece

    def _copy(self, path: str, target: str, size: int, digest: str, limit: Limit | None) -> None:
        with open_file(target, "wb") as file:
            for piece in limited(read_pieces(path, size, digest), limit):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            with suppress(OSError):  # a hint: the bytes are then read back from the disk
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _keep(self, target: str, key: str) -> None:
        """Sync the names of a file and of the directories above it to the disk."""
        with self._named(f"take {key}"):
            sync(os.path.dirname(target))
            sync_above(target)

    def _prove(self, path: str, key: str, size: int, digest: str) -> None:
        """Read a file back. Raises `WrongBytesError`."""
        try:
            for _ in read_pieces(path, size, digest):
                pass
        except SourceError as error:
            hint = f"delete {path}, and it is copied again"
            raise WrongBytesError(f"{key} of {self.name} is damaged: {error.message}", hint) from None

    def _pass_over(self, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            log.warning("%s is passed over: it cannot be read (%s)", error.filename, reason_of(error))

    def _at(self, key: str) -> str:
        return f"{self._directory.rstrip('/')}/{key}"

    def _ensure_present(self) -> None:
        if os.path.isdir(f"{self._directory}/{FOLDER}"):
            return
        why = f"has no {FOLDER}" if os.path.isdir(self._directory) else "is not there"
        hint = f"mount it; if it is a new one: make {FOLDER} in it"
        raise UnreachableError(f"{self.name} {why}: perhaps it is not mounted", hint)

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Raise errors of the file system as a `StoreError`."""
        try:
            yield
        except OSError as error:
            kind: type[StoreError] = UnreachableError
            kind = FullError if error.errno in _FULL else DeniedError if error.errno in _DENIED else kind
            hints = {FullError: "make room there", DeniedError: "give this user the right to it"}
            message = f"{self.name} cannot {what}: {reason_of(error)}"
            raise kind(message, hints.get(kind, "see that its disk is there")) from None
