"""What is written aside gets its name when it is whole, and never that of anything else."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptstore.disk import aside
from ckptstore.disk.aside import Aside, clear_unfinished, named_last
from ckptstore.errors import RefusedError


def write_file(path: str) -> None:
    Path(path).write_text("whole")


def write_directory(path: str) -> None:
    Path(path, "rank_0").mkdir(parents=True)
    Path(path, "rank_0", "file").write_text("whole")


EACH = pytest.mark.parametrize("write", [write_file, write_directory])


@EACH
def test_it_gets_its_name_at_the_end(write: Callable[[str], None], tmp_path: Path) -> None:
    target = tmp_path / "target"
    with named_last(str(target)) as path:
        write(path)
        assert not target.exists()
    assert [each.name for each in tmp_path.iterdir()] == ["target"]
    assert "whole" in [each.read_text() for each in (target, *target.rglob("*")) if each.is_file()]


@EACH
def test_what_fails_leaves_nothing(write: Callable[[str], None], tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), named_last(str(tmp_path / "target")) as path:
        write(path)
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


@EACH
@pytest.mark.parametrize("other", [write_file, write_directory, lambda path: Path(path).symlink_to("nothing")])
def test_nothing_is_written_over(write: Callable[[str], None], other: Callable[[str], None], tmp_path: Path) -> None:
    target = str(tmp_path / "target")
    with pytest.raises(RefusedError, match="is there already"), named_last(target) as path:
        write(path)
        other(target)  # while it is written
    with pytest.raises(RefusedError, match="is there already"), named_last(target):
        pytest.fail("it is seen before anything is written")
    assert [each.name for each in tmp_path.iterdir()] == ["target"]


def test_what_comes_between_the_last_look_and_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "target"
    monkeypatch.setattr(aside, "_refuse_taken", lambda _: None)
    for write in (write_file, write_directory):
        write(str(target))
        with pytest.raises(OSError) as raised, named_last(str(target)) as path:  # noqa: PT011
            write(path)
        assert raised.value.errno in (errno.EEXIST, errno.ENOTEMPTY)
        assert "whole" in [each.read_text() for each in (target, *target.rglob("*")) if each.is_file()]
        target.unlink() if target.is_file() else None


def test_two_write_one_target(tmp_path: Path) -> None:
    target = str(tmp_path / "target")
    with named_last(target) as path:
        write_file(path)
        for other in (named_last(target).__enter__, lambda: clear_unfinished(target)):
            with pytest.raises(RefusedError, match="is being written by another process"):
                other()
    assert Path(target).read_text() == "whole"


def test_what_was_left_is_deleted_and_the_users_own_is_not(tmp_path: Path) -> None:
    target, folder = tmp_path / "target", tmp_path / ".target.unfinished"
    (folder / ".ckptstore" / "target").mkdir(parents=True)
    (folder / "mine").write_text("mine")
    clear_unfinished(str(target))
    assert [each.name for each in folder.iterdir()] == ["mine"]
    with named_last(str(target)) as path:
        write_file(path)
    assert [each.name for each in folder.iterdir()] == ["mine"]


def test_a_target_that_is_there_loses_what_a_kill_left_beside_it__before_that_stayed(tmp_path: Path) -> None:
    """A kill after the target got its name leaves a link to its bytes: their space would never be free again."""
    target, folder = tmp_path / "target", tmp_path / ".target.unfinished"
    target.write_text("whole")
    (folder / ".ckptstore").mkdir(parents=True)
    (folder / ".ckptstore" / "target").hardlink_to(target)
    with pytest.raises(RefusedError, match="is there already"), named_last(str(target)):
        pytest.fail("nothing is written over it")
    assert [each.name for each in tmp_path.iterdir()] == ["target"]
    assert target.stat().st_nlink == 1


def test_a_link_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / ".ckptstore").mkdir(parents=True)
    (tmp_path / ".target.unfinished").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError), named_last(str(tmp_path / "target")):  # noqa: PT011 — ENOTDIR or ELOOP
        pytest.fail("no link is followed")
    assert (tmp_path / "elsewhere" / ".ckptstore").exists()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_and_links(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(aside.fcntl, "flock", refuse)
    monkeypatch.setattr(aside.os, "link", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.EPERM, "no links")))
    with named_last(str(tmp_path / "target")) as path:
        write_file(path)
    assert (tmp_path / "target").read_text() == "whole"


def test_a_lock_that_fails_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(aside.fcntl, "flock", refuse)
    with pytest.raises(OSError, match="Input/output error"), named_last(str(tmp_path / "target")):
        pytest.fail("it is not locked")


def test_a_folder_that_was_removed_before_it_was_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock, folder = aside.fcntl.flock, tmp_path / ".target.unfinished"
    made: list[int] = []

    def late(opened: int, how: int) -> None:
        if not made:
            made.append(opened)
            folder.rmdir()  # who held it before has ended
        flock(opened, how)

    monkeypatch.setattr(aside.fcntl, "flock", late)
    with named_last(str(tmp_path / "target")) as path:
        write_file(path)
    assert [each.name for each in tmp_path.iterdir()] == ["target"]


def test_a_link_in_the_place_of_what_an_earlier_launch_left_is_not_followed_and_stops_no_save(tmp_path: Path) -> None:
    folders: list[Path] = []

    def write(path: str) -> None:
        folders.append(Path(path).parent)
        write_file(path)

    Aside(str(tmp_path), "run", "L1", 0).save("a", write)
    (tmp_path / "elsewhere" / "mine").mkdir(parents=True)
    folders[0].symlink_to(tmp_path / "elsewhere")
    Aside(str(tmp_path), "run", "L2", 0).clear_others()
    assert (tmp_path / "elsewhere" / "mine").exists()


def test_a_folder_that_is_removed_before_it_is_opened__before_no_such_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks copy one file: the first one ends when the second one has seen its folder."""
    folder = tmp_path / ".target.unfinished"
    folder.mkdir()
    opening = os.open

    def opened(path: str, flags: int) -> int:
        monkeypatch.undo()
        folder.rmdir()
        return opening(path, flags)

    monkeypatch.setattr(aside.os, "open", opened)
    with named_last(str(tmp_path / "target")) as path:
        write_file(path)
    assert [each.name for each in tmp_path.iterdir()] == ["target"]


def test_a_folder_that_cannot_be_deleted_keeps_no_later_save_from_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where NFS keeps a file that is open, or where too many are: each later save failed with "File exists"."""
    own = Aside(str(tmp_path), "run", "launch", 0)

    def fails(path: str) -> None:
        Path(path).write_text("a part")
        raise OSError(errno.EIO, "on purpose")

    with monkeypatch.context() as disk:
        disk.setattr(aside.shutil, "rmtree", lambda *_, **__: None)
        for _ in range(40):  # the name of the folder does not grow with each
            with pytest.raises(OSError, match="on purpose"):
                own.save("step-1", fails)
        assert Path(own.save("step-1", write_file)).read_text() == "whole"
    Aside(str(tmp_path), "run", "next", 0).clear_others()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["step-1"]
