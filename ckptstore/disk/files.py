"""Looks at checkpoints: sizes, digests, directories; and gives a graceful exit's file its lasting name.

A checkpoint has one path: that of its file, or one for several files (`several.py`). For several files, the sizes are
added, the newest time counts, and one digest covers all.
"""

from __future__ import annotations

import errno
from contextlib import contextmanager, suppress
from functools import partial
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING, NamedTuple

from blake3 import blake3

from ckptstore.core.model import Observed
from ckptstore.core.naming import INDEX
from ckptstore.disk.name_claims import NO_LINKS
from ckptstore.disk.several import members_at, status_of
from ckptstore.disk.waiting import for_each
from ckptstore.errors import reason_of
from ckptstore.outside import Path, open_file, os, tempfile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from ckptstore.core.model import Checkpoint
    from ckptstore.core.sighting import Recorded
    from ckptstore.disk.walk import Seen

DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags to open a directory, and no link."""

_CHUNK = 1 << 20
_LONGEST_NUMBER = 20  # digits
_LOOKS = 100  # at a path that another process changes
BAD_BYTES = (errno.EIO, errno.EBADMSG, errno.EUCLEAN)
"""The errors of a disk that has a file and cannot read its bytes."""


class FileFacts(NamedTuple):
    """Size in bytes and modification time in nanoseconds since 1970 of a checkpoint, or another file, that is there."""

    size: int
    mtime_ns: int


def absolute(path: str | os.PathLike[str]) -> str:
    """The path of a file as the catalog has it: from the root, through no link. The file itself may be a link.

    Two paths of one file would be two files in a catalog. So links are resolved here, when a path comes in.
    """
    directory, name = os.path.split(os.fspath(path))
    if name in ("", ".", ".."):
        return real_directory(path)
    return os.path.join(real_directory(directory), name)


def real_directory(path: str | os.PathLike[str]) -> str:
    """The path of a directory from the root, through no link and without "." and ".."; it need not be there."""
    for _ in range(_LOOKS):
        with suppress(OSError):  # a link was replaced, or the working directory is gone
            return os.path.realpath(path)
    return os.path.realpath(path)


@contextmanager
def opened_directory(path: str) -> Iterator[int]:
    """Open a directory: from the root on, each directory of its path is opened in the one above. None may be a link.

    Raises `OSError`, ENOTDIR or ELOOP for a link.
    """
    opened = os.open("/", DIRECTORY)
    try:
        for name in path.split("/"):
            if name:
                above, opened = opened, os.open(name, DIRECTORY, dir_fd=opened)
                os.close(above)
        yield opened
    finally:
        os.close(opened)


@contextmanager
def readable(folder: int) -> Iterator[int]:
    """Open a directory again, to list or sync it: it was opened only for paths below it. Raises `OSError`."""
    opened = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield opened
    finally:
        os.close(opened)


def remove_own(directory: str, name: str) -> None:
    """Delete a regular file of this user in a directory that is reached through no link. Raises `OSError`."""
    with opened_directory(directory) as above:
        status = os.stat(name, dir_fd=above, follow_symlinks=False)
        if not S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise OSError(errno.EPERM, "not a file of this user")
        os.unlink(name, dir_fd=above)


def facts(path: str) -> FileFacts | None:
    """The status of the file at `path`, or None. Raises `OSError` if it is unreadable or no checkpoint."""
    status = status_of(path)
    if status is not None and S_ISREG(status.st_mode):
        return FileFacts(status.st_size, status.st_mtime_ns)
    members = members_at(path, status)
    return FileFacts(sum(each.size for each in members), max(each.mtime_ns for each in members)) if members else None


def facts_if_seen(path: str) -> FileFacts | None:
    """As `facts`; None also if the file cannot be looked at, or is no checkpoint."""
    try:
        return facts(path)
    except OSError:
        return None


def identity(path: str) -> tuple[int, int, str] | None:
    """Identify a file under all its paths; None if there is none, or it is unreadable.

    Hard links of one file have different identities: if one is removed, the others still have the file. Two network
    mounts of one file system have two devices, and are not recognized.
    """
    try:
        status = status_of(path)
        if status is None and members_at(path, status):
            return identity(f"{path}{INDEX}")
        if status is None or not status.st_ino or not (S_ISREG(status.st_mode) or S_ISDIR(status.st_mode)):
            return None
        if status.st_nlink == 1 or S_ISDIR(status.st_mode):
            return status.st_dev, status.st_ino, ""
        directory, name = os.path.split(os.path.realpath(path))
        above = os.stat(directory)
    except OSError:
        return None
    return above.st_dev, above.st_ino, name


def digest(path: str, progress: Callable[[int], None] = lambda _: None) -> str:
    """BLAKE3 of a file's bytes, in hexadecimal, read in pieces of 1 MiB; `progress` gets the bytes of each.

    For several files, it covers the name, the size and the bytes of each.
    """
    hasher = blake3()
    status = status_of(path)
    if status is not None and S_ISREG(status.st_mode):
        _feed(hasher, path, progress)
        return hasher.hexdigest()
    for each in members_at(path, status):
        hasher.update(f"{each.name}\0{each.size}\0".encode("utf-8", "surrogateescape"))
        _feed(hasher, each.path, progress)
    return hasher.hexdigest()


def _feed(hasher: blake3, path: str, progress: Callable[[int], None]) -> None:
    with Path(path).open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        buffer = bytearray(min(_CHUNK, size + 1))  # to clear a whole piece takes longer than to read a small file
        view = memoryview(buffer)
        while count := file.readinto(buffer):
            hasher.update(view[:count])
            progress(count)


def same_bytes(path: str, other: str) -> bool:
    """Whether two checkpoints hold the same bytes; they are read up to the first difference."""
    try:
        if not (os.path.isfile(path) and os.path.isfile(other)):
            return digest(path) == digest(other)
        with Path(path).open("rb") as one, Path(other).open("rb") as two:
            while (some := one.read(_CHUNK)) == two.read(_CHUNK):
                if not some:
                    return True
    except OSError:
        return False
    return False


def has_anything(directory: str) -> bool:
    """Whether a directory exists and is not empty: an empty one may be a disk that is not mounted."""
    with suppress(OSError), os.scandir(directory) as entries:
        return next(entries, None) is not None  # not listed: that is asked for each lost file
    return False


def observe(files: Iterable[Checkpoint], *, read_bytes: bool) -> Mapping[str, Observed]:
    """What the disk shows of these files, by path.

    A file whose modification time is not the recorded one was written again since: its bytes are read even where
    `read_bytes` does not ask for all, because a file of another step has the same size (mindspore.md §6).
    """
    unique = {file.path: file for file in files}
    seen = for_each(partial(_observe, read_bytes), list(unique.values()), waits=read_bytes)
    return dict(zip(unique, seen, strict=True))


def _observe(read_bytes: bool, file: Checkpoint) -> Observed:  # noqa: FBT001 — by name it costs more, once a rank
    try:
        found = facts(file.path)
        if found is None:
            return Observed(None, has_directory=has_anything(str(Path(file.path).parent)))
        return against(file.path, file, found, read_bytes=read_bytes)
    except OSError as error:
        return Observed(None, unreadable=reason_of(error))


def against(path: str, record: Recorded, found: FileFacts | Seen, *, read_bytes: bool = False) -> Observed:
    """Observe a path, with the digest if that can tell more than size and time. Raises `OSError`."""
    is_rewritten = record.mtime_ns not in (None, found.mtime_ns)
    to_read = found.size == record.size and record.digest is not None and (read_bytes or is_rewritten)
    return Observed(found.size, digest(path) if to_read else None, "", found.mtime_ns)


def make_durable(path: str) -> None:
    """Sync a file and its directory to the disk; MindSpore does not (mindspore.md §1).

    Raises `OSError`.
    """
    sync(path)
    sync(str(Path(path).parent))


def sync(path: str) -> None:
    """Sync a file's bytes, or a directory's names, to the disk. Raises `OSError`."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def names_in(directory: str) -> frozenset[str]:
    """Names of the entries of a directory; none if it does not exist. Raises `OSError` if it cannot be read."""
    try:
        return frozenset(os.listdir(directory))
    except FileNotFoundError:
        return frozenset()


