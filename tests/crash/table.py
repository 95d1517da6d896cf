"""The table of what campaigns did and found: a row each."""

from dataclasses import dataclass

HEADER = ("what", "how often", "lost", "wrong plans", "seconds")


@dataclass(frozen=True)
class Row:
    """What was done, how often, how many records were lost and plans wrong, and how long it took, in seconds.

    `wrong_plans` is None where none was made.
    """

    what: str
    times: int
    lost: int
    wrong_plans: int | None
    seconds: int

    def __str__(self) -> str:
        wrong_plans = "–" if self.wrong_plans is None else self.wrong_plans
        cells = (self.what, f"{self.times:,}", self.lost, wrong_plans, f"{self.seconds:,}")
        return f"| {' | '.join(map(str, cells))} |"


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    return "\n".join([f"| {' | '.join(HEADER)} |", "| --- | ---: | ---: | ---: | ---: |", *map(str, rows)])
