"""Which ranks stopped saving, and whether all of them did."""

from datetime import datetime, timedelta, timezone

import pytest

from ckptstore.doctor.check_launch import is_overdue, laggards, usual_pause

T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("ranks", "last", "behind"),
    [
        ([0, 1], {0: 40, 1: 40}, {}),
        ([0, 1], {0: 40, 1: 30}, {30: [1]}),
        ([0, 1, 2], {0: 40, 1: 30, 2: 10}, {10: [2], 30: [1]}),
        ([0, 1, 2], {0: 40}, {None: [1, 2]}),
        ([0], {0: 25}, {25: [0]}),
        ([], {}, {}),
    ],
)
def test_laggards(ranks: list[int], last: dict[int, int], behind: dict[int | None, list[int]]) -> None:
    found = laggards(ranks, last, 40)
    assert list(found.items()) == list(laggards(reversed(ranks), last, 40).items()) == list(behind.items())


def moments(*minutes: float) -> list[datetime]:
    return [T0 + timedelta(minutes=each) for each in minutes]


def test_the_usual_pause_is_the_median() -> None:
    assert usual_pause(moments(0, 10, 20, 90)) == usual_pause(moments(90, 20, 0, 10)) == timedelta(minutes=10)
    assert usual_pause(moments(0, 10)) is None
    assert usual_pause([]) is None


@pytest.mark.parametrize(
    ("saved", "now", "overdue"),
    [
        (moments(0, 10, 20), 49, False),
        (moments(0, 10, 20), 51, True),
        (moments(0, 0.1, 0.2), 10.1, False),  # whoever saves every few seconds may also compile for minutes
        (moments(0, 0.1, 0.2), 10.3, True),
        (moments(0, 10), 9999, False),
    ],
)
def test_a_job_that_has_not_saved_for_three_times_as_long(saved: list[datetime], now: float, overdue: bool) -> None:  # noqa: FBT001
    assert is_overdue(saved, T0 + timedelta(minutes=now)) is overdue
