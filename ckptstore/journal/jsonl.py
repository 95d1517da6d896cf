"""Reads and writes journals beside checkpoints: files of records that only grow.

The journal of a directory is cut into segments, one for each process that writes there. The process of rank R in a
launch writes `.ckptstore/rank_{R}-{launch}-{token}.jsonl`, a process that writes for several ranks
`shared-{process}-{token}.jsonl`. No name is used twice: facts about a segment stay true, and two processes never write
into one. Each line is one JSON object, `{"v": 1, "t": type, …, "sum": checksum of the rest}`. A line that is torn or
of another program is skipped: the next entry begins on a new line.
"""

from __future__ import annotations

import errno
import json
import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from ckptstore.core import bounded_json
from ckptstore.core.events import to_line
from ckptstore.core.ids import derived_id
from ckptstore.disk.name_claims import FOLDER
from ckptstore.disk.presence import enter_announced, records_in
from ckptstore.outside import Path, open_file, os, threading, token_hex

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from ckptstore.core.events import LaunchStarted
    from ckptstore.core.model import LaunchKey

    Entry = dict[str, Any]

VERSION = 1
"""The version of the format. A line with a higher version was written by a newer program, and is left to that one."""

MOST_LINE = 16 << 20
"""The most bytes of a line. The plan of 100,000 ranks needs half of that."""

MOST_JOURNAL = 4 << 30
"""A journal with more unread bytes is not read: a power loss may leave a long file of zeros."""

MOST_KEPT = 256 << 20
"""The most bytes of lines that are read at once, unless less is asked for: half a million records."""

_MOST_OF_TAILS = 16 << 20
_SUM = re.compile(rb'^(.*),"sum":"([0-9a-f]{16})"\}$', re.DOTALL)
_NAME = re.compile(r"^(rank_\d+|shared)(-[0-9a-z]+)*\.jsonl$")
SHARED = "shared"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_APPENDED = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True)
class Contents:
    """A part of a journal: its entries in order, and the offset of the next ones, in bytes.

    `spoiled` counts lines that are torn or of other programs, `newer` those of a newer ckptstore.
    `has_more`: there were too many entries to read them at once, and the rest begins at `end`.
    `owner` is the user id of the file's owner, `home_owner` that of the directory's owner.
    """

    entries: tuple[Entry, ...]
    end: int
    owner: int
    home_owner: int
    spoiled: int = 0
    newer: int = 0
    has_more: bool = False


class Span(NamedTuple):
    """The part of a segment that was written: the segment's path, the first byte, and the byte after the last.

    `launches` are the launches whose facts were written with it.
    """

    path: str
    begin: int
    end: int
    launches: tuple[LaunchKey, ...] = ()


_to_json = json.JSONEncoder(separators=(",", ":")).encode


def encode(entry: Entry) -> bytes:
    """One line, with its checksum and its end."""
    body = _to_json({"v": VERSION, **entry}).encode("ascii")[:-1]
    return b'%s,"sum":"%s"}\n' % (body, _checksum(body))


def decode(line: bytes) -> Entry | None:
    """The entry of a line; None if the line is torn, or not of a journal."""
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


def _opened(path: str) -> BinaryIO:
    """Open a journal. Raises `OSError`, also for a link or an irregular file: a pipe would block."""
    file = open_file(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK))
    if S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "not a regular file")


