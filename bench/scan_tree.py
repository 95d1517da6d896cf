"""A first scan of 100,000 files of 1,024 ranks, compared with a bare walk: at most 1.2 times as long.

    python -m bench.scan_tree [--quick]

The walk makes a stat and reads 64 KB of each file. The files' bytes are on the disk, and not in memory, as in a real
tree. Each file is a checkpoint of 430 KB: three layers with the optimizer's state. Most of the weights are holes.
"""

from __future__ import annotations

import itertools
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bench.measure import CKPTSTORE, Budget, Found, Row, say, timed, turns
from bench.task import run_alone
from ckptstore import connect
from ckptstore.disk.name_claims import FOLDER
from tests.ckpt_bytes import value

TASK = "scan"
RANKS = 1024
FILES, QUICK_FILES = 100_000, 2000
REPEATS = 3
BUDGET = 1.2
STEPS_PER_EPOCH = 10
FLOOR = "walk, stat, read"
_WEIGHTS = {"conv1.weight": (6, 1, 5, 5), "conv2.weight": (16, 6, 5, 5), "fc1.weight": (120, 400), "fc2.bias": (10,)}


def content_of(step: int) -> Iterator[tuple[bytes, int]]:
    """The content of a checkpoint, in parts: bytes to write, and the number of zeros after them."""
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
    """Write the files, and sync them."""
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
    os.sync()


def paths_below(root: Path) -> Iterator[str]:
    for directory, _, names in os.walk(root):
        for name in names:
            yield os.path.join(directory, name)


def walk(root: Path) -> None:
    """Do the work that no scan can avoid."""
    for path in paths_below(root):
        os.stat(path)
        with open(path, "rb", buffering=0) as file:
            file.read(65536)


def from_disk(root: Path, action: Callable[[], object]) -> float:
    """The seconds of an action on a tree.

    Before that, journals of earlier scans are deleted, and the files are dropped from the page cache. So the action
    must read from the disk.
    """
    shutil.rmtree(root / FOLDER, ignore_errors=True)
    for path in paths_below(root):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    return timed(action)


def run(work: Path, *, quick: bool) -> Found:
    """Measure scans in turns with the walk. Each scan fills a new catalog."""
    found = Found()
    files = QUICK_FILES if quick else FILES
    root = work / "tree"
    say(f"{TASK}: writing {files:,} files into {RANKS:,} directories")
    make(root, files)
    catalogs = (connect(str(work / f"catalog-{number}.db")) for number in itertools.count())

    def scan() -> None:
        done = next(catalogs).scan(root, run="run", world_size=RANKS)
        assert len(done.adopted) == files, done.warnings

    ways: dict[str, Callable[[], object]] = {CKPTSTORE: scan, FLOOR: partial(walk, root)}
    taken, _ = turns({who: partial(from_disk, root, way) for who, way in ways.items()}, repeats=REPEATS, warm_up=0)
    row = found.add(Row(TASK, "first scan, from the disk, files", files, taken))
    found.check(Budget(f"first scan of {files:,} files / {FLOOR}", row.ratio(CKPTSTORE, FLOOR).median, BUDGET))
    return found


if __name__ == "__main__":
    run_alone(run)
