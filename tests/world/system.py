"""The system calls of a simulated process: functions of `os`, `shutil`, `tempfile` and `fcntl` on disks in memory.

All processes run in one thread. The world has a hook that runs before each call, and one that runs after the call has
had its effect.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import genericpath
import io
import itertools
import os
import posixpath
import shutil
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any

from tests.world.disks import BLOCK, Directory, Disk, File, Inode, Symlink, failure

if TYPE_CHECKING:
    from typing_extensions import Buffer

FIRST_FD = 1_000_000
"""Descriptors from here on are simulated, those below are real."""

_MOST_LINKS = 40
_DOTS = (".", "..")
_TICKS = 100  # clock ticks in a second, in /proc
_PID_NAMESPACE = 4026531836  # the number of the first one on every Linux
_CREATE_OR_WRITE = os.O_WRONLY | os.O_RDWR | os.O_TRUNC
_PURE = [
    "DirEntry",
    "PathLike",
    "altsep",
    "cpu_count",
    "curdir",
    "defpath",
    "devnull",
    "environ",
    "environb",
    "error",
    "extsep",
    "fsdecode",
    "fsencode",
    "fspath",
    "getenv",
    "linesep",
    "name",
    "pardir",
    "pathsep",
    "sep",
    "stat_result",
    "statvfs_result",
    "strerror",
    "urandom",
]


class Dead(BaseException):
    """Raised by each call of a process that has ended, so that code of it that Python still runs has no effect.

    It is not an `Exception`, because the program must not catch it.
    """


class Node:
    """A machine: a mount table and processes. Its root disk has `/tmp`."""

    def __init__(self, hostname: str, root: Disk | None = None, clock_offset_ns: int = 0) -> None:
        self.hostname = hostname
        self.clock_offset_ns = clock_offset_ns
        self.disk = root or Disk(f"{hostname}:root", 1)
        self.root = self.disk.root
        self.boots = 0
        self.processes: dict[int, Process] = {}
        self.mounts: dict[str, Disk] = {}
        self.covered: dict[Directory, Directory] = {}  # root of a mounted disk → the directory that it covers
        self.started = itertools.count(1)
        self.proc = Disk(f"{hostname}:proc", 0, kind="proc")
        self.directory("/tmp", 0o1777)  # noqa: S108

    def boot_id(self) -> str:
        """The boot id, which differs between nodes, and changes with each reboot."""
        digits = zlib.crc32(self.hostname.encode())
        return f"{digits:08x}-0000-4000-8000-{self.boots:012x}"

    def reboot(self) -> None:
        """End all processes and forget them. The disks lose nothing here: see `Disk.power_loss`."""
        for process in list(self.processes.values()):
            process.end()
        self.processes.clear()
        self.boots += 1

    def directory(self, path: str, mode: int = 0o755, uid: int = 0, gid: int = 0) -> Directory:
        """The directory at a path. Missing directories are made durably. This sets up a machine, and is not a call."""
        here = self.root
        for name in _parts(path)[0]:
            found = here.entries.get(name)
            if found is None:
                found = Directory(here.disk, mode, uid, gid, 0)
                here.disk.create(here, name, found, 0)
                here.disk.sync(here)
            if not isinstance(found, Directory):
                raise failure(errno.ENOTDIR, path)
            here = found if found.mounted is None else found.mounted.get(self, found)
        return here

    def mount(self, path: str, disk: Disk) -> None:
        """Show a disk at a path, over the directory there. A disk is mounted once on a node."""
        if disk.root in self.covered or disk is self.disk:
            raise failure(errno.EBUSY, path)
        below = self.directory(path)
        if below.mounted is None:
            below.mounted = {}
        below.mounted[self] = disk.root
        self.covered[disk.root] = below
        self.mounts[path] = disk

    def unmount(self, path: str) -> None:
        """Remove a disk from its mount point, even if files on it are open."""
        disk = self.mounts.pop(path)
        below = self.covered.pop(disk.root)
        del (below.mounted or {})[self]


class OpenFile:
    """An open file description, which several descriptors may share. `path` is the path that was opened."""

    __slots__ = ("can_read", "can_write", "count", "flags", "inode", "path", "position")

    def __init__(self, inode: Inode, flags: int, path: str) -> None:
        self.inode = inode
        self.flags = flags
        self.path = path
        self.position = 0
        self.count = 1
        access = flags & os.O_ACCMODE
        self.can_read = access != os.O_WRONLY and not flags & os.O_PATH
        self.can_write = access != os.O_RDONLY and not flags & os.O_PATH
        inode.opens += 1


class Process:
    """A process of a node. `signals` are the signals sent to it that the world has not delivered yet."""

    def __init__(self, node: Node, pid: int, uid: int = 0) -> None:
        self.node = node
        self.pid = pid
        self.uid = uid
        self.gid = uid
        self.umask = 0o022
        self.alive = True
        self.began = next(node.started) * _TICKS
        self.signals: list[int] = []
        self.fds: dict[int, OpenFile] = {}
        self._numbers = itertools.count(FIRST_FD)
        node.processes[pid] = self

    def end(self, *, is_zombie: bool = False) -> None:
        """Close all files. Later calls have no effect. A zombie stays in the table of processes."""
        self.alive = False
        for fd in list(self.fds):
            self.release(fd)
        if not is_zombie and self.node.processes.get(self.pid) is self:
            del self.node.processes[self.pid]

    def add(self, opened: OpenFile) -> int:
        """A new descriptor. The process has not used its number before."""
        fd = next(self._numbers)
        self.fds[fd] = opened
        return fd

    def release(self, fd: int) -> None:
        """Close a descriptor. The last descriptor of a description releases its lock."""
        opened = self.fds.pop(fd, None)
        if opened is None:
            raise failure(errno.EBADF)
        opened.count -= 1
        if not opened.count:
            inode = opened.inode
            inode.opens -= 1
            if isinstance(inode, File | Directory):
                inode.locks.pop(opened, None)
            inode.disk.release(inode)


class DirEntry:
    """As `os.DirEntry`: its type needs no call, `stat` makes one."""

    __slots__ = ("_dir_fd", "_inode", "_mode", "_statuses", "_system", "name", "path")

    def __init__(self, system: System, name: str, path: str, dir_fd: int | None, inode: Inode) -> None:
        self._system = system
        self._dir_fd = dir_fd
        self._inode = inode.ino
        self._mode = stat.S_IFMT(inode.mode)
        self._statuses: dict[bool, os.stat_result] = {}
        self.name = name
        self.path = path

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def inode(self) -> int:
        return self._inode

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        follow = follow_symlinks and self.is_symlink()
        if follow not in self._statuses:
            self._statuses[follow] = self._system.stat(self.path, dir_fd=self._dir_fd, follow_symlinks=follow)
        return self._statuses[follow]

    def is_symlink(self) -> bool:
        return self._mode == stat.S_IFLNK

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_IFDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_IFREG, follow_symlinks)

    def _is(self, kind: int, follow: bool) -> bool:  # noqa: FBT001
        if not follow or not self.is_symlink():
            return self._mode == kind
        try:
            return stat.S_IFMT(self.stat().st_mode) == kind
        except FileNotFoundError:
            return False


class Scan:
    """As the iterator of `os.scandir`, over the entries at the time it was opened."""

    def __init__(self, entries: list[DirEntry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[DirEntry]:
        return self

    def __next__(self) -> DirEntry:
        return next(self._entries)

    def __enter__(self) -> Scan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


class RawFile(io.RawIOBase):
    """A file object over a simulated descriptor. If it is collected while another process runs, it writes nothing."""

    def __init__(self, system: System, fd: int, name: object, mode: str, *, closefd: bool = True) -> None:
        self._system = system
        self._process = system.current()
        self._fd = fd
        self._closefd = closefd
        self._opened = self._process.fds[fd]
        self.name = name
        self.mode = mode

    def fileno(self) -> int:
        self._checkClosed()  # type: ignore[attr-defined]
        return self._fd

    def readable(self) -> bool:
        return self._opened.can_read

    def writable(self) -> bool:
        return self._opened.can_write

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self._own().read(self.fileno(), len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self._own().read(self.fileno(), max(1, self._opened.inode.size() - self._opened.position))

    def write(self, data: Buffer) -> int:
        return self._own().write(self.fileno(), data)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._own().lseek(self.fileno(), offset, whence)

    def close(self) -> None:
        if self.closed:
            return
        try:
            if self._closefd and self._system.current() is self._process:
                self._system.close(self._fd)
            elif self._closefd and self._process.alive:
                self._process.release(self._fd)
        finally:
            super().close()

    def _own(self) -> System:
        if self._system.current() is not self._process:
            raise Dead
        return self._system


class TemporaryDirectory:
    """As `tempfile.TemporaryDirectory`, on the disks of the current process."""

    def __init__(self, system: System, name: str, *, ignore_cleanup_errors: bool = False) -> None:
        self._system = system
        self._ignore = ignore_cleanup_errors
        self.name = name

    def __enter__(self) -> str:
        return self.name

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cleanup()

    def cleanup(self) -> None:
        self._system.rmtree(self.name, ignore_errors=self._ignore)


@functools.lru_cache(1 << 16)
def _parts(path: str) -> tuple[tuple[str, ...], bool]:
    """The names of a path, and whether the path can only name a directory."""
    if "\0" in path:
        raise ValueError("embedded null byte")
    if len(os.fsencode(path)) >= 4096:
        raise failure(errno.ENAMETOOLONG)
    return tuple(name for name in path.split("/") if name not in ("", ".")), path.endswith(("/", "/.")) or path == "."


@functools.lru_cache(1 << 16)
def _above(path: str) -> tuple[tuple[str, ...], str, bool]:
    """The names of the parent directory, the last name of the path, and whether a slash follows it."""
    parts, _ = _parts(path)
    last = path.rstrip("/").rpartition("/")[2]
    if last in ("", "."):
        return parts, ".", path.endswith("/")
    return parts[:-1], last, path.endswith("/")


@functools.lru_cache(1 << 16)
def _scattered(name: str) -> int:
    """The sort key of a name in a listing. The order is neither that of creation nor that of the alphabet."""
    return zlib.crc32(os.fsencode(name))


def _may(process: Process, inode: Inode, wanted: int) -> bool:
    """Whether a process has these rights (4: read, 2: write, 1: search)."""
    if not process.uid:
        return True
    mode = inode.mode
    if inode.uid == process.uid:
        mode >>= 6
    elif inode.gid == process.gid:
        mode >>= 3
    return mode & wanted == wanted


def _owns(process: Process, inode: Inode) -> bool:
    return process.uid in (0, inode.uid)


def _call(method: Callable[..., Any]) -> Callable[..., Any]:
    """A call with the hooks around it. If its first argument is a real path or descriptor, the call of `os` runs."""
    name = method.__name__
    real = getattr(os, name)

    @functools.wraps(method)
    def call(self: System, path: Any = ".", *args: Any, **kwargs: Any) -> Any:
        process = self.current()
        if not process.alive:
            raise Dead
        if type(path) is int:
            told = path
            if path < FIRST_FD:
                return real(path, *args, **kwargs)
        else:
            if type(path) is not str:
                path = os.fsdecode(path)
            told = path if path[:1] == "/" else self._absolute(process, path, kwargs.get("dir_fd"))
            if told.startswith(self._real):
                return real(told, *args, **kwargs)
        self.hook(name, (told, *args))
        if not process.alive:
            raise Dead
        try:
            result = method(self, process, path, *args, **kwargs)
        except OSError as error:
            if error.filename is None and type(path) is str:
                error.filename = path
            raise
        self.after(name)
        return result

    return call


def _call_of_two(method: Callable[..., Any]) -> Callable[..., Any]:
    """As `_call`, for a call with two paths. The second path decides whether both are real."""
    name = method.__name__
    real = getattr(os, name)

    @functools.wraps(method)
    def call(self: System, source: Any, target: Any, **kwargs: Any) -> Any:
        process = self.current()
        if not process.alive:
            raise Dead
        source, target = os.fsdecode(source), os.fsdecode(target)
        told_target = self._absolute(process, target, kwargs.get("dst_dir_fd", kwargs.get("dir_fd")))
        told = source if name == "symlink" else self._absolute(process, source, kwargs.get("src_dir_fd"))
        if told_target.startswith(self._real):
            return real(told, told_target, **kwargs)
        self.hook(name, (told, told_target))
        if not process.alive:
            raise Dead
        try:
            method(self, process, source, target, **kwargs)
        except OSError as error:
            if error.filename is None:
                error.filename, error.filename2 = source, target
            raise
        self.after(name)
        return None

    return call


def _bound_to(functions: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    """Copies of functions of the standard library, with other globals."""
    scope = {**functions, **names}
    for name, function in functions.items():
        if isinstance(function, FunctionType) and name not in names:
            copy = FunctionType(function.__code__, scope, name, function.__defaults__, function.__closure__)
            copy.__kwdefaults__ = function.__kwdefaults__
            scope[name] = copy
    return scope


class System:
    """The calls of the current process. `os`, `path`, `shutil`, `tempfile` and `fcntl` replace the modules.

    `hook(name, arguments)` runs before a call, and may raise `OSError`. Paths in its arguments are absolute, except the
    text of a link. `after(name)` runs when the call has had its effect. Paths that begin with one of `real_prefixes`
    are on the real system.
    """

    def __init__(
        self,
        current: Callable[[], Process],
        now_ns: Callable[[], int],
        hook: Callable[[str, tuple[object, ...]], None],
        after: Callable[[str], None],
        real_prefixes: Sequence[str] = (),
    ) -> None:
        self.current = current
        self.now_ns = now_ns
        self.hook = hook
        self.after = after
        self._real = tuple(real_prefixes)
        self._drafts = itertools.count(1)
        constants = {name: value for name, value in vars(os).items() if name.isupper()}
        pure = {name: getattr(os, name) for name in _PURE}
        calls = {name: getattr(self, name) for name in _OS_CALLS}
        self.os = SimpleNamespace(**constants, **pure, **calls)
        own = {"os": self.os}
        path = _bound_to({**vars(genericpath), **vars(posixpath)}, own)
        self.path = self.os.path = SimpleNamespace(**{name: path[name] for name in posixpath.__all__})
        walks = {name: value for name, value in vars(os).items() if name in _WALKS}
        bound = _bound_to({**vars(os), **walks}, {**calls, "path": self.path})
        for name in ("walk", "fwalk", "makedirs"):
            setattr(self.os, name, bound[name])
        self.walk, self.fwalk, self.makedirs = bound["walk"], bound["fwalk"], bound["makedirs"]
        self.rmtree = _bound_to(dict(vars(shutil)), own)["rmtree"]
        self.shutil = SimpleNamespace(rmtree=self.rmtree)
        self.tempfile = SimpleNamespace(
            mkstemp=self.mkstemp, gettempdir=self.gettempdir, TemporaryDirectory=self.temporary_directory
        )
        locks = {name: value for name, value in vars(fcntl).items() if name.startswith("LOCK_")}
        self.fcntl = SimpleNamespace(flock=self.flock, **locks)

    # Files

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        process = self.current()
        if not process.alive:
            raise Dead
        if type(path) is not str:
            path = os.fsdecode(path)
        told = path if path[:1] == "/" else self._absolute(process, path, dir_fd)
        if told.startswith(self._real):
            return os.open(told, flags, mode)
        self.hook("open", (told, flags))
        if not process.alive:
            raise Dead
        try:
            inode = self._opened(process, path, flags, mode, dir_fd)
        except OSError as error:
            if error.filename is None:
                error.filename = path
            raise
        fd = process.add(OpenFile(inode, flags, told))
        try:
            self.after("open")
        except OSError:
            process.release(fd)
            raise
        return fd

    def _opened(self, process: Process, path: str, flags: int, mode: int, dir_fd: int | None) -> Inode:
        if flags & os.O_CREAT and not flags & os.O_PATH:
            inode, is_new = self._created(process, path, flags, mode, dir_fd)
            if is_new:
                return inode
        else:
            inode = self._find(process, path, dir_fd, follow=not flags & os.O_NOFOLLOW)
        if flags & os.O_DIRECTORY and inode.entries is None:
            raise failure(errno.ENOTDIR)
        if flags & os.O_PATH:
            return inode
        if inode.target is not None:
            raise failure(errno.ELOOP)
        is_to_write = flags & _CREATE_OR_WRITE
        if is_to_write:
            if inode.entries is not None:
                raise failure(errno.EISDIR)
            inode.disk.check_writable()
        if process.uid:
            wanted = (4 if flags & os.O_ACCMODE != os.O_WRONLY else 0) | (2 if is_to_write else 0)
            if not _may(process, inode, wanted):
                raise failure(errno.EACCES)
        if flags & os.O_TRUNC and isinstance(inode, File) and inode.content:
            inode.disk.truncate(inode, 0, self._now(process))
        return inode

    def _created(self, process: Process, path: str, flags: int, mode: int, dir_fd: int | None) -> tuple[Inode, bool]:
        """The inode to open with O_CREAT, and whether it is new. For a dangling link, its target is created."""
        start = self._start(process, path, dir_fd)
        for _ in range(_MOST_LINKS):
            parts, name, has_slash = _above(path)
            parent = self._directory(process, start, parts)
            if name in _DOTS or has_slash:
                raise failure(errno.EEXIST if flags & os.O_EXCL and not has_slash else errno.EISDIR)
            inode = self._child(process, parent, name)
            if inode is None:
                self._check_entry(process, parent)
                parent.disk.check_room()
                now = self._now(process)
                inode = File(parent.disk, mode & ~process.umask & 0o7777, process.uid, process.gid, now)
                parent.disk.create(parent, name, inode, now)
                return inode, True
            if flags & os.O_EXCL:
                raise failure(errno.EEXIST)
            if inode.target is None or flags & os.O_NOFOLLOW:
                if inode.entries is not None:
                    raise failure(errno.EISDIR)
                return inode, False
            path = inode.target
            start = process.node.root if path[:1] == "/" else parent
        raise failure(errno.ELOOP)

    @_call
    def close(self, process: Process, fd: int) -> None:
        process.release(fd)

    @_call
    def read(self, process: Process, fd: int, count: int) -> bytes:
        opened = self._open_file(process, fd)
        data = self._bytes(opened, opened.position, count)
        opened.position += len(data)
        return data

    @_call
    def pread(self, process: Process, fd: int, count: int, offset: int) -> bytes:
        return self._bytes(self._open_file(process, fd), offset, count)

    @_call
    def preadv(self, process: Process, fd: int, buffers: Sequence[Buffer], offset: int, flags: int = 0) -> int:
        views = [memoryview(each).cast("B") for each in buffers]
        data = self._bytes(self._open_file(process, fd), offset, sum(map(len, views)))
        begin = 0
        for view in views:
            piece = data[begin : begin + len(view)]
            view[: len(piece)] = piece
            begin += len(piece)
        return len(data)

    @_call
    def write(self, process: Process, fd: int, data: Buffer) -> int:
        opened = self._open_file(process, fd)
        if not opened.can_write:
            raise failure(errno.EBADF)
        file = opened.inode
        assert isinstance(file, File)
        offset = len(file.content) if opened.flags & os.O_APPEND else opened.position
        count = file.disk.write(file, offset, bytes(data), self._now(process))
        opened.position = offset + count
        return count

    @_call
    def fsync(self, process: Process, fd: int) -> None:
        opened = self._open_file(process, fd)
        if opened.flags & os.O_PATH:
            raise failure(errno.EBADF)
        opened.inode.disk.sync(opened.inode)

    @_call
    def fdatasync(self, process: Process, fd: int) -> None:
        opened = self._open_file(process, fd)
        if opened.flags & os.O_PATH:
            raise failure(errno.EBADF)
        opened.inode.disk.sync(opened.inode, data_only=True)

    def lseek(self, fd: int, offset: int, whence: int) -> int:
        if fd < FIRST_FD:
            return os.lseek(fd, offset, whence)
        opened = self._open_file(self._alive(), fd)
        base = (0, opened.position, opened.inode.size())[whence]
        if opened.flags & os.O_PATH:
            raise failure(errno.EBADF)
        if base + offset < 0:
            raise failure(errno.EINVAL)
        opened.position = base + offset
        return opened.position

    def dup(self, fd: int) -> int:
        if fd < FIRST_FD:
            return os.dup(fd)
        process = self._alive()
        opened = self._open_file(process, fd)
        opened.count += 1
        return process.add(opened)

    def posix_fadvise(self, fd: int, offset: int, length: int, advice: int) -> None:
        self._open_file(self._alive(), fd)

    def flock(self, fd: Any, operation: int) -> None:
        """While this waits for a lock, it calls the hook again and again. The hook must let other tasks run."""
        fd = fd if type(fd) is int else fd.fileno()
        if fd < FIRST_FD:
            fcntl.flock(fd, operation)
            return
        process = self._alive()
        self.hook("flock", (fd, operation))
        while not self._locked(self._open_file(self._alive(process), fd), operation):
            if operation & fcntl.LOCK_NB:
                raise failure(errno.EWOULDBLOCK)
            self.hook("flock", (fd, operation))
        self.after("flock")

    @staticmethod
    def _locked(opened: OpenFile, operation: int) -> bool:
        inode = opened.inode
        if not isinstance(inode, File | Directory) or opened.flags & os.O_PATH:
            raise failure(errno.EBADF)
        if not inode.disk.has_locks:
            raise failure(errno.ENOLCK)
        if operation & fcntl.LOCK_UN:
            inode.locks.pop(opened, None)
            return True
        is_exclusive = bool(operation & fcntl.LOCK_EX)
        if any(each is not opened and (is_exclusive or other) for each, other in inode.locks.items()):
            return False
        inode.locks[opened] = is_exclusive
        return True

    # Status

    @_call
    def stat(
        self, process: Process, path: str | int, *, dir_fd: int | None = None, follow_symlinks: bool = True
    ) -> os.stat_result:
        return self._status(self._at(process, path, dir_fd, follow=follow_symlinks))

    @_call
    def lstat(self, process: Process, path: str, *, dir_fd: int | None = None) -> os.stat_result:
        return self._status(self._find(process, path, dir_fd, follow=False))

    @_call
    def fstat(self, process: Process, fd: int) -> os.stat_result:
        return self._status(self._open_file(process, fd).inode)

    @_call
    def access(
        self,
        process: Process,
        path: str,
        mode: int,
        *,
        dir_fd: int | None = None,
        effective_ids: bool = False,
        follow_symlinks: bool = True,
    ) -> bool:
        try:
            inode = self._at(process, path, dir_fd, follow=follow_symlinks)
        except OSError:
            return False
        if mode & os.W_OK and inode.disk.read_only:
            return False
        if mode & os.X_OK and isinstance(inode, File) and not inode.mode & 0o111:
            return False
        return _may(process, inode, mode)

    @_call
    def chmod(
        self,
        process: Process,
        path: str | int,
        mode: int,
        *,
        dir_fd: int | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        self._set_mode(process, self._at(process, path, dir_fd, follow=follow_symlinks), mode)

    @_call
    def fchmod(self, process: Process, fd: int, mode: int) -> None:
        self._set_mode(process, self._open_file(process, fd).inode, mode)

    @_call
    def chown(
        self,
        process: Process,
        path: str | int,
        uid: int,
        gid: int,
        *,
        dir_fd: int | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        inode = self._at(process, path, dir_fd, follow=follow_symlinks)
        inode.disk.check_writable()
        is_group_own = _owns(process, inode) and gid in (-1, process.gid)
        if process.uid and not (is_group_own and uid in (-1, inode.uid)):
            raise failure(errno.EPERM)
        inode.uid = inode.uid if uid == -1 else uid
        inode.gid = inode.gid if gid == -1 else gid
        inode.ctime_ns = self._now(process)

    @_call
    def utime(
        self,
        process: Process,
        path: str | int,
        times: tuple[float, float] | None = None,
        *,
        ns: tuple[int, int] | None = None,
        dir_fd: int | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        inode = self._at(process, path, dir_fd, follow=follow_symlinks)
        inode.disk.check_writable()
        now = self._now(process)
        if not _owns(process, inode):
            is_now = times is None and ns is None
            if not (is_now and _may(process, inode, 2)):
                raise failure(errno.EACCES if is_now else errno.EPERM)
        if ns is None and times is not None:
            ns = (int(times[0] * 1e9), int(times[1] * 1e9))
        inode.mtime_ns = now if ns is None else ns[1]
        inode.ctime_ns = now

    @_call
    def statvfs(self, process: Process, path: str | int) -> os.statvfs_result:
        disk = self._at(process, path, None, follow=True).disk
        free = disk.free()
        blocks, left = (disk.used + free) // BLOCK, free // BLOCK
        inodes = disk.inodes + left
        return os.statvfs_result(
            (BLOCK, BLOCK, blocks, left, left, inodes, left, left, os.ST_RDONLY if disk.read_only else 0, 255)
        )

    # Directories

    @_call
    def mkdir(self, process: Process, path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        parent, name, _ = self._parent(process, path, dir_fd)
        self._check_free(process, parent, name)
        parent.disk.check_room(BLOCK)
        now = self._now(process)
        made = Directory(parent.disk, mode & ~process.umask & 0o1777, process.uid, process.gid, now)
        parent.disk.create(parent, name, made, now)

    @_call
    def rmdir(self, process: Process, path: str, *, dir_fd: int | None = None) -> None:
        parent, name, _ = self._parent(process, path, dir_fd)
        if name in _DOTS:
            is_root = not _parts(path)[0] and path[:1] == "/"
            raise failure(errno.EBUSY if is_root else errno.EINVAL if name == "." else errno.ENOTEMPTY)
        parent.disk.check_writable()
        inode = self._removable(process, parent, name)
        if not isinstance(inode, Directory):
            raise failure(errno.ENOTDIR)
        if inode.mounted:
            raise failure(errno.EBUSY)
        if inode.entries:
            raise failure(errno.ENOTEMPTY)
        parent.disk.remove(parent, name, self._now(process))

    @_call
    def unlink(self, process: Process, path: str, *, dir_fd: int | None = None) -> None:
        parent, name, has_slash = self._parent(process, path, dir_fd)
        if name in _DOTS:
            raise failure(errno.EISDIR)
        parent.disk.check_writable()
        inode = self._child(process, parent, name)
        if inode is not None and has_slash:
            raise failure(errno.EISDIR if inode.entries is not None else errno.ENOTDIR)
        if self._removable(process, parent, name).entries is not None:
            raise failure(errno.EISDIR)
        parent.disk.remove(parent, name, self._now(process))

    @_call_of_two
    def rename(
        self,
        process: Process,
        source: str,
        target: str,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
    ) -> None:
        parent, name, has_slash = self._parent(process, source, src_dir_fd)
        new_parent, new_name, new_has_slash = self._parent(process, target, dst_dir_fd)
        if parent.disk is not new_parent.disk:
            raise failure(errno.EXDEV)
        if name in _DOTS or new_name in _DOTS:
            raise failure(errno.EBUSY)
        parent.disk.check_writable()
        inode = self._child(process, parent, name)
        if inode is None:
            raise failure(errno.ENOENT)
        replaced = self._child(process, new_parent, new_name)
        is_directory = isinstance(inode, Directory)
        if (has_slash or new_has_slash) and not is_directory:
            raise failure(errno.ENOTDIR)
        if self._is_above(inode, new_parent):
            raise failure(errno.EINVAL)
        if replaced is not None and self._is_above(replaced, parent):
            raise failure(errno.ENOTEMPTY)
        if replaced is inode:
            return
        self._check_entry(process, parent)
        self._check_entry(process, new_parent)
        if replaced is not None:
            if is_directory and replaced.entries is None:
                raise failure(errno.ENOTDIR)
            if not is_directory and replaced.entries is not None:
                raise failure(errno.EISDIR)
        if is_directory and parent is not new_parent and not _may(process, inode, 2):
            raise failure(errno.EACCES)
        if inode.mounted or (replaced is not None and replaced.mounted):
            raise failure(errno.EBUSY)
        if replaced is not None and replaced.entries:
            raise failure(errno.ENOTEMPTY)
        parent.disk.rename(parent, name, new_parent, new_name, self._now(process))

    replace = rename

    @_call_of_two
    def link(
        self,
        process: Process,
        source: str,
        target: str,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        """As Python on Linux: a link is followed only if a directory is given by its descriptor too."""
        follow = follow_symlinks and not (src_dir_fd is None and dst_dir_fd is None)
        inode = self._find(process, source, src_dir_fd, follow=follow)
        parent, name, has_slash = self._parent(process, target, dst_dir_fd)
        self._check_free(process, parent, name, is_directory=not has_slash)
        if inode.disk is not parent.disk:
            raise failure(errno.EXDEV)
        if inode.entries is not None or not inode.disk.has_links:
            raise failure(errno.EPERM)
        if inode.nlink <= 0:
            raise failure(errno.ENOENT)
        inode.disk.link(parent, name, inode, self._now(process))

    @_call_of_two
    def symlink(
        self,
        process: Process,
        source: str,
        target: str,
        target_is_directory: bool = False,  # noqa: FBT001, FBT002 — as in `os`
        *,
        dir_fd: int | None = None,
    ) -> None:
        if not source:
            raise failure(errno.ENOENT)
        parent, name, has_slash = self._parent(process, target, dir_fd)
        self._check_free(process, parent, name, is_directory=not has_slash)
        parent.disk.check_room()
        now = self._now(process)
        parent.disk.create(parent, name, Symlink(parent.disk, source, process.uid, process.gid, now), now)

    @_call
    def readlink(self, process: Process, path: str, *, dir_fd: int | None = None) -> str:
        target = self._find(process, path, dir_fd, follow=False).target
        if target is None:
            raise failure(errno.EINVAL)
        return target

    @_call
    def scandir(self, process: Process, path: str | int) -> Scan:
        listed = self._listed(process, path)
        if type(path) is int:
            return Scan([DirEntry(self, name, name, path, inode) for name, inode in listed])
        above = path if path.endswith("/") else f"{path}/"
        return Scan([DirEntry(self, name, f"{above}{name}", None, inode) for name, inode in listed])

    @_call
    def listdir(self, process: Process, path: str | int) -> list[str]:
        return [name for name, _ in self._listed(process, path)]

    def _listed(self, process: Process, path: str | int) -> list[tuple[str, Inode]]:
        inode = self._at(process, path, None, follow=True)
        if inode.entries is None:
            raise failure(errno.ENOTDIR)
        if type(path) is int:
            if self._open_file(process, path).flags & os.O_PATH:
                raise failure(errno.EBADF)
        elif not _may(process, inode, 4):
            raise failure(errno.EACCES)
        shown = [(name, inode.entries[name]) for name in sorted(inode.entries, key=_scattered)]
        slow = inode.disk.slow_ns
        return [each for each in shown if each[1].named_ns <= self._now(process) - slow] if slow else shown

    # The process

    def getpid(self) -> int:
        return self._alive().pid

    def getuid(self) -> int:
        return self._alive().uid

    geteuid = getuid

    def getcwd(self) -> str:
        return "/"

    def kill(self, pid: int, signal: int) -> None:
        """Note a signal in the other process. The world delivers it."""
        process = self._alive()
        self.hook("kill", (pid, signal))
        target = self._alive(process).node.processes.get(pid)
        if target is None:
            raise failure(errno.ESRCH)
        if process.uid not in (0, target.uid):
            raise failure(errno.EPERM)
        if signal and target.alive:
            target.signals.append(int(signal))
        self.after("kill")

    # File objects

    def open_file(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,  # noqa: FBT001, FBT002 — as in `open`
        opener: Callable[[str, int], int] | None = None,
    ) -> Any:
        """As the `open` of Python."""
        flags = _flags(mode)
        if type(file) is int:
            fd = file
        elif opener is not None:
            fd = opener(os.fspath(file), flags)
        else:
            fd = self.open(file, flags, 0o666)
        if fd < FIRST_FD:
            return open(fd, mode, buffering, encoding, errors, newline, closefd)
        try:
            if self._open_file(self._alive(), fd).inode.entries is not None:
                raise failure(errno.EISDIR, file)
            raw = RawFile(self, fd, file, mode.replace("b", "").replace("t", "") + "b", closefd=closefd)
        except OSError:
            if type(file) is not int:
                self.close(fd)
            raise
        if "a" in mode:
            raw.seek(0, 2)
        return _wrapped(raw, mode, buffering, encoding, errors, newline)

    def fdopen(self, fd: int, mode: str = "r", buffering: int = -1, encoding: str | None = None, *args: Any) -> Any:
        return self.open_file(fd, mode, buffering, encoding, *args)

    # Temporary files

    def gettempdir(self) -> str:
        return "/tmp"  # noqa: S108

    def mkstemp(
        self,
        suffix: str | None = None,
        prefix: str | None = None,
        dir: Any = None,  # noqa: A002
        text: bool = False,  # noqa: FBT001, FBT002 — as in `tempfile`
    ) -> tuple[int, str]:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        while True:
            path = self._draft(suffix, prefix, dir)
            try:
                return self.open(path, flags, 0o600), path
            except FileExistsError:
                continue

    def temporary_directory(
        self,
        suffix: str | None = None,
        prefix: str | None = None,
        dir: Any = None,  # noqa: A002
        ignore_cleanup_errors: bool = False,  # noqa: FBT001, FBT002 — as in `tempfile`
    ) -> TemporaryDirectory:
        while True:
            path = self._draft(suffix, prefix, dir)
            try:
                self.mkdir(path, 0o700)
            except FileExistsError:
                continue
            return TemporaryDirectory(self, path, ignore_cleanup_errors=ignore_cleanup_errors)

    def _draft(self, suffix: str | None, prefix: str | None, directory: Any) -> str:
        above = self.gettempdir() if directory is None else os.fsdecode(directory)
        name = f"{'tmp' if prefix is None else prefix}{next(self._drafts):08x}{suffix or ''}"
        return str(self.path.abspath(self.path.join(above, name)))

    # Look-ups

    def path_of(self, fd: int) -> str:
        """The path that a descriptor of the current process was opened by; empty if it has none."""
        opened = self.current().fds.get(fd)
        return "" if opened is None else opened.path

    def _now(self, process: Process) -> int:
        return self.now_ns() + process.node.clock_offset_ns

    def _alive(self, process: Process | None = None) -> Process:
        process = process or self.current()
        if not process.alive:
            raise Dead
        return process

    def _absolute(self, process: Process, path: str, dir_fd: int | None) -> str:
        if path[:1] == "/":
            return path
        if dir_fd is None:
            return f"/{path}"
        if dir_fd < FIRST_FD:
            return f"{os.readlink(f'/proc/self/fd/{dir_fd}')}/{path}"
        opened = process.fds.get(dir_fd)
        return path if opened is None else f"{opened.path}/{path}"

    def _open_file(self, process: Process, fd: int) -> OpenFile:
        try:
            return process.fds[fd]
        except KeyError:
            raise failure(errno.EBADF) from None

    def _start(self, process: Process, path: str, dir_fd: int | None) -> Inode:
        """Where the look-up of a path begins."""
        if not path:
            raise failure(errno.ENOENT)
        if path[0] == "/":
            return process.node.root
        if dir_fd is None:
            return process.node.root
        inode = self._open_file(process, dir_fd).inode
        if inode.entries is None:
            raise failure(errno.ENOTDIR)
        return inode

    def _at(self, process: Process, path: str | int, dir_fd: int | None, *, follow: bool) -> Inode:
        if type(path) is int:
            return self._open_file(process, path).inode
        return self._find(process, path, dir_fd, follow=follow)

    def _find(self, process: Process, path: str, dir_fd: int | None, *, follow: bool) -> Inode:
        start = process.node.root if path[:1] == "/" else self._start(process, path, dir_fd)
        parts, is_directory = _parts(path)
        inode = self._descend(process, start, parts, follow=follow or is_directory)
        if is_directory and inode.entries is None:
            raise failure(errno.ENOTDIR)
        return inode

    def _descend(self, process: Process, here: Inode, parts: tuple[str, ...], *, follow: bool, links: int = 0) -> Inode:
        uid = process.uid
        last = len(parts) - 1
        for number, name in enumerate(parts):
            entries = here.entries
            if entries is None:
                raise failure(errno.ENOTDIR)
            if uid and here.mode & 0o111 != 0o111 and not _may(process, here, 1):
                raise failure(errno.EACCES)
            child = entries.get(name)
            if child is None:
                child = self._unlisted(process, here, name, parts)
            elif child.target is not None:
                if follow or number < last:
                    child = self._follow(process, here, child.target, links)
            elif child.mounted is not None:
                child = child.mounted.get(process.node, child)
            here = child
        return here

    def _follow(self, process: Process, here: Inode, target: str, links: int) -> Inode:
        if links >= _MOST_LINKS:
            raise failure(errno.ELOOP)
        start = process.node.root if target[:1] == "/" else here
        parts, is_directory = _parts(target)
        inode = self._descend(process, start, parts, follow=True, links=links + 1)
        if is_directory and inode.entries is None:
            raise failure(errno.ENOTDIR)
        return inode

    def _unlisted(self, process: Process, here: Inode, name: str, parts: tuple[str, ...]) -> Inode:
        """The names that a directory has without an entry: `..`, and `proc` in the root."""
        node = process.node
        assert isinstance(here, Directory)
        if name == "..":
            return node.covered.get(here, here).parent
        if name == "proc" and here is node.root:
            return self._proc(process, parts[1:])
        raise failure(errno.ENAMETOOLONG if len(os.fsencode(name)) > 255 else errno.ENOENT)

    def _proc(self, process: Process, parts: tuple[str, ...]) -> Directory:
        """/proc with only the file of this path in it, if that exists."""
        disk = process.node.proc
        top = directory = Directory(disk, 0o555, 0, 0, 0)
        text = self._proc_text(process, parts)
        if text is None:
            return top
        for name in parts[:-1]:
            directory.entries[name] = below = Directory(disk, 0o555, 0, 0, 0)
            directory = below
        directory.entries[parts[-1]] = file = File(disk, 0o444, 0, 0, 0)
        file.content += text.encode("utf-8", "surrogateescape")
        file.ino, file.nlink = _PID_NAMESPACE, 1
        return top

    @staticmethod
    def _proc_text(process: Process, parts: tuple[str, ...]) -> str | None:
        node = process.node
        match parts:
            case ("self", "ns", "pid"):
                return ""
            case ("self", "mountinfo"):
                mounts = {"/": node.disk, **node.mounts}.items()
                return "".join(
                    f"1 1 0:{disk.number} / {path} rw - {disk.kind} {disk.name} rw\n" for path, disk in mounts
                )
            case ("sys", "kernel", "random", "boot_id"):
                return f"{node.boot_id()}\n"
            case (pid, "stat"):
                found = process if pid == "self" else node.processes.get(int(pid) if pid.isdecimal() else -1)
                if found is None:
                    return None
                return f"{found.pid} (python) {'S' if found.alive else 'Z'} {'0 ' * 18}{found.began} 0\n"
        return None

    def _directory(self, process: Process, start: Inode, parts: tuple[str, ...]) -> Directory:
        found = self._descend(process, start, parts, follow=True)
        if not isinstance(found, Directory):
            raise failure(errno.ENOTDIR)
        if process.uid and not _may(process, found, 1):
            raise failure(errno.EACCES)
        return found

    def _parent(self, process: Process, path: str, dir_fd: int | None) -> tuple[Directory, str, bool]:
        """The parent directory, the last name of the path, and whether a slash follows it."""
        start = self._start(process, path, dir_fd)
        parts, name, has_slash = _above(path)
        return self._directory(process, start, parts), name, has_slash

    def _child(self, process: Process, parent: Directory, name: str) -> Inode | None:
        """The entry of a directory itself, not the root of a disk that is mounted over it."""
        inode = parent.entries.get(name)
        if inode is None and len(os.fsencode(name)) > 255:
            raise failure(errno.ENAMETOOLONG)
        return inode

    def _check_entry(self, process: Process, directory: Directory) -> None:
        """Raise if entries may not be made and removed: EROFS, EACCES, or ENOENT if the directory was removed."""
        directory.disk.check_writable()
        if not _may(process, directory, 3):
            raise failure(errno.EACCES)
        if not directory.nlink:
            raise failure(errno.ENOENT)

    def _check_free(self, process: Process, parent: Directory, name: str, *, is_directory: bool = True) -> None:
        """Raise if no new entry may be made under this name."""
        if name in _DOTS or self._child(process, parent, name) is not None:
            raise failure(errno.EEXIST)
        if not is_directory:
            raise failure(errno.ENOENT)
        self._check_entry(process, parent)

    def _removable(self, process: Process, parent: Directory, name: str) -> Inode:
        inode = self._child(process, parent, name)
        if inode is None:
            raise failure(errno.ENOENT)
        self._check_entry(process, parent)
        return inode

    @staticmethod
    def _is_above(inode: Inode, directory: Directory) -> bool:
        """Whether an inode is this directory, or a directory above it on its disk."""
        while directory is not inode:
            if directory.parent is directory:
                return False
            directory = directory.parent
        return True

    @staticmethod
    def _bytes(opened: OpenFile, offset: int, count: int) -> bytes:
        if not opened.can_read:
            raise failure(errno.EBADF)
        content = opened.inode.content
        if content is None:
            raise failure(errno.EISDIR)
        if offset < 0:
            raise failure(errno.EINVAL)
        if opened.inode in opened.inode.disk.unreadable:
            raise failure(errno.EIO)
        return bytes(memoryview(content)[offset : offset + count])

    def _set_mode(self, process: Process, inode: Inode, mode: int) -> None:
        inode.disk.check_writable()
        if not _owns(process, inode):
            raise failure(errno.EPERM)
        inode.mode = stat.S_IFMT(inode.mode) | mode & 0o7777
        inode.ctime_ns = self._now(process)

    @staticmethod
    def _status(inode: Inode) -> os.stat_result:
        facts = (inode.mode, inode.nlink, inode.uid, inode.gid, inode.size(), inode.mtime_ns, inode.ctime_ns)
        if inode.shown is None or inode.shown[0] != facts:
            inode.shown = facts, _stat_result(inode)
        return inode.shown[1]


def _stat_result(inode: Inode) -> os.stat_result:
    mtime, ctime, size = inode.mtime_ns, inode.ctime_ns, inode.size()
    if inode.disk.is_coarse:
        mtime, ctime = mtime // 1_000_000_000 * 1_000_000_000, ctime // 1_000_000_000 * 1_000_000_000
    seconds = mtime // 1_000_000_000
    owners = (inode.uid, inode.gid)
    return os.stat_result(
        (
            inode.mode,
            inode.ino,
            inode.disk.number,
            inode.nlink,
            *owners,
            size,
            seconds,
            seconds,
            ctime // 1_000_000_000,
        ),
        {
            "st_atime": mtime / 1e9,
            "st_mtime": mtime / 1e9,
            "st_ctime": ctime / 1e9,
            "st_atime_ns": mtime,
            "st_mtime_ns": mtime,
            "st_ctime_ns": ctime,
            "st_blksize": BLOCK,
            "st_blocks": (size + 511) // 512,
        },
    )


def _flags(mode: str) -> int:
    """The flags that Python's `open` uses for a mode."""
    kind = mode.replace("b", "").replace("t", "").replace("+", "")
    if kind not in ("r", "w", "a", "x") or ("b" in mode and "t" in mode):
        raise ValueError(f"invalid mode: {mode!r}")
    access = os.O_RDWR if "+" in mode else os.O_RDONLY if kind == "r" else os.O_WRONLY
    created = {
        "r": 0,
        "w": os.O_CREAT | os.O_TRUNC,
        "a": os.O_CREAT | os.O_APPEND,
        "x": os.O_CREAT | os.O_EXCL,
    }[kind]
    return access | created | os.O_CLOEXEC


