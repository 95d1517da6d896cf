"""What a run is doing, in the words that `runs` shows; which of its ranks lag, and whether all of them do."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from ckptstore.core.model import BRANCH, IMPORTED, SCANNED
from ckptstore.disk.owner import this_process
from ckptstore.resume.liveness import course, is_overdue, laggards, restart_loop, status, trouble, usual_pause
from tests.resume.builders import launch

T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)
PROCESSES = {
    "none": None,
    "here": this_process(),
    "elsewhere": "node-7|123|456|00000000@another",
    "gone": this_process().replace("|", "|9", 1),
}
JUST_NOW, LONG_AGO = timedelta(seconds=1), timedelta(minutes=12)


@pytest.mark.parametrize(
    ("errors", "process", "silent", "words"),
    [
        ([], "none", None, ""),
        ([], "here", JUST_NOW, "training"),
        ([], "elsewhere", JUST_NOW, "training"),
        ([], "here", LONG_AGO, ""),  # it may hang
        ([], "elsewhere", LONG_AGO, ""),
        ([], "gone", JUST_NOW, "killed"),
        ([None, None], "none", JUST_NOW, "finished"),
        ([None], "here", JUST_NOW, "training"),  # again, after an end
        ([None, "RuntimeError"], "none", None, "ended: RuntimeError"),
        (["RuntimeError", "OSError"], "gone", LONG_AGO, "ended: OSError, RuntimeError"),
    ],
)
def test_how_a_launch_goes(errors: list[str | None], process: str, silent: timedelta | None, words: str) -> None:
    assert course(errors, PROCESSES[process], silent, was_asked_to_exit=False) == words
    left = course(errors, PROCESSES[process], silent, was_asked_to_exit=True)
    assert left == ("exited on request" if words == "finished" else words)


@pytest.mark.parametrize(
    ("known", "words", "needs_a_person"),
    [
        ({}, "silent for 12 min", 1),
        ({"has_begun": False}, "joined 12 min ago", 1),
        ({"course": "training", "has_saved": False}, "training", 0),
        ({"course": "killed"}, "killed", 2),
        ({"course": "ended: OSError"}, "ended: OSError", 2),
        ({"course": "finished"}, "finished", 0),
        ({"newest": f"{SCANNED}1", "has_begun": False}, "scanned", 0),
        ({"newest": f"{IMPORTED}1"}, "imported", 0),
        ({"has_saved": False}, "never saved", 1),
        ({"silent": None}, "never saved", 1),
        ({"loop": 5, "course": "training"}, "restart loop: 5 launches saved nothing", 2),
    ],
)
def test_what_a_run_is_doing(known: dict[str, object], words: str, needs_a_person: int) -> None:
    quiet = {"newest": "L1", "course": "", "loop": 0, "has_saved": True, "has_begun": True, "silent": LONG_AGO}
    assert status(**quiet | known) == words
    assert trouble(words) == needs_a_person


@pytest.mark.parametrize(
    ("launches", "errors", "loop"),
    [
        ("", [], 0),
        ("s--", ["RuntimeError"], 0),
        ("s---", ["RuntimeError"], 3),
        ("----", [], 4),
        ("----", [None, None], 0),  # a finished job that is started again
        ("-b--", [], 0),  # it was taken back on purpose
        ("---o", [], 0),  # two days ago
    ],
)
def test_a_restart_loop(launches: str, errors: list[str | None], loop: int) -> None:
    """Each launch by a letter: it saved, it did not, it went back, it is old."""
    begun = [
        replace(launch(f"{BRANCH if how == 'b' else 'L'}{number}"), created_at=T0 - timedelta(days=2 * (how == "o")))
        for number, how in enumerate(launches)
    ]
    saved = {each.id for each, how in zip(begun, launches, strict=True) if how == "s"}
    assert restart_loop(begun, saved, errors, T0 + timedelta(hours=1)) == loop


@pytest.mark.parametrize(
    ("ranks", "last", "behind"),
    [
        ([0, 1], {0: 40, 1: 40}, {}),
        ([0, 1], {0: 40, 1: 30}, {30: [1]}),
        ([0, 1, 2], {0: 40, 1: 30, 2: 10}, {10: [2], 30: [1]}),
        ([0, 1, 2], {0: 40}, {None: [1, 2]}),
    ],
)
def test_laggards(ranks: list[int], last: dict[int, int], behind: dict[int | None, list[int]]) -> None:
    found = laggards(ranks, last, 40)
    assert list(found.items()) == list(laggards(reversed(ranks), last, 40).items()) == list(behind.items())


@pytest.mark.parametrize(
    ("saved", "pause", "overdue"),
    [
        ([], None, None),
        ([0, 10], None, None),
        ([20, 0, 10], 10, 50),
        ([0, 10, 20, 90], 10, 120),
        ([0, 0.1, 0.2], 0.1, 10.2),  # a job that saves every few seconds may also compile for minutes
    ],
)
def test_a_job_that_has_not_saved_for_three_times_as_long(
    saved: list[float], pause: float | None, overdue: float | None
) -> None:
    moments = [T0 + timedelta(minutes=each) for each in saved]
    assert usual_pause(moments) == (None if pause is None else timedelta(minutes=pause))
    for minutes, is_it in ((overdue or 9999, False), ((overdue or 9999) + 1, overdue is not None)):
        assert is_overdue(moments, T0 + timedelta(minutes=minutes)) is is_it
