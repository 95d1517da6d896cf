"""Where launches that a scan found stand among those of the catalog, by the moments that they get."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from ckptstore.evidence.unregistered import ScannedLaunch
from ckptstore.scan.order import at_the_time_of_others, dated, in_order_of_time
from tests.resume.builders import file, launch


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


def test_more_launches_go_among_those_in_order_by_their_time() -> None:
    found = [ScannedLaunch(name, 1, None, at(day), ()) for name, day in (("A", "2"), ("B", "4"))]
    more = [ScannedLaunch(name, 1, None, at(day), ()) for name, day in (("D", "5"), ("C", "3"), ("E", "1"))]
    assert [each.id for each in in_order_of_time(found, more)] == ["E", "A", "C", "B", "D"]


def test_what_was_written_while_a_registered_launch_saved_is_told() -> None:
    there = [replace(launch(name, place), created_at=at(str(place))) for place, name in ((1, "K"), (2, "scan-1"))]
    files = (file(there[0], 0, 10), file(there[0], 0, 5))
    new = [ScannedLaunch("A", 1, None, at("2"), files), ScannedLaunch("K", 1, None, at("1"), files)]
    (warning,) = at_the_time_of_others(there, new, {"K": at("3"), "scan-1": at("3")})
    assert warning.startswith(
        f"{files[1].path} and what was saved with it, 2 in all, were written while launch K saved"
    )
    assert at_the_time_of_others(there, new, {"K": at("1")}) == []