def listed(directory: str) -> frozenset[str] | OSError:
    """As `names_in`, but returns the error instead of raising it."""
    try:
        return names_in(directory)
    except OSError as error:
        return error


def is_in(names: Collection[str], name: str) -> bool:
    """Whether a checkpoint is among the names of a directory: of a prefix of TensorFlow, the index counts."""
    return name in names or f"{name}{INDEX}" in names


def number_in(path: str) -> int | None:
    """The number in a small file that holds nothing else, as a tracker of MindFormers; None for any other file."""
    try:
        text = (read_small(path, _LONGEST_NUMBER) or b"").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def read_small(path: str, most: int, folder: int | None = None) -> bytes | None:
    """The bytes of a regular file, without waiting for a pipe; None if it is longer than `most` bytes, or irregular.

    `folder` is the descriptor of its directory, and `path` its name there: then no link is followed. Raises `OSError`.
    """
    more = os.O_NONBLOCK | (0 if folder is None else os.O_NOFOLLOW)
    with open_file(path, "rb", opener=lambda name, flags: os.open(name, flags | more, dir_fd=folder)) as file:
        content = file.read(most + 1) if S_ISREG(os.fstat(file.fileno()).st_mode) else None
    return content if content is not None and len(content) <= most else None


def replace_text(path: Path, text: str) -> None:
    """Write a small file atomically: a reader sees the old content or the new one. Raises `OSError`.

    Mode and owner stay as they were.
    """
    before = path.stat() if path.exists() else None
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(draft).chmod(before.st_mode & 0o777 if before else 0o644)
        with suppress(PermissionError):  # only root may give a file away
            if before:
                os.chown(draft, before.st_uid, before.st_gid)
        Path(draft).replace(path)
    finally:
        Path(draft).unlink(missing_ok=True)


def give_name(path: str, new_path: str) -> bool:
    """Give a file another name, and never that of another file. Raises `OSError`.

    Returns whether it has its old name too: not on a file system without hard links.
    """
    try:
        os.link(path, new_path, follow_symlinks=False)  # fails where the new name is taken, in one step
    except OSError as error:
        if error.errno not in NO_LINKS or Path(new_path).exists():
            raise
        os.rename(path, new_path)
        return False
    return True


def move(path: str, new_path: str) -> None:
    """Rename a file within its directory, and never over another one. Raises `OSError`.

    Nothing happens if it was done before: the old name is gone, and the new one is there.
    """
    if Path(new_path).parent != Path(path).parent:
        raise OSError(errno.EXDEV, "a file is kept in its own directory")
    try:
        has_both = give_name(path, new_path)
    except (FileExistsError, FileNotFoundError):
        if Path(new_path).exists() and not Path(path).exists():
            return
        if not Path(path).samefile(new_path):  # else an earlier call was interrupted after the link
            raise
        has_both = True
    if has_both:
        Path(path).unlink()
