"""`verify --digest` against the digest library alone over the same bytes, at least 0.8 times as fast; and `cat`.

    python bench/verify.py [--files 64] [--megabytes 32] [--cold]

The library alone is BLAKE3's own way to read a file, one after another. Files are in memory, where nothing hides what
verification itself costs; with `--cold` the system is asked to forget them before each turn. `verify` without digests,
which reads headers, is shown too.
"""

from __future__ import annotations

import argparse
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from blake3 import blake3
from ratios import ratio

sys.path.insert(0, str(Path(__file__).parents[1]))
from ckptstore.ops.connect import Catalog, connect
from ckptstore.ops.register import describe, measured
from ckptstore.ops.verify import verify
from tests.ckpt_bytes import value

RANKS = 8
SPEED = 0.8


def saved(home: Path, files: int, size: int) -> tuple[Catalog, list[Path]]:
    """A run of 8 ranks with so many files, of one large parameter and the optimizer's counter."""
    catalog = connect(str(home / "catalog.db"))
    paths = []
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


def forget(paths: list[Path]) -> None:
    """Have the system forget the files' bytes."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--megabytes", type=float, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cold", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        catalog, paths = saved(Path(work), asked.files, int(asked.megabytes * 1e6))
        print(f"{asked.files} files of {asked.megabytes:g} MB, {'from disk' if asked.cold else 'in memory'}")

        def ours() -> None:
            done = verify(catalog.database, "run", digest=True)
            assert (done.checked, done.damaged) == (asked.files, ())

        def library() -> None:
            for path in paths:
                blake3().update_mmap(path).hexdigest()

        def cat() -> None:
            subprocess.run(["sh", "-c", 'cat "$@" | cat >/dev/null', "sh", *paths], check=True)

        def prepare() -> None:
            if asked.cold:
                forget(paths)

        found = ratio("verify --digest / BLAKE3 alone", ours, library, repeats=asked.repeats, prepare=prepare)
        print(found)
        print(ratio("verify --digest / cat", ours, cat, repeats=asked.repeats, prepare=prepare))
        print(ratio("verify / BLAKE3 alone", lambda: verify(catalog.database, "run"), library, repeats=asked.repeats))
        rate = asked.files * asked.megabytes / found.subject_seconds
        print(f"{rate:,.0f} MB/s; {1 / found.median:.2f} times as fast as BLAKE3 alone")
    kept = found.median * SPEED <= 1
    print("within the budget" if kept else "OVER THE BUDGET")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
