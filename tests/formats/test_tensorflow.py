"""Numbers in checkpoints of TensorFlow are read by their index: no TensorFlow, and nothing in them runs."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.errors import UnreadableError
from ckptstore.formats.tensorflow import _checksum, read_numbers
from tests.ckpt_bytes import field, varint
from tests.tensorflow_bytes import INT32, INT64, MAGIC, OBJECT, block, checkpoint, entry, number, numbers, table


def test_the_checksum_is_that_of_crc_32c() -> None:
    crc = 0xE3069283  # of "123456789", as every description of CRC-32C has it
    assert _checksum(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@pytest.mark.parametrize("of", [INT32, INT64])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("is_big", [False, True])
@pytest.mark.parametrize("in_a_block", [1, 4, 1000])
def test_numbers_at_the_top_and_no_others(
    tmp_path: Path, of: tuple[int, int], shards: int, in_a_block: int, *, is_big: bool
) -> None:
    values = {
        f"step{OBJECT}": 12_000,
        f"net/step{OBJECT}": 7,
        f"steps{OBJECT}": 8,
        f"save_counter{OBJECT}": 3,
        f"optimizer/_iterations{OBJECT}": 11_999,
        "global_step": 5,
        "global_step/Adam": 9,
    }
    path = checkpoint(tmp_path / "a", values, of=of, shards=shards, is_big=is_big, in_a_block=in_a_block)
    expected = {"step": 12_000, "save_counter": 3, "optimizer_step": 11_999, "global_step": 5}
    assert read_numbers(str(path)) == expected


@pytest.mark.parametrize("counter", ["iter", "iterations", "_iterations"])
@pytest.mark.parametrize("above", ["", "model/"])
def test_the_counter_of_every_keras(tmp_path: Path, counter: str, above: str) -> None:
    path = checkpoint(tmp_path / "a", {f"{above}optimizer/{counter}{OBJECT}": 5})
    assert read_numbers(str(path)) == {"optimizer_step": 5}


def made(directory: Path, told: bytes, data: bytes = bytes(64)) -> str:
    """A checkpoint with one entry, `step`."""
    index = table({b"": number(1, 1), f"step{OBJECT}".encode(): told})
    (directory / "a.index").write_bytes(index)
    (directory / "a.data-00000-of-00001").write_bytes(data)
    return str(directory / "a")


@pytest.mark.parametrize(
    "told",
    [
        entry(0, bytes(4), dtype=1),  # a float
        entry(0, bytes(8), dtype=9, shape=field(2, number(1, 1))),  # a list of one
        entry(0, bytes(4), dtype=9),
        entry(0, b"\xff" * 8, dtype=9),  # of other bytes
        entry(60, bytes(8), dtype=9),  # beyond the end
        entry(1 << 62, bytes(8), dtype=9),
        entry(0, bytes(8), dtype=9, shard=5),
        entry(0, bytes(8), dtype=9, shard=1 << 62),
        entry(0, bytes(8), dtype=9) + field(7, b""),  # in slices
    ],
)
def test_what_is_no_number_tells_none(tmp_path: Path, told: bytes) -> None:
    assert read_numbers(made(tmp_path, told)) == {}


def test_a_number_below_zero_is_no_step(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "a", {"step": -1, "epoch": 2})
    assert read_numbers(str(path)) == {"epoch": 2}


def test_index_and_data_of_two_saves_tell_nothing(tmp_path: Path) -> None:
    """A script that was killed between the two files that it wrote over: sizes are the same."""
    old = checkpoint(tmp_path / "old", {"step": 100})
    new = checkpoint(tmp_path / "new", {"step": 200})
    old.with_name("old.index").replace(new.with_name("new.index"))
    assert read_numbers(str(new)) == {}


def test_data_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "a", {"step": 100})
    path.with_name("a.data-00000-of-00001").unlink()
    assert read_numbers(str(path)) == {}
    with pytest.raises(OSError, match=r"other\.index"):
        read_numbers(str(tmp_path / "other"))


def with_footer(content: bytes, offset: int, size: int) -> bytes:
    return content + (varint(0) * 2 + varint(offset) + varint(size)).ljust(40, b"\0") + MAGIC


def of_one_block(content: bytes) -> bytes:
    """A table whose first block is that; its index says that it has every name."""
    index = block([(b"\xff", varint(0) + varint(len(content)))])
    return with_footer(content + bytes(5) + index, len(content) + 5, len(index) - 5)


@pytest.mark.parametrize(
    "index",
    [
        b"",
        b"an index",
        MAGIC,
        bytes(40) + MAGIC,
        b"\xff" * 40 + MAGIC,
        with_footer(b"", 1 << 62, 1 << 62),
        with_footer(b"", 0, 1 << 40),
        with_footer(bytes(2 << 20), 0, (1 << 20) + 1),
        table({b"step": b""}),  # no header
        table({b"": b"\x0b"}),  # the beginning of a group
        table({b"": field(1, b"x"), b"step": entry(0, bytes(8), dtype=9)}),
        table({b"": b"", b"step": b"\x0a\xff\x01"}),
        table({b"": b"", b"step": b"\xff" * 500_000}),  # a number without an end
        of_one_block(b"\xff" * (1 << 20)),
        of_one_block(varint(0) + varint(900_000) + varint(0) + bytes(900_000) + (varint(900_000) + b"\0\0") * 20_000),
        of_one_block(b"\0\0\0" * 300_000 + b"\xff\xff\xff\xff"),
        table({b"x" * 5000: b""}),
        table({b"": number(1, 1)})[:-60] + bytes(12) + table({b"": number(1, 1)})[-48:],
    ],
)
def test_hostile_indexes_are_refused_at_once(tmp_path: Path, index: bytes) -> None:
    (tmp_path / "a.index").write_bytes(index)
    begin = time.process_time()
    with pytest.raises(UnreadableError, match=r"a\.index is no index of TensorFlow that can be read"):
        read_numbers(str(tmp_path / "a"))
    assert time.process_time() - begin < 5


def test_compressed_blocks_are_not_read(tmp_path: Path) -> None:
    index, _ = numbers({"step": 1})
    first = block([(b"", b"")])
    at = index.index(bytes(5), len(first))
    (tmp_path / "a.index").write_bytes(index[:at] + b"\x01" + index[at + 1 :])
    with pytest.raises(UnreadableError):
        read_numbers(str(tmp_path / "a"))


def test_what_is_in_other_blocks_costs_little(tmp_path: Path) -> None:
    entries = {f"{number:07d}".encode(): b"" for number in range(60_000)}
    entries |= {b"": number(1, 1), b"step": entry(0, bytes(8), dtype=9)}
    (tmp_path / "a.index").write_bytes(table(entries, in_a_block=10_000))
    (tmp_path / "a.data-00000-of-00001").write_bytes(bytes(8))
    begin = time.process_time()
    assert read_numbers(str(tmp_path / "a")) == {"step": 0}
    assert time.process_time() - begin < 2


WHOLE, (DATA,) = numbers({f"step{OBJECT}": 300, f"optimizer/iter{OBJECT}": 299}, in_a_block=7)


@given(data=st.data())
def test_mangled_files_tell_what_they_told_or_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("mangled")
    mangled = []
    for content in (WHOLE, DATA):
        some = bytearray(content)
        for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=3)):
            some[place] = data.draw(st.integers(0, 255))
        mangled.append(bytes(some[: data.draw(st.sampled_from([len(some), data.draw(st.integers(0, len(some)))]))]))
    (directory / "a.index").write_bytes(mangled[0])
    (directory / "a.data-00000-of-00001").write_bytes(mangled[1])
    try:
        told = read_numbers(str(directory / "a"))
    except UnreadableError:
        return
    assert told.items() <= {"step": 300, "optimizer_step": 299}.items()


def test_every_cut_and_every_byte(tmp_path: Path) -> None:
    (tmp_path / "a.data-00000-of-00001").write_bytes(DATA)
    for end in range(len(WHOLE)):
        (tmp_path / "a.index").write_bytes(WHOLE[:end])
        with pytest.raises(UnreadableError):
            read_numbers(str(tmp_path / "a"))
    for place in range(len(WHOLE)):
        (tmp_path / "a.index").write_bytes(WHOLE[:place] + bytes([WHOLE[place] ^ 0xFF]) + WHOLE[place + 1 :])
        try:
            assert read_numbers(str(tmp_path / "a")).items() <= {"step": 300, "optimizer_step": 299}.items()
        except UnreadableError:
            continue
