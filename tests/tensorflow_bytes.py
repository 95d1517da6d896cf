"""Checkpoints of TensorFlow, made without it: `tests/frameworks` holds those of the real one against the reader too."""

from pathlib import Path

from ckptstore.formats.tensorflow import _checksum
from tests.ckpt_bytes import field, varint

MAGIC = bytes.fromhex("57fb808b247547db")
INT32, INT64 = (3, 4), (9, 8)
OBJECT = "/.ATTRIBUTES/VARIABLE_VALUE"


def number(key: int, value: int) -> bytes:
    return varint(key << 3) + varint(value)


def entry(offset: int, content: bytes, *, dtype: int, shape: bytes = b"", shard: int = 0) -> bytes:
    """A BundleEntryProto: as proto3 does, a field that is 0 is left out."""
    told = number(1, dtype) + field(2, shape)
    told += number(3, shard) if shard else b""
    told += number(4, offset) if offset else b""
    return told + number(5, len(content)) + varint(6 << 3 | 5) + _checksum(content).to_bytes(4, "little")


def block(entries: list[tuple[bytes, bytes]], *, restart: int = 16) -> bytes:
    """A block of LevelDB, and what follows each: no compression, and a checksum that nobody reads here."""
    made, restarts, before = b"", [], b""
    for place, (name, value) in enumerate(entries):
        shared = 0
        if place % restart == 0:
            restarts.append(len(made))
        else:
            while shared < min(len(name), len(before)) and name[shared] == before[shared]:
                shared += 1
        made += varint(shared) + varint(len(name) - shared) + varint(len(value)) + name[shared:] + value
        before = name
    tail = [*(restarts or [0]), len(restarts or [0])]
    return made + b"".join(each.to_bytes(4, "little") for each in tail) + bytes(5)


def table(entries: dict[bytes, bytes], *, in_a_block: int = 1000) -> bytes:
    """An SSTable."""
    pairs = sorted(entries.items())
    made, places = b"", []
    for begin in range(0, len(pairs), in_a_block):
        some = pairs[begin : begin + in_a_block]
        content = block(some)
        places.append((some[-1][0], varint(len(made)) + varint(len(content) - 5)))
        made += content
    filters, index = block([]), block(places, restart=1)
    footer = varint(len(made)) + varint(len(filters) - 5)
    footer += varint(len(made) + len(filters)) + varint(len(index) - 5)
    return made + filters + index + footer.ljust(40, b"\0") + MAGIC


def numbers(
    numbers: dict[str, int],
    *,
    of: tuple[int, int] = INT64,
    shards: int = 1,
    is_big: bool = False,
    in_a_block: int = 1000,
) -> tuple[bytes, list[bytes]]:
    """An index with these variables beside some tensors, and the data of each shard. Numbers are in the last one."""
    dtype, size = of
    weights, data = bytes(40), b"before"
    entries = {b"": number(1, shards) + (number(2, 1) if is_big else b"") + field(3, number(1, 1))}
    for layer in range(20):
        entries[f"net/{layer}/kernel{OBJECT}".encode()] = entry(0, weights, dtype=1, shape=field(2, number(1, 10)))
    for name, value in numbers.items():
        content = value.to_bytes(size, "big" if is_big else "little", signed=True)
        entries[name.encode()] = entry(len(data), content, dtype=dtype, shard=shards - 1)
        data += content
    return table(entries, in_a_block=in_a_block), [weights] * (shards - 1) + [data]


def checkpoint(prefix: Path, values: dict[str, int], **facts: object) -> Path:
    """The files of a prefix."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    index, data = numbers(values, **facts)  # type: ignore[arg-type]
    prefix.with_name(f"{prefix.name}.index").write_bytes(index)
    for shard, content in enumerate(data):
        prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{len(data):05d}").write_bytes(content)
    return prefix
