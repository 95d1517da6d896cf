"""Reads which whole numbers stand beside the tensors in a checkpoint of TensorFlow, without running anything.

`X.index` is a table of LevelDB: for each name, where its bytes are in `X.data-…`, and their checksum. TensorFlow:
`core/util/tensor_bundle/tensor_bundle.cc`, `core/lib/io/format.cc`, `core/protobuf/tensor_bundle.proto`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ckptstore.core.limits import HIGHEST
from ckptstore.core.naming import INDEX
from ckptstore.errors import UnreadableError
from ckptstore.formats.wire import FIXED32, FIXED64, LEN, VARINT, varint
from ckptstore.outside import Path, os

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Fields: TypeAlias = "dict[int, int | bytes]"

_MOST_BYTES = 1 << 20
"""Of a block: TensorFlow ends one after 256 KB."""

_LONGEST_NAME = 4096  # bytes: an entry repeats what it has in common with the one before it
_FOOTER = 48  # bytes
_MAGIC = bytes.fromhex("57fb808b247547db")
_PLAIN = 0  # the byte after a block: it is not compressed

_SHARDS, _ENDIANNESS = 1, 2  # fields of a BundleHeaderProto
_DTYPE, _SHAPE, _SHARD, _OFFSET, _SIZE, _CHECKSUM, _SLICES = range(1, 8)  # of a BundleEntryProto
_BIG = 1
_BYTES_OF = {3: 4, 9: 8}  # DT_INT32, DT_INT64

_HEADER = b""  # the name of the entry about all others
_COUNTERS = ("iterations", "_iterations", "iter")  # of Keras' optimizers, in its versions 2 and 3
_VARIABLES = {
    **{name: name for name in ("global_step", "step", "iteration", "epoch", "save_counter")},
    **{f"{above}optimizer/{name}": "optimizer_step" for above in ("", "model/") for name in _COUNTERS},
}


def read_numbers(prefix: str) -> dict[str, int]:
    """The whole numbers under these names: global_step, step, iteration, epoch, save_counter; and optimizer_step.

    `save_counter` is what `tf.train.Checkpoint.save` appends to its prefixes, `optimizer_step` the optimizer's
    counter. A number whose bytes do not have their checksum is left out: index and data may be of two saves. Raises
    `UnreadableError` where the index is none, `OSError` where it cannot be opened.
    """
    names = {  # of a graph, and of an object
        f"{variable}{ending}".encode(): name
        for variable, name in _VARIABLES.items()
        for ending in ("", "/.ATTRIBUTES/VARIABLE_VALUE")
    }
    try:
        found = {key: _fields(value) for key, value in _look_up(f"{prefix}{INDEX}", {_HEADER, *names}).items()}
        header = found.pop(_HEADER)
        told = ((names[key], _number(prefix, header, entry)) for key, entry in found.items())
        return {name: number for name, number in told if number is not None and 0 <= number <= HIGHEST}
    except (IndexError, KeyError, ValueError):
        raise UnreadableError(
            f"{prefix}{INDEX} is no index of TensorFlow that can be read", "it is cut, damaged or of another format"
        ) from None


def _look_up(path: str, wanted: set[bytes]) -> dict[bytes, bytes]:
    """The values of these names in a table. Each block that may have one is read once, and no other."""
    found: dict[bytes, bytes] = {}
    with Path(path).open("rb", buffering=0) as file:
        descriptor = file.fileno()
        footer = os.pread(descriptor, _FOOTER, max(0, os.fstat(descriptor).st_size - _FOOTER))
        if not footer.endswith(_MAGIC):
            raise ValueError("it does not end as one")
        _, _, at = _place(footer, 0)  # of the filters
        for last, place in _entries(_block(descriptor, footer, at)):
            here = {name for name in wanted if name <= last}
            if here:
                wanted = wanted - here
                found |= {name: value for name, value in _entries(_block(descriptor, place, 0)) if name in here}
            if not wanted:
                break
    return found


def _place(content: bytes, at: int) -> tuple[int, int, int]:
    """Offset and size of a block; and where they end."""
    offset, at = varint(content, at)
    size, at = varint(content, at)
    return offset, size, at


def _block(descriptor: int, content: bytes, at: int) -> bytes:
    """The block whose place is written there."""
    offset, size, _ = _place(content, at)
    if size > _MOST_BYTES or offset + size >= os.fstat(descriptor).st_size:
        raise ValueError(f"it has a block of {size} bytes at {offset}")
    block = os.pread(descriptor, size + 1, offset)
    if len(block) <= size or block[size] != _PLAIN:
        raise ValueError(f"its block at {offset} is cut or compressed")
    return block[:size]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Names and values of a block, in their order."""
    end = len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")
    name, at = b"", 0
    while at < end:
        shared, at = varint(block, at)
        added, at = varint(block, at)
        size, at = varint(block, at)
        if shared > len(name) or shared + added > _LONGEST_NAME or at + added + size > end:
            raise ValueError("an entry goes beyond its block")
        name = name[:shared] + block[at : at + added]
        at += added + size
        yield name, block[at - size : at]


def _fields(message: bytes) -> Fields:
    """The fields of a protobuf message, the last of each number."""
    found: Fields = {}
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        if key & 7 == VARINT:
            found[key >> 3], at = varint(message, at)
            continue
        if key & 7 == LEN:
            size, at = varint(message, at)
        else:
            size = {FIXED32: 4, FIXED64: 8}[key & 7]
        value = message[at : at + size]
        if len(value) < size:
            raise ValueError("an entry is cut")
        found[key >> 3] = value if key & 7 == LEN else int.from_bytes(value, "little")
        at += size
    return found


def _whole(fields: Mapping[int, int | bytes], field: int) -> int:
    value = fields.get(field, 0)
    if isinstance(value, int) and value <= HIGHEST:
        return value
    raise ValueError(f"field {field} is no number")


def _number(prefix: str, header: Fields, entry: Fields) -> int | None:
    """The number that an entry is about; None where it is about something else, or its bytes are not there."""
    size = _BYTES_OF.get(_whole(entry, _DTYPE))
    if size is None or size != _whole(entry, _SIZE) or entry.get(_SHAPE) or _SLICES in entry:  # a scalar has no shape
        return None
    try:
        data = Path(f"{prefix}.data-{_whole(entry, _SHARD):05d}-of-{_whole(header, _SHARDS):05d}")
        with data.open("rb", buffering=0) as file:
            content = os.pread(file.fileno(), size, _whole(entry, _OFFSET))
    except OSError:
        return None
    if _checksum(content) != _whole(entry, _CHECKSUM):
        return None
    return int.from_bytes(content, "big" if _whole(header, _ENDIANNESS) == _BIG else "little", signed=True)


def _checksum(content: bytes) -> int:
    """The CRC-32C of a few bytes, masked as LevelDB does."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    crc ^= 0xFFFFFFFF
    return (crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8 & 0xFFFFFFFF
