"""The step of files that nobody witnessed: the names that lie (mindspore.md §3)."""

from dataclasses import replace

import pytest

from ckptstore.core.model import Grade
from ckptstore.core.naming import parse_name
from ckptstore.evidence.launch_groups import Ranked
from ckptstore.evidence.unregistered import BY_HAND, OF_LENGTH, FoundFile, PlacedFile, Trusted, Uncertain
from ckptstore.evidence.witnesses import (
    assumed,
    by_counter,
    fits,
    is_named_after,
    other_epochs,
    shortest_epoch,
    shows_lag,
    skipping,
    unwitnessed_step,
    witnessed_by_mindspore,
)
from tests.evidence.builders import B, P, T, X, found
from tests.resume.builders import file, launch, state


@pytest.mark.parametrize(
    ("name", "optimizer_step", "base", "lag", "expected"),
    [
        ("l-2_8_breakpoint.ckpt", 18, 0, 0, 18),  # a callback failed after step 18
        ("l-2_8_breakpoint.ckpt", 17, 0, 0, None),  # step 18 failed before its update, or its update was skipped
        ("l-2_8_breakpoint.ckpt", 16, 0, 0, None),  # an update is missing that nothing explains
        ("l-2_8_breakpoint.ckpt", 15, 0, 3, 18),  # three updates had been skipped before
        ("l-2_8_breakpoint.ckpt", 14, 0, 3, None),
        ("l-1_0_breakpoint.ckpt", 0, 0, 0, 0),  # untrained: the dataset was bad
        ("l-1_1_breakpoint.ckpt", 0, 0, 0, 0),  # untrained: the first step failed
        ("l-2_0_breakpoint.ckpt", 15, 15, 0, 15),  # resumed at 15, and the dataset was bad
        ("l-2_0_breakpoint.ckpt", 10, 0, 0, 10),  # an epoch was done, the next never began
        ("l-2_5.ckpt", 15, 0, 0, 15),
        ("l-3_9.ckpt", 26, 15, 0, None),  # MindSpore's count had started again: the name lies
        ("l-2_5.ckpt", 15, 15, 0, None),  # the state it started from, which the launch before saved
        ("l-1_5.ckpt", 5, 15, 0, None),  # older than the state it started from
    ],
)
def test_step(name: str, optimizer_step: int, base: int, lag: int, expected: int | None) -> None:
    parsed = parse_name(name)
    assert parsed is not None
    found = unwitnessed_step(parsed, steps_per_epoch=10, base_step=base, optimizer_step=optimizer_step, lag=lag)
    assert found == expected


@pytest.mark.parametrize(
    ("step_num", "named", "updates", "lag", "expected"),
    [
        (18, None, 18, 0, 18),  # an exit by the flag, under MindSpore's fixed name
        (18, 18, 16, 2, 18),  # two updates were left out before
        (18, 18, 15, 2, 18),  # and one since
        (18, 18, None, 0, 18),  # an optimizer without a counter
        (None, 18, 18, 0, 18),  # an exit by a signal has no count of its own; its kept name has ours
        (None, None, 18, 0, None),  # nothing but the counter
        (18, 17, 17, 0, None),  # the directory says another step
        (18, 18, 19, 0, None),  # more updates than steps
        (18, 18, 17, 2, None),  # more than the launch had left
        ("18", None, 18, 0, None),  # not a number
    ],
)
def test_what_mindspore_counted_itself(
    step_num: object, named: int | None, updates: int | None, lag: int, expected: int | None
) -> None:
    assert witnessed_by_mindspore(step_num, named, optimizer_step=updates, lag=lag) == expected


@pytest.mark.parametrize(("step", "named"), [(15, False), (16, True), (17, True), (18, False)])
def test_a_breakpoint_is_named_after_the_step_that_was_done_or_under_way(step: int, *, named: bool) -> None:
    parsed = parse_name("net-2_7_breakpoint.ckpt")
    assert parsed is not None
    assert is_named_after(parsed, steps_per_epoch=10, global_step=step) is named


def ranked(file: FoundFile) -> Ranked:
    return Ranked(file, 0, file.epoch, file.step_in_epoch)


@pytest.mark.parametrize(
    ("name", "step", "launch", "expected"),
    [
        ("net-2_5.ckpt", 15, 1, True),
        ("net-2_10.ckpt", 20, 1, True),  # the last step of its epoch
        ("net-2_5.ckpt", 10, 1, False),  # its name is of a later epoch than its counter
        ("net-2_5.ckpt", 10, 2, False),
        ("net-1_5.ckpt", 15, 1, False),  # of an earlier one: only a later launch has epochs that began anew
        ("net-1_5.ckpt", 15, 2, True),
        ("net-2_0_breakpoint.ckpt", 10, 1, True),  # an epoch was done, and the next had begun
        ("net-3_1_breakpoint.ckpt", 20, 1, True),  # the step under way is the next one
        ("net-3_1.ckpt", 20, 1, False),
        ("graceful_exit.ckpt", 15, 1, True),  # a name without an epoch excludes nothing
    ],
)
def test_a_name_fits_a_step_where_both_are_of_one_epoch(name: str, step: int, launch: int, *, expected: bool) -> None:
    assert fits(f"/out/x-9_9.ckpt/{name}", step, 10, launch) is expected


