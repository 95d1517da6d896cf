"""A short campaign of outages; `make torture` has the one of 32 processes."""

from pathlib import Path

from tests.crash.load import load
from tests.crash.outage import campaign


def test_nothing_is_lost_while_the_server_comes_and_goes(tmp_path: Path) -> None:
    outcome = campaign(tmp_path, processes=3, saves=3, pause=0.2)
    assert outcome.wrong == []
    assert outcome.lost == 0
    assert set(outcome.returns) == {"stopped", "restarted", "paused", "connections killed", "crashed"}
    assert max(outcome.returns.values()) < float("inf")
    assert outcome.saves >= 3 * (3 * 3 + 1)


def test_more_ranks_than_the_server_has_room_for_lose_nothing(tmp_path: Path) -> None:
    """A short load; `make torture` has the one of 10,000 ranks."""
    outcome = load(tmp_path, ranks=40, processes=2, at_a_time=10, waves=1, room=8)
    assert [wave.recorded for wave in outcome.waves] == [40]
    assert outcome.waves[0].most <= 8
    assert outcome.idle == 0
