"""The one call of pandas that a page makes, where pandas is not installed."""

from __future__ import annotations

from typing import Any


class DataFrame:
    """Rows, and whether what is drawn is in each."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def plot(self, x: str, y: str) -> None:
        """Look that each row has both."""
        assert self.rows
        assert all(x in row and y in row for row in self.rows)
