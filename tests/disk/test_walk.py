"""The walk: every file once, no link followed, what cannot be read said and the rest still found."""

import os
import subprocess
import sys
from pathlib import Path

from ckptstore.disk.walk import Directory, walk
from tests.command_line import no_right_to_pass_by_permissions


def walked(root: Path, skipped: str = "") -> dict[str, Directory]:
    return {"/".join(each.parts): each for each in walk(str(root), skip=lambda name: name == skipped)}


def test_every_file_with_its_size_and_time(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "x.ckpt").write_bytes(b"12345")
    os.utime(tmp_path / "a" / "x.ckpt", ns=(1, 7_000_000_001))
    found = walked(tmp_path)
    assert set(found) == {"", "a", "a/b"}
    (seen,) = found["a"].files
    assert (seen.name, seen.size, seen.mtime_ns) == ("x.ckpt", 5, 7_000_000_001)
    assert found["a"].path == str(tmp_path / "a")


def test_links_and_loops_are_passed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x.ckpt").touch()
    root = tmp_path / "root"
    root.mkdir()
    (root / "loop").symlink_to(root)
    (root / "away").symlink_to(outside)
    (root / "x.ckpt").symlink_to(outside / "x.ckpt")
    (root / "nowhere").symlink_to(root / "not there")
    (found,) = walked(root).values()
    assert found.files == ()
    assert {Path(passed.path).name: passed.reason for passed in found.passed} == dict.fromkeys(
        ("loop", "away", "x.ckpt", "nowhere"), "a link"
    )


def test_names_that_are_not_utf_8_and_what_is_no_file(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/net\xff-1_5.ckpt")).touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "net-1_5.ckpt").touch()
    (found,) = walked(tmp_path).values()
    assert [seen.name for seen in found.files] == ["net-1_5.ckpt"]
    assert {(Path(passed.path).name, passed.reason) for passed in found.passed} == {
        ("net\\udcff-1_5.ckpt", "its name is not UTF-8"),
        ("pipe", "not a regular file"),
    }


def test_a_path_that_no_catalog_holds(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d" * 200] * 10)
    deep.mkdir(parents=True)
    (deep / "net-1_5.ckpt").touch()
    passed = [each for directory in walked(tmp_path).values() for each in directory.passed]
    assert {each.reason for each in passed} == {"its path is longer than 2000 bytes"}


def test_a_directory_that_is_gone_or_left_out(tmp_path: Path) -> None:
    (found,) = walked(tmp_path / "gone").values()
    assert [passed.reason for passed in found.passed] == ["No such file or directory"]
    (tmp_path / ".ckptstore" / "below").mkdir(parents=True)
    assert set(walked(tmp_path, skipped=".ckptstore")) == {""}


def test_what_may_not_be_looked_at_is_told_as_unread(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "net-1_5.ckpt").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    program = (
        "import sys; from ckptstore.disk.walk import walk\n"
        "for each in walk(sys.argv[1], skip=lambda _: False): print(*(one.path for one in each.unread), sep='\\n')"
    )
    command = [*no_right_to_pass_by_permissions(), sys.executable, "-c", program, str(tmp_path)]
    for mode, unread in ((0o600, "a/net-1_5.ckpt"), (0o300, "a")):  # its names alone can be read, or not even they
        (tmp_path / "a").chmod(mode)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        (tmp_path / "a").chmod(0o700)
        assert done.stdout.split() == [str(tmp_path / unread)]
