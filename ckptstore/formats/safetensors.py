"""The `.safetensors` format as MindSpore writes it: a length of 8 bytes, a JSON header, then the tensors.

This module does not use the `safetensors` library: its `safe_open` imports numpy or another framework, and its
`deserialize` needs the bytes of all tensors. Files that the library refuses are refused here too. Source: the format's
specification; `mindspore.train.serialization._exec_save` for the content that MindSpore writes.
"""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from blake3 import blake3

from ckptstore.errors import UnreadableError
from ckptstore.formats import header
from ckptstore.formats.bounded_json import MOST_JSON, parse_object
from ckptstore.formats.header import Entry, Header
from ckptstore.outside import Path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from io import FileIO

    from ckptstore.formats.header import BytesOf

_LENGTH = 8  # bytes
_PIECE = 1 << 20  # bytes read, or hashed and then written while they are still in the processor's cache
_THREADS = 4
_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8}
_BITS |= {"F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "BOOL": 8, "I8": 8, "U8": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16}
_BITS |= {"I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64}
_MINDSPORE_NAMES = {"BOOL": "Bool", "BF16": "BFloat16", "C64": "Complex64"}
_MINDSPORE_NAMES |= {f"F{bits}": f"Float{bits}" for bits in (16, 32, 64)}
_MINDSPORE_NAMES |= {f"I{bits}": f"Int{bits}" for bits in (8, 16, 32, 64)}
_MINDSPORE_NAMES |= {f"U{bits}": f"UInt{bits}" for bits in (8, 16, 32, 64)}
_BEYOND = 1 << 64  # the library reads only numbers below this one
# MindSpore computes the CRC32 of `bytes(array)`. For a whole number without a shape, NumPy returns so many zeros.
_WHOLE = frozenset({"Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64"})
_MOST_ZEROS = 1 << 30
_PACKED = "Int4"  # two values in a byte, stored as Int8; the metadata names this type for the parameter


@dataclass(frozen=True)
class SafetensorsHeader(Header):
    """The entries of a `.safetensors` file."""

    format = "safetensors"

    metadata: Mapping[str, str]  # MindSpore writes `format`, `remove_redundancy` and `crc_num`

    @property
    def is_share(self) -> bool:
        """Whether other ranks have the rest of the parameters. A `.ckpt` cannot record this."""
        return self.metadata.get("remove_redundancy") == "True"


def read_safetensors(path: Path) -> SafetensorsHeader:
    """Read the names, types and shapes of a `.safetensors` file, its metadata and its appended values.

    Types have MindSpore's names; the entries come in the order of their bytes. Raises `UnreadableError` if the bytes
    are not of this format or the file is cut, `OSError` if it cannot be opened.
    """
    with path.open("rb", buffering=0) as file:
        return parse_safetensors(header.bytes_of(file), path)


def parse_safetensors(content: BytesOf, path: Path) -> SafetensorsHeader:
    """Parse bytes as `read_safetensors` parses a file; `path` is for errors."""
    read, end = content
    length = int.from_bytes(read(0, _LENGTH), "little")
    if length > end - _LENGTH:
        raise _bad(path, f"a header of {length} bytes in a file of {end}")
    if length > MOST_JSON:
        what = f"{path} is no readable .safetensors file: a header of {length} bytes, more than any model has"
        raise UnreadableError(what, "ckptstore reads 16 MiB of one at most")
    raw = read(_LENGTH, length)
    if not raw.lstrip().startswith(b"{") or b"\0" in raw:  # the parser would take a byte order mark and UTF-16 too
        raise _bad(path, "its header is no JSON object in UTF-8")
    declared = parse_object(raw, path, "whole .safetensors file")
    metadata = declared.pop("__metadata__", None)
    metadata = {} if metadata is None else metadata
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise _bad(path, "metadata that are not text")
    try:
        "".join((*declared, *metadata, *metadata.values())).encode()
    except UnicodeEncodeError:
        raise _bad(path, "half a character") from None
    entries = _entries(declared, metadata, _LENGTH + length, path)
    last = entries[-1].offset + entries[-1].nbytes if entries else _LENGTH + length
    if last != end:
        raise _bad(path, f"it has {end} bytes, its header says {last}")
    if not entries:
        raise UnreadableError(f"{path} holds no parameter", "it was saved from nothing")
    appended = header.appended_anywhere(entries)
    return SafetensorsHeader(
        entries=entries,
        optimizer_step=header.optimizer_step_of(entries, read),
        info=header.info_of(entries, appended, read),
        complete=True,
        appended=appended,
        metadata=dict(sorted(metadata.items())),  # the library writes it in any order
    )


def crc_is_right(path: Path) -> bool | None:
    """Whether the metadata hold the CRC32 of all names and tensors, as `crc_check=True` writes it.

    None if they hold none, or one that is not computed here. Reads the whole file, 1 MiB at a time. Raises as
    `read_safetensors` does.
    """
    found = read_safetensors(path)
    told = found.metadata.get("crc_num")
    if told is None:
        return None
    computed = 0
    with path.open("rb", buffering=0) as file:
        read = header.bytes_of(file).read
        for entry in sorted(found.entries):
            computed = zlib.crc32(entry.name.encode("utf-8", "surrogatepass"), computed)
            if entry.shape == () and entry.dtype in _WHOLE:
                zeros = int(header.value_of(entry, read) or 0)
                if not 0 <= zeros <= _MOST_ZEROS:
                    return None
                pieces = (bytes(min(_PIECE, zeros - begin)) for begin in range(0, zeros, _PIECE))
            else:
                sizes = ((begin, min(_PIECE, entry.nbytes - begin)) for begin in range(0, entry.nbytes, _PIECE))
                pieces = (read(entry.offset + begin, size) for begin, size in sizes)
            for piece in pieces:
                computed = zlib.crc32(piece, computed)
    return told == str(computed)


def _entries(declared: dict[str, Any], metadata: Mapping[str, str], start: int, path: Path) -> tuple[Entry, ...]:
    found = [_entry(name, tensor, metadata, start, path) for name, tensor in declared.items()]
    found.sort(key=lambda entry: (entry.offset, entry.nbytes))
    position = start
    for entry in found:
        if entry.offset != position:
            raise _bad(path, f"{entry.name!r} begins at byte {entry.offset}, the tensor before it ends at {position}")
        position += entry.nbytes
    return tuple(found)


def _entry(name: str, tensor: object, metadata: Mapping[str, str], start: int, path: Path) -> Entry:
    match tensor:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(stop)]} if (
            bool not in (type(begin), type(stop)) and max(abs(begin), abs(stop)) < _BEYOND
        ):
            pass
        case _:
            raise _bad(path, f"{name!r} is not described as a tensor is")
    if (
        dtype not in _BITS
        or len(shape) > header.MOST_DIMS
        or not all(type(size) is int and 0 <= size < _BEYOND for size in shape)
    ):
        raise _bad(path, f"{name!r} has a type or shape that no tensor has")
    if (stop - begin) * 8 != math.prod(shape) * _BITS[dtype] or begin < 0:
        raise _bad(path, f"{name!r} has {stop - begin} bytes, which is not what its shape says")
    packed = metadata.get(name) == _PACKED
    return Entry(
        name, _PACKED if packed else _MINDSPORE_NAMES.get(dtype, dtype), tuple(shape), start + begin, stop - begin
    )


