"""The `.ckpt` reader against files that MindSpore writes, against cut ones, and against hostile bytes."""

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn
from mindspore.train import Model
from mindspore.train.callback import _train_fault_tolerance

from ckptstore.errors import UnreadableError
from ckptstore.formats.ckpt import crc_is_right, parse_ckpt, read_ckpt
from ckptstore.formats.header import BytesOf
from tests import ckpt_bytes

PARAMETERS = ["weight", "bias", "global_step", "learning_rate", "momentum", "moments.weight", "moments.bias"]


def model(optimizer_step: int = 0) -> Model:
    network = nn.Dense(3, 4)
    optimizer = nn.Momentum(network.trainable_params(), learning_rate=0.1, momentum=0.9)
    optimizer.global_step.set_data(Tensor([optimizer_step], ms.int32))
    return Model(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True), optimizer)


def saved(path: Path, *, optimizer_step: int = 7, **options: Any) -> Path:
    ms.save_checkpoint(model(optimizer_step).train_network, str(path), **options)
    return path


@pytest.mark.parametrize("crc", [False, True])
def test_it_reads_what_mindspore_writes(tmp_path: Path, *, crc: bool) -> None:
    path = tmp_path / "a.ckpt"
    network = model().train_network
    ms.save_checkpoint(network, str(path), append_dict={"epoch_num": 2, "note": "hello"}, crc_check=crc)
    header = read_ckpt(path)
    parameters = {entry.name: (entry.dtype, entry.shape) for entry in header.parameters}
    assert parameters == {
        parameter.name: (str(parameter.dtype), tuple(parameter.shape)) for parameter in network.get_parameters()
    }
    assert [entry.name for entry in header.entries] == [*parameters, "epoch_num", "note"]
    assert header.info == {"epoch_num": 2, "note": "hello"}
    assert header.optimizer_step == 0
    assert header.has_crc is crc
    assert header.complete is (True if crc else None)


def test_appended_values_are_what_load_checkpoint_gives(tmp_path: Path) -> None:
    appended = {
        "epoch_num": 2,
        "step_num": 2**40,
        "lr": 0.5,
        "flag": True,
        "note": "añ 🙂",
        "empty": "",
        "half": Tensor(1.5, ms.float16),
        "bf": Tensor(-2.5, ms.bfloat16),
        "double": Tensor(0.1, ms.float64),
        "small": Tensor(200, ms.uint8),
        "vector": Tensor([1, 2], ms.int32),
        "last": -3,
    }
    path = saved(tmp_path / "a.ckpt", append_dict=appended)
    header = read_ckpt(path)
    values = {"half": 1.5, "bf": -2.5, "double": 0.1, "small": 200}
    assert header.info == {name: values.get(name, value) for name, value in appended.items() if name != "vector"}
    for name, loaded in ms.load_checkpoint(str(path)).items():
        if name in header.info and name != "bf":
            assert (loaded if isinstance(loaded, str) else loaded.asnumpy().item()) == header.info[name]
    assert [entry.name for entry in header.parameters] == [*PARAMETERS, "vector"]


def test_values_without_a_name_of_mindspore_are_the_last_scalars(tmp_path: Path) -> None:
    header = read_ckpt(saved(tmp_path / "a.ckpt", append_dict={"lr": 0.5, "seed": 3, "flag": False}))
    assert header.info == {"lr": 0.5, "seed": 3, "flag": False}
    assert read_ckpt(saved(tmp_path / "b.ckpt")).info == {}


def test_the_counters_of_a_loss_scale_at_the_end_are_parameters(tmp_path: Path) -> None:
    network = nn.Dense(3, 4)
    loss = nn.WithLossCell(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True))
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    cell = nn.TrainOneStepWithLossScaleCell(loss, optimizer, nn.DynamicLossScaleUpdateCell(1024, 2, 1000))
    ms.save_checkpoint(cell, str(tmp_path / "a.ckpt"))
    header = read_ckpt(tmp_path / "a.ckpt")
    assert header.entries[-1].name == "last_overflow_iterator_step"
    assert header.entries[-1].shape == ()
    assert header.info == {}


def test_a_scalar_of_a_layer_at_the_end_is_a_parameter(tmp_path: Path) -> None:
    network = nn.SequentialCell(nn.Dense(3, 4), mint.nn.BatchNorm1d(4))
    for appended in (None, {"lr": 0.5}):
        path = tmp_path / f"{bool(appended)}.ckpt"
        ms.save_checkpoint(network, str(path), append_dict=appended)
        header = read_ckpt(path)
        assert [each.name for each in header.parameters] == [each.name for each in network.get_parameters()]
        assert header.parameters[-1].name.endswith("num_batches_tracked")
        assert header.info == (appended or {})


