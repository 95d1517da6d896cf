"""Export and import killed between any two of their system calls: nothing looks whole that is not, and again it works.

Each is a real process that ends by SIGKILL, before a call that changes what is on a disk or in the catalog.
"""

import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ckptstore.api import connect
from ckptstore.errors import UnknownRunError
from ckptstore.handover.archive import open_source
from ckptstore.training import companions
from tests.empty_catalogs import copy_empty_catalog
from tests.handover.builders import snapshot
from tests.jobs import Job
from tests.retention.gc_world import Points, ended_apart

CHANGES = (
    "open",
    "mkdir",
    "rename",
    "link",
    "unlink",
    "rmdir",
    "fsync",
    "write",
    "utime",
    "flock",
    "execute",
    "commit",
)
"""Calls by the names of the functions in C."""


def live(action: Callable[[], object], last: int) -> None:
    """Do it in a process that is killed after so many of these calls."""
    points = Points(last)

    def call(_frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and function.__name__ in CHANGES:
            points.pass_one()

    sys.setprofile(call)
    action()


def export(home: Path, target: str) -> None:
    connect(str(home / "catalog.db")).export("digits", home / target)


def take_in(home: Path, target: str) -> None:
    connect(str(home / "other.db")).import_(home / target, home / "there")


@pytest.fixture
def home(tmp_path: Path, sqlite_url: str) -> Path:
    """Two catalogs, of which one has a run."""
    job = Job(connect(sqlite_url), tmp_path / "ckpt", layout="data_parallel", run="digits")
    files = job.save(job.begin(), 5, 10)
    companions.write(files[0], {"random": [1, 2]}, durable=False)
    copy_empty_catalog(tmp_path / "other.db")
    return tmp_path


EVERY = [
    ("out", 53),
    pytest.param("out.tar", 53, marks=pytest.mark.long),
    pytest.param("out", 1, marks=pytest.mark.long),
    pytest.param("out.tar", 1, marks=pytest.mark.long),
]


def each_death(action: Callable[[], object], apart: int, check: Callable[[], None]) -> int:
    """Kill it at every so many points, and look each time; how often."""
    kills, last = 0, 0
    while (ended := ended_apart(live, action, last)) != 0:
        assert ended == -signal.SIGKILL, f"at point {last}"
        check()
        kills, last = kills + 1, last + apart
    assert last > 50, "the points are counted"
    return kills


@pytest.mark.parametrize(("target", "apart"), EVERY)
def test_an_export_that_is_killed(target: str, apart: int, home: Path) -> None:
    before = snapshot(home / "ckpt")

    def check() -> None:
        assert snapshot(home / "ckpt") == before
        if (home / target).exists():
            is_whole(home / target)
            remove(home / target)
        assert {each.name for each in home.iterdir()} - {f".{target}.unfinished"} <= KNOWN

    each_death(partial(export, home, target), apart, check)
    is_whole(home / target)
    assert {each.name for each in home.iterdir()} <= {*KNOWN, target}


KNOWN = {"ckpt", *(f"{name}.db{end}" for name in ("catalog", "other") for end in ("", "-wal", "-shm", ".lock"))}


def is_whole(target: Path) -> None:
    with open_source(str(target)) as opened:
        for part in opened.manifest.parts:
            assert b"".join(map(bytes, opened.read(part)))
        opened.check_end()
        assert len(opened.manifest.parts) == 3


def bytes_below(there: Path) -> dict[str, bytes]:
    """Of what was imported: the identity of the directory is another each time."""
    return {path: each[0] for path, each in snapshot(there).items() if "identity-" not in path}


def remove(target: Path) -> None:
    if not target.exists():
        return
    for path in sorted(target.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    target.rmdir() if target.is_dir() else target.unlink()


@pytest.mark.parametrize(("target", "apart"), EVERY)
def test_an_import_that_is_killed(target: str, apart: int, home: Path) -> None:
    """Given again, it ends as it would have."""
    export(home, target)
    there, other = home / "there", home / "other.db"
    take_in(home, target)
    undisturbed = bytes_below(there)
    before = {path: each for path, each in snapshot(home).items() if Path(path).is_relative_to(home / target)}

    def begin_anew() -> None:
        remove(there)
        for path in home.glob("other.db*"):
            path.unlink()
        copy_empty_catalog(other)

    def check() -> None:
        catalog = connect(str(other))
        is_named = there.exists()
        if is_named:
            assert bytes_below(there) == undisturbed
        try:
            found = catalog.resolve("digits")
        except UnknownRunError:
            found = None
        assert found is None or (is_named and found.plan is not None)
        take_in(home, target)
        assert bytes_below(there) == undisturbed
        assert catalog.resolve("digits").plan.global_step == 10
        assert {each.name for each in home.iterdir()} <= {*KNOWN, target, "there"}
        catalog.database.disconnect()
        begin_anew()

    begin_anew()
    each_death(partial(take_in, home, target), apart, check)
    assert {path: each for path, each in snapshot(home).items() if path in before} == before