@pytest.mark.parametrize(
    ("grade", "length", "passed_over"),
    [
        (Grade.CONSISTENT, 10, False),
        (Grade.CONSISTENT, 7, True),
        (Grade.CONSISTENT, None, False),  # the dataset is not known
        (Grade.PROVEN, 7, False),  # its step has other witnesses
        (Grade.ASSUMED, 7, False),  # the user said it
    ],
)
def test_a_state_of_consistent_steps_is_held_against_the_dataset(
    grade: Grade, length: int | None, *, passed_over: bool
) -> None:
    of = launch()
    files = [replace(file(of, rank), path=f"/r{rank}/net-2_5.ckpt", grade=grade) for rank in (0, 1)]
    reason = other_epochs(state(of, *files), length)
    told = "its optimizer's counter is 15, and the dataset has 7 steps an epoch, so the name of /r0/net-2_5.ckpt is"
    assert reason.startswith(told) if passed_over else reason == ""


@pytest.mark.parametrize(
    ("trusted", "expected"),
    [
        ({Trusted.COUNTER}, 14),
        ({Trusted.INFO}, 16),
        ({Trusted.NAME}, 15),
        ({Trusted.NAME, Trusted.INFO}, 16),  # the name is the weakest
        ({Trusted.NAME, Trusted.INFO, Trusted.COUNTER}, 14),
        ({Trusted.NUMBERS}, None),
        (set(), None),
    ],
)
def test_a_witness_that_the_user_trusts_is_enough(trusted: set[Trusted], expected: int | None) -> None:
    one = assumed(ranked(found(P, (2, 5), 14, info={"step_num": 16})), 10, trusted)
    assert (one[0] if one else None) == expected
    assert assumed(ranked(found(P, None, None, info={"step_num": True})), 10, {*Trusted}) is None


@pytest.mark.parametrize(
    ("file", "length", "guess", "remedy"),
    [
        (found(P, (2, 5), 12, updates_every_step=False), 10, 15, "--trust name"),
        (found(P, (2, 5), 12, updates_every_step=False), None, None, "--trust name"),
        (found(P, (2, 5), 16), 10, 16, "--trust counter"),  # of a tree in which another file may lag
        (found(P, (2, 5), 15), 10, 15, "--trust counter"),
        (found(P, (2, 5), 16), None, 16, OF_LENGTH),
        (found(P, (2, 5), 14), 10, None, BY_HAND),  # fewer updates than its name says
        (found(P, (2, 5), None), 10, None, BY_HAND),
        (found(P, (1, 1), None), 10, None, BY_HAND),
    ],
)
def test_what_places_a_file_of_a_tree_where_updates_may_be_skipped(
    file: FoundFile, length: int | None, guess: int | None, remedy: str
) -> None:
    one = skipping(ranked(file), length)
    assert (one.best_guess, one.remedy, one.contradicted) == (guess, remedy, remedy == BY_HAND)


UNKNOWN = "the steps per epoch are unknown until your script starts"
EXIT = {"epoch_num": 3, "step_num": 26, "batch_num": 10}


@pytest.mark.parametrize(
    ("file", "length", "is_first", "expected"),
    [
        (found(P, (1, 5), 5), None, True, (5, Grade.PROVEN, "")),
        (found(P, (3, 5), 25), 10, True, (25, Grade.PROVEN, "")),
        (found(P, (3, 5), 25), None, True, (25, Grade.CONSISTENT, UNKNOWN)),
        (found(P, (1, 5), 22), 10, False, (22, Grade.CONSISTENT, "epochs began anew with its launch")),
        (found(P, (1, 5), 22), 10, True, None),  # no launch was before it
        (found(P, (4, 5), 22), 10, False, None),
        (found(T, (3, 6), 26, named_step=26, info=EXIT), None, True, (26, Grade.PROVEN, "")),
        # MindSpore's own count goes on from the launch's start, and its name with it
        (found(T, (3, 4), 26, named_step=4, info=EXIT | {"step_num": 4}), None, False, (26, Grade.PROVEN, "")),
        (found(T, (3, 4), 26, named_step=5, info=EXIT | {"step_num": 4}), None, False, None),
        (found(T, (3, 4), 26, named_step=0, info=EXIT | {"step_num": 4}), None, False, None),
        (found(T, (3, 4), 26, named_step=34, info=EXIT | {"step_num": 4}), None, False, None),
    ],
)
def test_the_counter_is_the_step_unless_a_name_excludes_it(
    file: FoundFile, length: int | None, expected: tuple[int, Grade, str] | None, *, is_first: bool
) -> None:
    one = by_counter(ranked(file), length, 5, is_first=is_first)
    if expected is None:
        assert isinstance(one, Uncertain)
        assert one.contradicted
    else:
        assert isinstance(one, PlacedFile)
        assert (one.global_step, one.grade, one.doubt) == expected


def test_the_shortest_epoch_is_the_longest_count_of_a_name() -> None:
    assert shortest_epoch([ranked(found(P, (1, 5), 5)), ranked(found(P, (1, 7), 7)), ranked(found(X, None, 9))]) == 7
    assert shortest_epoch([ranked(found(B, (1, 9), 8)), ranked(found(P, (1, 2), 2))]) == 2  # of the step under way
    assert shortest_epoch([]) == 1


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([found(P, (2, 3), 3)], False),  # as many updates as steps of its epoch
        ([found(P, (2, 3), 2)], True),
        ([found(P, (2, 3), 14), found(P, (2, 7), 18)], False),
        ([found(P, (2, 3), 14), found(P, (2, 7), 17)], True),
        ([found(P, (2, 3), 14), found(P, (3, 7), 17)], False),  # of two epochs
        ([found(B, (2, 3), 2)], False),  # a breakpoint's name is of the step under way
    ],
)
def test_names_that_count_more_steps_than_updates_show_a_lag(files: list[FoundFile], *, expected: bool) -> None:
    assert shows_lag(list(map(ranked, files))) is expected