def test_an_appended_global_step_takes_the_place_of_the_optimizers(tmp_path: Path) -> None:
    """As `OnRequestExit` appends it: a number. MindSpore keeps entries by name: there is one, where the first was."""
    path = saved(tmp_path / "a.ckpt", optimizer_step=7, append_dict={"epoch_num": 2, "global_step": 9})
    header = read_ckpt(path)
    assert [entry.name for entry in header.entries] == [*PARAMETERS, "epoch_num"]
    assert ms.load_checkpoint(str(path))["global_step"].asnumpy().shape == ()
    assert header.info == {"epoch_num": 2, "global_step": 9}
    assert header.optimizer_step == 9
    assert "global_step" not in [entry.name for entry in header.parameters]


def test_a_file_of_the_ttp_handler(tmp_path: Path) -> None:
    """Written by MindSpore's own handler, which appends the optimizer's counter as it is, a tensor."""
    trained = model(17)
    parameters = SimpleNamespace(
        optimizer=trained._optimizer,
        network=trained._network,
        train_network=trained.train_network,
        batch_num=10,
        net_outputs=(Tensor(1.0), Tensor(False), Tensor(1024.0)),  # noqa: FBT003
    )
    context = SimpleNamespace(
        _is_params_consistent=lambda: True,
        cur_step_num=17,
        cur_epoch_num=2,
        global_step=trained._optimizer.global_step.clone(),
        save_cb=None,
        ckpt_save_path=str(tmp_path),
    )
    _train_fault_tolerance._save_checkpoint_on_failure(17, [], parameters, context)
    (path,) = tmp_path.rglob("*.ckpt")
    header = read_ckpt(path)
    assert header.info == {"epoch_num": 2, "step_num": 17, "cur_rank": 0, "batch_num": 10, "loss_scale": 1024.0}
    assert header.optimizer_step == 17
    assert [entry.name for entry in header.parameters] == PARAMETERS


def test_of_a_name_that_is_there_twice_the_last_counts(tmp_path: Path) -> None:
    """`load_checkpoint` returns a dict: the last one wins."""
    path = tmp_path / "a.ckpt"
    path.write_bytes(ckpt_bytes.checkpoint(3) + ckpt_bytes.value("global_step", "Int64", (), struct.pack("<q", 4)))
    header = read_ckpt(path)
    assert int(ms.load_checkpoint(str(path))["global_step"].asnumpy()) == 4
    assert (header.optimizer_step, header.info) == (4, {"step_num": 3, "global_step": 4})
    assert [entry.name for entry in header.parameters] == ["weight", "global_step"]


@pytest.mark.parametrize("left", [0, 2])
def test_a_counter_of_a_file_that_is_cut_while_it_is_read_is_not_known(left: int) -> None:
    """The bytes that were left of it were taken for a lower number."""
    content = ckpt_bytes.checkpoint(70_000)

    def read(offset: int, count: int) -> bytes:
        return content[offset : offset + (left if count == 4 else count)]  # the counter has 4 bytes

    assert parse_ckpt(BytesOf(read, len(content)), Path("a.ckpt")).optimizer_step is None


def test_a_scalar_with_the_shape_of_nothing(tmp_path: Path) -> None:
    """So older files have it; `load_checkpoint` still reads it as a scalar."""
    path = tmp_path / "a.ckpt"
    path.write_bytes(ckpt_bytes.checkpoint(3) + ckpt_bytes.value("epoch_num", "Int64", (0,), struct.pack("<q", 2)))
    assert ms.load_checkpoint(str(path))["epoch_num"].shape == ()
    header = read_ckpt(path)
    assert (header.entries[-1].shape, header.info["epoch_num"]) == ((), 2)


@pytest.mark.parametrize("content", [b"\xff" * 8, b"a\0\0", b"\0\xd8\0\0", b""])
def test_a_string_that_is_no_text_is_no_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.ckpt"
    path.write_bytes(ckpt_bytes.value("note", "str", (0,), content))
    read_ckpt(path).info["note"].encode("utf-8")


def test_only_small_strings_are_read(tmp_path: Path) -> None:
    header = read_ckpt(saved(tmp_path / "a.ckpt", append_dict={"short": "x" * 1024, "long": "x" * 1025}))
    assert header.info == {"short": "x" * 1024}


