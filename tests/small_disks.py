"""Real file systems that are soon full, and files of times that few have."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(home: Path, options: str) -> Iterator[Path]:
    """A file system in memory, mounted at `home` with these options ("size=1m") as long as the block lasts."""
    home.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(home)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield home
    finally:
        # Lazily: a catalog that was on it may still be open.
        subprocess.run(["umount", "--lazy", str(home)], check=True)


def give_room(home: Path, size: str) -> None:
    """From now on the file system at `home` is of that size."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(home)], check=True)


def read_only(home: Path) -> None:
    """From now on nothing can be written to the file system at `home`."""
    subprocess.run(["mount", "-o", "remount,ro", str(home)], check=True)


def fill(home: Path) -> Path:
    """Leave no room at all: a file that takes it."""
    path = home / "filler"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                os.write(file.fileno(), bytes(4096))
        except OSError:
            return path


def date_far_ahead(path: Path) -> None:
    """Give a file a modification time that no catalog holds."""
    os.utime(path, (9_300_000_000, 9_300_000_000))
    if path.stat().st_mtime < 9_300_000_000:
        pytest.skip("this file system has no such times")


@contextmanager
def hanging_disk(home: Path) -> Iterator[Path]:
    """A file system at `home` that answers nothing as long as the block lasts: a FUSE server that does not serve."""
    home.mkdir(parents=True, exist_ok=True)
    try:
        server = os.open("/dev/fuse", os.O_RDWR)
    except OSError:
        pytest.skip("there is no FUSE here")
    try:
        options = f"fd={server},rootmode=040000,user_id=0,group_id=0"
        command = ["mount", "-i", "-t", "fuse", "-o", options, "hanging", str(home)]
        if subprocess.run(command, pass_fds=[server], capture_output=True, check=False).returncode:
            pytest.skip("mounting is not allowed here")
        yield home
    finally:
        os.close(server)  # each call that hangs fails now
        subprocess.run(["umount", "--lazy", str(home)], capture_output=True, check=False)
