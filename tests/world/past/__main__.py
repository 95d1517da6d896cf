"""Puts bugs of the project's past back, one at a time, and counts the histories until the world finds each.

`python -m tests.world.past [NAME …] [--histories N]`: each is a patch in this directory, whose head tells its family
and the commit that mended it. `--scripts` runs no histories, but for each bug the script in `scripts.py` that shows it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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
    parser.add_argument("--scripts", action="store_true", help="see that each patch still puts its bug back")
    asked = parser.parse_args()
    patches = [path for path in sorted(HERE.glob("*.patch")) if not asked.names or path.stem in asked.names]
    missed = 0
    print("| bug | family | histories until found | as |\n| --- | --- | --- | --- |", flush=True)
    for patch in patches:
        with _patched(patch) as copy:
            number, what = _script(copy, patch.stem) if asked.scripts else _search(copy, asked)
        missed += number is None
        family = patch.read_text(encoding="utf-8").partition("\n")[0].partition(": ")[2]
        told = f"more than {asked.histories}" if number is None else "script" if asked.scripts else str(number)
        print(f"| `{patch.stem}` | {family} | {told} | {what} |", flush=True)
    return 1 if missed else 0


@contextmanager
def _patched(patch: Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as copy:
        for name in _TREES:
            shutil.copytree(ROOT / name, Path(copy) / name, ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run(["patch", "-s", "-p1", "-i", str(patch)], cwd=copy, check=True)
        yield copy


def _script(copy: str, name: str) -> tuple[int | None, str]:
    """0 and which promise the bug's script breaks; None if it breaks none."""
    ran = _run(copy, "tests.world.past.scripts", name)
    if ran.stderr:
        raise SystemExit(f"{name}: {ran.stderr}")
    return (0 if ran.returncode else None), ran.stdout.strip()


def _search(copy: str, asked: argparse.Namespace) -> tuple[int | None, str]:
    """How many histories it takes until one breaks a promise that it keeps without the bug; None if none does."""
    begin, end = asked.seed, asked.seed + asked.histories
    while begin < end:
        options = ("--histories", str(end - begin), "--seed", str(begin), "--processes", str(asked.processes))
        ran = _run(copy, "tests.world", "--until-found", *options)
        found = [(int(number), what) for number, what in _FOUND.findall(ran.stdout)]
        if not found:
            if ran.returncode:
                raise SystemExit(f"{ran.stdout}{ran.stderr}")
            break
        number, what = min(found)
        without = _run(str(ROOT), "tests.world", "--histories", "1", "--seed", str(number), "--processes", "1")
        if not without.returncode:
            return number - asked.seed + 1, what
        begin = number + 1
    return None, ""


def _run(tree: str, module: str, *options: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": tree, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", module, *options]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    raise SystemExit(main())
