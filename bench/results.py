"""The results of a run, as they are kept in `results.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.measure import Budget, Found, Row, Verdict

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"


@dataclass(frozen=True)
class Results:
    """All results of one run, and the machine."""

    quick: bool
    machine: str
    versions: Mapping[str, str]
    rows: Sequence[Row] = ()
    budgets: Sequence[Budget] = ()
    verdicts: Sequence[Verdict] = ()

    def of(self, task: str) -> list[Row]:
        """The rows of one task, in the order they were measured."""
        return [row for row in self.rows if row.task == task]


@dataclass
class Collected(Found):
    """The results of several tasks."""

    failed: list[str] = field(default_factory=list)

    def take(self, found: Found) -> None:
        """Add the results of one task."""
        self.rows += found.rows
        self.budgets += found.budgets
        self.verdicts += found.verdicts


def write(found: Found | Results, path: Path) -> None:
    """Write results. Seconds have five digits, more than their precision."""
    values = asdict(found)
    for row in values["rows"]:
        row["seconds"] = {who: [float(f"{one:.5g}") for one in taken] for who, taken in row["seconds"].items()}
    for budget in values["budgets"]:
        budget["value"] = float(f"{budget['value']:.5g}")
    path.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n")


def read_found(path: Path) -> Found:
    """Read the results that a task wrote."""
    return Found(**_parsed(json.loads(path.read_text())))


def read(path: Path = RESULTS) -> Results | None:
    """Read the results of the last complete run; None if there was none."""
    if not path.exists():
        return None
    values = json.loads(path.read_text())
    return Results(**{**values, **_parsed(values)})


def _parsed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "rows": [Row(**row) for row in values["rows"]],
        "budgets": [Budget(**budget) for budget in values["budgets"]],
        "verdicts": [Verdict(**verdict) for verdict in values["verdicts"]],
    }
