"""How far clocks are apart: nothing that is late makes one wrong, and one that is wrong is found."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from ckptstore.core.clocks import Offset, Stamp, behind_files, in_the_future, offsets

T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def stamps(clocks: dict[str, float], late: dict[tuple[str, int], float] | None = None, saves: int = 3) -> list[Stamp]:
    """Saves of ten minutes each; every clock is so many seconds ahead, and some records so late."""
    return [
        Stamp(clock, step, T0 + seconds(600 * step + ahead + (late or {}).get((clock, step), 0)))
        for step in range(saves)
        for clock, ahead in clocks.items()
    ]


def test_clocks_that_agree() -> None:
    assert {offset.ahead for offset in offsets(stamps({"a": 0, "b": 0, "c": 0}))} == {seconds(0)}


def test_the_one_that_is_ahead_is_named_first() -> None:
    found = offsets(stamps({"a": 0, "b": 900, "c": 0}))
    assert found[0] == Offset("b", seconds(900))
    assert {offset.clock: offset.ahead for offset in found[1:]} == {"a": seconds(-450), "c": seconds(-450)}


def test_of_two_each_is_off_from_the_other() -> None:
    assert offsets(stamps({"a": 0, "b": -900})) == [Offset("a", seconds(900)), Offset("b", seconds(-900))]


def test_a_record_that_was_late_once_is_no_wrong_clock() -> None:
    found = offsets(stamps({"a": 0, "b": 0, "c": 0}, {("b", 1): 86400}))
    assert all(offset.ahead == seconds(0) for offset in found)


def test_a_clock_is_its_ranks_median() -> None:
    late = [Stamp("a", step, T0 + seconds(600 * step + 5000)) for step in range(3)]
    found = offsets([*stamps({"a": 0, "b": 0}), *stamps({"a": 0}), *late])
    assert all(offset.ahead == seconds(0) for offset in found)


def test_one_save_or_one_clock_tells_nothing() -> None:
    assert offsets(stamps({"a": 0, "b": 900}, saves=1)) == []
    assert offsets(stamps({"a": 0})) == []
    assert offsets([]) == []


@given(
    st.dictionaries(st.sampled_from("abcde"), st.floats(-5000, 5000), min_size=2),
    st.dictionaries(st.tuples(st.sampled_from("abcde"), st.integers(0, 3)), st.floats(0, 5000)),
)
def test_what_is_told_is_never_more_than_any_save_shows(
    ahead: dict[str, float], late: dict[tuple[str, int], float]
) -> None:
    told = offsets(stamps(ahead, late, saves=4))
    assert {offset.clock for offset in told} == set(ahead)
    for step in range(4):
        alone = [stamp for stamp in stamps(ahead, late, saves=4) if stamp.step == step]
        twice = [*alone, *(Stamp(stamp.clock, step + 9, stamp.at) for stamp in alone)]
        in_this_save = {offset.clock: offset.ahead for offset in offsets(twice)}
        for offset in told:
            assert abs(offset.ahead) <= abs(in_this_save[offset.clock]) + seconds(1e-3)


def test_a_record_before_its_file_proves_a_clock_that_is_behind() -> None:
    found = behind_files(
        [
            Stamp("a", 1, T0, T0 + seconds(30)),
            Stamp("a", 2, T0, T0 + seconds(900)),
            Stamp("b", 1, T0 + seconds(90000), T0),  # late, which proves nothing
            Stamp("c", 1, T0),
        ]
    )
    assert found == {"a": seconds(900)}


def test_a_record_of_tomorrow_proves_a_clock_that_is_ahead() -> None:
    found = in_the_future([Stamp("a", 1, T0 + seconds(60)), Stamp("a", 2, T0 + seconds(61)), Stamp("b", 1, T0)], T0)
    assert found == {"a": seconds(61)}
