"""Runs all measurements, one after the other, each in its own process.

    python -m bench            results.json, RESULTS.md, growth.png, docs/explanation/figures.md; half an hour or more
    python -m bench --quick    the same below build/bench, with small sizes; about 2 minutes; changes no other file
    python -m bench --only resolve record    runs these tasks; takes the others from the last run on this machine

The exit code is 1 if a budget is broken or a task fails. If a task fails, no results are written.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench import machine, report, results
from bench.measure import say
from bench.worker import PEERS, ROOT, environment

if TYPE_CHECKING:
    from collections.abc import Sequence

TASKS = (
    "correctness",
    "commands",
    "record",
    "training",
    "copying",
    "loop",
    "save",
    "saver",
    "resume",
    "past",
    "restore",
    "states",
    "resolve",
    "inspect_file",
    "verify",
    "collect",
    "scan_tree",
    "registry",
    "serve",
)
QUICK_OUT = ROOT / "build" / "bench"


def run(out: Path, only: Sequence[str], *, quick: bool) -> tuple[results.Results, list[str]]:
    """Run these tasks; the newest results of all tasks, and the names of the tasks that failed."""
    collected = results.Collected()
    for task in TASKS:
        path = out / f"{task}.json"
        if task in only:
            say(f"== {task}")
            began = time.monotonic()
            path.unlink(missing_ok=True)
            command = [sys.executable, "-m", f"bench.{task}", "--out", str(path), *(["--quick"] if quick else [])]
            subprocess.run(command, check=False, cwd=ROOT, env=environment())
            say(f"== {task} took {time.monotonic() - began:.0f} s\n")
        if path.exists():
            collected.take(results.read_found(path))
        else:
            collected.failed.append(task)
    found = results.Results(
        quick=quick,
        machine=machine.describe(out),
        versions=machine.versions(),
        rows=collected.rows,
        budgets=collected.budgets,
        verdicts=collected.verdicts,
    )
    return found, collected.failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, written to build/bench")
    parser.add_argument("--only", nargs="+", choices=TASKS, default=TASKS, help="measure these again")
    asked = parser.parse_args()
    quick = asked.quick
    parts = QUICK_OUT / "quick" if quick else QUICK_OUT / "full"
    parts.mkdir(parents=True, exist_ok=True)
    found, failed = run(parts, asked.only, quick=quick)
    home = QUICK_OUT if quick else results.HERE
    if not failed:
        results.write(found, home / results.RESULTS.name)
        (home / "RESULTS.md").write_text(report.whole(found))
        subprocess.run([PEERS, "-m", "bench.plot", str(home / results.RESULTS.name)], check=True, cwd=ROOT)
        if not quick:
            report.put_into_page(found)
        say(f"written: RESULTS.md beside {home.relative_to(ROOT) / results.RESULTS.name}")
    for budget in found.budgets:
        say(str(budget))
    if failed:
        say(f"FAILED: {', '.join(failed)}")
    return 1 if failed or not all(budget.kept for budget in found.budgets) else 0


if __name__ == "__main__":
    sys.exit(main())
