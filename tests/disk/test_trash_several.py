"""Several files that are one checkpoint go into the trash and out of it all or none, killed wherever it may be."""

import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from ckptstore.core.model import Location
from ckptstore.disk import files
from ckptstore.disk.files import FileFacts
from ckptstore.disk.trash import Trash
from tests.foreign_bytes import shards, tensorflow, written
from tests.retention.gc_world import KilledError, PointsInProcess
from tests.trash_calls import CHANGES, before_each, failing_after

INSIDE = ".ckptstore/trash/gc"
HOME, TRASH, GONE = Location
every_format = pytest.mark.parametrize("make", [tensorflow, shards])


class Act(NamedTuple):
    wanted: Location
    takes: bool = False


PUT, TAKE_BACK, PURGE, RECOVER = Act(TRASH, takes=True), Act(HOME), Act(GONE), Act(TRASH)


def done(root: Path, act: Act, expected: FileFacts) -> Location:
    with Trash("gc") as trash:
        return trash.settle(str(root), "sub/x", expected, act.wanted, takes=act.takes).at


def is_killed(root: Path, act: Act, expected: FileFacts, calls: int) -> bool:
    """Killed after so many system calls."""
    try:
        with before_each(CHANGES, PointsInProcess(calls).pass_one):
            done(root, act, expected)
    except KilledError:
        return True
    return False


def tree(directory: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(directory)): path for path in sorted(directory.rglob("*")) if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if not name.startswith(".ckptstore")}


def made(root: Path, make: Callable[[Path], Path]) -> tuple[FileFacts, dict[str, bytes]]:
    """A checkpoint beside others whose names begin alike; and what it consists of."""
    make(root / "sub" / "x")
    own = tree(root)
    shards(root / "sub" / "x-1")
    tensorflow(root / "sub" / "x.ckpt")
    written(root / "sub" / "x.indexes", b"no member")
    written(root / "sub" / "x.data-0-of-1", b"no member")
    facts = files.facts(str(root / "sub" / "x"))
    assert facts is not None
    return facts, own


REPAIRS = [  # what is done where a process was killed, by the next gc or purge, and by undo; where all of it is then
    (PUT, RECOVER, {HOME, TRASH}),
    (PUT, TAKE_BACK, {HOME, TRASH}),
    (TAKE_BACK, TAKE_BACK, {HOME}),
    (PURGE, PURGE, {GONE}),
    (PURGE, TAKE_BACK, {HOME, GONE}),
]


@every_format
@pytest.mark.parametrize(("act", "repair", "may_be"), REPAIRS)
def test_killed_between_any_two_calls(
    tmp_path: Path, make: Callable[[Path], Path], act: Act, repair: Act, may_be: set[Location]
) -> None:
    """Afterwards all files are at their place, or in the trash, or none is anywhere; and no other is touched."""
    ends: set[Location] = set()
    for calls in count():
        root = tmp_path / str(calls)
        expected, own = made(root, make)
        others = {name: content for name, content in tree(root).items() if name not in own}
        if act is not PUT:
            assert done(root, PUT, expected) is TRASH
        was_killed = is_killed(root, act, expected, calls)
        there = files.facts_if_seen(str(root / "sub" / "x"))
        assert there in (None, expected), "a part is no checkpoint"
        assert (there is None) or tree(root) == {**own, **others}
        if was_killed:
            is_killed(root, repair, expected, 1)  # who repairs it, too
            done(root, repair, expected)
        here = {name: content for name, content in tree(root).items() if name not in others}
        inside = tree(root / INSIDE)
        assert (here, inside) in (({}, {}), (own, {}), ({}, own)), f"killed at {calls}"
        assert {name: content for name, content in tree(root).items() if name in others} == others
        ends.add(HOME if here else TRASH if inside else GONE)
        if not was_killed:
            break
    assert ends == may_be


