"""Puts bugs of the project's past back, one at a time, and counts the histories until the world finds each.

`python -m tests.world.past [NAME …] [--histories N]`: each is a patch in this directory, whose head tells its family
and the commit that mended it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
_TREES = ("ckptstore", "tests", "migrations")
_FOUND = re.compile(r"^history (\d+): (.+)$", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.world.past", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--histories", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    patches = [path for path in sorted(HERE.glob("*.patch")) if not asked.names or path.stem in asked.names]
    missed = 0
    print("| bug | family | histories until found | as |\n| --- | --- | --- | --- |", flush=True)
    for patch in patches:
        number, what = _search(patch, asked)
        missed += number is None
        family = patch.read_text(encoding="utf-8").partition("\n")[0].partition(": ")[2]
        told = f"more than {asked.histories}" if number is None else str(number)
        print(f"| `{patch.stem}` | {family} | {told} | {what} |", flush=True)
    return 1 if missed else 0


def _search(patch: Path, asked: argparse.Namespace) -> tuple[int | None, str]:
    """How many histories it takes until one breaks a promise, and which; None if none does."""
    with tempfile.TemporaryDirectory() as scratch:
        for name in _TREES:
            shutil.copytree(ROOT / name, Path(scratch) / name, ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run(["patch", "-s", "-p1", "-i", str(patch)], cwd=scratch, check=True)
        ran = subprocess.run(
            [
                *(sys.executable, "-m", "tests.world", "--until-found", "--histories", str(asked.histories)),
                *("--seed", str(asked.seed), "--processes", str(asked.processes)),
            ],
            cwd=scratch,
            env=os.environ | {"PYTHONPATH": scratch},
            capture_output=True,
            text=True,
            check=False,
        )
    found = [(int(number) - asked.seed + 1, what) for number, what in _FOUND.findall(ran.stdout)]
    if not found and ran.returncode:
        raise SystemExit(f"{patch.stem}: {ran.stdout}{ran.stderr}")
    return min(found, default=(None, ""))


if __name__ == "__main__":
    raise SystemExit(main())
