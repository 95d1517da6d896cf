"""`verify --digest` against the digest library alone over the same bytes, and against `cat`.

    python -m bench.verify [--quick]

The library alone is BLAKE3's own way to read a file, one after another: at least 0.8 times as fast. The files are in
memory, where nothing hides what verification itself costs. `verify` without digests, which reads headers, is shown too.
"""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

from blake3 import blake3

from bench.measure import CKPTSTORE, Budget, Found, Row, timed, turns
from bench.task import run_alone
from ckptstore.ops.connect import Catalog, connect
from ckptstore.ops.register import describe, measured
from ckptstore.ops.verify import verify
from tests.ckpt_bytes import value

TASK = "verify"
RANKS = 8
FILES = 64
QUICK_FILES = 8
MEGABYTES = 32
SPEED = 0.8
LIBRARY, CAT = "BLAKE3 alone", "cat"


def saved(home: Path, files: int, size: int) -> tuple[Catalog, list[Path]]:
    """A run of 8 ranks with so many files, of one large parameter and the optimizer's counter."""
    catalog = connect(str(home / "catalog.db"))
    paths: list[Path] = []
    ranks = [catalog.join("run", rank=rank, world_size=RANKS, launch_id="L") for rank in range(RANKS)]
    for number in range(files):
        launch, step = ranks[number % RANKS], number // RANKS + 1
        path = home / f"rank_{launch.rank}" / f"net-1_{step}.ckpt"
        path.parent.mkdir(exist_ok=True)
        weights = value("weight", "Float32", (size // 4,), os.urandom(size // 4 * 4))
        path.write_bytes(weights + value("global_step", "Int32", (1,), struct.pack("<i", step)))
        file = measured(describe(launch.facts, rank=launch.rank, path=path, kind="periodic", global_step=step))
        assert file is not None
        launch.record([file])
        paths.append(path)
    os.sync()
    return catalog, paths


def verified(catalog: Catalog, files: int, *, digest: bool) -> None:
    """What the command does before it prints."""
    done = verify(catalog.database, "run", digest=digest)
    assert (done.checked, done.damaged) == (files, ())


def digested(paths: list[Path]) -> None:
    """The digests, compared with nothing."""
    for path in paths:
        blake3().update_mmap(path).hexdigest()


def read(paths: list[Path]) -> None:
    """The bytes, through a pipe to nowhere."""
    subprocess.run(["sh", "-c", 'cat "$@" | cat >/dev/null', "sh", *paths], check=True)


def run(work: Path, *, quick: bool) -> Found:
    """With and without digests, in turn with the floors."""
    found = Found()
    files = QUICK_FILES if quick else FILES
    catalog, paths = saved(work, files, MEGABYTES * 1_000_000)
    with_digests = partial(verified, catalog, files, digest=True)
    ways: dict[str, Callable[[], None]] = {
        CKPTSTORE: with_digests,
        LIBRARY: partial(digested, paths),
        CAT: partial(read, paths),
    }
    taken, _ = turns({who: partial(timed, way) for who, way in ways.items()})
    row = found.add(Row(TASK, f"verify --digest, files of {MEGABYTES} MB", files, taken))
    ways[CKPTSTORE] = partial(verified, catalog, files, digest=False)
    taken, _ = turns({who: partial(timed, way) for who, way in ways.items() if who != CAT})
    found.add(Row(TASK, f"verify, files of {MEGABYTES} MB", files, taken))
    found.check(Budget("verify --digest / BLAKE3 alone", row.ratio(CKPTSTORE, LIBRARY).median, 1 / SPEED))
    return found


if __name__ == "__main__":
    run_alone(run)
