"""Compares the simulated disks with the real system, and tests a power loss."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.world.disks import Disk
from tests.world.system import Node, Process, System

pytestmark = pytest.mark.of_files


class World:
    """One node with a disk at /data; `be` chooses the process that calls."""

    def __init__(self, point: str = "/data", **limits: Any) -> None:
        self.disk = Disk("data", 7, **limits)
        self.node = Node("one")
        self.node.mount(point, self.disk)
        self.process = Process(self.node, 100)
        self.time = 1_700_000_000_000_000_000
        self.calls: list[str] = []
        self.fault: Callable[[str], None] = lambda _: None
        self.system = System(lambda: self.process, self.now, lambda name, _: self.calls.append(name), self.fault)

    def now(self) -> int:
        self.time += 1_000_000
        return self.time

    def be(self, pid: int, uid: int = 0) -> None:
        self.process = self.node.processes.get(pid) or Process(self.node, pid, uid)

    def write(self, path: str, content: bytes, *, sync: bool = False) -> None:
        fd = self.system.open(path, os.O_WRONLY | os.O_CREAT)
        assert self.system.write(fd, content) == len(content)
        if sync:
            self.system.fsync(fd)
        self.system.close(fd)

    def sync(self, path: str) -> None:
        fd = self.system.open(path, os.O_RDONLY)
        self.system.fsync(fd)
        self.system.close(fd)


class _Fd:
    def __init__(self, index: int) -> None:
        self.index = index

    def __repr__(self) -> str:
        return f"fd{self.index}"


class Twice:
    """Runs each call on a real directory and on a simulated disk at the same path, and compares the results."""

    def __init__(self, root: str, seed: int) -> None:
        self.chance = Random(seed)
        self.root = root
        world = World(root)
        self.disk, self.system = world.disk, world.system
        self.fds: list[tuple[int, int]] = []
        self.said: list[str] = []

    def name(self) -> str:
        names = [self.chance.choice("abcd") for _ in range(self.chance.choice((1, 1, 1, 2, 2, 3)))]
        odd = self.chance.random()
        if odd < 0.03:
            names.append(self.chance.choice((".", "..", "", "x" * 256)))
        elif odd < 0.06:
            names.insert(0, self.chance.choice((".", "..")))
        return "/".join(names)

    def path(self) -> str:
        return f"{self.root}/w/{self.name()}"

    def place(self, name: str = "dir_fd") -> tuple[str, dict[str, int]]:
        """A path, or a name and the two numbers of the open directory that it is relative to."""
        if self.fds and self.chance.random() < 0.3:
            return self.name(), {name: self.chance.randrange(len(self.fds))}
        return self.path(), {}

    def both(self, name: str, *args: Any, show: Callable[[Any], Any] = lambda found: found, **kwargs: Any) -> Any:
        found = []
        for side, module in enumerate((os, self.system.os)):
            mapped = {key: self.fds[value][side] if key.endswith("dir_fd") else value for key, value in kwargs.items()}
            given = [self.fds[each.index][side] if isinstance(each, _Fd) else each for each in args]
            function: Any = module
            for part in name.split("."):
                function = getattr(function, part)
            try:
                found.append(show(function(*given, **mapped)))
            except OSError as error:
                found.append(errno.errorcode[error.errno or 0])
        self.said.append(f"{name}{args} {kwargs}: {found[0]!r}"[:300])
        if name != "open" or isinstance(found[0], str) or isinstance(found[1], str):
            assert found[1] == found[0], "\n".join([*self.said[-25:], f"simulated: {found[1]!r}"])
        return found

    def is_file(self, fd: _Fd) -> bool:
        return stat.S_ISREG(os.fstat(self.fds[fd.index][0]).st_mode)

    def step(self) -> None:
        chance = self.chance
        action = chance.choice(_ACTIONS)
        if action == "open":
            flags = chance.choice((os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_PATH))
            odds = (os.O_CREAT, 0.5), (os.O_EXCL, 0.2), (os.O_TRUNC, 0.2), (os.O_APPEND, 0.2), (os.O_NOFOLLOW, 0.3)
            flags |= sum(flag for flag, odd in odds if chance.random() < odd)
            flags |= os.O_DIRECTORY if not flags & os.O_CREAT and chance.random() < 0.5 else 0
            flags &= ~(0 if flags & os.O_CREAT else os.O_EXCL)  # not defined
            path, at = self.place()
            found = self.both("open", path, flags, 0o666, **at)
            if not isinstance(found[0], str):
                self.fds.append((found[0], found[1]))
        elif action in _OF_FDS:
            if self.fds:
                _OF_FDS[action](self, _Fd(chance.randrange(len(self.fds))))
        elif action in ("rename", "link", "replace"):
            (source, one), (target, other) = self.place("src_dir_fd"), self.place("dst_dir_fd")
            follow = {"follow_symlinks": chance.random() < 0.5} if action == "link" else {}
            self.both(action, source, target, **one, **other, **follow)
        elif action == "symlink":
            target, at = self.place()
            self.both(action, chance.choice((self.name(), self.path(), "../" + self.name())), target, **at)
        elif action in _OF_PATHS:
            self.both(action, self.path(), show=_OF_PATHS[action])
        elif action == "utime":
            path, at = self.place()
            self.both(action, path, ns=(1, chance.randrange(10**18)), **at)
            self.both("stat", path, show=lambda found: found.st_mtime_ns if stat.S_ISREG(found.st_mode) else 0, **at)
        elif action == "chmod":
            self.both(action, self.path(), chance.choice((0o600, 0o755, 0o444)))
        else:
            path, at = self.place()
            follow = {"follow_symlinks": chance.random() < 0.5} if action == "stat" else {}
            self.both(action, path, show=_OF_PLACES[action], **at, **follow)


def _status(found: os.stat_result) -> object:
    nlink, size = (0, 0) if stat.S_ISDIR(found.st_mode) else (found.st_nlink, found.st_size)
    return oct(found.st_mode), nlink, size, found.st_uid, found.st_gid


def _entries(found: Any) -> object:
    with found as entries:
        return sorted(
            (
                each.name,
                each.path if each.path[0] == "/" else "",
                _kind(each),
                _status(each.stat(follow_symlinks=False)),
            )
            for each in entries
        )


def _kind(entry: Any) -> object:
    return entry.is_file(follow_symlinks=False), entry.is_symlink()


def _forget(twice: Twice, fd: _Fd) -> None:
    twice.both("close", fd)
    del twice.fds[fd.index]


_OF_FDS: dict[str, Callable[[Twice, _Fd], object]] = {
    "read": lambda twice, fd: twice.both("read", fd, twice.chance.randrange(1, 800)),
    "pread": lambda twice, fd: twice.both("pread", fd, 100, twice.chance.randrange(900)),
    "write": lambda twice, fd: twice.both("write", fd, twice.chance.randbytes(twice.chance.randrange(600))),
    "lseek": lambda twice, fd: twice.is_file(fd) and twice.both("lseek", fd, twice.chance.randrange(900), 1),
    "fstat": lambda twice, fd: twice.both("fstat", fd, show=_status),
    "fsync": lambda twice, fd: twice.both("fsync", fd),
    "close": _forget,
    "scandir_fd": lambda twice, fd: twice.both("scandir", fd, show=_entries),
    "listdir_fd": lambda twice, fd: twice.both("listdir", fd, show=sorted),
}
_OF_PLACES: dict[str, Callable[[Any], object]] = dict.fromkeys(("mkdir", "rmdir", "unlink", "readlink"), lambda it: it)
_OF_PLACES |= {"stat": _status, "lstat": _status}
_OF_PATHS: dict[str, Callable[[Any], object]] = {
    "scandir": _entries,
    "listdir": sorted,
    "walk": lambda found: sorted((top, sorted(below), sorted(names)) for top, below, names in found),
    "fwalk": lambda found: sorted((top, sorted(below), sorted(names)) for top, below, names, _ in found),
    "makedirs": lambda it: it,
    **dict.fromkeys(("path.exists", "path.isdir", "path.islink", "path.realpath", "path.getsize"), lambda it: it),
}
_CHANGES = ("open", "open", "open", "mkdir", "mkdir", "rename", "link", "symlink", "unlink", "write", "write", "rmdir")
_ACTIONS = (*_CHANGES, *_CHANGES, *_OF_FDS, *_OF_PLACES, *_OF_PATHS, "utime", "chmod", "replace")


def _files(root: str) -> list[Path]:
    found = (Path(top, name) for top, _, names in os.walk(root) for name in names)
    return [path for path in found if stat.S_ISREG(path.lstat().st_mode)]


@pytest.mark.parametrize("seed", range(8))
def test_calls_do_what_they_do_on_linux(tmp_path: Path, seed: int) -> None:
    twice = Twice(str(tmp_path.resolve()), seed)
    before = os.umask(0o022)
    try:
        twice.both("mkdir", f"{twice.root}/w")
        for _ in range(700):
            twice.step()
        files = {str(each.relative_to(twice.root)): each.read_bytes() for each in _files(twice.root)}
        assert twice.disk.everything() == files
        twice.system.rmtree(f"{twice.root}/w")
        assert not twice.system.path.exists(f"{twice.root}/w")
    finally:
        os.umask(before)
        for fd, _ in twice.fds:
            os.close(fd)