def read(path: str, begin: int = 0, most: int | None = None, types: Collection[str] = ()) -> Contents:
    """Read a journal from a byte on, to the last end of a line, or to the first line of a newer program.

    Reads at most `most` bytes of lines, or one line (None: `MOST_KEPT`). The lines after a newer program's line are
    returned too; that program reads them again from there. A file that is no journal, such as one of zeros after a
    power loss, takes no more memory than the longest line. With `types`, lines of other types are passed over
    without being parsed, and spoiled lines are not counted. Raises `OSError`.
    """
    entries: list[Entry] = []
    marks = [b'"t":"%s"' % each.encode() for each in types]
    spoiled = newer = kept = 0
    end = place = begin
    is_endless = has_more = False
    with _opened(path) as file:
        status = os.fstat(file.fileno())
        if status.st_size - begin > MOST_JOURNAL:
            raise OSError(errno.EFBIG, f"more than {MOST_JOURNAL >> 30} GiB of a journal")
        file.seek(begin)
        while piece := file.readline(MOST_LINE):
            was_endless, is_endless = is_endless, not piece.endswith(b"\n") and (is_endless or len(piece) == MOST_LINE)
            if not piece.endswith(b"\n") and not is_endless:
                break  # an unfinished line
            is_other = bool(marks) and not any(mark in piece for mark in marks)
            entry = None if was_endless or is_endless or is_other else decode(piece.rstrip(b"\n"))
            if entry is not None and types and entry.get("t") not in types:
                entry = None
            if entries and entry is not None and kept + len(piece) > (MOST_KEPT if most is None else most):
                has_more = not newer  # else its rest would be read from here again and again
                break
            place += len(piece)
            if entry is not None and entry["v"] > VERSION:
                newer += 1
            elif entry is not None:
                kept += len(piece)
                entries.append(entry)
            elif piece != b"\n" and not was_endless and not marks:
                spoiled += 1
            if not newer:
                end = place
    home_owner = Path(directory_of(path)).stat().st_uid
    return Contents(tuple(entries), end, status.st_uid, home_owner, spoiled, newer, has_more)


def read_whole(path: str) -> tuple[bytes, Contents]:
    """All bytes of a summary, and its owner. Raises `OSError`, also if it is too long."""
    with _opened(path) as file:
        status = os.fstat(file.fileno())
        if status.st_size > MOST_KEPT:
            raise OSError(errno.EFBIG, f"more than {MOST_KEPT >> 20} MiB of a summary")
        text = file.read(MOST_KEPT)
    home_owner = Path(directory_of(path)).stat().st_uid
    return text, Contents((), len(text), status.st_uid, home_owner)


def owners(path: str) -> tuple[int, int]:
    """The user ids of the owners of a journal and of its directory. Raises `OSError`."""
    return os.lstat(path).st_uid, Path(directory_of(path)).stat().st_uid


def read_tails(tails: Mapping[str, int]) -> tuple[dict[str, Contents], bool]:
    """The contents of journals from these bytes on, until 16 MiB were read; and whether that was all.

    Journals that cannot be read are left out.
    """
    found: dict[str, Contents] = {}
    left = _MOST_OF_TAILS
    for path, begin in tails.items():
        if left <= 0:
            return found, False
        with suppress(OSError):
            found[path] = read(path, begin)
            left -= found[path].end - begin
    return found, not any(contents.has_more for contents in found.values())


def read_types(paths: Iterable[str], types: Collection[str]) -> dict[str, Contents]:
    """The entries of these types in journals, up to 16 MiB of each. Journals that cannot be read are left out."""
    found: dict[str, Contents] = {}
    for path in paths:
        with suppress(OSError):
            found[path] = read(path, most=_MOST_OF_TAILS, types=types)
    return found


def size(path: str) -> int | None:
    """The size of a journal in bytes; None if it does not exist or cannot be looked at."""
    try:
        return Path(path).stat().st_size
    except OSError:
        return None


def sizes_in(folder: str) -> dict[str, int] | None:
    """The sizes of the journals in the folder of a directory, in bytes, by path; None if there is no folder.

    Raises `OSError`, also for a folder that is a link: its files are of another directory.
    """
    try:
        opened = os.open(folder, _FOLDER)
    except (FileNotFoundError, NotADirectoryError):
        if os.path.islink(folder):
            raise OSError(errno.ELOOP, ".ckptstore is a link") from None
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
    """The directory whose files a journal describes."""
    return path.rpartition("/")[0].rpartition("/")[0] or "/"


def nearest(path: str, directories: Collection[str]) -> str:
    """Which of these directories is the nearest above a path; empty if none is."""
    while path:
        path = path.rpartition("/")[0]
        if (path or "/") in directories:
            return path or "/"
    return ""


def journals_in(directory: str) -> list[str]:
    """The journals of one directory. Raises `OSError` if it cannot be read."""
    return sorted(sizes_in(str(Path(directory) / FOLDER)) or ())


