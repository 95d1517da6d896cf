"""Runs a measurement as a script of its own."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Protocol

from bench import results
from bench.measure import Found, say


class Task(Protocol):
    """A function that measures. It may fill the directory `work`. `quick`: with small sizes."""

    def __call__(self, work: Path, *, quick: bool) -> Found: ...


def run_alone(task: Task) -> None:
    """Run one task from the command line. The exit code is 1 if a budget is broken."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--out", type=Path, help="write what was found as JSON")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        os.environ["CKPTSTORE_URL"] = str(Path(work) / "catalog.db")  # never the user's own
        found = task(Path(work), quick=asked.quick)
    if asked.out:
        results.write(found, asked.out)
    kept = all(budget.kept for budget in found.budgets)
    say("within the budgets" if kept else "OVER A BUDGET")
    sys.exit(0 if kept else 1)
