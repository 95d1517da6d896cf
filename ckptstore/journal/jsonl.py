"""Journals beside checkpoints: what was recorded of them, in files that only grow.

A journal is `.ckptstore/rank_{R}.jsonl` in the directory that rank R saves to, or `shared.jsonl` for what others note
there. Each line is one JSON object, `{"v": 1, "t": type, …, "sum": checksum of the rest}`. One process writes a file:
it holds a lock on it, and another one that comes writes to a file of its own beside it. So does every process where
the file system has no locks. A line that is torn or foreign is passed over: a writer that follows begins on a new one.
"""

from __future__ import annotations

import errno
import json
import re
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, BinaryIO

from ckptstore.core import bounded_json
from ckptstore.disk.claims import FOLDER
from ckptstore.disk.presence import enter_announced
from ckptstore.disk.walk import LOST_AND_FOUND
from ckptstore.journal import opened
from ckptstore.outside import Path, os, threading, token_hex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Entry = dict[str, Any]

VERSION = 1
"""Of the format; a line with a higher one was written by a newer program, and is left to it."""

MOST_LINE = 16 << 20
"""Bytes of a line, at most: what is longer is none. The plan of 100,000 ranks is half of it."""

MOST_JOURNAL = 4 << 30
"""Bytes that are looked through at once, at most: a power loss may leave a long file of zeros."""

MOST_KEPT = 256 << 20
"""Bytes of lines that are read at once, at most, where no less is asked for: half a million records."""

_HEAD = 4096
"""Bytes that tell journals apart, unless the first line is shorter."""

_SUM = re.compile(rb'^(.*),"sum":"([0-9a-f]{16})"\}$', re.DOTALL)
_NAME = re.compile(r"^(rank_\d+|shared)(-[0-9a-z]+)*\.jsonl$")
SHARED = "shared"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_APPENDED = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True)
class Contents:
    """What was read of a journal: its entries in order, and where the next ones will begin, in bytes.

    `spoiled` counts lines that are torn or of others, `newer` those of a newer program. `head` is as `head` has it.
    `has_more`: there were too many to read them at once.
    `owner` is the number of the user whose file it is, `home_owner` that of the directory's.
    """

    entries: tuple[Entry, ...]
    end: int
    spoiled: int = 0
    newer: int = 0
    head: str | None = None
    has_more: bool = False
    owner: int = -1
    home_owner: int = -1


@dataclass(frozen=True)
class Span:
    """Where in a journal something was written: its path, first byte, the byte after the last, and its `head`."""

    path: str
    begin: int
    end: int
    head: str | None = None


_to_json = json.JSONEncoder(separators=(",", ":")).encode


def encode(entry: Entry) -> bytes:
    """One line, with its checksum and its end."""
    body = _to_json({"v": VERSION, **entry}).encode("ascii")[:-1]
    return b'%s,"sum":"%s"}\n' % (body, _checksum(body))


def decode(line: bytes) -> Entry | None:
    """What a line holds; None if it is torn, or no line of a journal."""
    found = _SUM.match(line)
    if found is None or _checksum(found[1]) != found[2]:
        return None
    try:
        entry = bounded_json.parse(found[1] + b"}")
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("v"), int) else None


def _checksum(body: bytes) -> bytes:
    return blake2b(body, digest_size=8).hexdigest().encode("ascii")


def head(path: str) -> str | None:
    """What tells a journal from another one that was begun later at its path; None where its beginning is not written.

    Raises `OSError`.
    """
    with _opened(path) as file:
        return _head_of(file.read(_HEAD))