def _wrapped(
    raw: RawFile, mode: str, buffering: int, encoding: str | None, errors: str | None, newline: str | None
) -> Any:
    """A raw file as `open` returns it for this mode and buffering."""
    if buffering == 0:
        if "b" not in mode:
            raise ValueError("can't have unbuffered text I/O")
        return raw
    size = buffering if buffering > 1 else BLOCK
    buffered: Any
    if "+" in mode:
        buffered = io.BufferedRandom(raw, size)
    elif "r" in mode:
        buffered = io.BufferedReader(raw, size)
    else:
        buffered = io.BufferedWriter(raw, size)
    if "b" in mode:
        return buffered
    text = io.TextIOWrapper(buffered, encoding or "utf-8", errors, newline, line_buffering=buffering == 1)
    text.mode = mode  # type: ignore[misc]
    return text


_OS_CALLS = [
    "access",
    "chmod",
    "chown",
    "close",
    "dup",
    "fchmod",
    "fdatasync",
    "fdopen",
    "fstat",
    "fsync",
    "getcwd",
    "geteuid",
    "getpid",
    "getuid",
    "kill",
    "link",
    "listdir",
    "lseek",
    "lstat",
    "mkdir",
    "open",
    "posix_fadvise",
    "pread",
    "preadv",
    "read",
    "readlink",
    "rename",
    "replace",
    "rmdir",
    "scandir",
    "stat",
    "statvfs",
    "symlink",
    "unlink",
    "utime",
    "write",
]
_WALKS = ("walk", "_walk", "fwalk", "_fwalk", "makedirs")