def _bad(path: Path, what: str) -> UnreadableError:
    return UnreadableError(
        f"{path} is not a whole .safetensors file: {what}", "it is cut, damaged or of another format"
    )


class Tensor(NamedTuple):
    """A tensor to write. `dtype` is MindSpore's name of its type; `data` returns its bytes in row-major order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    data: Callable[[], memoryview]


_FORMAT_NAMES = {mindspore: name for name, mindspore in _MINDSPORE_NAMES.items()}


def can_hold(dtype: str) -> bool:
    """Whether the format has a type, by MindSpore's name for it."""
    return dtype in _FORMAT_NAMES


def head_of(described: Iterable[tuple[str, str, Sequence[int], int]], metadata: Mapping[str, str]) -> bytes:
    """The first bytes of a file, up to its tensors: the JSON header and its length.

    `described` has the name, type, shape and bytes of each tensor, in the order in which the tensors follow. Raises
    `KeyError` for a type that the format cannot hold.
    """
    declared: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, dtype, shape, nbytes in described:
        begin, end = end, end + nbytes
        declared[name] = {"dtype": _FORMAT_NAMES[dtype], "shape": shape, "data_offsets": (begin, end)}
    told = json.dumps(declared, separators=(",", ":")).encode()
    told += b" " * (-len(told) % _LENGTH)  # as the specification wants it: the tensors begin at a multiple of 8
    return len(told).to_bytes(_LENGTH, "little") + told


def write_safetensors(path: str, tensors: Iterable[Tensor], metadata: Mapping[str, str]) -> str:
    """Write tensors, in this order, to a new file; return the BLAKE3 of its bytes, in hexadecimal.

    Raises `OSError`, and `KeyError` for a type that the format cannot hold.
    """
    tensors = list(tensors)
    begins = memoryview(head_of((each[:4] for each in tensors), metadata))
    with Path(path).open("xb", buffering=0) as file:
        return write(file, chain([begins], (each.data() for each in tensors)))  # only one is in memory at a time


def write(file: FileIO, pieces: Iterable[memoryview]) -> str:
    """Write bytes to an unbuffered file; return their BLAKE3, in hexadecimal."""
    hasher = blake3(max_threads=_THREADS)
    for data in pieces:
        for begin in range(0, data.nbytes, _PIECE):
            piece = data[begin : begin + _PIECE]
            hasher.update(piece)
            while piece.nbytes:
                piece = piece[file.write(piece) or 0 :]
    return hasher.hexdigest()
