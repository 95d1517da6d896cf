"""Single moves into the trash and out of it: over nothing, through no link, and each again after it was half done."""

import errno
import os
from pathlib import Path

import pytest

from ckptstore.core.model import Location
from ckptstore.disk.files import FileFacts
from ckptstore.disk.trash import Trash
from tests.trash_calls import at, failing_after

WHERE = ".ckptstore/trash/gc"
HOME, TRASH, GONE = Location


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_bytes(b"bytes")
    return tmp_path


def facts(path: Path) -> FileFacts:
    return FileFacts(path.stat().st_size, path.stat().st_mtime_ns)


def settle(
    root: Path, wanted: Location, expected: FileFacts, place: str = "sub/a", *, takes: bool = False
) -> tuple[Location, str]:
    with Trash("gc") as trash:
        return trash.settle(str(root), place, expected, wanted, takes=takes)


def put(root: Path, expected: FileFacts | None = None) -> Location:
    return settle(root, TRASH, expected or facts(root / "sub" / "a"), takes=True)[0]


def test_there_and_back_again(root: Path) -> None:
    was = facts(root / "sub" / "a")
    for _ in range(2):
        assert settle(root, TRASH, was, takes=True) == (TRASH, "")
        assert facts(root / WHERE / "sub" / "a") == was
    for _ in range(2):
        assert settle(root, HOME, was) == (HOME, "")
        assert facts(root / "sub" / "a") == was


def test_what_is_not_the_recorded_file_stays(root: Path) -> None:
    other = FileFacts(4, 1)
    for wanted in (TRASH, GONE):
        assert settle(root, wanted, other, takes=True) == (HOME, "it changed since it was recorded")
    assert settle(root, GONE, other)[0] is GONE, "it was in the trash, and is not any more"
    assert (root / "sub" / "a").exists()
    (root / "sub" / "a").unlink()
    for wanted in Location:
        for takes in (False, True):
            assert settle(root, wanted, other, takes=takes) == (GONE, "it is gone")


@pytest.mark.parametrize("wanted", [TRASH, GONE])
def test_nothing_is_taken_from_its_place_on_the_word_of_a_process_that_died(root: Path, wanted: Location) -> None:
    was = facts(root / "sub" / "a")
    assert settle(root, wanted, was) == (HOME, "it is at its place")
    assert facts(root / "sub" / "a") == was
    assert settle(root, wanted, was, takes=True) == (wanted, "")
    assert not (root / "sub" / "a").exists()


def test_a_new_file_at_the_place_of_one_in_the_trash_stays(root: Path) -> None:
    """Killed after the move, before it was recorded; meanwhile training wrote another file, as like as can be."""
    was = facts(root / "sub" / "a")
    put(root)
    for content, when in ((b"other bytes", 5), (b"BYTES", was.mtime_ns)):
        (root / "sub" / "a").write_bytes(content)
        os.utime(root / "sub" / "a", ns=(when, when))
        assert put(root, was) is TRASH
        assert (root / "sub" / "a").read_bytes() == content
        assert (root / WHERE / "sub" / "a").read_bytes() == b"bytes"
        assert settle(root, HOME, was) == (
            TRASH,
            "another file is at its place now, so this one stays in the trash: move the other file away, and try again",
        )
        assert (root / "sub" / "a").read_bytes() == content


def test_a_file_that_is_replaced_between_the_look_and_the_move_is_put_back(root: Path) -> None:
    def replace() -> None:
        (root / "sub" / "a").unlink()
        (root / "sub" / "a").write_bytes(b"another")

    with at(1, ("rename",), replace):
        assert put(root) is HOME
    assert (root / "sub" / "a").read_bytes() == b"another"
    assert list((root / WHERE / "sub").iterdir()) == []


@pytest.mark.parametrize("spoiled", [".ckptstore", ".ckptstore/trash"])
def test_what_never_moved_is_back_though_the_trash_cannot_be_used(root: Path, spoiled: str) -> None:
    was = facts(root / "sub" / "a")
    (root / spoiled).parent.mkdir(exist_ok=True)
    (root / spoiled).symlink_to(root / "sub")
    assert settle(root, HOME, was)[0] is settle(root, TRASH, was)[0] is HOME
    with Trash("gc") as trash:
        trash.remove_empty(str(root), ["sub/a"])
    (root / "sub" / "a").write_bytes(b"another")
    with pytest.raises(NotADirectoryError):
        settle(root, HOME, was)
    assert (root / spoiled).is_symlink()
    assert (root / "sub" / "a").read_bytes() == b"another"


@pytest.mark.parametrize("occupied", [False, True])
def test_a_file_system_without_hard_links(root: Path, *, occupied: bool) -> None:
    was = facts(root / "sub" / "a")
    put(root)
    if occupied:
        (root / "sub" / "a").write_bytes(b"another")
    with failing_after(0, ("link",), OSError(errno.EPERM, "no")):
        assert settle(root, HOME, was)[0] is (TRASH if occupied else HOME)
    assert (root / "sub" / "a").read_bytes() == (b"another" if occupied else b"bytes")


@pytest.mark.parametrize(
    "place", ["../a", "sub/../../a", "/a", "sub//a", "", ".", "sub/.", ".ckptstore", "sub/.ckptstore", ".ckptstore/a"]
)
def test_no_place_leads_out_or_into_what_ckptstore_keeps(root: Path, place: str) -> None:
    for wanted in Location:
        with pytest.raises(OSError, match="not a path below"):
            settle(root / "sub", wanted, FileFacts(5, 1), place, takes=True)


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
    for wanted, takes in ((TRASH, True), (GONE, link != ".ckptstore")):
        with pytest.raises(OSError, match="Not a directory|Too many levels|not a regular file"):
            settle(root, wanted, was, takes=takes)
    assert away.is_file() or not list(away.rglob("trash"))


def test_the_directories_of_others_stay(root: Path) -> None:
    (root / "sub" / "b").write_bytes(b"stays")
    (root / ".ckptstore" / "trash" / "another" / "sub").mkdir(parents=True)
    was = facts(root / "sub" / "a")
    put(root)
    with Trash("gc") as trash:
        trash.remove_empty(str(root), ["sub/a"])
        assert (root / WHERE / "sub" / "a").exists()
        assert trash.settle(str(root), "sub/a", was, GONE) == (GONE, "")
        trash.remove_empty(str(root), ["sub/a"])
    assert (root / "sub" / "b").exists()
    assert not (root / WHERE).exists()
    assert (root / ".ckptstore" / "trash" / "another" / "sub").exists()


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
            assert trash.settle(str(path.parent), "a", facts(path), TRASH, takes=True) == (TRASH, "")
        assert open_files() - before <= 64
    assert open_files() <= before  # what others had open may be gone
