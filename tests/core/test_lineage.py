"""Which launches, and up to which step, belong to the history being continued."""

from __future__ import annotations

from dataclasses import replace

from ckptstore.core.lineage import lineage

from .builders import launch


def ends(launches: list, first_saves: dict[str, int | None] | None = None) -> list[tuple[str, int | None]]:  # type: ignore[type-arg]
    if first_saves is None:
        first_saves = {one.id: (one.parent_step or 0) + 1 for one in launches}
    return [(segment.launch.id, segment.last_step) for segment in lineage(launches, first_saves)]


def test_one_launch_is_its_own_history() -> None:
    assert ends([launch("A")]) == [("A", None)]


def test_a_parent_counts_up_to_the_step_that_was_resumed_from() -> None:
    launches = [launch("A", 1), launch("B", 2, parent=("A", 15)), launch("C", 3, parent=("B", 22))]
    assert ends(launches) == [("C", None), ("B", 22), ("A", 15)]


def test_a_step_is_bounded_by_every_descendant() -> None:
    """B resumed at 15 and C went back to 10, which is of A: nothing of A after 10 counts, and nothing of B."""
    launches = [launch("A", 1), launch("B", 2, parent=("A", 15)), launch("C", 3, parent=("A", 10))]
    assert ends(launches) == [("C", None), ("A", 10)]
    launches = [launch("A", 1), launch("B", 2, parent=("A", 15)), launch("C", 3, parent=("B", 12))]
    assert ends(launches) == [("C", None), ("B", 12), ("A", 12)]


def test_a_fresh_start_ends_the_history() -> None:
    assert ends([launch("A", 1), launch("B", 2)]) == [("B", None)]


def test_a_launch_without_saves_gives_nothing_up() -> None:
    """B went back to 10 because a file of A could not be seen, and died before it saved."""
    assert ends([launch("A", 1), launch("B", 2, decided=False)], {"A": 5}) == [("A", None)]
    assert ends([launch("A", 1), launch("B", 2, parent=("A", 10))], {"A": 5}) == [("A", None)]
    assert ends([launch("A", 1), launch("B", 2)], {"A": 5}) == [("A", None)]


def test_a_launch_that_never_asked_but_saves_continues_the_one_before() -> None:
    launches = [launch("A", 1), launch("B", 2, decided=False)]
    assert ends(launches, {"A": 5, "B": 20}) == [("B", None), ("A", 19)]


def test_a_launch_that_never_asked_and_finished_nothing_gives_nothing_up() -> None:
    launches = [launch("A", 1), launch("B", 2, decided=False)]
    assert ends(launches, {"A": 5, "B": None}) == [("B", None), ("A", None)]
    launches.append(launch("C", 3, decided=False))
    assert ends(launches, {"A": 5, "B": None, "C": 20}) == [("C", None), ("B", 19), ("A", 19)]


def test_a_launch_that_finished_no_save_gives_nothing_up() -> None:
    """B went back to 10 because a file of A could not be seen, began a save, and died."""
    launches = [launch("A", 1), launch("B", 2, parent=("A", 10))]
    assert ends(launches, {"A": 5, "B": None}) == [("B", None), ("A", None)]
    assert ends([launch("A", 1), launch("B", 2)], {"A": 5, "B": None}) == [("B", None), ("A", None)]
    launches.append(launch("C", 3, parent=("A", 20)))
    assert ends(launches, {"A": 5, "B": None, "C": 25}) == [("C", None), ("A", 20)]


def test_a_launch_that_finished_no_save_gives_up_what_it_was_asked_to() -> None:
    launches = [launch("A", 1), launch("B", 2, parent=("A", 10), branched=True)]
    assert ends(launches, {"A": 5, "B": None}) == [("B", None), ("A", 10)]


def test_a_launch_that_was_resumed_from_bounds_the_history_though_nothing_finished_is_left_of_it() -> None:
    launches = [launch("A", 1), launch("B", 2, parent=("A", 10)), launch("C", 3, parent=("B", 15))]
    assert ends(launches, {"A": 5, "B": None, "C": 16}) == [("C", None), ("B", 15), ("A", 10)]


def test_the_order_of_the_input_does_not_matter() -> None:
    launches = [launch("B", 2, parent=("A", 15)), launch("A", 1)]
    assert ends(launches) == ends(launches[::-1]) == [("B", None), ("A", 15)]


def test_a_parent_that_is_unknown_ends_the_history() -> None:
    assert ends([launch("B", 2, parent=("gone", 15))]) == [("B", None)]


def test_no_launches_no_history() -> None:
    assert ends([]) == []


def test_a_launch_that_was_asked_to_go_back_gives_up_what_came_after_though_it_saved_nothing() -> None:
    launches = [launch("A", 1), launch("B", 2, parent=("A", 10), branched=True)]
    assert ends(launches, {"A": 5}) == [("A", 10)]
    launches.append(launch("C", 3, parent=("A", 10)))
    assert ends(launches, {"A": 5}) == [("A", 10)]
    assert ends(launches, {"A": 5, "C": 12}) == [("C", None), ("A", 10)]


def test_the_history_of_a_launch_that_was_given_up_can_be_asked_for() -> None:
    launches = [
        launch("A", 1),
        launch("B", 2, parent=("A", 15)),
        launch("C", 3, parent=("A", 10), branched=True),
    ]
    saves = {"A": 5, "B": 20, "C": 12}
    assert [(part.launch.id, part.last_step) for part in lineage(launches, saves)] == [("C", None), ("A", 10)]
    assert [(part.launch.id, part.last_step) for part in lineage(launches, saves, of="B")] == [("B", None), ("A", 15)]
    assert [(part.launch.id, part.last_step) for part in lineage(launches, saves, of="A")] == [("A", None)]


def test_saves_of_another_tool_bound_nothing() -> None:
    """The oldest of the few iterations that it keeps is no sign that the history went back to before it."""
    launches = [launch("A", 1), replace(launch("B", 2, decided=False), foreign=True)]
    assert ends(launches, {"A": 5, "B": 20}) == [("A", None)]
    assert lineage(launches, {"A": 5, "B": 20}, of="B") == ()


def test_steps_of_another_size_are_compared_in_their_own() -> None:
    """B goes on with half as many ranks: step 15 of A is step 30 of B."""
    second = replace(launch("B", 2, parent=("A", 15)), start_step=30)
    third = launch("C", 3, parent=("B", 40))
    assert ends([launch("A", 1), second, third]) == [("C", None), ("B", 40), ("A", 15)]
    unasked = launch("C", 3, decided=False)
    assert ends([launch("A", 1), second, unasked], {"A": 5, "B": 31, "C": 22}) == [("C", None), ("B", 21), ("A", 10)]


def test_a_launch_that_was_resumed_from_bounds_the_history_though_none_of_its_saves_is_left() -> None:
    launches = [launch("A", 1), launch("B", 2, parent=("A", 10)), launch("C", 3, parent=("B", 15))]
    assert ends(launches, {"A": 5, "C": 16}) == [("C", None), ("A", 10)]
    unasked = [launch("A", 1), launch("B", 2, decided=False), launch("C", 3, parent=("B", 15))]
    assert ends(unasked, {"A": 5, "C": 16}) == [("C", None), ("A", 15)]
