"""Whether a directory is there, and a file gone from it."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptstore.core.model import Checkpoint, Kind
from ckptstore.disk import presence
from ckptstore.disk.presence import Home

ANY = Home(set(), {"."})


def made(directory: Path) -> str:
    """A directory that was announced; its identity."""
    directory.mkdir(exist_ok=True)
    return presence.identify(str(directory), ANY)


def record(path: Path, identity: str = "") -> Checkpoint:
    return Checkpoint(
        run="r", launch="L", kind=Kind.PERIODIC, global_step=1, rank=0, path=str(path), directory_id=identity
    )


def absence(file: Checkpoint, *others: Checkpoint) -> str:
    """Why a file that is not seen may be there all the same; empty if it is gone."""
    places = presence.unidentified((each.path, each.directory_id) for each in (file, *others))
    return presence.lost([file], places)[file.path]


def moved_away(home: Path) -> None:
    home.rename(home.with_name("away"))


def unmounted(home: Path) -> None:
    moved_away(home)
    home.mkdir()


def another_disk(home: Path) -> None:
    unmounted(home)
    made(home)


def a_link(home: Path) -> None:
    moved_away(home)
    home.symlink_to(home.with_name("away"))


def without_folder(home: Path) -> None:
    shutil.rmtree(home / ".ckptstore")
    (home / "other").touch()


def a_folder_that_is_a_link(home: Path) -> None:
    (home / ".ckptstore").rename(home.with_name("elsewhere"))
    (home / ".ckptstore").symlink_to(home.with_name("elsewhere"))


@pytest.mark.parametrize(
    ("becomes", "why"),
    [
        (moved_away, "is not there: perhaps it is not mounted"),
        (unmounted, "is empty: perhaps it is not mounted"),
        (another_disk, "is not the directory that was recorded"),
        (a_link, "is a link"),
        (without_folder, "has no .ckptstore any more"),
        (a_folder_that_is_a_link, "is not the directory that was recorded"),
    ],
)
def test_a_file_is_gone_only_from_the_directory_that_was_recorded(
    tmp_path: Path, becomes: Callable[[Path], None], why: str
) -> None:
    home = tmp_path / "home"
    file = record(home / "a.ckpt", made(home))
    assert absence(file) == ""
    becomes(home)
    assert absence(file).startswith(why)
    with pytest.raises(OSError, match=why):
        presence.enter(str(home), presence.home_of(file))


def test_a_file_that_is_there_is_not_gone(tmp_path: Path) -> None:
    """The look that did not see it was at a disk that was away for a moment."""
    file = record(tmp_path / "a.ckpt", made(tmp_path))
    (tmp_path / "a.ckpt").touch()
    assert absence(file) == "was unmounted while gc looked at it"


def test_a_record_without_identity_needs_another_file_that_is_there(tmp_path: Path) -> None:
    one, other = record(tmp_path / "a.ckpt"), record(tmp_path / "b.ckpt")
    (tmp_path / "c.ckpt").touch()
    assert absence(one, other, record(tmp_path / "c.ckpt", "0" * 16)).startswith("has none of its recorded files")
    (tmp_path / "b.ckpt").touch()
    assert absence(one, other) == ""


def test_a_moved_and_a_copied_directory_have_the_identity(tmp_path: Path) -> None:
    identity = made(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    (tmp_path / "one").rename(tmp_path / "new")
    there = [absence(record(tmp_path / name / "a.ckpt", identity)) for name in ("new", "copy")]
    assert there == ["", ""]
    assert absence(record(tmp_path / "one" / "a.ckpt", identity)) != "", "a copy says nothing of where it was made"


def test_an_identity_is_made_once_and_stays(tmp_path: Path) -> None:
    identity = made(tmp_path)
    assert made(tmp_path) == identity == presence.identity_of(str(tmp_path))


def test_an_identity_is_made_after_the_directories_above_were_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody syncs them again where there is one: a power failure would take the directory with its journals."""

    def refused(_: str) -> None:
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(presence, "sync", refused)
        assert made(tmp_path) == ""
    synced: list[str] = []
    monkeypatch.setattr(presence, "sync", synced.append)
    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", lambda _, dir_fd: refused("a disk that is only read"))
        assert presence.identify(str(tmp_path), ANY) == ""
    assert synced == []
    assert made(tmp_path)
    assert str(tmp_path.parent) in synced


def test_a_directory_has_an_identity_though_a_sandbox_lets_nobody_read_those_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """access(2) asks for the modes alone: Landlock and AppArmor refuse what it grants."""

    def refused(_: str) -> None:
        raise PermissionError

    monkeypatch.setattr(presence, "sync", refused)
    assert made(tmp_path)


def test_two_processes_that_give_a_directory_an_identity_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has recorded its own: both count."""
    with monkeypatch.context() as patch:
        patch.setattr(presence, "_identities", lambda _: [])
        identities = [made(tmp_path) for _ in range(2)]
    assert len(set(identities)) == 2
    assert [absence(record(tmp_path / "a.ckpt", each)) for each in identities] == ["", ""]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_no_directory_stays_open(tmp_path: Path) -> None:
    before = len([*Path("/proc/self/fd").iterdir()])
    made(tmp_path / "home")
    assert presence.absence(str(tmp_path / "home"), Home({"0" * 16}, set())).startswith("is not the directory")
    assert len([*Path("/proc/self/fd").iterdir()]) <= before


def test_nothing_is_made_where_no_recorded_file_is(tmp_path: Path) -> None:
    assert presence.identify(str(tmp_path), presence.home_of(record(tmp_path / "a.ckpt"))) == ""
    assert list(tmp_path.iterdir()) == []
