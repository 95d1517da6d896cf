"""What a path is written down as, and what is read of a small file."""

import gc
import os
from dataclasses import replace
from pathlib import Path

import pytest

from ckptstore.core.model import launch_key
from ckptstore.disk import files, name_claims
from ckptstore.disk.exit_flags import clear_others, flag_path
from ckptstore.disk.name_claims import FOLDER
from ckptstore.journal import jsonl
from tests.resume.builders import file, launch


def test_a_path_has_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system goes it: behind a link, ".." leads to where the link leads. A file that is a link stays one."""
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "link").symlink_to(tmp_path / "elsewhere" / "deep")
    monkeypatch.chdir(tmp_path / "here")
    for given, meant in (
        ("a.ckpt", "here/a.ckpt"),
        ("./x//a.ckpt", "here/x/a.ckpt"),
        ("../a.ckpt", "a.ckpt"),
        ("not/there/../a.ckpt", "here/not/a.ckpt"),
        ("link/a.ckpt", "elsewhere/deep/a.ckpt"),
        ("link/x/../a.ckpt", "elsewhere/deep/a.ckpt"),
        ("link/../a.ckpt", "elsewhere/a.ckpt"),
        ("link/../../here/link/a.ckpt", "elsewhere/deep/a.ckpt"),
        (tmp_path / "here" / ".." / "a.ckpt", "a.ckpt"),
        ("link", "here/link"),
        ("link/", "elsewhere/deep"),
        (".", "here"),
    ):
        assert files.absolute(given) == str(tmp_path / meant), given


def test_no_directory_has_a_path_from_a_working_directory_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    with pytest.raises(FileNotFoundError):
        files.real_directory("ckpt")


def test_for_lost_files_their_directory_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks may save to one directory: it was listed for each of their lost files."""
    full, empty = tmp_path / "full", tmp_path / "empty"
    for each in (full, empty):
        each.mkdir()
    (full / "net-1_5.ckpt").touch()
    of = launch(world_size=2)
    lost = [replace(file(of, rank), path=str(home / f"net-{rank}.ckpt")) for home in (full, empty) for rank in (0, 1)]
    monkeypatch.setattr(os, "listdir", lambda path: pytest.fail(f"{path} was listed"))
    seen = files.observe(lost, read_bytes=False)
    assert [seen[each.path].has_directory for each in lost] == [True, True, False, False]


def test_a_number_is_that_of_a_small_file_and_no_pipe_is_waited_for(tmp_path: Path) -> None:
    """A gc stopped for ever where somebody had put a pipe in the place of MindFormers' tracker."""
    path = tmp_path / "latest_checkpointed_iteration.txt"
    for text, number in (("20\n", 20), ("", None), ("release", None), (f"1{' ' * 20}2", None)):
        path.write_text(text)
        assert files.number_in(str(path)) == number, text
    path.unlink()
    assert files.number_in(str(path)) is None
    os.mkfifo(path)
    assert files.number_in(str(path)) is None


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_directory_in_the_place_of_a_small_file_leaves_nothing_open(tmp_path: Path) -> None:
    """A job plans a gc at every save: each left a descriptor open, until the process had no more."""
    folder = tmp_path / FOLDER
    for name in ("latest_checkpointed_iteration.txt", flag_path("", launch_key("run", "L0")).rpartition("/")[2]):
        (folder / name).mkdir(parents=True)
    claim = name_claims._path(folder, "net", "L1")
    claim.mkdir()
    gc.collect()  # else what earlier tests left open is closed meanwhile
    before = len([*Path("/proc/self/fd").iterdir()])
    for _ in range(3):
        assert files.number_in(str(folder / "latest_checkpointed_iteration.txt")) is None
        clear_others(str(tmp_path), launch_key("run", "L1"), "run")
        for read in (name_claims._read, lambda path: jsonl.read(str(path))):
            with pytest.raises(IsADirectoryError):
                read(claim)
    assert len([*Path("/proc/self/fd").iterdir()]) <= before
