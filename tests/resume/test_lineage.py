"""Which launches, and up to which step, belong to the history being continued."""

from dataclasses import replace

import pytest

from ckptstore.core.model import Launch
from ckptstore.resume.lineage import branches, lineage
from tests.resume.builders import launch

A, FRESH, UNASKED = launch("A", 1), launch("B", 2), launch("B", 2, decided=False)
B10, B15 = launch("B", 2, parent=("A", 10)), launch("B", 2, parent=("A", 15))
ASKED = launch("B", 2, parent=("A", 10), branched=True)
FOREIGN = replace(UNASKED, foreign=True)
HALVED = replace(B15, start_step=30)  # half as many ranks: step 15 of A is step 30 of B


def third(of: str, step: int) -> Launch:
    return launch("C", 3, parent=(of, step))


C_UNASKED = launch("C", 3, decided=False)


@pytest.mark.parametrize(
    ("what", "launches", "first_saves", "expected"),
    [
        ("no launches, no history", [], {}, {}),
        ("one launch is its own history", [A], {"A": 1}, {"A": None}),
        (
            "a parent counts up to the step that was resumed from",
            [A, B15, third("B", 22)],
            {"A": 1, "B": 16, "C": 23},
            {"C": None, "B": 22, "A": 15},
        ),
        (
            "C went back to a step of A: nothing of A after it counts, and nothing of B",
            [A, B15, third("A", 10)],
            {"A": 1, "B": 16, "C": 11},
            {"C": None, "A": 10},
        ),
        (
            "a step is bounded by every descendant",
            [A, B15, third("B", 12)],
            {"A": 1, "B": 16, "C": 13},
            {"C": None, "B": 12, "A": 12},
        ),
        ("a fresh start ends the history", [A, FRESH], {"A": 1, "B": 1}, {"B": None}),
        ("the order of the input does not matter", [B15, A], {"A": 1, "B": 16}, {"B": None, "A": 15}),
        ("a parent that is unknown ends it", [A, launch("B", 2, parent=("gone", 15))], {"A": 1, "B": 16}, {"B": None}),
        ("a launch that never asked and saved nothing gives nothing up", [A, UNASKED], {"A": 5}, {"A": None}),
        ("nor one that went back, as where a file could not be seen", [A, B10], {"A": 5}, {"A": None}),
        ("nor one that finished no save", [A, B10], {"A": 5, "B": None}, {"B": None, "A": None}),
        ("nor one that began afresh and finished none", [A, FRESH], {"A": 5, "B": None}, {"B": None, "A": None}),
        (
            "what came before is bounded by what came after it",
            [A, B10, third("A", 20)],
            {"A": 5, "B": None, "C": 25},
            {"C": None, "A": 20},
        ),
        ("who never asked but saves continues the one before", [A, UNASKED], {"A": 5, "B": 20}, {"B": None, "A": 19}),
        (
            "and over one that finished nothing",
            [A, UNASKED, C_UNASKED],
            {"A": 5, "B": None, "C": 20},
            {"C": None, "B": 19, "A": 19},
        ),
        ("who was asked to go back gives up what came after", [A, ASKED], {"A": 5, "B": None}, {"B": None, "A": 10}),
        ("though it saved nothing", [A, ASKED], {"A": 5}, {"A": 10}),
        ("and the next one did not either", [A, ASKED, third("A", 10)], {"A": 5}, {"A": 10}),
        ("and the next one did", [A, ASKED, third("A", 10)], {"A": 5, "C": 12}, {"C": None, "A": 10}),
        (
            "who was resumed from bounds the history though it finished nothing that is left",
            [A, B10, third("B", 15)],
            {"A": 5, "B": None, "C": 16},
            {"C": None, "B": 15, "A": 10},
        ),
        ("though none of its saves is left", [A, B10, third("B", 15)], {"A": 5, "C": 16}, {"C": None, "A": 10}),
        ("the same of one that never asked", [A, UNASKED, third("B", 15)], {"A": 5, "C": 16}, {"C": None, "A": 15}),
        (
            "saves of another tool, the oldest of which was pruned, bound nothing",
            [A, FOREIGN],
            {"A": 5, "B": 20},
            {"A": None},
        ),
        (
            "steps of another size are compared in their own",
            [A, HALVED, third("B", 40)],
            {"A": 1, "B": 16, "C": 41},
            {"C": None, "B": 40, "A": 15},
        ),
        ("and rounded down", [A, HALVED, C_UNASKED], {"A": 5, "B": 31, "C": 22}, {"C": None, "B": 21, "A": 10}),
    ],
)
def test_the_history(
    what: str, launches: list[Launch], first_saves: dict[str, int | None], expected: dict[str, int | None]
) -> None:
    found = [(segment.launch.id, segment.last_step) for segment in lineage(launches, first_saves)]
    assert found == list(expected.items()), what