@every_format
def test_there_and_back_again(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    expected, own = made(tmp_path, make)
    before = tree(tmp_path)
    for _ in range(2):
        assert done(tmp_path, PUT, expected) is TRASH
        assert tree(tmp_path / INSIDE) == own
    for _ in range(2):
        assert done(tmp_path, TAKE_BACK, expected) is HOME
        assert tree(tmp_path) == before
        assert tree(tmp_path / INSIDE) == {}
    assert done(tmp_path, PURGE, expected) is HOME
    assert done(tmp_path, PUT, FileFacts(expected.size, 1)) is HOME
    with pytest.raises(OSError, match="by way of the trash"):
        done(tmp_path, Act(GONE, takes=True), expected)
    assert tree(tmp_path) == before


@every_format
@pytest.mark.parametrize("other", ["file", "empty", "directory", "index", "data"])
def test_nothing_that_is_at_its_place_by_now_is_replaced(
    tmp_path: Path, make: Callable[[Path], Path], other: str
) -> None:
    expected, own = made(tmp_path, make)
    done(tmp_path, PUT, expected)
    place = tmp_path / "sub" / "x"
    if other == "file":
        place.write_bytes(b"new")
    elif other == "empty":
        place.mkdir()
    elif other == "directory":
        shards(place)
    else:
        ending = "index" if other == "index" else "data-00000-of-00002"
        written(tmp_path / "sub" / f"x.{ending}", b"new")
    before = tree(tmp_path)
    if other == "empty":
        with pytest.raises(OSError, match="without files"):
            done(tmp_path, TAKE_BACK, expected)
    elif (make, other) == (shards, "data"):
        assert done(tmp_path, TAKE_BACK, expected) is HOME, "of no index it is no checkpoint"
        return
    else:
        assert done(tmp_path, TAKE_BACK, expected) is TRASH
    assert tree(tmp_path) == before
    assert tree(tmp_path / INSIDE) == own


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_what_cannot_be_moved_keeps_the_others_of_a_prefix(tmp_path: Path, failing: int) -> None:
    expected, _ = made(tmp_path, tensorflow)
    before = tree(tmp_path)
    refused = failing_after(failing, ("rename",), PermissionError(1, "not permitted"))
    with refused, pytest.raises(PermissionError):
        done(tmp_path, PUT, expected)
    assert tree(tmp_path) == before
    assert tree(tmp_path / INSIDE) == {}


def test_killed_while_what_could_not_be_moved_went_back(tmp_path: Path) -> None:
    """Between the link and the unlink of one file: it is at both places, and another one at its own."""
    expected, _ = made(tmp_path, tensorflow)
    before = tree(tmp_path)
    done(tmp_path, PUT, expected)
    inside, home = tmp_path / INSIDE / "sub", tmp_path / "sub"
    (inside / "x.data-00001-of-00002").rename(home / "x.data-00001-of-00002")
    (home / "x.data-00000-of-00002").hardlink_to(inside / "x.data-00000-of-00002")
    assert done(tmp_path, RECOVER, expected) is HOME
    assert tree(tmp_path) == before
    assert tree(tmp_path / INSIDE) == {}


@pytest.mark.parametrize("wrong", ["link", "pipe", "record", "link to a directory"])
def test_a_directory_with_what_is_no_file_stays_in_the_trash(tmp_path: Path, wrong: str) -> None:
    """It came there after it was moved: nothing of it is deleted, and nothing that a link names."""
    expected, own = made(tmp_path, shards)
    done(tmp_path, PUT, expected)
    away = shards(tmp_path / "away")
    inside = tmp_path / INSIDE / "sub" / "x"
    if wrong == "pipe":
        os.mkfifo(inside / "pipe")
    elif wrong == "record":
        (inside / ".ckptstore").mkdir()
    else:
        (inside / "link").symlink_to(away if wrong != "link" else away / "latest.txt")
    with pytest.raises(OSError, match="of it is a link, or no file|other checkpoints in it"):
        done(tmp_path, PURGE, expected)
    assert set(own) <= set(tree(tmp_path / INSIDE))
    assert len(tree(away)) == 3


def test_what_a_purge_left_that_is_no_file_stays(tmp_path: Path) -> None:
    expected, _ = made(tmp_path, shards)
    done(tmp_path, PUT, expected)
    assert is_killed(tmp_path, PURGE, expected, 2)
    (left,) = (tmp_path / INSIDE / "sub").iterdir()
    assert left.name == ".ckptstore"
    (left / "link").symlink_to(tmp_path / "sub" / "x-1")
    for act in (PURGE, TAKE_BACK, RECOVER):
        with pytest.raises(OSError, match="link of it is a link"):
            done(tmp_path, act, expected)
    (left / "link").unlink()
    assert done(tmp_path, PURGE, expected) is GONE
    assert len(tree(tmp_path / "sub" / "x-1")) == 3


def test_a_directory_that_is_swapped_before_it_is_purged_stays(tmp_path: Path) -> None:
    """Of the same names, sizes and times: only what was looked at is deleted."""
    expected, _ = made(tmp_path, shards)
    done(tmp_path, PUT, expected)
    other = shards(tmp_path / "other")
    with Trash("gc") as trash:
        found = trash.find(str(tmp_path), "sub/x", inside=True)
        trash.identities = {str(tmp_path / "sub" / "x"): found.identity}
        (tmp_path / INSIDE / "sub" / "x").rename(tmp_path / "aside")
        other.rename(tmp_path / INSIDE / "sub" / "x")
        assert trash.settle(str(tmp_path), "sub/x", expected, GONE).at is TRASH
    assert len(tree(tmp_path / INSIDE / "sub" / "x")) == 3


def test_what_a_purge_left_is_what_was_looked_at(tmp_path: Path) -> None:
    """Somebody puts a directory there between the look, whose it is, and the deletion."""
    expected, _ = made(tmp_path, shards)
    done(tmp_path, PUT, expected)
    (tmp_path / INSIDE / "sub" / "x").rename(tmp_path / INSIDE / "sub" / ".ckptstore")
    for act in (PURGE, TAKE_BACK, RECOVER):
        with Trash("gc") as trash:
            trash.identities = {str(tmp_path / "sub" / "x"): ()}
            with pytest.raises(OSError, match="has changed since it was listed"):
                trash.settle(str(tmp_path), "sub/x", expected, act.wanted)
    assert len(tree(tmp_path / INSIDE / "sub" / ".ckptstore")) == 3


def test_a_file_with_the_longest_name_has_no_index(tmp_path: Path) -> None:
    path = written(tmp_path / ("n" * 255), b"x")
    facts = FileFacts(1, path.stat().st_mtime_ns)
    for act in (PUT, TAKE_BACK, Act(GONE, takes=True)):
        with Trash("gc") as trash:
            settled = trash.settle(str(tmp_path), path.name, facts, act.wanted, takes=act.takes)
            assert settled == (act.wanted, "")
