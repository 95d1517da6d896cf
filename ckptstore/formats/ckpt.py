"""The `.ckpt` format: a protobuf message `Checkpoint` of repeated values (domain §1).

    message Checkpoint { repeated Value value = 1; }
    message Value      { string tag = 1; TensorProto tensor = 2; }
    message TensorProto{ repeated int64 dims = 1; string tensor_type = 2; bytes tensor_content = 3; }

Source: `mindspore/train/checkpoint.proto`, `mindspore.train.serialization._write_parameter_data`. A reader that
skips the tensors' bytes: it reads a few dozen bytes a parameter, whatever the file's size.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from ckptstore.errors import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_CRC_MARK = b"crc_num"
_CRC_LENGTH = len(_CRC_MARK) + 10
_LONGEST_NAME = 64 * 1024
_LEN = 2
_VARINT = 0
_OPTIMIZER_STEP = "global_step"


@dataclass(frozen=True)
class Entry:
    """One parameter or appended entry: its name, MindSpore type name, shape, and where its bytes are in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class CkptHeader:
    """What a `.ckpt` file holds. `optimizer_step` is the parameter `global_step`: updates applied, None if absent."""

    entries: tuple[Entry, ...]
    optimizer_step: int | None
    info: Mapping[str, object]


def read_ckpt(path: Path) -> CkptHeader:
    """Read the names, types and shapes of a whole `.ckpt` file.

    Raises `UnreadableError` where the bytes are not those of a checkpoint, end inside a message, or hold nothing;
    `OSError` where the file cannot be opened. A file cut exactly between two parameters looks whole to this reader:
    the recorded size is the defence (domain §1).
    """
    with path.open("rb") as file:
        end = os.fstat(file.fileno()).st_size
        reader = _Reader(file, end, path)
        entries: list[Entry] = []
        while reader.position < end and not reader.at_crc_trailer():
            entry = reader.value()
            previous = entries[-1] if entries else None
            if previous is not None and previous.name == entry.name:  # a tensor over 512 MB comes in slices
                entry = Entry(entry.name, entry.dtype, entry.shape, previous.offset, previous.nbytes + entry.nbytes)
                entries.pop()
            entries.append(entry)
        if not entries:
            raise UnreadableError(f"{path} holds no parameter", "it is empty or was never finished")
        info = {"step_num": step} if (step := _scalar(file, entries, "step_num")) is not None else {}
        return CkptHeader(tuple(entries), _scalar(file, entries, _OPTIMIZER_STEP), info)


def _scalar(file: BinaryIO, entries: list[Entry], name: str) -> int | None:
    entry = next((entry for entry in entries if entry.name == name), None)
    if entry is None or entry.dtype not in ("Int32", "Int64") or entry.nbytes not in (4, 8):
        return None
    file.seek(entry.offset)
    return int.from_bytes(file.read(entry.nbytes), "little", signed=True)


class _Reader:
    """Walks the protobuf wire format, never past the end of the message it is in."""

    def __init__(self, file: BinaryIO, end: int, path: Path) -> None:
        self._file = file
        self._end = end
        self._path = path
        self.position = 0

    def at_crc_trailer(self) -> bool:
        """Whether what is left is the trailer that `crc_check=True` writes."""
        if self._end - self.position != _CRC_LENGTH:
            return False
        self._file.seek(self.position)
        return self._file.read(len(_CRC_MARK)) == _CRC_MARK

    def value(self) -> Entry:
        field, limit = self._message(self._end)
        if field != 1:
            raise self._bad(f"field {field} where a value should be")
        name = ""
        dtype, offset, nbytes = "", 0, 0
        shape: tuple[int, ...] = ()
        while self.position < limit:
            field, stop = self._message(limit)
            if field == 1:
                name = self._text(stop)
            elif field == 2:  # noqa: PLR2004
                dtype, shape, offset, nbytes = self._tensor(stop)
            else:
                self.position = stop
        if not name:
            raise self._bad("a value without a name")
        return Entry(name, dtype, shape, offset, nbytes)

    def _tensor(self, limit: int) -> tuple[str, tuple[int, ...], int, int]:
        dtype, offset, nbytes = "", 0, 0
        shape: list[int] = []
        while self.position < limit:
            key = self._varint(limit)
            if key == (1 << 3 | _VARINT):
                shape.append(self._varint(limit))
                continue
            stop = self._length(limit, key)
            if key >> 3 == 2:  # noqa: PLR2004
                dtype = self._text(stop)
            else:
                offset, nbytes = self.position, stop - self.position
                self.position = stop
        return dtype, tuple(shape), offset, nbytes

    def _message(self, limit: int) -> tuple[int, int]:
        key = self._varint(limit)
        return key >> 3, self._length(limit, key)

    def _length(self, limit: int, key: int) -> int:
        if key & 7 != _LEN:
            raise self._bad(f"wire type {key & 7}")
        length = self._varint(limit)
        if length > limit - self.position:
            raise self._bad(f"a message of {length} bytes with {limit - self.position} left")
        return self.position + length

    def _varint(self, limit: int) -> int:
        self._file.seek(self.position)
        result = 0
        for place, byte in enumerate(self._file.read(min(10, limit - self.position))):
            result |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:  # noqa: PLR2004
                self.position += place + 1
                return result
        raise self._bad("cut or malformed number")

    def _text(self, stop: int) -> str:
        length = stop - self.position
        if length > _LONGEST_NAME:
            raise self._bad(f"a name of {length} bytes")
        self._file.seek(self.position)
        raw = self._file.read(length)
        self.position = stop
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self._bad("a name that is not UTF-8") from None

    def _bad(self, what: str) -> UnreadableError:
        return UnreadableError(
            f"{self._path} is not a whole .ckpt file: {what} at byte {self.position}",
            "it is cut, encrypted or of another format",
        )
