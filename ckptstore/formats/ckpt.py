"""The `.ckpt` format: a protobuf message `Checkpoint` of repeated values (mindspore.md §1).

    message Checkpoint { repeated Value value = 1; }
    message Value      { string tag = 1; TensorProto tensor = 2; MapTensorProto maptensor = 3; }
    message TensorProto{ repeated int64 dims = 1; string tensor_type = 2; bytes tensor_content = 3; }

Source: `mindspore/train/checkpoint.proto`, `mindspore.train.serialization._exec_save`. Reading skips the tensors'
bytes: it reads a few hundred bytes for each parameter, whatever the file's size.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptstore.errors import UnreadableError
from ckptstore.formats import header
from ckptstore.formats.header import Entry, Header
from ckptstore.formats.wire import LEN, VARINT, WireReader, varint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptstore.formats.header import BytesOf
    from ckptstore.outside import Path

_CRC_MARK = b"crc_num"
CRC_DIGITS = 10  # bytes of the CRC32 at the very end of a file with a trailer
_CRC_LENGTH = len(_CRC_MARK) + CRC_DIGITS
_PIECE = 1 << 20  # bytes
_VALUE = re.compile(rb"\x0a[\x80-\xff]{0,9}[\x00-\x7f]\x0a([\x80-\xff]{0,2}[\x00-\x7f])")  # and the name in it
_FIRST_IN_A_NAME = 0x20
_MOST_SLICES = 4096
_FIRST = b"\x0a"  # how a value begins: field 1 with a length
_FIELD_1, _FIELD_2, _FIELD_3 = 1 << 3 | LEN, 2 << 3 | LEN, 3 << 3 | LEN
_DIM = 1 << 3 | VARINT
# AES-GCM, AES-CBC, SM4-CBC: the first four bytes of a file that `save_checkpoint(…, enc_key=…)` writes.
_ENCRYPTED = (b"\xd8\x5e\x3a\x7f", b"\xd9\x5e\x3a\x7f", b"\xda\x5e\x3a\x7f")


@dataclass(frozen=True)
class CkptHeader(Header):
    """The entries of a `.ckpt` file."""

    format = "ckpt"

    has_crc: bool  # it ends with the trailer that `crc_check=True` writes


def read_ckpt(path: Path) -> CkptHeader:
    """Read the names, types and shapes of a whole `.ckpt` file, and its appended values.

    Raises `UnreadableError` if the bytes are not a checkpoint, hold no parameter, or end inside a parameter or between
    its slices; `OSError` if the file cannot be opened. A file that was cut between two parameters looks whole.
    """
    with path.open("rb", buffering=0) as file:
        return parse_ckpt(header.bytes_of(file), path)


def parse_ckpt(content: BytesOf, path: Path) -> CkptHeader:
    """Parse bytes as `read_ckpt` parses a file; `path` is for errors."""
    reader = WireReader(content, path, ".ckpt")
    entries: list[Entry] = []
    for entry in _slices(reader, path):
        _add(entries, entry, reader)
    if not entries:
        raise UnreadableError(f"{path} holds no parameter", "it is empty or was never finished")
    _check_size(entries[-1], reader)
    appended = header.appended_last(entries)
    has_crc = reader.position < reader.end
    return CkptHeader(
        entries=tuple(entries),
        optimizer_step=header.optimizer_step_of(entries, reader.bytes_at),
        info=header.info_of(entries, appended, reader.bytes_at),
        complete=True if has_crc else None,
        appended=appended,
        has_crc=has_crc,
    )


def ckpt_slices(content: BytesOf, path: Path) -> Iterator[Entry]:
    """Yield the entries of a `.ckpt` file while it is read. A tensor in slices gives an entry for each slice.

    Raises `UnreadableError` as `read_ckpt` does, except for a file without parameters and for lacking slices; `path` is
    for errors.
    """
    return _slices(WireReader(content, path, ".ckpt"), path)


def crc_is_right(path: Path) -> bool | None:
    """Whether the trailer holds the CRC32 of all bytes before it; None if there is no trailer.

    Reads the whole file, 1 MiB at a time. Raises as `read_ckpt` does.
    """
    if not read_ckpt(path).has_crc:
        return None
    with path.open("rb") as file:
        left = path.stat().st_size - _CRC_LENGTH
        computed = 0
        while left > 0 and (piece := file.read(min(_PIECE, left))):
            computed = zlib.crc32(piece, computed)
            left -= len(piece)
        trailer = file.read(_CRC_LENGTH)
    return trailer == _CRC_MARK + computed.to_bytes(CRC_DIGITS, "big")


def ends_too_early(path: Path) -> bool:
    """Whether a file is empty, or begins as a `.ckpt` does and ends inside a parameter. Raises `OSError`."""
    with path.open("rb", buffering=0) as file:
        reader = WireReader(header.bytes_of(file), path, ".ckpt")
        if reader.bytes_at(0, 1) != _FIRST:
            return reader.end == 0
        try:
            while reader.position < reader.end and not _at_trailer(reader):
                reader.skip(reader.end, reader.key(reader.end)[1])
        except UnreadableError:
            return True
    return False


def is_encrypted(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a checkpoint that MindSpore encrypted."""
    return head.startswith(_ENCRYPTED)


