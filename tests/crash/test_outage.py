"""A short campaign of outages; `make torture` has the one of 32 processes."""

from __future__ import annotations

from pathlib import Path

from .outage import campaign


def test_nothing_is_lost_while_the_server_comes_and_goes(tmp_path: Path) -> None:
    outcome = campaign(tmp_path, processes=3, saves=3, pause=0.2)
    assert outcome.wrong == []
    assert outcome.lost == 0
    assert set(outcome.returns) == {"stopped", "restarted", "paused", "connections killed", "crashed"}
    assert max(outcome.returns.values()) < float("inf")
    assert outcome.saves >= 3 * (3 * 3 + 1)
