"""Puts bugs of the project's past back, and counts the histories until the world finds each.

`python -m tests.world.past [NAME …] [--histories N]`: each is a patch in this directory, whose head tells its family
and the commit that mended it. `--scripts` runs no histories, but for each bug the script in `scripts.py` that shows it.

A history is run with all bugs at once that were not found yet. Only one that breaks a promise so is run again with each
bug alone, and with none.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
_TREES = ("ckptstore", "tests", "migrations")
_FOUND = re.compile(r"^history (\d+): (.+)$", re.MULTILINE)
_PORTION = 200
_BEGIN, _END = "<!-- python -m tests.world.past: begin -->", "<!-- python -m tests.world.past: end -->"
_PAGE = ROOT / "docs/explanation/simulation.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.world.past", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--histories", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--scripts", action="store_true", help="see that each patch still puts its bug back")
    parser.add_argument("--write", action="store_true", help=f"write the table into {_PAGE.name}")
    asked = parser.parse_args()
    patches = [path for path in sorted(HERE.glob("*.patch")) if not asked.names or path.stem in asked.names]
    if asked.scripts:
        return _run_scripts(patches)
    found, ran = _search(patches, asked)
    table = _table(patches, found, ran)
    print(table)
    if asked.write:
        before, _, rest = _PAGE.read_text(encoding="utf-8").partition(_BEGIN)
        _PAGE.write_text(f"{before}{_BEGIN}\n{table}\n{_END}{rest.partition(_END)[2]}", encoding="utf-8")
    return 1 if len(found) < len(patches) else 0


def _table(patches: Sequence[Path], found: dict[Path, int], ran: int) -> str:
    lines = ["| bug | family | histories until found |", "| --- | --- | ---: |"]
    for patch in patches:
        family = patch.read_text(encoding="utf-8").partition("\n")[0].partition(": ")[2]
        told = f"{found[patch]:,}" if patch in found else f"not within {ran:,}"
        lines.append(f"| `{patch.stem}` | {family} | {told} |")
    return "\n".join(lines)


def _run_scripts(patches: Sequence[Path]) -> int:
    """Print which promise each bug's script breaks; 1 if one breaks none."""
    missed = 0
    for patch in patches:
        with _patched([patch]) as (copy, _):
            ran = _run(copy, "tests.world.past.scripts", patch.stem)
        if ran.stderr:
            raise SystemExit(f"{patch.stem}: {ran.stderr}")
        missed += not ran.returncode
        print(f"{patch.stem}: {ran.stdout.strip() or 'breaks no promise'}", flush=True)
    return 1 if missed else 0


def _search(patches: Sequence[Path], asked: argparse.Namespace) -> tuple[dict[Path, int], int]:
    """How many histories it takes until one breaks a promise that it keeps without the bug; and how many were run."""
    found: dict[Path, int] = {}
    for seeds in _portions(asked.seed, asked.seed + asked.histories):
        left = [patch for patch in patches if patch not in found]
        broken: set[int] = set()
        while left:
            with _patched(left) as (copy, applied):
                broken |= _broken(copy, seeds, asked.processes).keys()
            left = [patch for patch in left if patch not in applied]
        without = _broken(str(ROOT), broken, asked.processes)
        for number, what in without.items():
            print(f"history {number} breaks a promise without any bug: {what}", flush=True)
        for patch in [patch for patch in patches if patch not in found]:
            with _patched([patch]) as (copy, _):
                own = _broken(copy, broken - without.keys(), asked.processes)
            if own:
                found[patch] = min(own) - asked.seed + 1
                print(f"{patch.stem}: {found[patch]}: {own[min(own)]}", flush=True)
        print(f"{seeds[-1] + 1 - asked.seed} histories: {len(found)} of {len(patches)} found", flush=True)
        if len(found) == len(patches):
            return found, seeds[-1] + 1 - asked.seed
    return found, asked.histories


def _portions(begin: int, end: int) -> Iterator[range]:
    """Few histories first: with the bugs that are found at once, hardly any keeps all promises."""
    size = 5
    while begin < end:
        yield range(begin, min(begin + size, end))
        begin, size = begin + size, min(2 * size, _PORTION)


@contextmanager
def _patched(patches: Sequence[Path]) -> Iterator[tuple[str, list[Path]]]:
    """A copy of the sources with the bugs, and those of them that can be there together."""
    with tempfile.TemporaryDirectory() as copy:
        for name in _TREES:
            shutil.copytree(ROOT / name, Path(copy) / name, ignore=shutil.ignore_patterns("__pycache__"))
        applied = []
        for patch in patches:
            command = ["patch", "-s", "-p1", "-F0", "-i", str(patch)]
            can = subprocess.run([*command, "--dry-run"], cwd=copy, capture_output=True, check=False)
            if not applied or not can.returncode:
                subprocess.run(command, cwd=copy, check=True)
                applied.append(patch)
        yield copy, applied


def _broken(tree: str, seeds: Collection[int], processes: int) -> dict[int, str]:
    """Of these histories, those that break a promise, and which."""
    if not seeds:
        return {}
    ran = _run(tree, "tests.world", "--processes", str(processes), "--only", *map(str, sorted(seeds)))
    broken = {int(number): what for number, what in _FOUND.findall(ran.stdout)}
    if ran.returncode and not broken:
        raise SystemExit(f"{ran.stdout}{ran.stderr}")
    return broken


def _run(tree: str, module: str, *options: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": tree, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", module, *options]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    raise SystemExit(main())