class JournalWriter:
    """Appends to a segment of its own in the journal of a directory; usable by the threads of one process.

    `stem` names the segment (`rank_3`), `launch` the launch that writes. The first append begins a segment. A new one
    is begun if the file is gone, if it lost bytes that were written, and in a forked child. `reach` opens the directory
    if it is present, else raises `OSError` (None: any directory at the path is taken).
    """

    def __init__(self, directory: str, stem: str, launch: str, reach: Callable[[], int] | None = None) -> None:
        self._directory = directory
        self.reach = reach or partial(enter_announced, directory)
        self._stem = f"{stem}-{short(launch)}"
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._end = 0
        self._launches: dict[LaunchKey, LaunchStarted] = {}
        self.first: list[Entry] = []  # entries that each new segment gets after the facts of its launch
        self.path = ""

    def append(self, entries: Sequence[Entry], launches: Mapping[LaunchKey, LaunchStarted] | None = None) -> Span:
        """Append entries, after the facts of their launches that the segment lacks, and sync them to the disk.

        Writes nothing if there is nothing new. Raises `OSError`: then the entries may be lost.
        """
        self._leave_to_parent()
        with self._lock, self._folder() as folder:
            file = self._opened_again(folder)
            if file is None:
                file = self._begun(folder)
            try:
                new = {key: each for key, each in (launches or {}).items() if self._launches.get(key) != each}
                told = [*(to_line(each, self._directory) for each in new.values()), *(() if self._end else self.first)]
                begin = self._write(file, [*told, *entries])
                if self._end > begin:
                    os.fdatasync(file)  # its size too, its times are not needed
            finally:
                os.close(file)
            self._launches |= new
            return Span(self.path, begin, self._end, tuple(new))

    def append_at_once(self, entries: Sequence[Entry]) -> bool:
        """Append entries without waiting for a lock or the disk; False if that cannot be done now. Raises `OSError`."""
        self._leave_to_parent()
        if not self._launches or not self._lock.acquire(blocking=False):
            return False
        try:
            with self._folder() as folder:
                file = self._opened_again(folder)
                if file is None:
                    return False
                try:
                    self._write(file, entries)
                finally:
                    os.close(file)
        finally:
            self._lock.release()
        return True

    def _leave_to_parent(self) -> None:
        """Begin a new segment in a child of a fork: the lock belongs to the parent."""
        if self._process != os.getpid():
            self._lock, self._process, self.path = threading.Lock(), os.getpid(), ""

    def _write(self, file: int, entries: Sequence[Entry]) -> int:
        """Append entries; returns where they begin."""
        text = b"".join(map(encode, entries))
        begin = os.fstat(file).st_size
        if text and begin and os.pread(file, 1, begin - 1) != b"\n":  # the disk was full in the middle of a line
            text = b"\n" + text
        left = memoryview(text)
        while left:
            left = left[os.write(file, left) :]
        self._end = begin + len(text)
        return begin

    @contextmanager
    def _folder(self) -> Iterator[int]:
        """The folder of journals, reached through no link. Raises `OSError` where the directory is not present."""
        above = self.reach()
        try:
            with records_in(above) as folder:
                yield folder
        finally:
            os.close(above)

    def _opened_again(self, folder: int) -> int | None:
        """The segment that was begun, if it still has all that was written to it."""
        if not self.path:
            return None
        try:
            file = os.open(Path(self.path).name, _APPENDED, dir_fd=folder)
        except FileNotFoundError:
            return None
        if os.fstat(file).st_size >= self._end:
            return file
        os.close(file)
        return None

    def _begun(self, folder: int) -> int:
        """Begin a new segment, and sync its name to the disk."""
        name = f"{self._stem}-{token_hex(6)}.jsonl"
        file = os.open(name, _APPENDED | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=folder)
        try:
            os.fsync(file)
            os.fsync(folder)
        except OSError:
            os.close(file)
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
            raise
        self.path = str(Path(self._directory) / FOLDER / name)
        self._end, self._launches = 0, {}
        return file


def short(launch: str) -> str:
    """The short form of a launch or a process, for the names of the segments that it writes."""
    return derived_id(launch, size=6)
