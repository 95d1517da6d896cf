"""File systems in memory, and the state in which a power loss leaves them.

A change of content or of a directory is visible at once and pending until it is synced. A power loss keeps the synced
state and some of the pending changes:

- In a file, each sector has the content of some moment since the last sync, and so has the size. If a truncation is
  lost, all writes after it are lost.
- In directories, any set of changes survives, with one condition: a change survives only if all earlier changes of the
  same name or inode survive.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from random import Random

SECTOR = 512
BLOCK = 4096
_INODE_SIZE = 256  # bytes of the capacity that each file, link and directory takes
_LOSSES = (0.0, 0.1, 0.5, 0.9, 1.0)


def failure(code: int, *paths: object) -> OSError:
    """The `OSError` of an errno, in Python's subclass for this errno."""
    if len(paths) > 1:
        return OSError(code, os.strerror(code), paths[0], None, paths[1])
    return OSError(code, os.strerror(code), *paths)


class Inode:
    """The common part of files, directories and links. Times are in nanoseconds since 1970."""

    __slots__ = (
        "ctime_ns",
        "disk",
        "gid",
        "ino",
        "latest",
        "mode",
        "mtime_ns",
        "named_ns",
        "nlink",
        "opens",
        "shown",
        "stable_status",
        "uid",
    )

    content: bytearray | None = None
    entries: dict[str, Inode] | None = None
    target: str | None = None
    mounted: dict[object, Directory] | None = None

    def __init__(self, disk: Disk, mode: int, uid: int, gid: int, now: int) -> None:
        self.disk = disk
        self.ino = disk.next_ino()
        self.mode = mode
        self.uid = uid
        self.gid = gid
        self.nlink = 0
        self.opens = 0  # open file descriptions: a deleted file takes space until the last one is closed
        self.mtime_ns = self.ctime_ns = self.named_ns = now  # named_ns: when it got its newest name
        self.shown: tuple[object, os.stat_result] | None = None  # the result of the last stat
        self.latest: Change | None = None  # the newest change of a directory that concerns this inode
        self.stable_status = self.status()

    def status(self) -> tuple[int, int, int, int, int]:
        """What `fsync` makes durable besides the content."""
        return self.mode, self.uid, self.gid, self.mtime_ns, self.ctime_ns

    def set_status(self, status: tuple[int, int, int, int, int]) -> None:
        self.mode, self.uid, self.gid, self.mtime_ns, self.ctime_ns = status
        self.stable_status = status

    def size(self) -> int:
        return BLOCK


class File(Inode):
    """A regular file. `writes` are the pending changes: an offset and the bytes, or a new size and None."""

    __slots__ = ("content", "locks", "stable", "writes")

    content: bytearray

    def __init__(self, disk: Disk, mode: int, uid: int, gid: int, now: int) -> None:
        super().__init__(disk, stat.S_IFREG | mode, uid, gid, now)
        self.content = bytearray()
        self.stable = bytearray()
        self.writes: list[tuple[int, bytes | None]] = []
        self.locks: dict[object, bool] = {}  # open file description → whether its lock is exclusive

    def size(self) -> int:
        return len(self.content)


class Directory(Inode):
    """A directory. `changes` has the pending changes by number, `latest_of` the newest of them for each name."""

    __slots__ = ("changes", "entries", "latest_of", "locks", "mounted", "parent", "stable")

    entries: dict[str, Inode]

    def __init__(self, disk: Disk, mode: int, uid: int, gid: int, now: int) -> None:
        super().__init__(disk, stat.S_IFDIR | mode, uid, gid, now)
        self.nlink = 2
        self.parent = self
        self.entries = {}
        self.stable: dict[str, Inode] = {}
        self.changes: dict[int, Change] = {}
        self.latest_of: dict[str, Change] = {}
        self.mounted = None  # node → root of the disk that covers this directory there
        self.locks: dict[object, bool] = {}


