"""Where launches that a scan found stand among those of the catalog, and by which moments."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.core.model import Launch
from ckptstore.scan.found import ScannedLaunch
from ckptstore.scan.order import dated, in_order
from tests.resume.builders import launch


@pytest.mark.parametrize(
    ("known", "new", "ordered"),
    [
        ("", "A1 B2", "A B"),
        ("B2", "A1 C3", "A B C"),
        ("L7 M2", "A1", "A L M"),
        ("L7 M2", "A8", "L M A"),
        ("L7 M2", "A3", "A L M"),
        ("B5", "A9 B5 C1", "A B C"),
        ("B5 A5", "A5 C6 B5", "B A C"),
        ("L1 C3", "A2 B2 C3", "L A B C"),
        ("L1-4 M5-7", "A6", "L A M"),
        ("L1-4 M5-7", "A3 B6 C8", "A L B M C"),
        ("L1-4 M5-", "A6", "L M A"),
        ("L1-6 M5-7", "A6", "A L M"),
        ("B5-9 L2", "B5 A6", "B L A"),
    ],
)
def test_new_launches_go_among_those_that_are_known(known: str, new: str, ordered: str) -> None:
    """A letter for each launch, when it began, and when it last saved; of what is known too, if it was not found again.

    What is known keeps its order, what is found keeps its own.
    """

    def at(day: str) -> datetime:
        return datetime(2026, 1, int(day), tzinfo=timezone.utc)

    days = {each[0]: each[1:].partition("-") for each in known.split()}
    there = [replace(launch(name, place), created_at=at(days[name][0])) for place, name in enumerate(days, 1)]
    last = {name: at(day) for name, (_, _, day) in days.items() if day}
    found = [ScannedLaunch(name, 1, None, at(day), ()) for name, day in new.split()]
    assert in_order(there, found, last) == ordered.split()


DAY = datetime(2026, 1, 1, tzinfo=timezone.utc)


def known_at(*moments: int) -> list[Launch]:
    """Launches that the catalog has, K1 the oldest, which began so many microseconds after a moment."""
    return [
        replace(launch(f"K{place}", place), created_at=DAY + timedelta(microseconds=at))
        for place, at in enumerate(moments, 1)
    ]


def found_at(*moments: int) -> list[ScannedLaunch]:
    """Launches in the order in which they were found. Their ids sort the other way round."""
    return [
        ScannedLaunch(f"F{100 - place}", 1, None, DAY + timedelta(microseconds=at), ())
        for place, at in enumerate(moments)
    ]


def sorted_by_moment(known: list[Launch], found: list[ScannedLaunch]) -> list[str]:
    moments = {each.id: each.began for each in found} | {each.id: each.created_at for each in known}
    return sorted(moments, key=lambda name: (moments[name], name))


@given(
    st.lists(st.integers(1, 10), max_size=4),
    st.lists(st.integers(0, 120), max_size=5),
    st.dictionaries(st.integers(1, 4), st.integers(0, 120), max_size=4),
)
def test_launches_sort_by_their_moments_as_they_are_ordered(
    gaps: list[int], moments: list[int], saved: dict[int, int]
) -> None:
    """Whatever the times of files say; known launches have moments that fit, with room for new ones between them."""
    known = known_at(*(sum(gaps[: place + 1]) * 10 for place in range(len(gaps))))
    found = found_at(*moments)
    last = {f"K{place}": DAY + timedelta(microseconds=at) for place, at in saved.items() if place <= len(gaps)}
    order = in_order(known, found, last)
    in_time = dated(known, found, last)
    assert sorted_by_moment(known, in_time) == order
    assert in_order(known, in_time, last) == order


def test_a_moment_that_fits_stays() -> None:
    assert dated(known_at(10, 30), found_at(5, 20, 40)) == found_at(5, 20, 40)


def test_equal_and_wrong_moments_are_moved_by_microseconds() -> None:
    """Three launches whose order is known by their numbers, and a known one that began with the first of them."""
    assert [each.began for each in dated(known_at(50), found_at(50, 40, 40))] == [
        DAY + timedelta(microseconds=at) for at in (51, 52, 53)
    ]


def test_a_launch_that_is_known_keeps_its_moment() -> None:
    found = [replace(found_at(90)[0], id="K2"), *found_at(7)]
    assert dated(known_at(10, 20), found) == [
        replace(found[0], began=DAY + timedelta(microseconds=20)),
        replace(found[1], began=DAY + timedelta(microseconds=21)),
    ]


def test_a_new_launch_is_before_all_later_ones_whose_clocks_were_wrong() -> None:
    """The first of two known launches ran on a host that was ahead."""
    known = known_at(60, 30)
    (older,) = dated(known, found_at(40))
    assert in_order(known, found_at(40))[0] == older.id
    assert older.began == DAY + timedelta(microseconds=29)
