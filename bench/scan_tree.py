"""A scan of 100,000 files in 1,024 rank directories against the bare walk with one stat and one 64 KB read a file.

    python bench/scan_tree.py [FILES]

At least half as fast, of files that are on the disk and not in memory, as those of a real tree are; and, without a
budget, of files in memory, and the second scan, of what is known already. The files are those of a network of three
layers with its optimizer's state, 430 KB each, holes where most of the weights would be.
"""

from __future__ import annotations

import os
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ratios import ratio

sys.path.insert(0, str(Path(__file__).parents[1]))
from ckptstore.ops.connect import connect
from ckptstore.ops.scan import scan
from tests.ckpt_bytes import value

RANKS = 1024
FILES = 100_000
STEPS_PER_EPOCH = 10
SPEED = 0.5
_WEIGHTS = {"conv1.weight": (6, 1, 5, 5), "conv2.weight": (16, 6, 5, 5), "fc1.weight": (120, 400), "fc2.bias": (10,)}


def content_of(step: int) -> Iterator[tuple[bytes, int]]:
    """The bytes of a checkpoint: what is written, and how many zeros follow it."""
    for prefix in ("", "moments."):
        for name, shape in _WEIGHTS.items():
            zeros = bytes(4)
            for size in shape:
                zeros *= size
            whole = value(prefix + name, "Float32", shape, zeros)
            yield whole[: -len(zeros)], len(zeros)
    yield value("learning_rate", "Float32", (), struct.pack("<f", 0.1)), 0
    yield value("momentum", "Float32", (), struct.pack("<f", 0.9)), 0
    yield value("global_step", "Int32", (1,), struct.pack("<i", step)), 0
    yield value("epoch_num", "Int64", (), struct.pack("<q", step // STEPS_PER_EPOCH + 1)), 0


def make(root: Path, files: int) -> None:
    made = 0
    for step in range(1, files // RANKS + 2):
        content = list(content_of(step))
        epoch, step_in_epoch = (step - 1) // STEPS_PER_EPOCH + 1, (step - 1) % STEPS_PER_EPOCH + 1
        for rank in range(min(RANKS, files - made)):
            home = root / f"rank_{rank}"
            home.mkdir(exist_ok=True, parents=True)
            with (home / f"net-{epoch}_{step_in_epoch}.ckpt").open("wb") as file:
                for written, zeros in content:
                    file.write(written)
                    file.seek(zeros, os.SEEK_CUR)
            made += 1


def bare(root: Path) -> int:
    read = 0
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            os.stat(path)
            with open(path, "rb", buffering=0) as file:
                read += len(file.read(65536))
    return read


def forget(root: Path) -> None:
    """Have the system forget the files' bytes, those that are written to the disk."""
    for directory, _, names in os.walk(root):
        for name in names:
            descriptor = os.open(os.path.join(directory, name), os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def main() -> int:
    files = int(sys.argv[1]) if len(sys.argv) > 1 else FILES
    with tempfile.TemporaryDirectory() as work:
        root = Path(work) / "tree"
        make(root, files)
        os.sync()
        print(f"{files} files in {RANKS} directories", flush=True)
        turn = iter(range(1000))

        def fresh() -> None:
            catalog = connect(str(Path(work) / f"catalog-{next(turn)}.db"))
            done = scan(catalog.database, root, run="run", world_size=RANKS)
            assert len(done.adopted) == files, done.warnings

        first = ratio(
            "first scan / bare walk, from disk", fresh, lambda: bare(root), repeats=3, prepare=lambda: forget(root)
        )
        print(first, flush=True)
        print(ratio("first scan / bare walk, from memory", fresh, lambda: bare(root), repeats=3), flush=True)
        known = connect(str(Path(work) / "known.db"))
        scan(known.database, root, run="run", world_size=RANKS)
        again = ratio(
            "second scan / bare walk, from memory",
            lambda: scan(known.database, root, run="run", world_size=RANKS),
            lambda: bare(root),
            repeats=3,
        )
        print(again)
    kept = first.median * SPEED <= 1
    print("within the budget" if kept else "OVER THE BUDGET")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