@pytest.mark.parametrize(
    ("of", "expected"),
    [(None, [("C", None), ("A", 10)]), ("B", [("B", None), ("A", 15)]), ("A", [("A", None)]), ("D", [])],
)
def test_the_history_of_a_launch_that_was_given_up_can_be_asked_for(
    of: str | None, expected: list[tuple[str, int | None]]
) -> None:
    launches = [A, B15, replace(third("A", 10), branched=True), replace(FOREIGN, id="D", order=4)]
    found = lineage(launches, {"A": 5, "B": 20, "C": 12, "D": 1}, of=of)
    assert [(part.launch.id, part.last_step) for part in found] == expected


def placed(launches: list[Launch], steps: dict[str, list[int]]) -> dict[tuple[str, int], str]:
    firsts = {launch_id: min(real) for launch_id, some in steps.items() if (real := [step for step in some if step])}
    return branches(launches, firsts, steps)


def test_what_was_given_up_is_on_a_branch_named_after_its_newest_launch() -> None:
    launches = [
        launch("L1", 1),
        launch("L2", 2, parent=("L1", 20)),
        launch("L3", 3, parent=("L2", 30)),
        launch("L4", 4, parent=("L1", 10)),
        launch("L5", 5, parent=("L4", 15)),
    ]
    steps = {"L1": [10, 20, 25], "L2": [30, 35], "L3": [40], "L4": [15], "L5": []}
    found = placed(launches, steps)
    assert {key for key, branch in found.items() if not branch} == {("L1", 10), ("L4", 15)}
    assert {key for key, branch in found.items() if branch == "L3"} == {("L1", 20), ("L2", 30), ("L3", 40)}
    assert found["L2", 35] == "L2"
    assert found["L1", 25] == "L1"


def test_untrained_networks_and_launches_without_saves() -> None:
    assert placed([], {}) == {}
    launches = [launch("L1", 1), launch("L2", 2, parent=("L1", 10))]
    assert placed(launches, {"L1": [10], "L2": [0]}) == {("L1", 10): ""}


def test_a_thousand_launches_do_not_cost_their_square() -> None:
    """Every one but the newest branch is read once: the lineage of a launch whose saves all are placed is not asked."""
    launches = [launch("L1", 1), *(launch(f"L{n}", n, parent=(f"L{n - 1}", n - 1)) for n in range(2, 300))]
    found = placed(launches, {each.id: [each.order] for each in launches})
    assert len(found) == 299
    assert set(found.values()) == {""}


class Order(int):
    """The order of a launch, which counts how often it is compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Order.compared += 1
        return super().__lt__(other)

    def __le__(self, other: int) -> bool:
        Order.compared += 1
        return super().__le__(other)

    def __gt__(self, other: int) -> bool:
        Order.compared += 1
        return super().__gt__(other)


def test_a_launch_of_a_long_history_is_not_compared_with_all_others() -> None:
    """With 500 launches in a row, and 500 that each died after a save, a plan of gc compared them 90 million times."""

    def cost(count: int) -> int:
        first = [launch("L0", 0)]
        chain = [launch(f"L{at}", at, parent=(f"L{at - 1}", at)) for at in range(1, count)]
        every = [replace(each, order=Order(each.order)) for each in (*first, *chain)]
        Order.compared = 0
        assert len(lineage(every, {each.id: at + 1 for at, each in enumerate(every)})) == count
        return Order.compared

    assert cost(80) <= 10 * cost(20)
