"""Writes `.ckpt` files byte by byte, for tests that need many of them or broken ones."""

import struct
from pathlib import Path


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def value(name: str, dtype: str, shape: tuple[int, ...], content: bytes) -> bytes:
    dims = b"".join(varint(1 << 3) + varint(size) for size in shape)
    tensor = dims + field(2, dtype.encode()) + field(3, content)
    return field(1, field(1, name.encode()) + field(2, tensor))


def checkpoint(optimizer_step: int, weight: float = 1.0) -> bytes:
    """A network of one weight of four floats, its optimizer's counter, and an appended `step_num`."""
    return (
        value("weight", "Float32", (2, 2), struct.pack("<4f", *[weight] * 4))
        + value("global_step", "Int32", (1,), struct.pack("<i", optimizer_step))
        + value("step_num", "Int64", (), struct.pack("<q", optimizer_step))
    )


def write(path: Path, optimizer_step: int, weight: float = 1.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(checkpoint(optimizer_step, weight))
    return path
