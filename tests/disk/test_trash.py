"""Single moves into the trash and out of it: over nothing, through no link, and each again after it was half done."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from ckptstore.disk.files import FileFacts
from ckptstore.disk.trash import Disk, Trash, TrashResult

WHERE = ".ckptstore/trash/gc"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_bytes(b"bytes")
    return tmp_path


def facts(path: Path) -> FileFacts:
    return FileFacts(path.stat().st_size, path.stat().st_mtime_ns)


def put(root: Path, place: str = "sub/a", expected: FileFacts | None = None, disk: Disk | None = None) -> TrashResult:
    with Trash("gc", disk) as trash:
        return trash.put(str(root), place, expected or facts(root / place))


def take_back(root: Path, expected: FileFacts, disk: Disk | None = None) -> TrashResult:
    with Trash("gc", disk) as trash:
        return trash.take_back(str(root), "sub/a", expected)


def test_there_and_back_again(root: Path) -> None:
    was = facts(root / "sub" / "a")
    assert put(root) is TrashResult.DONE
    assert facts(root / WHERE / "sub" / "a") == was
    assert put(root, expected=was) is TrashResult.DONE, "done before"
    assert take_back(root, was) is TrashResult.DONE
    assert facts(root / "sub" / "a") == was
    assert take_back(root, was) is TrashResult.DONE, "done before"


def test_what_is_not_the_recorded_file_stays(root: Path) -> None:
    assert put(root, expected=FileFacts(4, 1)) is TrashResult.CHANGED
    assert (root / "sub" / "a").exists()
    with Trash("gc") as trash:
        assert trash.delete(str(root), "sub/a", FileFacts(4, 1)) is TrashResult.CHANGED
    assert (root / "sub" / "a").exists()
    (root / "sub" / "a").unlink()
    assert put(root, expected=FileFacts(4, 1)) is TrashResult.GONE
    with Trash("gc") as trash:
        assert trash.delete(str(root), "sub/a", FileFacts(4, 1)) is TrashResult.GONE
        assert trash.purge(str(root), "sub/a", FileFacts(4, 1)) is TrashResult.GONE
    assert take_back(root, FileFacts(4, 1)) is TrashResult.GONE


def test_a_new_file_at_the_place_of_one_in_the_trash_stays(root: Path) -> None:
    """Killed after the move, before it was recorded; meanwhile training wrote another file, as like as can be."""
    was = facts(root / "sub" / "a")
    put(root)
    for content, when in ((b"other bytes", 5), (b"BYTES", was.mtime_ns)):
        (root / "sub" / "a").write_bytes(content)
        os.utime(root / "sub" / "a", ns=(when, when))
        assert put(root, expected=was) is TrashResult.DONE
        assert (root / "sub" / "a").read_bytes() == content
        assert (root / WHERE / "sub" / "a").read_bytes() == b"bytes"
        assert take_back(root, was) is TrashResult.OCCUPIED
        assert (root / "sub" / "a").read_bytes() == content


def test_a_file_that_is_replaced_between_the_look_and_the_move_is_put_back(root: Path) -> None:
    class Late(Disk):
        def rename(self, *args: Any, **options: Any) -> None:
            (root / "sub" / "a").unlink()
            (root / "sub" / "a").write_bytes(b"another")
            os.rename(*args, **options)  # noqa: PTH104

    assert put(root, disk=Late()) is TrashResult.CHANGED
    assert (root / "sub" / "a").read_bytes() == b"another"
    assert list((root / WHERE / "sub").iterdir()) == []


def test_killed_between_the_move_and_the_look(root: Path) -> None:
    """What came into the trash is another file, saved just before: it goes back, and is never purged."""
    was = facts(root / "sub" / "a")
    (root / "sub" / "a").write_bytes(b"another")
    assert put(root) is TrashResult.DONE
    with Trash("gc") as trash:
        assert trash.purge(str(root), "sub/a", was) is TrashResult.CHANGED
    assert put(root, expected=was) is TrashResult.CHANGED
    assert (root / "sub" / "a").read_bytes() == b"another"
    assert list((root / WHERE / "sub").iterdir()) == []


def test_a_file_whose_place_in_the_trash_is_taken_stays(root: Path) -> None:
    """An interrupted gc has moved one; another was written there and registered since."""
    put(root)
    (root / "sub" / "a").write_bytes(b"another")
    assert put(root) is TrashResult.CHANGED
    assert (root / "sub" / "a").read_bytes() == b"another"
    assert (root / WHERE / "sub" / "a").read_bytes() == b"bytes"


def test_killed_between_the_link_and_the_unlink(root: Path) -> None:
    was = facts(root / "sub" / "a")
    put(root)
    os.link(root / WHERE / "sub" / "a", root / "sub" / "a")
    assert take_back(root, was) is TrashResult.DONE
    assert list((root / WHERE / "sub").iterdir()) == []


def test_what_is_at_its_place_was_not_deleted_from_the_trash(root: Path) -> None:
    was = facts(root / "sub" / "a")
    with Trash("gc") as trash:
        assert trash.purge(str(root), "sub/a", was) is TrashResult.IN_PLACE
        assert trash.purge(str(root), "sub/a", FileFacts(5, 1)) is TrashResult.GONE
    assert facts(root / "sub" / "a") == was


@pytest.mark.parametrize("spoiled", [".ckptstore", ".ckptstore/trash"])
def test_what_never_moved_is_back_though_the_trash_cannot_be_used(root: Path, spoiled: str) -> None:
    was = facts(root / "sub" / "a")
    (root / spoiled).parent.mkdir(exist_ok=True)
    (root / spoiled).symlink_to(root / "sub")
    assert take_back(root, was) is TrashResult.DONE
    with Trash("gc") as trash:
        trash.remove_empty(str(root), ["sub/a"], inside=True)
    (root / "sub" / "a").write_bytes(b"another")
    with pytest.raises(NotADirectoryError):
        take_back(root, was)
    assert (root / spoiled).is_symlink()
    assert (root / "sub" / "a").read_bytes() == b"another"


@pytest.mark.parametrize("occupied", [False, True])
def test_a_file_system_without_hard_links(root: Path, *, occupied: bool) -> None:
    class NoLinks(Disk):
        def link(self, *args: Any, **options: Any) -> None:
            raise OSError(errno.EPERM, "no")

    was = facts(root / "sub" / "a")
    put(root)
    if occupied:
        (root / "sub" / "a").write_bytes(b"another")
    assert take_back(root, was, NoLinks()) is (TrashResult.OCCUPIED if occupied else TrashResult.DONE)
    assert (root / "sub" / "a").read_bytes() == (b"another" if occupied else b"bytes")


@pytest.mark.parametrize("place", ["../a", "sub/../../a", "/a", "sub//a", "", ".", "sub/."])
def test_no_place_leads_out(root: Path, place: str) -> None:
    with Trash("gc") as trash:
        for action in (trash.put, trash.take_back, trash.delete):
            with pytest.raises(OSError, match="not a path below"):
                action(str(root / "sub"), place, FileFacts(5, 1))
        with pytest.raises(OSError, match="not a path below"):
            trash.purge(str(root / "sub"), place, FileFacts(5, 1))


@pytest.mark.parametrize("link", ["root", "sub", ".ckptstore", "sub/a"])
def test_no_link_is_followed(root: Path, tmp_path_factory: pytest.TempPathFactory, link: str) -> None:
    was = facts(root / "sub" / "a")
    away = tmp_path_factory.mktemp("away") / "x"
    place = root if link == "root" else root / link
    if place.exists():
        place.rename(away)
    else:
        away.mkdir()
    place.symlink_to(away)
    with pytest.raises(OSError, match="Not a directory|Too many levels|not a regular file"):
        put(root, expected=was)
    with Trash("gc") as trash, pytest.raises(OSError, match="Not a directory|Too many levels|not a regular file"):
        trash.delete(str(root), "sub/a", was) if link != ".ckptstore" else trash.purge(str(root), "sub/a", was)
    assert away.is_file() or not list(away.rglob("trash"))


def test_the_directories_of_others_stay(root: Path) -> None:
    (root / "sub" / "b").write_bytes(b"stays")
    (root / ".ckptstore" / "trash" / "another" / "sub").mkdir(parents=True)
    was = facts(root / "sub" / "a")
    put(root)
    with Trash("gc") as trash:
        trash.remove_empty(str(root), ["sub/a"])
        assert (root / "sub" / "b").exists()
        assert trash.purge(str(root), "sub/a", was) is TrashResult.DONE
        trash.remove_empty(str(root), ["sub/a"], inside=True)
    assert not (root / WHERE).exists()
    assert (root / ".ckptstore" / "trash" / "another" / "sub").exists()
    assert was.size == 5


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_thousand_directories_do_not_need_a_thousand_open_ones(tmp_path: Path) -> None:
    places = []
    for number in range(200):
        path = tmp_path / f"rank_{number}" / "a"
        path.parent.mkdir()
        path.write_bytes(b"x")
        places.append(path)
    before = open_files()
    with Trash("gc") as trash:
        for path in places:
            assert trash.put(str(path.parent), "a", facts(path)) is TrashResult.DONE
        assert open_files() - before <= 64
    assert open_files() <= before  # what others had open may be gone
