"""A checkpoint of several files: its size, time and digest are those of all of them."""

import os
from pathlib import Path

import pytest

from ckptstore.disk import files
from ckptstore.disk.files import FileFacts
from ckptstore.disk.several import format_at, lacking, members_at
from tests.foreign_bytes import shards, stamped, tensorflow, written


@pytest.mark.parametrize("name", ["x", "model.ckpt"])
def test_a_prefix(tmp_path: Path, name: str) -> None:
    prefix = tensorflow(tmp_path / name, parts=2, at=5)
    tensorflow(tmp_path / f"{name}-1", parts=3)  # its files begin alike
    stamped(tmp_path / f"{name}.data-00001-of-00002", 9)
    names = [f"{name}.data-00000-of-00002", f"{name}.data-00001-of-00002", f"{name}.index"]
    assert [each.name for each in members_at(str(prefix), None)] == names
    assert files.facts(str(prefix)) == FileFacts(sum((tmp_path / name).stat().st_size for name in names), 9 * 10**9)
    assert (format_at(str(prefix)), lacking(str(prefix))) == ("tensorflow", "")
    (tmp_path / names[0]).unlink()
    assert lacking(str(prefix)) == names[0]
    (tmp_path / f"{name}.index").unlink()
    assert files.facts(str(prefix)) is None


def test_a_directory(tmp_path: Path) -> None:
    home = shards(tmp_path / "d", parts=3, at=5)
    assert [each.name for each in members_at(str(home), home.stat())] == [
        "latest.txt",
        *(f"zero/mp_rank_{part:02d}_model_states.pt" for part in range(3)),
    ]
    assert files.facts(str(home)) == FileFacts(5 + 3 * 7, 5 * 10**9)
    assert (format_at(str(home)), lacking(str(home))) == ("directory", "")


def digests(home: Path) -> str:
    return files.digest(str(home))


def test_a_digest_is_of_names_sizes_and_bytes(tmp_path: Path) -> None:
    home = shards(tmp_path / "d")
    first = digests(home)
    told: list[int] = []
    assert files.digest(str(home), told.append) == first
    assert sum(told) == files.facts(str(home)).size
    one, other = (home / "zero" / f"mp_rank_0{part}_model_states.pt" for part in (0, 1))
    one.rename(home / "zero" / "other.pt")
    assert digests(home) != first
    (home / "zero" / "other.pt").rename(one)
    assert digests(home) == first
    one.write_bytes(b"shard 0s")
    other.write_bytes(b"hard 1")  # the same bytes, one after the other
    assert digests(home) != first


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    linked = shards(tmp_path / "linked")
    (linked / "zero" / "link").symlink_to(tmp_path)
    recorded = shards(tmp_path / "recorded")
    (recorded / "zero" / ".ckptstore").mkdir()
    written(shards(tmp_path / "all") / "rank_0" / "net-1_5.ckpt", b"x")
    of_mindspore = shards(tmp_path / "net-1_5.ckpt")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, reason in (
        (empty, "without files"),
        (linked, "zero/link of it is a link"),
        (recorded, "other checkpoints in it, or their records"),
        (tmp_path / "all", "other checkpoints in it.*net-1_5.ckpt"),
        (of_mindspore, "not a regular file"),
        (pipe, "not a regular file"),
    ):
        with pytest.raises(OSError, match=reason):
            files.facts(str(path))
        assert files.facts_if_seen(str(path)) is None
    assert files.facts(str(tmp_path / "nowhere")) is None
    assert files.facts(str(written(tmp_path / "file", b"x") / "below")) is None


def test_one_place_has_one_identity(tmp_path: Path) -> None:
    """gc removes nothing that another state has under another path."""
    home, prefix = shards(tmp_path / "a" / "d"), tensorflow(tmp_path / "a" / "x")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for path in (home, prefix):
        own = files.identity(str(path))
        assert own is not None
        assert files.identity(str(tmp_path / "b" / path.name)) == own
    assert files.identity(str(home)) != files.identity(str(prefix))