class Symlink(Inode):
    """A symbolic link; its text is durable when its entry is."""

    __slots__ = ("target",)

    target: str

    def __init__(self, disk: Disk, target: str, uid: int, gid: int, now: int) -> None:
        super().__init__(disk, stat.S_IFLNK | 0o777, uid, gid, now)
        self.target = target

    def size(self) -> int:
        return len(os.fsencode(self.target))


class Change:
    """A pending change of a directory: the new entry of each name, or None. It survives whole, or not at all."""

    __slots__ = ("before", "directory", "is_settled", "names", "number")

    def __init__(
        self, number: int, directory: Directory, names: tuple[tuple[str, Inode | None], ...], before: list[Change]
    ) -> None:
        self.number = number
        self.directory = directory
        self.names = names
        self.before = before  # this change survives only if all of these survive
        self.is_settled = False

    def settle(self) -> None:
        """Make the change durable."""
        directory = self.directory
        for name, inode in self.names:
            if inode is None:
                directory.stable.pop(name, None)
            else:
                directory.stable[name] = inode
            if directory.latest_of.get(name) is self:
                del directory.latest_of[name]
        directory.changes.pop(self.number, None)
        self.before = []
        self.is_settled = True


class Disk:
    """A file system. It raises the errors that depend on the disk alone: ENOSPC, EROFS, EPERM for hard links.

    `capacity` is in bytes; None means unlimited. `kind` is the type of the file system in a mount table.
    """

    def __init__(
        self,
        name: str,
        number: int,
        *,
        capacity: int | None = None,
        has_links: bool = True,
        has_locks: bool = True,
        kind: str = "ext4",
    ) -> None:
        self.name = name
        self.number = number
        self.capacity = capacity
        self.read_only = False
        self.slow_ns = 0  # a new entry is listed after this time
        self.is_coarse = False  # times are whole seconds
        self.unreadable: set[Inode] = set()  # reading their content raises EIO
        self.has_links = has_links
        self.has_locks = has_locks
        self.kind = kind
        self.used = 0
        self.inodes = 0
        self._last_ino = 1
        self._last_change = 0
        self._pending: dict[int, Change] = {}
        self._nameless: dict[Inode, None] = {}  # deleted files that are still open
        self.root = Directory(self, 0o755, 0, 0, 0)

    def next_ino(self) -> int:
        """A new inode number; no number is used twice."""
        self._last_ino += 1
        return self._last_ino

    def free(self) -> int:
        """The number of bytes that can be written; a very large number if the capacity is unlimited."""
        return 1 << 50 if self.capacity is None else max(0, self.capacity - self.used)

    def check_writable(self) -> None:
        if self.read_only:
            raise failure(errno.EROFS)

    def check_room(self, size: int = _INODE_SIZE) -> None:
        if self.capacity is not None and self.used + size > self.capacity:
            raise failure(errno.ENOSPC)

    def create(self, directory: Directory, name: str, inode: Inode, now: int) -> None:
        """Add an entry for a new inode. A new directory adds one to the link count of its parent."""
        self.used += _INODE_SIZE + (BLOCK if isinstance(inode, Directory) else 0)
        self.inodes += 1
        if isinstance(inode, Directory):
            inode.parent = directory
            directory.nlink += 1
        else:
            inode.nlink = 1
        directory.entries[name] = inode
        self._note(directory, ((name, inode),), (inode,), now)

    def link(self, directory: Directory, name: str, inode: Inode, now: int) -> None:
        """Give a file another name."""
        inode.nlink += 1
        inode.ctime_ns = inode.named_ns = now
        directory.entries[name] = inode
        self._note(directory, ((name, inode),), (inode,), now)

    def remove(self, directory: Directory, name: str, now: int) -> None:
        """Remove a name, and the inode with its last name."""
        inode = directory.entries.pop(name)
        self._unlinked(directory, inode, now)
        self._note(directory, ((name, None),), (inode,), now)

    def rename(self, directory: Directory, name: str, target: Directory, new_name: str, now: int) -> None:
        """Move an entry, perhaps over another. After a power loss, a move to another directory may leave both names."""
        inode = directory.entries.pop(name)
        replaced = target.entries.get(new_name)
        if replaced is not None:
            self._unlinked(target, replaced, now)
        target.entries[new_name] = inode
        inode.ctime_ns = inode.named_ns = now
        concerned = (inode,) if replaced is None else (inode, replaced)
        if directory is target:
            self._note(directory, ((name, None), (new_name, inode)), concerned, now)
            return
        if isinstance(inode, Directory):
            inode.parent = target
            directory.nlink -= 1
            target.nlink += 1
        self._note(target, ((new_name, inode),), concerned, now)
        self._note(directory, ((name, None),), (inode,), now)

    def write(self, file: File, offset: int, data: bytes, now: int) -> int:
        """Write as many bytes as fit, and return their number. Raises ENOSPC if none fits."""
        self.check_writable()
        if not data:
            return 0
        content = file.content
        size = len(content)
        growth = offset + len(data) - size
        if growth > 0:
            free = self.free()
            if growth > free:
                data = data[: max(0, size + free - offset)]
                if not data:
                    raise failure(errno.ENOSPC)
        _apply(content, offset, data)
        self.used += len(content) - size
        file.writes.append((offset, data))
        file.mtime_ns = file.ctime_ns = now
        return len(data)

    def truncate(self, file: File, size: int, now: int) -> None:
        self.check_writable()
        growth = size - len(file.content)
        if growth > 0:
            self.check_room(growth)
        _apply(file.content, size, None)
        self.used += growth
        file.writes.append((size, None))
        file.mtime_ns = file.ctime_ns = now

    def release(self, inode: Inode) -> None:
        """Free the space of an inode, if it has no name and is not open."""
        if inode.nlink:
            return
        if inode.opens:
            self._nameless[inode] = None
        else:
            self._nameless.pop(inode, None)
            self.used -= _cost(inode)
            self.inodes -= 1

    def sync(self, inode: Inode, *, data_only: bool = False) -> None:
        """Make a file's content, or a directory's entries, durable."""
        if isinstance(inode, File):
            for offset, data in inode.writes:
                _apply(inode.stable, offset, data)
            inode.writes.clear()
        elif isinstance(inode, Directory):
            self._settle(inode.changes.values())
        if not data_only:
            inode.stable_status = inode.status()

    def sync_all(self) -> None:
        """Make everything durable."""
        self._settle(self._pending.values())
        for _, inode in self.walk():
            self.sync(inode)

    def power_loss(self, chance: Random) -> None:
        """Lose power: drop some of the pending changes. Inodes keep their identity. All that remains is durable."""
        losses: dict[Directory, float] = {}
        for change in list(self._pending.values()):
            loss = losses.get(change.directory)
            if loss is None:
                loss = losses[change.directory] = chance.choice(_LOSSES)
            if chance.random() >= loss and all(each.is_settled for each in change.before):
                change.settle()
        self._pending.clear()
        self._rebuild(chance)

    def everything(self) -> dict[str, bytes]:
        """The content of each regular file, by its path from the root, without a slash before it."""
        return {path: bytes(file.content) for path, file in self.walk_files()}

    def walk_files(self) -> Iterator[tuple[str, File]]:
        """Each name of a regular file: its path as in `everything`, and the file."""
        return ((path, inode) for path, inode in self.walk() if isinstance(inode, File))

    def walk(self) -> Iterator[tuple[str, Inode]]:
        """The path and the inode of each entry below the root, and of the root as ""."""
        yield "", self.root
        below: list[tuple[str, Directory]] = [("", self.root)]
        for prefix, directory in below:
            for name, inode in directory.entries.items():
                yield f"{prefix}{name}", inode
                if isinstance(inode, Directory):
                    below.append((f"{prefix}{name}/", inode))

    def _note(
        self, directory: Directory, names: tuple[tuple[str, Inode | None], ...], inodes: tuple[Inode, ...], now: int
    ) -> None:
        self._last_change += 1
        latest_of = directory.latest_of
        before: list[Change] = []
        change = Change(self._last_change, directory, names, before)
        for name, _ in names:
            latest = latest_of.get(name)
            if latest is not None:
                before.append(latest)
            latest_of[name] = change
        for inode in inodes:
            latest = inode.latest
            if latest is not None and not latest.is_settled:
                before.append(latest)
            inode.latest = change
        directory.changes[self._last_change] = self._pending[self._last_change] = change
        directory.mtime_ns = directory.ctime_ns = now

    def _settle(self, changes: Iterable[Change]) -> None:
        """Make changes durable, and the earlier changes that they need."""
        found: dict[int, Change] = {}
        left = list(changes)
        while left:
            change = left.pop()
            if not change.is_settled and change.number not in found:
                found[change.number] = change
                left += change.before
        for number in sorted(found):
            found[number].settle()
            del self._pending[number]

    def _unlinked(self, directory: Directory, inode: Inode, now: int) -> None:
        inode.ctime_ns = now
        if isinstance(inode, Directory):
            inode.nlink = 0
            directory.nlink -= 1
        else:
            inode.nlink -= 1
        self.release(inode)

    def _rebuild(self, chance: Random) -> None:
        """Rebuild the tree from the durable entries. If a directory has two names, the one nearer to the root stays."""
        for _, inode in self.walk():
            inode.nlink = 0
            if inode.opens:
                self._nameless[inode] = None
        found: set[Inode] = {self.root}
        directories = [self.root]
        for directory in directories:
            directory.nlink = 2
            directory.changes.clear()
            directory.latest_of.clear()
            directory.entries = {}
            for name, inode in directory.stable.items():
                if isinstance(inode, Directory):
                    if inode in found:
                        continue
                    inode.parent = directory
                    directory.nlink += 1
                    directories.append(inode)
                else:
                    inode.nlink = 1 if inode not in found else inode.nlink + 1
                directory.entries[name] = inode
                found.add(inode)
            directory.stable = dict(directory.entries)
        kept = dict.fromkeys(inode for _, inode in self.walk())
        for inode in kept:
            inode.latest = None
            if isinstance(inode, File):
                _lose(inode, chance)
            inode.set_status(chance.choice((inode.status(), inode.stable_status)))
        self._nameless = {inode: None for inode in self._nameless if inode not in kept}
        counted = [inode for inode in (*kept, *self._nameless) if inode is not self.root]
        self.used, self.inodes = sum(map(_cost, counted)), len(counted)


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    """Write data at an offset. If `data` is None, cut the content to the size `offset`, or extend it with zeros."""
    size = len(content)
    if offset > size:
        content.extend(bytes(offset - size))
    if data is None:
        del content[offset:]
    else:
        content[offset : offset + len(data)] = data


