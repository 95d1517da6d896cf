"""`verify --digest`, compared with the digest library alone on the same bytes: at least 0.8 times as fast.

    python -m bench.verify [--quick]

The library reads one file after another with its own function. The files are in memory, so that no disk hides the cost
of the verification itself.
"""

from __future__ import annotations

import os
import struct
from functools import partial
from pathlib import Path

from blake3 import blake3

from bench.measure import CKPTSTORE, Budget, Found, Row, timed, turns
from bench.task import run_alone
from ckptstore import Catalog, connect
from tests.ckpt_bytes import value

TASK = "verify"
RANKS = 8
FILES, QUICK_FILES = 64, 8
MEGABYTES = 32
SPEED = 0.8
FLOOR = "BLAKE3 alone"


def saved(home: Path, files: int, size: int) -> tuple[Catalog, list[Path]]:
    """A run of 8 ranks with so many files. Each file has one large parameter and the optimizer's counter."""
    catalog = connect(str(home / "catalog.db"))
    paths: list[Path] = []
    ranks = [catalog.join("run", rank=rank, world_size=RANKS, launch_id="L") for rank in range(RANKS)]
    for number in range(files):
        launch, step = ranks[number % RANKS], number // RANKS + 1
        path = home / f"rank_{launch.rank}" / f"net-1_{step}.ckpt"
        path.parent.mkdir(exist_ok=True)
        weights = value("weight", "Float32", (size // 4,), os.urandom(size // 4 * 4))
        path.write_bytes(weights + value("global_step", "Int32", (1,), struct.pack("<i", step)))
        launch.register(path, global_step=step)
        paths.append(path)
    os.sync()
    return catalog, paths


def verified(catalog: Catalog, files: int) -> None:
    """Do the work of the command before it prints."""
    done = catalog.verify("run", digest=True)
    assert (done.checked, done.damaged) == (files, ())


def digested(paths: list[Path]) -> None:
    """Compute the digests only."""
    for path in paths:
        blake3().update_mmap(path).hexdigest()


def run(work: Path, *, quick: bool) -> Found:
    """Measure in turns with the library."""
    found = Found()
    files = QUICK_FILES if quick else FILES
    catalog, paths = saved(work, files, MEGABYTES * 1_000_000)
    ways = {CKPTSTORE: partial(verified, catalog, files), FLOOR: partial(digested, paths)}
    taken, _ = turns({who: partial(timed, way) for who, way in ways.items()})
    row = found.add(Row(TASK, f"verify --digest, files of {MEGABYTES} MB", files, taken))
    found.check(Budget(f"speed of verify --digest / {FLOOR}", row.ratio(FLOOR, CKPTSTORE).median, SPEED, at_least=True))
    return found


if __name__ == "__main__":
    run_alone(run)
