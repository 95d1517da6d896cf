"""The bytes of tensors, read from what MindSpore writes."""

import os
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore.train import serialization

from ckptstore.errors import CkptstoreError, DamageError, UnreadableError, UsageError
from ckptstore.formats import inspect, tensor_file
from ckptstore.formats.tensor_file import TensorFile

VALUES = {"weight": np.arange(3000, dtype=np.float32).reshape(30, 100), "global_step": np.array([7], np.int32)}


@pytest.fixture(params=["a.ckpt", "sliced.ckpt", "a.safetensors"])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of each format, of `.ckpt` one whose large tensor is in 12 slices too."""
    found = tmp_path / str(request.param)
    if found.name == "sliced.ckpt":
        monkeypatch.setattr(serialization, "SLICE_SIZE", 1)  # KB
    tensors = [{"name": name, "data": ms.Tensor(values)} for name, values in VALUES.items()]
    appended = {"epoch_num": 2, "note": "x"} if found.suffix == ".ckpt" else None
    ms.save_checkpoint(tensors, str(found), format=found.suffix[1:], append_dict=appended)
    found.chmod(0o600)
    return found


def test_any_bytes_of_a_tensor(path: Path) -> None:
    file = TensorFile(path)
    assert sorted(file.tensors) == sorted(VALUES)
    assert len(file.tensors["weight"].slices) == (12 if path.name == "sliced.ckpt" else 1)
    with file.opened() as read:
        for name, values in VALUES.items():
            whole = values.tobytes()
            for begin, end in ((0, len(whole)), (1, 2), (1023, 1025), (1024, 5000), (len(whole) - 1, len(whole))):
                into = bytearray(len(whole[begin:end]))
                read(file.tensors[name], begin, memoryview(into))
                assert into == whole[begin:end], (name, begin, end)


def test_a_file_that_is_another_one_by_now_is_not_read(path: Path) -> None:
    file = TensorFile(path)
    with pytest.raises(DamageError, match="ends too early"), file.opened() as read:
        os.truncate(path, path.stat().st_size - 11000)
        read(file.tensors["weight"], 0, memoryview(bytearray(12000)))
    with pytest.raises(DamageError, match="was replaced since its header was read; open it again"), file.opened():
        pass
    with pytest.raises(UnreadableError):
        TensorFile(path)
    path.unlink()
    with pytest.raises(CkptstoreError, match="cannot read .*: No such file"), file.opened():
        pass


def test_a_file_that_is_replaced_right_after_its_header_was_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the bytes of the new file were read at the places of the old one."""

    def look_into(path: Path) -> object:
        found = inspect.look_into(path)
        path.with_suffix(".new").write_bytes(path.read_bytes()[::-1])
        path.with_suffix(".new").replace(path)
        return found

    monkeypatch.setattr(tensor_file, "look_into", look_into)
    file = TensorFile(path)
    with pytest.raises(DamageError, match="was replaced since its header was read"), file.opened():
        pass


def test_what_holds_no_tensors(tmp_path: Path) -> None:
    group_info = tmp_path / "group_info.pb"
    group_info.write_bytes(b"\x12\x02\x08\x01")
    with pytest.raises(UsageError, match="holds no tensors"):
        TensorFile(group_info)
    with pytest.raises(UsageError, match="there is no file"):
        TensorFile(tmp_path / "a.ckpt")
