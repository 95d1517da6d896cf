"""Records in any order, twice, in portions: the same is true in the end."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.core.merge import merged
from ckptstore.core.model import Checkpoint, FileState, Kind

START = datetime(2026, 1, 1, tzinfo=timezone.utc)


def record(step: int, at: int, state: FileState = FileState.COMPLETE, path: str = "/d/a.ckpt") -> Checkpoint:
    whole = state is not FileState.IN_PROGRESS
    return Checkpoint(
        run="run",
        launch="L1",
        kind=Kind.PERIODIC,
        global_step=step,
        rank=0,
        path=path,
        size=100 if whole else None,
        mtime_ns=at if whole else None,
        state=state,
        created_at=START + timedelta(seconds=at),
    )


def states(files: list[Checkpoint]) -> dict[int, FileState]:
    return {file.global_step: file.state for file in files}


def test_a_file_lives_on_and_does_not_come_back() -> None:
    begun, whole = record(5, 1, FileState.IN_PROGRESS), record(5, 2)
    gone = replace(whole, state=FileState.MISSING)
    assert merged([], [begun, whole]) == [replace(whole, created_at=begun.created_at)]
    assert states(merged([], [gone, whole, begun])) == {5: FileState.MISSING}
    assert merged([gone], [whole]) == []


def test_a_file_that_was_written_again_is_another_one() -> None:
    old, new = record(5, 1), replace(record(5, 9), size=200)
    gone = replace(old, state=FileState.DAMAGED)
    for order in ([old, gone, new], [new, gone, old]):
        (after,) = merged([], order)
        assert (after.size, after.state, after.created_at) == (200, FileState.COMPLETE, old.created_at)


def test_a_path_holds_one_file() -> None:
    first, second = record(5, 1), record(10, 2)
    assert states(merged([], [second, first])) == {5: FileState.MISSING, 10: FileState.COMPLETE}
    assert states(merged([second], [first])) == {5: FileState.MISSING}
    assert states(merged([first], [second])) == {5: FileState.MISSING, 10: FileState.COMPLETE}
    gone = replace(second, state=FileState.MISSING)
    assert states(merged([], [first, second, gone])) == {5: FileState.MISSING, 10: FileState.MISSING}
    other = record(10, 2, path="/d/b.ckpt")
    assert states(merged([], [first, other])) == {5: FileState.COMPLETE, 10: FileState.COMPLETE}


def test_what_another_run_has_of_a_path_may_be_this_very_file() -> None:
    base, tune = record(5, 1), replace(record(10, 2), run="tune", launch="T1")
    for order in ([base, tune], [tune, base]):
        assert states(merged([], order)) == {5: FileState.COMPLETE, 10: FileState.COMPLETE}
        assert merged(order[:1], order[1:]) == order[1:]


def test_what_retention_gave_up_stays_so_until_its_path_is_written_again() -> None:
    whole = record(5, 1)
    for state in (FileState.TRASHED, FileState.MISSING):
        given_up = replace(whole, state=state)
        assert merged([given_up], [whole]) == []
    given_up = replace(whole, state=FileState.TRASHED)
    assert merged([given_up], [replace(whole, state=FileState.MISSING)]) == []
    again = record(5, 9)
    assert [file.state for file in merged([given_up], [again])] == [FileState.COMPLETE]


def test_what_a_look_at_the_disk_showed_last_counts() -> None:
    whole = record(5, 1)
    seen = [
        replace(whole, state=state, amended_at=START + timedelta(hours=hours))
        for hours, state in enumerate([FileState.DAMAGED, FileState.COMPLETE, FileState.DAMAGED, FileState.COMPLETE])
    ]
    for count in (1, 2, 3, 4):
        for order in permutations([whole, *seen[:count]]):
            assert merged([], order) == [seen[count - 1]]
    earlier = replace(whole, state=FileState.DAMAGED)  # of a program that wrote no moments
    for order in permutations([whole, earlier, *seen]):
        assert merged([], order) == [seen[-1]]
    again = record(5, 9)
    assert states(merged([], [again, seen[2]])) == {5: FileState.COMPLETE}


def test_what_is_wrong_with_a_state_stays_so_until_another_file_has_its_name() -> None:
    whole = record(5, 2)
    wrong, seen = replace(whole, quarantine="its result"), replace(whole, amended_at=START + timedelta(hours=1))
    for known, told in permutations([wrong, seen]):
        (kept,) = {file.id: file for file in [known, *merged([known], [told])]}.values()
        assert (kept.quarantine, kept.amended_at) == (wrong.quarantine, seen.amended_at)
    assert [file.quarantine for file in merged([wrong], [record(5, 3)])] == [""]


def test_a_record_without_its_moment_cannot_be_placed() -> None:
    with pytest.raises(ValueError, match="has no moment"):
        merged([], [replace(record(5, 1), created_at=None)] * 2)


@st.composite
def histories(draw: st.DrawFn) -> list[Checkpoint]:
    """What one rank may write down: saves under few names, each begun, perhaps measured, perhaps gone."""
    told: list[Checkpoint] = []
    for at in range(draw(st.integers(0, 8))):
        step = 5 * (at + 1)
        path = f"/d/{draw(st.sampled_from('ab'))}.ckpt"
        begun = record(step, 10 * at, FileState.IN_PROGRESS, path)
        if draw(st.booleans()):
            told.append(begun)
        whole = record(step, 10 * at + 1, path=path)
        if draw(st.booleans()) or not told:
            told.append(whole)
            if draw(st.booleans()):
                gone = draw(st.sampled_from([FileState.MISSING, FileState.MOVED, FileState.DAMAGED]))
                told.append(replace(whole, state=gone))
            if draw(st.booleans()):
                told.append(replace(whole, quarantine=draw(st.sampled_from(["its loss", "its result"]))))
            for hours in draw(st.lists(st.integers(0, 3), max_size=2)):
                seen = draw(st.sampled_from([FileState.COMPLETE, FileState.MISSING, FileState.DAMAGED]))
                told.append(replace(whole, state=seen, amended_at=START + timedelta(hours=hours)))
    return told


def truth(known: list[Checkpoint], records: list[Checkpoint]) -> dict[str, Checkpoint]:
    return {file.id: file for file in [*known, *merged(known, records)]}


@given(histories(), st.data())
def test_neither_order_nor_repetition_matters(history: list[Checkpoint], data: st.DataObject) -> None:
    expected = truth([], history)
    shuffled = data.draw(st.permutations(history))
    repeated = data.draw(st.lists(st.sampled_from(history), max_size=5)) if history else []
    assert truth([], [*shuffled, *repeated]) == expected
    assert merged(list(expected.values()), [*repeated, *history]) == []


@given(histories(), st.integers(0, 20))
def test_portions_make_no_difference(history: list[Checkpoint], cut: int) -> None:
    some = truth([], history[:cut])
    assert truth(list(some.values()), history[cut:]) == truth([], history)