def _opened(path: str) -> BinaryIO:
    """Open a journal. Raises `OSError`, for a link and for what is no regular file too: a pipe would be waited for."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "not a regular file")


def _head_of(text: bytes) -> str | None:
    line, end, _ = text.partition(b"\n")
    return blake2b(line, digest_size=16).hexdigest() if end or len(line) == _HEAD else None


def read(path: str, begin: int = 0, most: int | None = None) -> Contents:
    """What is in a journal from a byte on, to the last end of a line, or to the first line of a newer program.

    No more than `most` bytes of lines, or one line (None: `MOST_KEPT`). What follows a newer program's line is told
    too; that program reads it again from there. A file that is no journal, as one of zeros that a power loss left,
    takes no more memory than the longest line. Raises `OSError`.
    """
    entries: list[Entry] = []
    spoiled = newer = kept = 0
    end = place = begin
    is_endless = has_more = False
    with _opened(path) as file:
        status = os.fstat(file.fileno())
        if status.st_size - begin > MOST_JOURNAL:
            raise OSError(errno.EFBIG, f"more than {MOST_JOURNAL >> 30} GiB of a journal")
        own = _head_of(file.read(_HEAD))
        file.seek(begin)
        while piece := file.readline(MOST_LINE):
            was_endless, is_endless = is_endless, not piece.endswith(b"\n") and (is_endless or len(piece) == MOST_LINE)
            if not piece.endswith(b"\n") and not is_endless:
                break  # a line under way
            entry = None if was_endless or is_endless else decode(piece.rstrip(b"\n"))
            if entries and entry is not None and kept + len(piece) > (MOST_KEPT if most is None else most):
                has_more = True
                break
            place += len(piece)
            if entry is not None and entry["v"] > VERSION:
                newer += 1
            elif entry is not None:
                kept += len(piece)
                entries.append(entry)
            elif piece != b"\n" and not was_endless:
                spoiled += 1
            if not newer:
                end = place
    home_owner = Path(directory_of(path)).stat().st_uid
    return Contents(tuple(entries), end, spoiled, newer, own, has_more, status.st_uid, home_owner)


def owners(path: str) -> tuple[int, int]:
    """The numbers of the users whose a journal is, and its directory. Raises `OSError`."""
    return os.lstat(path).st_uid, Path(directory_of(path)).stat().st_uid


def read_tails(tails: Mapping[str, int], most_bytes: int) -> tuple[dict[str, Contents], bool]:
    """What journals hold from these bytes on, until so many bytes were read; and whether that was all of it.

    One that cannot be read is left out.
    """
    found: dict[str, Contents] = {}
    left = most_bytes
    for path, begin in tails.items():
        if left <= 0:
            return found, False
        with suppress(OSError):
            found[path] = read(path, begin)
            left -= found[path].end - begin
    return found, not any(contents.has_more for contents in found.values())


def size(path: str) -> int | None:
    """How long a journal is, in bytes; None where it is not there or cannot be looked at."""
    try:
        return Path(path).stat().st_size
    except OSError:
        return None


def sizes_in(folder: str) -> dict[str, int] | None:
    """The journals in a folder of a directory, by path, and how long each is, in bytes; None if there is no folder.

    Raises `OSError`, for a folder that is a link too: what is behind it is of another directory.
    """
    try:
        opened = os.open(folder, _FOLDER)
    except (FileNotFoundError, NotADirectoryError):
        if os.path.islink(folder):
            raise OSError(errno.ELOOP, "its folder is a link") from None
        return None
    try:
        with os.scandir(opened) as found:
            return {
                f"{folder}/{entry.name}": entry.stat(follow_symlinks=False).st_size
                for entry in found
                if _NAME.match(entry.name) and entry.is_file(follow_symlinks=False)
            }
    finally:
        os.close(opened)


def directory_of(path: str) -> str:
    """The directory whose files a journal tells of."""
    return path.rpartition("/")[0].rpartition("/")[0] or "/"


def journals_in(directory: str) -> list[str]:
    """The journals of one directory. Raises `OSError` where it cannot be read."""
    return sorted(sizes_in(str(Path(directory) / FOLDER)) or ())


def journals_below(
    root: str,
    on_error: Callable[[str, OSError], None] | None = None,
    on_hidden: Callable[[OSError], None] | None = None,
) -> Iterator[str]:
    """The journals of every directory below the root, and of itself; no link is followed.

    `on_error` hears of each folder of journals that cannot be read. Raises `OSError` for it where nobody listens.
    `on_hidden` hears of each directory that cannot be read, where there may be journals; None: those are passed over.
    """
    for directory, below, _ in os.walk(root, onerror=on_hidden):
        below[:] = (name for name in below if name != LOST_AND_FOUND)
        if FOLDER in below:
            below.remove(FOLDER)
            try:
                yield from journals_in(directory)
            except OSError as error:
                if on_error is None:
                    raise
                on_error(str(Path(directory) / FOLDER), error)


class JournalWriter:
    """Appends to the journal of a directory. Opened at the first append; usable by the threads of one process.

    `stem` names the file (`rank_3`), `launch` the one that writes: it is in the name of another file, where that one is
    in another process's hands. `reach` opens the directory if it is present (None: whatever
    directory is there); raises `OSError` if not.
    """

    def __init__(self, directory: str, stem: str, launch: str, reach: Callable[[], int] | None = None) -> None:
        self._folder = Path(directory) / FOLDER
        self._reach = reach or partial(enter_announced, directory)
        self._stem = stem
        self._launch = blake2b(launch.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
        self._lock = threading.Lock()
        self._file: int | None = None
        self._process = 0
        self._head: str | None = None
        self._end = 0
        self.path = ""

    def is_there(self) -> bool:
        """Whether this process has the file open, and its name still leads to it."""
        if self._file is None or self._process != os.getpid():
            return False
        try:
            found, own = os.stat(self.path), os.fstat(self._file)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)

    def is_as_left(self) -> bool:
        """Whether it has all that was appended so far, opening it where it was closed. Raises `OSError`."""
        with self._lock:
            if self.is_there() or not self.path:
                return self._file is not None
            path, head, end = self.path, self._head, self._end
            file = self._open()
            self._head = _head_of(os.pread(file, _HEAD, 0))
            return (self.path, self._head) == (path, head) and os.fstat(file).st_size >= end

    def append(self, entries: Sequence[Entry]) -> Span:
        """Append entries and have them on the disk. Raises `OSError`: then nothing may be said to be kept."""
        with self._lock:
            if not self.is_there():
                self._open()
            first, *others = entries
            if self._file is not None and not os.fstat(self._file).st_size:
                first = {"journal": token_hex(8), **first}  # its head is that of no other
            return self._write(b"".join(encode(entry) for entry in (first, *others)), durable=True)

    def append_at_once(self, entries: Sequence[Entry]) -> bool:
        """Append entries without waiting for anyone or for the disk; whether that could be done. Raises `OSError`."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if not self.is_there():
                return False
            self._write(b"".join(encode(entry) for entry in entries), durable=False)
        finally:
            self._lock.release()
        return True

    def close(self) -> None:
        """Let go of the file; the next append opens it again."""
        with self._lock:
            self._close()

    def close_unless_busy(self) -> None:
        """As `close`, but where a thread writes: that file stays open."""
        if self._lock.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._lock.release()

    def forget(self) -> None:
        """Let go of the file without waiting for anyone: whoever held the lock is not in this process."""
        self._lock = threading.Lock()
        self._close()

    def _close(self) -> None:
        opened.discard(self)
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def _write(self, text: bytes, *, durable: bool) -> Span:
        file = self._file
        if file is None:
            raise OSError(f"the journal in {self._folder} is closed")
        begin = os.fstat(file).st_size
        if begin and os.pread(file, 1, begin - 1) != b"\n":  # a writer before died in a line, or the disk was full
            text = b"\n" + text
        left = memoryview(text)
        while left:
            left = left[os.write(file, left) :]
        if durable:
            os.fdatasync(file)  # its size too, its times are not needed
        self._head = self._head or _head_of(os.pread(file, _HEAD, 0))
        self._end = begin + len(text)
        return Span(self.path, begin, self._end, self._head)

    def _open(self) -> int:
        """Open the first of the possible files that is in nobody else's hands; its name is on the disk then."""
        self._close()
        self._head = None
        with ExitStack() as stack:
            above = self._reach()
            stack.callback(os.close, above)
            try:
                folder = os.open(FOLDER, _FOLDER, dir_fd=above)
            except NotADirectoryError:
                raise OSError(errno.ELOOP, "its folder is a link") from None
            stack.callback(os.close, folder)
            file, name = self._first_free(folder)
            self._file, self._process, self.path = file, os.getpid(), str(self._folder / name)
            opened.add(self)
            if not os.fstat(file).st_size:
                os.fsync(file)
                os.fsync(folder)
        return file

    def _first_free(self, folder: int) -> tuple[int, str]:
        own = f"{self._stem}-{self._launch}"
        for stem in (self._stem, own):
            name = f"{stem}.jsonl"
            with suppress(PermissionError):  # it is another user's, and both may write in the folder
                file = os.open(name, _APPENDED, 0o644, dir_fd=folder)
                if _take(file):
                    return file, name
                os.close(file)
        name = f"{own}-{os.getpid():x}{token_hex(4)}.jsonl"
        return os.open(name, _APPENDED, 0o644, dir_fd=folder), name


def _take(file: int) -> bool:
    """Lock an open file for this process; False where another one has it, or where there are no locks."""
    try:
        from ckptstore.outside import fcntl  # noqa: PLC0415 — not on every system

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True