def test_mindspore_reads_what_the_test_writer_writes(tmp_path: Path) -> None:
    path = ckpt_bytes.write(tmp_path / "a.ckpt", 17, 2.5)
    loaded = ms.load_checkpoint(str(path))
    assert np.array_equal(loaded["weight"].asnumpy(), np.full((2, 2), 2.5, np.float32))
    assert int(loaded["step_num"].asnumpy()) == 17
    assert read_ckpt(path).optimizer_step == 17


def test_a_tensor_in_slices_is_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MindSpore slices at 512 MB; here at 1 KB."""
    monkeypatch.setattr(ms.train.serialization, "SLICE_SIZE", 1)
    path = tmp_path / "a.ckpt"
    ms.save_checkpoint([{"name": "big", "data": Tensor(np.ones((3, 500), np.float32))}], str(path))
    content = path.read_bytes()
    (entry,) = read_ckpt(path).entries
    assert (entry.name, entry.shape, entry.nbytes) == ("big", (3, 500), 6000)
    assert content.count(b"big") == 6
    path.chmod(0o600)
    path.write_bytes(content[: content.rindex(b"\x0a\x03big") - 3])
    with pytest.raises(UnreadableError, match="bytes, its shape says 6000"):
        read_ckpt(path)


@pytest.mark.parametrize("crc", [False, True])
def test_a_file_cut_anywhere_is_never_taken_for_the_whole(tmp_path: Path, *, crc: bool) -> None:
    """Cut between two entries it still looks whole."""
    whole = saved(tmp_path / "whole.ckpt", append_dict={"epoch_num": 2, "step_num": 7, "note": "x"}, crc_check=crc)
    content = whole.read_bytes()
    path = tmp_path / "a.ckpt"
    looks_whole = 0
    for length in range(len(content)):
        path.write_bytes(content[:length])
        try:
            header = read_ckpt(path)
        except UnreadableError as error:
            assert "a.ckpt" in str(error)
            continue
        assert header.complete is None
        looks_whole += 1
    assert looks_whole == len(PARAMETERS) + 3 - (not crc)


def test_the_crc_is_checked_on_demand(tmp_path: Path) -> None:
    assert crc_is_right(saved(tmp_path / "none.ckpt")) is None
    path = saved(tmp_path / "a.ckpt", crc_check=True)
    assert crc_is_right(path) is True
    content = bytearray(path.read_bytes())
    path.chmod(0o600)
    at = content.rindex(b"moments.bias") + 30
    content[at] ^= 1
    path.write_bytes(content)
    assert read_ckpt(path).has_crc
    assert crc_is_right(path) is False
    with pytest.raises(ValueError, match="Failed to read"):
        ms.load_checkpoint(str(path), crc_check=True)
    content[at] ^= 1
    content[-10] = 1  # the CRC32 has 4 bytes; MindSpore compares all 10
    path.write_bytes(content)
    assert crc_is_right(path) is False


def test_the_crc_of_a_large_file_is_streamed(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    ms.save_checkpoint([{"name": "big", "data": Tensor(np.ones((3 << 18) + 5, np.float32))}], str(path), crc_check=True)
    assert crc_is_right(path) is True


@pytest.mark.parametrize("mode", ["AES-GCM", "AES-CBC", "SM4-CBC"])
def test_an_encrypted_file_is_called_so(tmp_path: Path, mode: str) -> None:
    path = saved(tmp_path / "a.ckpt", enc_key=b"0123456789abcdef", enc_mode=mode)
    with pytest.raises(UnreadableError, match="is encrypted; only MindSpore"):
        read_ckpt(path)


def test_a_map_parameter_is_an_entry(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    table = ckpt_bytes.field(1, ckpt_bytes.field(1, b"table") + ckpt_bytes.field(3, ckpt_bytes.field(1, b"")))
    path.write_bytes(table + table + ckpt_bytes.checkpoint(3))
    assert [(entry.name, entry.dtype) for entry in read_ckpt(path).entries][:2] == [
        ("table", "MapTensor"),
        ("weight", "Float32"),
    ]


def tensor(content: bytes, name: bytes = b"w") -> bytes:
    return ckpt_bytes.field(1, ckpt_bytes.field(1, name) + ckpt_bytes.field(2, content))


INT8 = ckpt_bytes.field(2, b"Int8") + ckpt_bytes.field(3, b"x")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "holds no parameter"),
        (bytes(100), "at byte 1: field 0"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "a message of 9223372036854775807 bytes, with only 0 left"),
        (b"\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", "a message of 9223372036854775808 bytes"),
        (b"\x0a" + b"\xff" * 9 + b"\x7f", "malformed number"),  # more than 64 bits
        (b"\x0a" + b"\xff" * 11, "malformed number"),  # a number without an end
        (b"\x12\x00", "field 2 in place of a value"),
        (b"\x08\x01", "wire type 0"),
        (ckpt_bytes.field(1, b""), "a value without a tensor"),
        (tensor(b"", name=b""), "a value without a name"),
        (tensor(b"", name=b"\xff\xfe"), "not UTF-8"),
        (tensor(b"", name=b"x" * 70_000), "a name of 70000 bytes"),
        (tensor(b"\x08" + b"\xff" * 9 + b"\x01"), "a shape that no tensor has"),  # -1
        (tensor((b"\x08" + b"\xff" * 8 + b"\x7f") * 1000), "a shape that no tensor has"),  # a product of 63,000 bits
        (tensor(ckpt_bytes.field(1, b"\x02" * 100_000)), "a shape that no tensor has"),
        (ckpt_bytes.value("w", "Float32", (2,), bytes(7)), "'w' has 7 bytes, its shape says 8"),
        (ckpt_bytes.value("w", "Float32", (2,), bytes(7)) + ckpt_bytes.checkpoint(1), "'w' has 7 bytes"),
        (ckpt_bytes.value("w", "Float32", (2,), bytes(12)), "'w' has 12 bytes, its shape says 8"),
        (ckpt_bytes.value("w", "Float32", (2**62, 2**62), bytes(12)), "its shape says"),
        (
            ckpt_bytes.value("w", "Float32", (1,), bytes(4)) + ckpt_bytes.value("w", "Float32", (2,), bytes(8)),
            "'w' has slices of different types or shapes",
        ),
        (
            ckpt_bytes.value("w", "Int32", (1,), bytes(4)) + ckpt_bytes.value("w", "Float32", (1,), bytes(4)),
            "'w' has slices of different types or shapes",
        ),
        (ckpt_bytes.field(1, ckpt_bytes.field(1, b"w") + 2 * ckpt_bytes.field(2, INT8)), "'w' has two tensors"),
        (
            ckpt_bytes.field(1, ckpt_bytes.field(1, b"w") + ckpt_bytes.field(2, INT8) + ckpt_bytes.field(3, b"")),
            "'w' has two tensors",
        ),
    ],
)
def test_hostile_bytes(tmp_path: Path, raw: bytes, message: str) -> None:
    path = tmp_path / "a.ckpt"
    path.write_bytes(raw)
    with pytest.raises(UnreadableError, match=message):
        read_ckpt(path)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ((ckpt_bytes.value("a", "Int8", (), b"x") + ckpt_bytes.value("b", "Int8", (), b"x")) * 300_000, "more parts"),
        (tensor(ckpt_bytes.field(1, b"\x01" * (5 << 20))), "more parts"),
        (b"".join(ckpt_bytes.value("n" * 60_000 + str(n), "Int8", (), b"x") for n in range(1200)), "longer names"),
    ],
)
def test_more_than_any_model_has_is_given_up(tmp_path: Path, raw: bytes, message: str) -> None:
    path = tmp_path / "a.ckpt"
    path.write_bytes(raw)
    with pytest.raises(UnreadableError, match=message):
        read_ckpt(path)


def test_unknown_fields_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    content = ckpt_bytes.field(2, b"Int32") + ckpt_bytes.field(3, b"\x05\x00\x00\x00")
    unknown = ckpt_bytes.field(9, b"new") + b"\x50\x01" + b"\x5d1234" + b"\x6112345678"
    value = ckpt_bytes.field(1, b"global_step") + unknown + ckpt_bytes.field(2, content + unknown)
    path.write_bytes(ckpt_bytes.field(1, value))
    assert read_ckpt(path).optimizer_step == 5


def test_the_order_of_fields_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    name, dims = ckpt_bytes.field(1, b"w"), b"\x08\x02\x08\x01"
    dtype, content = ckpt_bytes.field(2, b"Int8"), ckpt_bytes.field(3, b"xy")
    tensors = (dims + dtype + content, ckpt_bytes.field(1, b"\x02\x01") + dtype + content, content + dtype + dims)
    values = [name + ckpt_bytes.field(2, some) for some in tensors] + [ckpt_bytes.field(2, tensors[0]) + name]
    for value in values:
        path.write_bytes(ckpt_bytes.field(1, value))
        (entry,) = read_ckpt(path).entries
        assert (entry.name, entry.dtype, entry.shape, entry.nbytes) == ("w", "Int8", (2, 1), 2)
        assert path.read_bytes()[entry.offset :].startswith(b"xy")
