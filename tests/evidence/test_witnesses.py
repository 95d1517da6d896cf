"""The step of files that nobody witnessed: the names that lie (mindspore.md §3)."""

import pytest

from ckptstore.core.naming import parse_name
from ckptstore.evidence.witnesses import is_named_after, unwitnessed_step, witnessed_by_mindspore


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
