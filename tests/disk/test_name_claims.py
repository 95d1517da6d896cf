"""Which rank writes under a name, claimed by files; and renames that overwrite nothing."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ckptstore.disk import files, name_claims
from tests.small_disks import fill, small_disk


def test_writers_of_one_file_find_each_other_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    (tmp_path / name_claims.FOLDER).mkdir()
    assert name_claims.claim(str(tmp_path), "net", launch="L1", rank=0) is None
    other = name_claims.claim(str(tmp_path), "net", launch="L1", rank=1)
    assert other.rank == 0
    (tmp_path / "a").write_text("mine")
    files.move(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "b").read_text() == "mine"


def test_a_claim_makes_no_directory_and_no_folder(tmp_path: Path) -> None:
    """A `.ckptstore` without an identity is one that a user made."""
    for directory in (tmp_path / "gone", tmp_path):
        with pytest.raises(FileNotFoundError):
            name_claims.claim(str(directory), "net", launch="L1", rank=0)
    assert list(tmp_path.iterdir()) == []


def test_a_claim_on_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=64k") as disk:
        folder = disk / name_claims.FOLDER
        folder.mkdir()
        filler = fill(disk)
        with pytest.raises(OSError, match="No space left"):
            name_claims.claim(str(disk), "summary", launch="L1", rank=0)
        assert list(folder.iterdir()) == []
        filler.unlink()
        assert name_claims.claim(str(disk), "summary", launch="L1", rank=0) is None


def test_a_claim_is_written_through_no_link_and_waits_for_no_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write in the directory knew the names, and had root overwrite a file of others, or wait for ever."""
    monkeypatch.setattr(name_claims, "token_hex", lambda _: "0", raising=False)
    folder, victim = tmp_path / name_claims.FOLDER, tmp_path / "victim"
    folder.mkdir()
    victim.write_text("mine")
    path = name_claims._path(folder, "net", "L1")
    for draft in (f"{path.name}.{name_claims.host_name()}.{os.getpid()}", f"{path.name}.0"):
        (folder / draft).symlink_to(victim)
    assert name_claims.claim(str(tmp_path), "net", launch="L1", rank=0) is None
    assert victim.read_text() == "mine"
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    assert name_claims.claim(str(tmp_path), "net", launch="L1", rank=0) is None


def test_a_rename_never_overwrites(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("one")
    other.write_text("other")
    with pytest.raises(FileExistsError):
        files.move(str(one), str(other))
    assert (one.read_text(), other.read_text()) == ("one", "other")
    other.unlink()
    os.link(one, other)  # a process died between the two halves of the rename
    files.move(str(one), str(other))
    assert not one.exists()
    files.move(str(one), str(other))
    assert other.read_text() == "one"
    with pytest.raises(FileNotFoundError):
        files.move(str(one), str(tmp_path / "third"))


CLAIM = """
import sys
from ckptstore.disk.name_claims import claim
directory, rank = sys.argv[1], int(sys.argv[2])
print(claim(directory, "periodic-net", launch="L1", rank=rank) is None)
"""


def test_of_many_processes_one_claims_a_name(tmp_path: Path) -> None:
    (tmp_path / name_claims.FOLDER).mkdir()
    jobs = [
        subprocess.Popen([sys.executable, "-c", CLAIM, str(tmp_path), str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(8)
    ]
    assert sorted(job.communicate()[0].strip() for job in jobs) == ["False"] * 7 + ["True"]


def test_claims_of_earlier_launches_are_over(tmp_path: Path) -> None:
    (tmp_path / name_claims.FOLDER).mkdir()
    assert name_claims.claim(str(tmp_path), "net", launch="L1", rank=0) is None
    assert name_claims.claim(str(tmp_path), "net", launch="L2", rank=1) is None
    assert len(list((tmp_path / name_claims.FOLDER).iterdir())) == 1
    other = name_claims.claim(str(tmp_path), "net", launch="L2", rank=3)
    assert other.rank == 1