def begins_with_a_value(head: bytes) -> bool:
    """Whether bytes begin as every `.ckpt` does: with a value that begins with the name of a parameter."""
    found = _VALUE.match(head)
    if found is None:
        return False
    name = head[found.end() : found.end() + (found[1][0] if len(found[1]) == 1 else len(head))]
    return bool(name) and min(name) >= _FIRST_IN_A_NAME


def _slices(reader: WireReader, path: Path) -> Iterator[Entry]:
    if is_encrypted(reader.bytes_at(0, 4)):
        raise UnreadableError(f"{path} is encrypted", "only MindSpore with its dec_key can read it")
    while reader.position < reader.end and not _at_trailer(reader):
        yield _usual_value(reader) or _value(reader)


def _at_trailer(reader: WireReader) -> bool:
    if reader.end - reader.position != _CRC_LENGTH:
        return False
    return reader.bytes_at(reader.position, len(_CRC_MARK)) == _CRC_MARK


def _add(entries: list[Entry], entry: Entry, reader: WireReader) -> None:
    """Add an entry, or a slice to the last one: a tensor over 512 MB comes in several values of one name."""
    if entries:
        last = entries[-1]
        if last.name == entry.name:  # MindSpore joins their bytes, whatever they are
            if last[:3] != entry[:3]:
                raise reader.bad(f"{last.name!r} has slices of different types or shapes")
            if len(last.later) == _MOST_SLICES:
                raise reader.bad(f"{last.name!r} has more slices than any tensor")
            later = (*last.later, (entry.offset, entry.nbytes))
            entries[-1] = last._replace(nbytes=last.nbytes + entry.nbytes, later=later)
            return
        _check_size(last, reader)
    entries.append(entry)


def _check_size(entry: Entry, reader: WireReader) -> None:
    size = header.size_of(entry.dtype, entry.shape)
    if size is not None and size != entry.nbytes:
        raise reader.bad(f"{entry.name!r} has {entry.nbytes} bytes, its shape says {size}")


def _usual_value(reader: WireReader) -> Entry | None:
    """Read a value at once if its fields are in MindSpore's order; None if `_value` has to read it."""
    head = reader.peek()
    shape: list[int] = []
    try:
        length, begin = varint(head, 1)
        stop = begin + length
        length, name_at = varint(head, begin + 1)
        name_stop = name_at + length
        length, at = varint(head, name_stop + 1)
        if not head[0] == head[begin] == _FIELD_1 or head[name_stop] != _FIELD_2 or at + length != stop:
            return None
        while head[at] == _DIM:
            dim, at = varint(head, at + 1)
            shape.append(dim)
        length, type_at = varint(head, at + 1)
        type_stop = type_at + length
        nbytes, offset = varint(head, type_stop + 1)
        if head[at] != _FIELD_2 or head[type_stop] != _FIELD_3 or offset + nbytes != stop:
            return None
        name, dtype = head[name_at:name_stop].decode(), head[type_at:type_stop].decode()
    except (IndexError, UnicodeDecodeError):
        return None
    start = reader.position
    if not name or stop > reader.end - start or len(shape) > header.MOST_DIMS or max(shape, default=1) >> 63:
        return None
    if shape == [0]:
        return None
    reader.take(stop, numbers=10 + 2 * len(shape), text=offset)
    return Entry(name, dtype, tuple(shape), start + offset, nbytes)


def _value(reader: WireReader) -> Entry:
    """Read a value with its fields in any order."""
    field, wire_type = reader.key(reader.end)
    if field != 1:
        raise reader.bad(f"field {field} in place of a value")
    limit = reader.message(reader.end, wire_type)
    found = reader.fields(limit, {1: WireReader.text, 2: _tensor, 3: _map_tensor})
    tensors = [*found.get(3, ()), *found.get(2, ())]
    name = found.get(1, [""])[-1]
    if not name or not tensors:
        raise reader.bad("a value without a name" if tensors else "a value without a tensor")
    if len(tensors) > 1:  # protobuf merges them
        raise reader.bad(f"{name!r} has two tensors")
    return Entry(name, *tensors[0])


def _tensor(reader: WireReader, limit: int, wire_type: int) -> tuple[str, tuple[int, ...], int, int]:
    limit = reader.message(limit, wire_type)
    found = reader.fields(limit, {1: WireReader.numbers, 2: WireReader.text, 3: WireReader.span})
    shape = tuple(size for sizes in found.get(1, ()) for size in sizes)
    if len(shape) > header.MOST_DIMS or min(shape, default=0) < 0:
        raise reader.bad("a shape that no tensor has")
    offset, nbytes = found.get(3, [(0, 0)])[-1]
    if shape == (0,) and nbytes:  # a scalar of an older file, or a string; MindSpore: `_load_ckpt_into_param_dict`
        shape = ()
    return found.get(2, [""])[-1], shape, offset, nbytes


def _map_tensor(reader: WireReader, limit: int, wire_type: int) -> tuple[str, tuple[int, ...], int, int]:
    return "MapTensor", (), *reader.span(limit, wire_type)
