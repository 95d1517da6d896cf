"""Where launches that a scan found stand among those of the catalog, by the moments that they get."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from ckptstore.evidence.unregistered import ScannedLaunch
from ckptstore.scan.order import dated
from tests.resume.builders import launch


def at(day: str) -> datetime:
    return datetime(2026, 1, int(day), tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("known", "new", "ordered"),
    [
        ("", "A1 B2", "A B"),
        ("", "A2 B1 C1", "A B C"),
        ("B2", "A1 C3", "A B C"),
        ("L2 M7", "A1", "A L M"),
        ("L2 M7", "A3", "L A M"),
        ("L2 M7", "A8", "L M A"),
        ("B5", "A9 B5 C1", "A B C"),
        ("B5", "A9 C9 B5", "A C B"),
        ("L1 C3", "A2 B2 C3", "L A B C"),
        ("L1-4 M5-7", "A6", "L A M"),
        ("L1-4 M5-7", "A3 B6 C8", "A L B M C"),
        ("L1-4 M5-7", "A6 B6", "L A B M"),
        ("L1-4 M5-", "A6", "L M A"),
        ("L1-6 M5-7", "A6", "A L M"),
    ],
)
def test_new_launches_go_among_those_that_are_known(known: str, new: str, ordered: str) -> None:
    """A letter for each launch, when it began, and when it last saved."""
    days = {each[0]: each[1:].partition("-") for each in known.split()}
    there = [replace(launch(name, place), created_at=at(days[name][0])) for place, name in enumerate(days, 1)]
    last = {name: at(day) for name, (_, _, day) in days.items() if day}
    found = dated(there, [ScannedLaunch(name, 1, None, at(day), ()) for name, day in new.split()], last)
    moments = {each.id: each.began for each in found} | {each.id: each.created_at for each in there}
    assert sorted(moments, key=lambda name: moments[name]) == ordered.split()
    assert dated(there, found, last) == found


def test_a_moment_that_fits_stays_and_others_move_by_microseconds() -> None:
    there = [replace(launch("K", 1), created_at=at("3"))]
    found = [ScannedLaunch(name, 1, None, at(day), ()) for name, day in (("A", "1"), ("B", "4"), ("C", "4"))]
    tick = timedelta(microseconds=1)
    assert [each.began for each in dated(there, found)] == [at("1"), at("4"), at("4") + tick]
