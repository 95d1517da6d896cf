"""A scan of 100,000 files in 1,024 rank directories against the bare walk with one stat and one 64 KB read a file.

    python bench/scan_tree.py

At least half as fast; the second scan, of what is known already, is shown too.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from ratios import ratio

sys.path.insert(0, str(Path(__file__).parents[1]))
from ckptstore.ops.connect import connect
from ckptstore.ops.scan import scan
from tests.ckpt_bytes import checkpoint

RANKS = 1024
FILES = 100_000
STEPS_PER_EPOCH = 10
SPEED = 0.5


def make(root: Path) -> int:
    count = 0
    for step in range(1, FILES // RANKS + 2):
        content = checkpoint(step)
        epoch, step_in_epoch = (step - 1) // STEPS_PER_EPOCH + 1, (step - 1) % STEPS_PER_EPOCH + 1
        for rank in range(RANKS):
            if count == FILES:
                return count
            home = root / f"rank_{rank}"
            home.mkdir(exist_ok=True, parents=True)
            (home / f"net-{epoch}_{step_in_epoch}.ckpt").write_bytes(content)
            count += 1
    return count


def bare(root: Path) -> int:
    read = 0
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            os.stat(path)
            with open(path, "rb", buffering=0) as file:
                read += len(file.read(65536))
    return read


def main() -> int:
    with tempfile.TemporaryDirectory() as work:
        root = Path(work) / "tree"
        print(f"{make(root)} files in {RANKS} directories")
        turn = iter(range(1000))

        def fresh() -> None:
            catalog = connect(str(Path(work) / f"catalog-{next(turn)}.db"))
            done = scan(catalog.database, root, run="run", world_size=RANKS)
            assert len(done.adopted) == FILES, done.warnings

        known = connect(str(Path(work) / "known.db"))
        scan(known.database, root, run="run", world_size=RANKS)
        first = ratio("first scan / bare walk", fresh, lambda: bare(root), repeats=3)
        again = ratio(
            "second scan / bare walk",
            lambda: scan(known.database, root, run="run", world_size=RANKS),
            lambda: bare(root),
            repeats=3,
        )
        print(first)
        print(again)
    kept = first.median * SPEED <= 1
    print("within the budget" if kept else "OVER THE BUDGET")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