def _lose(file: File, chance: Random) -> None:
    """Drop some of the pending writes of a file, and keep the others."""
    cuts = [number for number, (_, data) in enumerate(file.writes) if data is None]
    loss = chance.choice(_LOSSES)
    content = file.stable
    intended = len(content)
    lost: set[int] = set()  # sectors that have lost a write: later writes to them are lost too
    for offset, data in file.writes[: chance.choice([*cuts, len(file.writes)])]:
        if data is None:
            _apply(content, offset, None)
            intended = offset
            continue
        intended = max(intended, offset + len(data))
        for sector in range(offset // SECTOR, (offset + len(data) - 1) // SECTOR + 1):
            if sector in lost or chance.random() < loss:
                lost.add(sector)
            else:
                begin, end = max(offset, sector * SECTOR), min(offset + len(data), (sector + 1) * SECTOR)
                _apply(content, begin, data[begin - offset : end - offset])
    if chance.random() < 0.5:  # the size survives, although some of the bytes may be lost
        _apply(content, max(intended, len(content)), None)
    file.content = bytearray(content)
    file.writes.clear()


def _cost(inode: Inode) -> int:
    if isinstance(inode, File):
        return _INODE_SIZE + len(inode.content)
    return _INODE_SIZE + (BLOCK if isinstance(inode, Directory) else 0)
