"""The `.ckpt` reader against files that MindSpore writes, against cut ones, and against hostile bytes."""

from __future__ import annotations

import os
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import nn
from mindspore.train import Model

from ckptstore.errors import UnreadableError
from ckptstore.formats.ckpt import read_ckpt
from tests import ckpt_bytes


def model() -> Model:
    network = nn.Dense(3, 4)
    optimizer = nn.Momentum(network.trainable_params(), learning_rate=0.1, momentum=0.9)
    return Model(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True), optimizer)


@pytest.mark.parametrize("crc", [False, True])
def test_it_reads_what_mindspore_writes(tmp_path: Path, *, crc: bool) -> None:
    path = tmp_path / "a.ckpt"
    network = model().train_network
    info = {"note": "abc", "epoch_num": 3, "flag": True, "lr": 0.5}
    ms.save_checkpoint(network, str(path), append_dict=info, crc_check=crc)
    header = read_ckpt(path)
    loaded = ms.load_checkpoint(str(path))
    assert [entry.name for entry in header.entries] == list(loaded)
    assert header.optimizer_step == 0
    for entry in header.entries:
        value = loaded[entry.name]
        if isinstance(value, str):
            assert entry.dtype == "str"
        else:
            assert (entry.dtype, entry.shape) == (str(value.dtype), tuple(value.shape))
            assert entry.nbytes == value.asnumpy().nbytes


def test_mindspore_reads_what_the_tests_write(tmp_path: Path) -> None:
    path = ckpt_bytes.write(tmp_path / "a.ckpt", 17, 2.5)
    loaded = ms.load_checkpoint(str(path))
    assert np.array_equal(loaded["weight"].asnumpy(), np.full((2, 2), 2.5, np.float32))
    assert int(loaded["step_num"].asnumpy()) == 17
    assert read_ckpt(path).optimizer_step == 17


def test_a_tensor_in_slices_is_one_entry(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    piece = ckpt_bytes.value("big", "Float32", (4,), bytes(8))
    path.write_bytes(piece + piece + ckpt_bytes.checkpoint(3))
    header = read_ckpt(path)
    assert [(entry.name, entry.shape, entry.nbytes) for entry in header.entries[:2]] == [
        ("big", (4,), 16),
        ("weight", (2, 2), 16),
    ]


def test_a_file_cut_anywhere_is_never_taken_for_the_whole(tmp_path: Path) -> None:
    """Cut between two parameters it still looks whole, with fewer entries: that is what the recorded size is for."""
    content = ckpt_bytes.checkpoint(17)
    path = tmp_path / "a.ckpt"
    names = ["weight", "global_step", "step_num"]
    for length in range(len(content)):
        path.write_bytes(content[:length])
        try:
            found = [entry.name for entry in read_ckpt(path).entries]
        except UnreadableError as error:
            assert str(path) in str(error)
        else:
            assert found in (names[:1], names[:2])


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_give_an_answer_or_a_clear_error(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.ckpt"
    path.write_bytes(raw)
    try:
        read_ckpt(path)
    except UnreadableError as error:
        assert "fuzz.ckpt" in str(error)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # a message of 2^63 bytes
        b"\x0a" + b"\xff" * 11,  # a number without an end
        b"\x12\x00",  # another field
        b"\x08\x01",  # another wire type
        ckpt_bytes.field(1, ckpt_bytes.field(1, b"")),  # a value without a name
        ckpt_bytes.field(1, ckpt_bytes.field(1, b"\xff\xfe")),  # a name that is not text
        ckpt_bytes.field(1, ckpt_bytes.field(1, b"x" * 70_000)),  # a name that is none
    ],
)
def test_hostile_bytes(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "a.ckpt"
    path.write_bytes(raw)
    with pytest.raises(UnreadableError):
        read_ckpt(path)


def test_unknown_fields_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    tensor = ckpt_bytes.field(2, b"Int32") + ckpt_bytes.field(3, b"\x05\x00\x00\x00")
    value = ckpt_bytes.field(1, b"global_step") + ckpt_bytes.field(9, b"new") + ckpt_bytes.field(2, tensor)
    path.write_bytes(ckpt_bytes.field(1, value))
    assert read_ckpt(path).optimizer_step == 5


def test_a_huge_file_costs_a_few_reads(tmp_path: Path) -> None:
    """100 GB of tensor, sparse: its bytes are passed over."""
    path = tmp_path / "a.ckpt"
    size = 100 << 30
    dims = ckpt_bytes.varint(1 << 3) + ckpt_bytes.varint(size // 4)
    tensor_head = dims + ckpt_bytes.field(2, b"Float32") + ckpt_bytes.varint(3 << 3 | 2) + ckpt_bytes.varint(size)
    name = ckpt_bytes.field(1, b"huge")
    inner = name + ckpt_bytes.varint(2 << 3 | 2) + ckpt_bytes.varint(len(tensor_head) + size) + tensor_head
    head = ckpt_bytes.varint(1 << 3 | 2) + ckpt_bytes.varint(len(inner) + size) + inner
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + size)
        file.seek(0, os.SEEK_END)
        file.write(ckpt_bytes.checkpoint(9))
    header = read_ckpt(path)
    assert header.entries[0].nbytes == size
    assert header.optimizer_step == 9
