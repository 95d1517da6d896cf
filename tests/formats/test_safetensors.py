"""The `.safetensors` reader against files that MindSpore writes, against the library, and against hostile bytes."""

import json
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Tensor, mint, nn
from mindspore.train import Model

from ckptstore.errors import UnreadableError
from ckptstore.formats.safetensors import crc_is_right, read_safetensors


def saved(path: Path, **options: Any) -> Path:
    network = nn.Dense(3, 4)
    optimizer = nn.Momentum(network.trainable_params(), learning_rate=0.1, momentum=0.9)
    optimizer.global_step.set_data(Tensor([7], ms.int32))
    model = Model(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True), optimizer)
    ms.save_checkpoint(model.train_network, str(path), format="safetensors", **options)
    path.chmod(0o600)
    return path


def content(header: object, tensors: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + tensors


LONGEST = 10**4300 - 1
"""The longest number that Python reads from text. It writes none that is longer."""


def tensor(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_it_reads_what_mindspore_writes(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.safetensors", append_dict={"epoch_num": 2, "step_num": 17, "flag": True, "lr": 0.5})
    header = read_safetensors(path)
    loaded = ms.load_checkpoint(str(path), format="safetensors")
    assert {entry.name: (entry.dtype, entry.shape) for entry in header.entries} == {
        name: (str(parameter.dtype), tuple(parameter.shape)) for name, parameter in loaded.items()
    }
    assert header.info == {"epoch_num": 2, "step_num": 17, "flag": True}
    assert set(loaded) - {entry.name for entry in header.parameters} == set(header.info)
    assert header.optimizer_step == 7
    assert header.complete is True


def test_what_is_read_is_at_its_place(tmp_path: Path) -> None:
    """The library, which needs numpy, finds the same bytes."""
    path = saved(tmp_path / "a.safetensors", append_dict={"epoch_num": 2, "half": Tensor([1.5, 2], ms.float16)})
    raw = path.read_bytes()
    header = read_safetensors(path)
    with safetensors.safe_open(path, framework="np") as file:
        assert sorted(file.keys()) == sorted(entry.name for entry in header.entries)
        for entry in header.entries:
            assert raw[entry.offset : entry.offset + entry.nbytes] == file.get_tensor(entry.name).tobytes()


def test_metadata(tmp_path: Path) -> None:
    assert read_safetensors(saved(tmp_path / "a.safetensors")).metadata == {"format": "ms"}
    with_both = read_safetensors(saved(tmp_path / "b.safetensors", remove_redundancy=True, crc_check=True)).metadata
    assert with_both["remove_redundancy"] == "True"
    assert int(with_both["crc_num"]) > 0


def test_the_crc_is_checked_on_demand(tmp_path: Path) -> None:
    """MindSpore refuses what is called wrong here."""
    assert crc_is_right(saved(tmp_path / "none.safetensors")) is None
    appended = {"epoch_num": 2, "step_num": (3 << 20) + 5, "flag": True, "lr": 0.5, "none": 0, "ü": Tensor([1, 2])}
    path = saved(tmp_path / "a.safetensors", crc_check=True, append_dict=appended)
    assert crc_is_right(path) is True
    raw = path.read_bytes()
    for entry in read_safetensors(path).entries:
        path.write_bytes(raw[: entry.offset] + bytes([raw[entry.offset] ^ 1]) + raw[entry.offset + 1 :])
        assert crc_is_right(path) is False, entry.name
        with pytest.raises(ValueError, match="crc check has failed"):
            ms.load_checkpoint(str(path), format="safetensors", crc_check=True)


def test_numbers_whose_crc_mindspore_cannot_compute_are_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    for number in (-1, 1 << 60):
        metadata = {"format": "ms", "crc_num": "1"}
        declared = {"__metadata__": metadata, "n": tensor("I64", (), (0, 8))}
        path.write_bytes(content(declared, number.to_bytes(8, "little", signed=True)))
        assert crc_is_right(path) is None


def test_an_appended_global_step_takes_the_place_of_the_optimizers(tmp_path: Path) -> None:
    header = read_safetensors(saved(tmp_path / "a.safetensors", append_dict={"global_step": 9}))
    assert (header.optimizer_step, header.info) == (9, {"global_step": 9})


def test_a_scalar_of_a_layer_is_a_parameter(tmp_path: Path) -> None:
    network = nn.SequentialCell(nn.Dense(3, 4), mint.nn.BatchNorm1d(4))
    path = tmp_path / "a.safetensors"
    ms.save_checkpoint(network, str(path), format="safetensors", append_dict={"epoch_num": 2, "flag": True})
    header = read_safetensors(path)
    assert {each.name for each in header.parameters} == {each.name for each in network.get_parameters()}
    assert header.info == {"epoch_num": 2, "flag": True}


def test_packed_int4(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    parameter = {"name": "q", "data": Tensor(np.zeros((2, 4), np.int8), dtype=ms.qint4x2)}
    ms.save_checkpoint([parameter], str(path), format="safetensors")
    assert [(entry.name, entry.dtype) for entry in read_safetensors(path).entries] == [("q", "Int4")]


def test_a_file_cut_anywhere_is_never_taken_for_the_whole(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.safetensors", append_dict={"epoch_num": 2})
    raw = path.read_bytes()
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        with pytest.raises(UnreadableError, match="a.safetensors"):
            read_safetensors(path)
    path.write_bytes(raw + b"\0")
    with pytest.raises(UnreadableError, match="its header says"):
        read_safetensors(path)


VALID = json.dumps({"w": tensor()}).encode()

HOSTILE = [
    (b"", "is not a whole .safetensors file"),
    (b"\xff" * 8 + b"{}", "a header of 18446744073709551615 bytes in a file of 10"),
    (content(b"[" * 100_000), "its header is no JSON object"),
    (content(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), "nested too deeply"),
    (content(b"9" * 5000), "is not a whole .safetensors file"),
    (content([]), "its header is no JSON object"),
    (content(b"\xef\xbb\xbf" + VALID, bytes(8)), "its header is no JSON object in UTF-8"),
    (content(VALID.decode().encode("utf-16-le"), bytes(8)), "its header is no JSON object in UTF-8"),
    (content(VALID.replace(b"w", b"\\ud800"), bytes(8)), "half a character"),
    (content({"__metadata__": {"format": "\ud800"}, "w": tensor()}, bytes(8)), "half a character"),
    (content({"w": tensor(dtype="U8", shape=[1], offsets=[False, True])}, bytes(1)), "not described as a tensor is"),
    (content({}), "holds no parameter"),
    (content(b'{"\xff": 1}'), "is not a whole .safetensors file"),
    (content({"__metadata__": {"format": 1}}), "metadata that are not text"),
    (content({"w": 1}), "'w' is not described as a tensor is"),
    (content({"w": tensor(dtype=5)}), "'w' is not described as a tensor is"),
    (content({"w": tensor(offsets=[0, 8, 9])}), "'w' is not described as a tensor is"),
    (content({"w": tensor(dtype="F31")}), "type or shape that no tensor has"),
    (content({"w": tensor(shape=[-2])}), "type or shape that no tensor has"),
    (content({"w": tensor(shape=[1] * 100_000)}), "type or shape that no tensor has"),
    (content({"w": tensor(shape=[2**63] * 60)}), "which is not what its shape says"),
    (content({"w": tensor(offsets=[0, 7])}, bytes(7)), "which is not what its shape says"),
    (content({"w": tensor(offsets=[-8, 0])}), "which is not what its shape says"),
    (content({"w": tensor(shape=[0, 1 << 64], offsets=[0, 0])}), "type or shape that no tensor has"),
    (content({"w": tensor(shape=[0], offsets=[LONGEST, LONGEST])}), "not described as a tensor is"),
    (content({"w": tensor(offsets=[-LONGEST, LONGEST])}), "not described as a tensor is"),
    (content({"w": tensor(offsets=[8, 16])}, bytes(16)), "'w' begins at byte"),
    (content({"v": tensor(), "w": tensor()}, bytes(8)), "'w' begins at byte"),
    (content({"w": tensor(shape=[1 << 40], offsets=[0, 4 << 40])}, bytes(8)), "its header says"),
]


@pytest.mark.parametrize(("raw", "message"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_bytes(tmp_path: Path, raw: bytes, message: str) -> None:
    """The library refuses them too."""
    path = tmp_path / "a.safetensors"
    path.write_bytes(raw)
    with pytest.raises(UnreadableError, match=message):
        read_safetensors(path)
    if message != "holds no parameter":
        with pytest.raises(safetensors.SafetensorError):
            safetensors.safe_open(path, framework="np").__enter__()


@pytest.mark.parametrize("before", [b"", b" ", b"\n"])
def test_metadata_that_are_null_and_blanks_before_the_header(tmp_path: Path, before: bytes) -> None:
    """The library reads them."""
    path = tmp_path / "a.safetensors"
    path.write_bytes(content(before + json.dumps({"__metadata__": None, "w": tensor()}).encode(), bytes(8)))
    assert read_safetensors(path).metadata == {}
    with safetensors.safe_open(path, framework="np") as opened:
        assert list(opened.keys()) == ["w"]


def test_a_huge_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    size = 100 << 30
    path.write_bytes(content({"w": tensor(shape=[size // 4], offsets=[0, size])}))
    head = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(head + size)
    assert read_safetensors(path).entries[0].nbytes == size
    with path.open("r+b") as file:
        file.truncate(head + size - 1)
    with pytest.raises(UnreadableError, match="its header says"):
        read_safetensors(path)
    path.write_bytes((90 << 20).to_bytes(8, "little"))
    with path.open("r+b") as file:
        file.truncate(size)
    with pytest.raises(UnreadableError, match="more than any model has; ckptstore reads 16 MiB of one at most"):
        read_safetensors(path)


numbers = st.integers(-10, 10) | st.integers(-(2**70), 2**70)
texts = st.sampled_from(["F32", "I64", "BOOL", "dtype", "shape", "data_offsets", "__metadata__"]) | st.text(max_size=3)
anything = st.recursive(
    st.none() | st.booleans() | numbers | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
described = st.fixed_dictionaries(
    {"dtype": texts | anything, "shape": st.lists(numbers, max_size=3) | anything, "data_offsets": anything}
)


@settings(max_examples=250)
@given(st.dictionaries(texts, described | anything, max_size=3) | anything, st.binary(max_size=20))
def test_any_json_gives_an_answer_or_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, header: object, tensors: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    path.write_bytes(content(header, tensors))
    try:
        read_safetensors(path)
    except UnreadableError as error:
        assert "fuzz.safetensors" in str(error)
