"""A file is read once into given memory, in pieces of 4 MiB or 1,024 views, and its digest is that of all its bytes."""

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from blake3 import blake3

from ckptstore.disk.reading import read_into


def read(path: Path, sizes: Sequence[int]) -> tuple[bytes, str, list[int]]:
    """What came into views of these sizes, the digest, and the end of each piece."""
    memory, ends = bytearray(sum(sizes)), list[int]()
    views, begin = [], 0
    for size in sizes:
        views.append(memoryview(memory)[begin : begin + size])
        begin += size
    descriptor = os.open(path, os.O_RDONLY)
    try:
        digest = read_into(descriptor, views, ends.append)
        return bytes(memory), digest, ends
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("sizes", "pieces"),
    [
        ([9 << 20], [4 << 20, 8 << 20, 9 << 20]),
        ([10] * 2500, [10240, 20480, 25000]),
        ([5, 0, 4 << 20, 7], [4 << 20, (4 << 20) + 12]),
        ([4 << 20], [4 << 20]),
        ([], []),
    ],
    ids=["large", "many small", "mixed", "exactly one piece", "empty"],
)
def test_each_view_gets_its_bytes(tmp_path: Path, sizes: Sequence[int], pieces: Sequence[int]) -> None:
    path = tmp_path / "file"
    content = random.Random(1).randbytes(sum(sizes))  # noqa: S311
    path.write_bytes(content)
    memory, digest, ends = read(path, sizes)
    assert memory == content
    assert (digest, ends) == (blake3(content).hexdigest(), pieces)


@pytest.mark.parametrize(("length", "message"), [(99, "it ends at byte 99"), (101, "more follows byte 100")])
def test_a_file_of_another_length(tmp_path: Path, length: int, message: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(length))
    with pytest.raises(EOFError, match=message):
        read(path, [60, 40])
