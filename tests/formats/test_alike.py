"""Reading many files that are alike: always the header that a full read gives, and far fewer bytes."""

import os
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.errors import UnreadableError
from ckptstore.formats.alike import AlikeReader
from ckptstore.formats.inspect import read_checkpoint
from ckptstore.formats.safetensors import head_of
from tests.ckpt_bytes import checkpoint, value


def big(step: int, *, name: str = "weight", fill: float = 1.0, note: str = "") -> bytes:
    """A file of 80 KB with its values far from each other."""
    content = (
        value(name, "Float32", (100, 100), struct.pack("<f", fill) * 10_000)
        + value("global_step", "Int32", (1,), struct.pack("<i", step))
        + value("moments.weight", "Float32", (100, 100), struct.pack("<f", fill) * 10_000)
        + value("epoch_num", "Int64", (), struct.pack("<q", step))
    )
    return content + (value("note", "str", (len(note),), note.encode("utf-32-le")) if note else b"")


def with_crc(content: bytes) -> bytes:
    return content + b"crc_num" + zlib.crc32(content).to_bytes(10, "big")


def test_values_of_each_file_are_its_own(tmp_path: Path) -> None:
    reader = AlikeReader()
    for step in range(1, 6):
        for name, content in (("big", big(step, fill=step)), ("small", checkpoint(step)), ("crc", with_crc(big(step)))):
            path = tmp_path / f"{name}-1_{step}.ckpt"
            path.write_bytes(content)
            header = reader.read(path, name)
            assert header == read_checkpoint(path)
            assert header.optimizer_step == step
            assert step in header.info.values()


def test_the_second_file_of_a_kind_costs_few_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = AlikeReader()
    for step in (1, 2):
        (tmp_path / f"a-1_{step}.ckpt").write_bytes(big(step))
    reader.read(tmp_path / "a-1_1.ckpt", "a")
    read: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, count, offset: read.append(count) or pread(fd, count, offset))
    assert reader.read(tmp_path / "a-1_2.ckpt", "a").optimizer_step == 2
    assert len(read) <= 3
    assert sum(read) <= 3 * 4096 + 1024


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(big(7, name="weighs"), id="another name at the beginning"),
        pytest.param(big(7).replace(b"global_step", b"global_stop"), id="another name for the counter"),
        pytest.param(big(7).replace(b"epoch_num", b"epoch_nun"), id="another appended name"),
        pytest.param(big(7).replace(b"Int32", b"Uint8"), id="another type of the counter"),
    ],
)
def test_a_file_of_the_same_size_and_other_structure_is_read_for_itself(tmp_path: Path, other: bytes) -> None:
    reader = AlikeReader()
    (tmp_path / "a-1_1.ckpt").write_bytes(big(1))
    (tmp_path / "a-1_2.ckpt").write_bytes(other)
    assert len(big(1)) == len(other)
    reader.read(tmp_path / "a-1_1.ckpt", "a")
    try:
        expected = read_checkpoint(tmp_path / "a-1_2.ckpt")
    except UnreadableError as error:
        with pytest.raises(UnreadableError) as raised:
            reader.read(tmp_path / "a-1_2.ckpt", "a")
        assert str(raised.value) == str(error)
    else:
        assert reader.read(tmp_path / "a-1_2.ckpt", "a") == expected


@given(cut=st.integers(0, len(big(2))), zeros=st.booleans())
def test_a_cut_file_is_never_taken_for_a_whole_one(
    tmp_path_factory: pytest.TempPathFactory, *, cut: int, zeros: bool
) -> None:
    """Cut, or with zeros for what never reached the disk: a full read's answer where the size differs."""
    home = tmp_path_factory.mktemp("cut")
    reader = AlikeReader()
    (home / "a-1_1.ckpt").write_bytes(big(1))
    reader.read(home / "a-1_1.ckpt", "a")
    content = big(2)[:cut]
    path = home / "a-1_2.ckpt"
    path.write_bytes(content + bytes(len(big(2)) - cut) if zeros else content)
    try:
        header = reader.read(path, "a")
    except UnreadableError:
        return
    assert header.optimizer_step == 2 or not zeros
    if not zeros:
        assert header == read_checkpoint(path)


def test_values_that_are_too_long_are_left_out_as_in_a_full_read(tmp_path: Path) -> None:
    reader = AlikeReader()
    for step in (1, 2):
        path = tmp_path / f"a-1_{step}.ckpt"
        path.write_bytes(big(step, note="x" * 2000))
        assert reader.read(path, "a") == read_checkpoint(path)
        assert "note" not in reader.read(path, "a").info


def test_the_entries_of_files_that_differ_in_their_metadata_alone_are_kept_once(tmp_path: Path) -> None:
    """With `crc_check=True` no two files have the same header: a scan of 100,000 would keep each."""
    reader = AlikeReader()
    path = tmp_path / "a-1_1.safetensors"
    found = []
    for number in ("12345678", "23456789"):
        path.write_bytes(head_of([("weight", "Float32", (2,), 8)], {"crc_num": number}) + bytes(8))
        found.append(reader.read(path, "a"))
    assert found[0] != found[1]
    assert found[0].entries is found[1].entries
