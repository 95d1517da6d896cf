"""A scan of 10,000 and of 100,000 files of 1,024 ranks against the bare walk with a stat and a read of 64 KB a file.

    python -m bench.scan_tree [--quick]

Of files that are on the disk and not in memory, as those of a real tree are; of files in memory; of 100,000 as they are
when they were just written; and the second scan, of what is known already. The files are those of a network of three
layers with its optimizer's state, 430 KB each, holes where most of the weights would be.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bench.measure import CKPTSTORE, Found, Row, say, timed, turns
from bench.task import run_alone
from ckptstore.ops.connect import Catalog, connect
from tests.ckpt_bytes import value

TASK = "scan"
RANKS = 1024
FILES = 10_000
MANY_FILES = 100_000
ALLOWANCE = 30.0
STEPS_PER_EPOCH = 10
QUICK_FILES = 500
FLOOR = "walk, stat, read"
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


class Tree:
    """Files in directories, scanned into one new catalog after the other, and into one that knows them."""

    def __init__(self, work: Path, files: int) -> None:
        say(f"{TASK}: writing {files:,} files into {RANKS:,} directories")
        self.files = files
        self.root = work / f"tree-{files}"
        self._catalogs = (work / f"catalog-{files}-{number}.db" for number in itertools.count())
        make(self.root, files)
        os.sync()
        self._known: Catalog | None = None

    def first(self) -> None:
        """A scan into a new catalog."""
        self._known = connect(str(next(self._catalogs)))
        done = self._known.scan(self.root, run="run", world_size=RANKS)
        assert len(done.adopted) == self.files, done.warnings

    def second(self) -> None:
        """A scan of what the newest catalog knows."""
        assert self._known is not None
        assert not self._known.scan(self.root, run="run", world_size=RANKS).adopted

    def walk(self) -> None:
        """What no scan can do without."""
        assert bare(self.root)

    def from_disk(self, action: Callable[[], object]) -> float:
        """The seconds of an action that has to read from the disk."""
        forget(self.root)
        return timed(action)

    def from_memory(self, action: Callable[[], object]) -> float:
        """The seconds of an action whose files were read just before: a system may soon forget what nobody reads."""
        self.walk()
        return timed(action)


def run(work: Path, *, quick: bool) -> Found:
    """From the disk and from memory; then many files, as often as there is time for."""
    found = Found()
    tree = Tree(work, QUICK_FILES if quick else FILES)
    _measure("from the disk", tree, tree.from_disk, found)
    _measure("from memory", tree, tree.from_memory, found)
    if not quick:
        many = Tree(work, MANY_FILES)
        _measure("just written", many, timed, found)
    return found


def _measure(where: str, tree: Tree, run_one: Callable[[Callable[[], object]], float], found: Found) -> None:
    taken, notes = turns(
        {
            "second": partial(run_one, tree.second),  # the first turns begin with the last one
            "first": partial(run_one, tree.first),
            FLOOR: partial(run_one, tree.walk),
        },
        allowance=ALLOWANCE,
    )
    for which in ("first", "second"):
        seconds = {CKPTSTORE: taken[which], FLOOR: taken[FLOOR]}
        noted = {CKPTSTORE: notes[which]} if which in notes else {}
        found.add(Row(TASK, f"{which} scan, {where}, files", tree.files, seconds, noted))


if __name__ == "__main__":
    run_alone(run)
