"""Which format a file has is told by its bytes, whatever its name; and nothing else than a clear error for the rest."""

import json
import os
import time
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mindspore import Tensor

from ckptstore.errors import UnreadableError
from ckptstore.formats.ckpt import CkptHeader
from ckptstore.formats.inspect import inspect
from ckptstore.formats.safetensors import SafetensorsHeader
from ckptstore.formats.strategy import GroupInfo, Strategy
from tests import ckpt_bytes
from tests.formats import layouts


def parameters(name: str, shape: tuple[int, ...]) -> list[dict[str, object]]:
    return [{"name": name, "data": Tensor(np.ones(shape, np.float32))}]


@pytest.mark.parametrize("name", ["a.ckpt", "a.json", "a"])
def test_the_bytes_tell_the_format(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    writers = {
        Strategy: lambda: layouts.write_strategy(tmp_path / "x.bin").replace(path),
        GroupInfo: lambda: layouts.write_group_info(path, {"a": [0, 1]}, [0, 1]),
        CkptHeader: lambda: ckpt_bytes.write(path, 17),
    }
    for kind, write in writers.items():
        write()
        assert type(inspect(path)) is kind
    layouts.write_strategy(tmp_path / "x.json").replace(path)
    assert type(inspect(path)) is Strategy


@pytest.mark.parametrize(
    "groups", [{}, {"": []}, {"a": []}, {"a": [0]}, {"w": list(range(1000))}, {f"g{n}": [n] for n in range(40)}]
)
def test_group_info_is_not_taken_for_a_checkpoint(tmp_path: Path, groups: dict[str, list[int]]) -> None:
    path = layouts.write_group_info(tmp_path / "a.ckpt", groups, [0, 1])
    found = inspect(path)
    assert isinstance(found, GroupInfo)
    assert {group.name: list(group.ranks) for group in found.groups} == groups


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (1,) * 8])
@pytest.mark.parametrize("name", ["w", "a" * 10, "n" * 122, "{{{{{{{{"])
def test_checkpoints_are_not_taken_for_anything_else(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    ms.save_checkpoint(parameters(name, shape), str(tmp_path / "a.ckpt"))
    ms.save_checkpoint(parameters(name, shape), str(tmp_path / "a.safetensors"), format="safetensors")
    for ending, kind in (("ckpt", CkptHeader), ("safetensors", SafetensorsHeader)):
        found = inspect(tmp_path / f"a.{ending}")
        assert type(found) is kind
        assert [(entry.name, entry.shape) for entry in found.entries] == [(name, shape)]


def test_a_safetensors_header_of_any_length(tmp_path: Path) -> None:
    """The file begins with that length, whose first byte may be that of another format: 0x0a, 0x08, 0x12, `{`."""
    path = tmp_path / "a.ckpt"
    for padding in range(300):
        header = json.dumps({"w" * (1 + padding): {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + b"x")
        assert type(inspect(path)) is SafetensorsHeader


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "holds no parameter"),
        (b"PK\x03\x04" + bytes(50), "no known format"),
        (b"\x80\x02}q\x00.", "no known format"),
        (b"\x0a", "not a whole .ckpt file"),
        (b"\xd8\x5e\x3a\x7f" + bytes(50), "is encrypted"),
        (b"{}", "no parallel_layout_item"),
        (b'{"parallel_layout_item": {}}', "no parallel_layout_item"),
        (b"  {", "not a whole strategy file"),
        (b"\x08\x01\x08", "not a whole strategy file"),
        (b"\x12\x05", "not a whole group info file"),
    ],
)
def test_what_cannot_be_read_is_told_why(tmp_path: Path, raw: bytes, message: str) -> None:
    path = tmp_path / "a.ckpt"
    path.write_bytes(raw)
    with pytest.raises(UnreadableError, match=message):
        inspect(path)


@pytest.mark.parametrize(
    "head", [b"", b"\x0a", b"\x08", b"\x08\x01", b"\x12", b"{", b"\x20\x00\x00\x00\x00\x00\x00\x00{"]
)
def test_100_gb_of_zeros_fail_at_once(tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "a.ckpt"
    path.write_bytes(head)
    with path.open("r+b") as file:
        file.truncate(100 << 30)
    begin = time.process_time()
    with pytest.raises(UnreadableError):
        inspect(path)
    assert time.process_time() - begin < 2


def messages(depth: int, field: int) -> bytes:
    """A message in a message in a message: what a reader that recurses would fall for."""
    raw = b""
    for _ in range(depth):
        raw = ckpt_bytes.field(field, raw)
    return raw


@pytest.mark.parametrize("raw", [messages(5000, 1), messages(5000, 2), b"\x08\x01" + messages(5000, 3), b"\x0b" * 9999])
def test_nested_messages(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "a.ckpt"
    path.write_bytes(raw)
    with pytest.raises(UnreadableError):
        inspect(path)


starts = st.sampled_from(
    [b"", b"\x0a", b"\x08\x01\x1a", b"\x12", b"{", b'{"parallel_layout_item": ', b"\x02" + bytes(7)]
)


@settings(max_examples=1000)
@given(starts, st.binary(max_size=200))
@example(b"\x0a", b"\n{\n}")
def test_any_bytes_give_an_answer_or_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, start: bytes, rest: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.bin"
    path.write_bytes(start + rest)
    try:
        inspect(path)
    except UnreadableError as error:
        assert "fuzz.bin" in str(error)


@settings(max_examples=300)
@given(st.data())
def test_damaged_checkpoints_give_an_answer_or_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.bin"
    others = [
        layouts.write_strategy(path.with_suffix(".ckpt")),
        layouts.write_strategy(path.with_suffix(".json")),
        layouts.write_group_info(path.with_suffix(".pb"), {"a": [0, 1]}, [0, 1]),
    ]
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    safetensors = len(header).to_bytes(8, "little") + header + bytes(8)
    for whole in (ckpt_bytes.checkpoint(17), safetensors, *(other.read_bytes() for other in others)):
        raw = bytearray(whole)
        for _ in range(data.draw(st.integers(1, 4))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
        try:
            inspect(path)
        except UnreadableError as error:
            assert "damaged.bin" in str(error)


@pytest.mark.parametrize("ending", ["ckpt", "safetensors"])
def test_no_tensor_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    """Counted in bytes: a thousand for each parameter at most, however large it is."""
    count, floats = 20, 1 << 18
    path = tmp_path / f"large.{ending}"
    values = [{"name": f"layer.{n}.weight", "data": Tensor(np.ones(floats, np.float32))} for n in range(count)]
    ms.save_checkpoint(values, str(path), format=ending)
    asked: list[int] = []
    real = os.pread

    def pread(descriptor: int, size: int, offset: int) -> bytes:
        found = real(descriptor, size, offset)
        asked.append(len(found))
        return found

    monkeypatch.setattr(os, "pread", pread)
    before = _read_so_far()
    header = inspect(path)
    read = _read_so_far() - before
    assert isinstance(header, CkptHeader | SafetensorsHeader)
    assert len(header.parameters) == count
    assert path.stat().st_size > count * floats * 4
    assert asked or ending == "safetensors"
    assert sum(asked) <= count * 1000
    assert read <= count * 1000 + 10_000


def _read_so_far() -> int:
    """Bytes that this process asked files for, as the kernel counts them."""
    counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counters["rchar"])
