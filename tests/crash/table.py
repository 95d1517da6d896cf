"""The table of what campaigns did and found: a row each."""

from __future__ import annotations

from dataclasses import dataclass

HEADER = ("what", "how often", "lost", "wrong plans", "seconds")


@dataclass(frozen=True)
class Row:
    """What was done, how often, how many records were lost and plans wrong, and how long it took, in seconds."""

    what: str
    times: int
    lost: int
    wrong_plans: int
    seconds: int

    def __str__(self) -> str:
        cells = (self.what, f"{self.times:,}", self.lost, self.wrong_plans, f"{self.seconds:,}")
        return f"| {' | '.join(map(str, cells))} |"


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    return "\n".join([f"| {' | '.join(HEADER)} |", "| --- | ---: | ---: | ---: | ---: |", *map(str, rows)])
