"""Numbers in files of PyTorch are read by the opcodes of their pickles: nothing in them runs."""

import io
import pickle
import pickletools
import time
import zipfile
from pathlib import Path

import pytest

from ckptstore.errors import UnreadableError
from ckptstore.formats.pytorch import read_numbers
from tests import foreign_bytes
from tests.foreign_bytes import MAGIC, legacy_pytorch, pytorch


@pytest.mark.parametrize("protocol", range(6))
def test_numbers_at_the_top_and_no_others(tmp_path: Path, protocol: int) -> None:
    path = pytorch(tmp_path / "a.pth.tar", protocol=protocol, epoch=5, global_step=7 << 33, lr=3)
    assert read_numbers(str(path)) == {"epoch": 5, "global_step": 7 << 33}
    assert not foreign_bytes.Tensor.ran


def test_a_file_of_an_old_pytorch(tmp_path: Path) -> None:
    assert read_numbers(str(legacy_pytorch(tmp_path / "a.pth", step=4, epoch=True))) == {"step": 4}
    assert not foreign_bytes.Tensor.ran


@pytest.mark.parametrize(
    "numbers", [{}, {"epoch": 1.5}, {"epoch": -1}, {"epoch": "5"}, {"step": 1 << 63}, {"step": None}]
)
def test_what_is_no_number_tells_none(tmp_path: Path, numbers: dict[str, object]) -> None:
    assert read_numbers(str(pytorch(tmp_path / "a.pt", **numbers))) == {}


def test_what_holds_no_dictionary_tells_none(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps([1, 2]))
    assert read_numbers(str(path)) == {}


def bomb(opcodes: bytes) -> bytes:
    return b"\x80\x02" + opcodes


@pytest.mark.parametrize(
    "pickled",
    [
        b"",
        b"nothing",
        b"\x80\x02",
        bomb(b"."),  # STOP, and nothing there
        bomb(b"u."),  # SETITEMS without a mark
        bomb(b"}(X\x04\x00\x00\x00stepK\x05u"),  # no STOP
        bomb(b"R."),
        bomb(b"\x8b\xff\xff\xff\x7f1"),  # a number of 2 GB
        bomb(b"X\xff\xff\xff\x7fstep."),
        bomb(b"I" + b"9" * 100_000 + b"\n."),
        bomb(b"}" * 500_000),
    ],
)
def test_hostile_pickles_are_refused_at_once(tmp_path: Path, pickled: bytes) -> None:
    begin = time.process_time()
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", pickled)
    with pytest.raises(UnreadableError):
        read_numbers(str(path))
    path.write_bytes(pickle.dumps(MAGIC, 2) + pickle.dumps(1001, 2) + pickle.dumps({}, 2) + pickled)
    with pytest.raises(UnreadableError):
        read_numbers(str(path))
    assert time.process_time() - begin < 10


def test_hostile_zips_are_refused_or_tell_nothing(tmp_path: Path) -> None:
    path = pytorch(tmp_path / "a.pt", epoch=5)
    whole = path.read_bytes()
    for end in range(0, len(whole), 7):
        path.write_bytes(whole[:end])
        with pytest.raises(UnreadableError):
            read_numbers(str(path))
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            assert read_numbers(str(path)).keys() <= {"epoch", "step", "global_step", "iteration"}
        except UnreadableError:
            continue


def test_no_more_is_unpacked_than_a_state_needs(tmp_path: Path) -> None:
    """A pickle of 64 MB in a zip of 64 KB."""
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", pickle.dumps({"epoch": 5, "x": bytes(64 << 20)}, 4))
    with pytest.raises(UnreadableError):
        read_numbers(str(path))


def test_the_pickles_of_these_tests_are_those_of_python() -> None:
    pickled = pickle.dumps(foreign_bytes.state(epoch=5), 2)
    assert "REDUCE" in {opcode.name for opcode, _, _ in pickletools.genops(io.BytesIO(pickled))}
