"""Where launches that a scan found stand among those of the catalog, by the moments that they get."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from ckptstore.core.model import Content, FileState, Grade
from ckptstore.evidence.unregistered import ScannedLaunch
from ckptstore.scan.order import at_the_time_of_others, dated, fill, going_back, in_order_of_time, not_ahead
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


def test_launches_of_the_future_keep_their_order_beside_one_that_is_known() -> None:
    """They began at one moment, if a known launch of a later time stood between them."""
    there = [replace(launch("K", 1), created_at=at("18"))]
    found = [ScannedLaunch(name, 1, None, at(day), ()) for name, day in (("B", "12"), ("K", "18"), ("A", "15"))]
    moments = {each.id: each.began for each in not_ahead(there, found, at("10"))}
    assert moments == {"B": at("10"), "A": at("10") + timedelta(microseconds=1), "K": at("18")}


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
        f"{files[1].path} and the files saved with it (2 in all) were written while launch K was saving"
    )
    assert at_the_time_of_others(there, new, {"K": at("1")}) == []


@pytest.mark.parametrize(
    ("new", "step"),
    [
        ("A2:5 B3:10", 10),  # the newest of the new launches counts
        ("B3:10 A2:5", 10),
        ("A2:5 B3:25", None),
        ("A2:25 B3:10", 10),
        ("A0:10", None),  # older than the known one
        ("K3:10", None),  # a known one
    ],
)
def test_a_run_goes_back_if_the_newest_launch_is_new_and_behind(new: str, step: int | None) -> None:
    """The known launch K began on the first day, and saved up to step 20."""
    known = [replace(launch("K", 1), created_at=at("1"))]
    begun = {name[0]: datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(int(name[1]) - 1) for name in new.split()}
    steps = {name[0]: int(name.partition(":")[2]) for name in new.split()}
    found = [ScannedLaunch(name, 1, None, begun[name], (file(known[0], 0, steps[name]),)) for name in begun]
    warnings = going_back("run", known, found, [("K", 10), ("K", 20)])
    told = [f"the files of step {step} were written after those of step 20 of launch K: run run is taken"]
    assert [each.partition(" to have gone back")[0] for each in warnings] == (told if step is not None else [])


SECOND = 10**9
NET = {"path": "/ckpt/rank_1/net-2_5.ckpt", "optimizer_step": 15, "mtime_ns": SECOND}


@pytest.mark.parametrize(
    ("own", "there", "is_filled"),
    [
        ({}, {}, True),
        ({"mtime_ns": 3 * SECOND}, {}, True),
        ({"mtime_ns": 3 * SECOND + 1}, {}, False),  # not written with the others
        ({"path": "/ckpt/rank_1/other-2_5.ckpt"}, {}, False),
        ({"path": "/beside/rank_1/net-2_5.ckpt"}, {}, False),  # of another training, which began with it
        ({"optimizer_step": 16}, {}, False),
        ({"optimizer_step": None}, {"optimizer_step": None}, False),  # nothing proves it
        ({"rank": 0}, {}, False),  # which the state has
        ({}, {"state": FileState.MISSING}, False),
        ({}, {"content": Content.SHARE}, False),
    ],
)
def test_a_file_that_a_registered_state_lacks_is_given_to_it(
    own: dict[str, Any], there: dict[str, Any], *, is_filled: bool
) -> None:
    of = replace(launch("L1", 1), created_at=at("1"))
    known = replace(file(of, 0), **{**NET, "path": "/ckpt/rank_0/net-2_5.ckpt", **there})
    new = replace(file(of, 1), **{**NET, "launch": "scan-1", "grade": Grade.CONSISTENT, "doubt": "open", **own})
    found = ScannedLaunch("scan-1", 2, None, at("2"), (new,))
    (made,) = fill([found], [known], [of])
    if is_filled:
        assert (made.id, made.world_size, made.began) == ("L1", 2, at("1"))
        assert made.files == (replace(new, launch="L1", grade=Grade.PROVEN, doubt="", epoch=None, step_in_epoch=None),)
    else:
        assert made == found


def test_of_two_files_that_fit_neither_is_taken() -> None:
    of = replace(launch("L1", 1), created_at=at("1"))
    known = replace(file(of, 0), **{**NET, "path": "/ckpt/rank_0/net-2_5.ckpt"})
    new = [
        replace(file(of, 1), **{**NET, "path": f"/ckpt/{place}/net-2_5.ckpt"}) for place in ("rank_1", "rank_1/rank_1")
    ]
    found: Sequence[ScannedLaunch] = [ScannedLaunch("scan-1", 2, None, at("2"), tuple(new))]
    assert fill(found, [known], [of]) == found
