"""On which branch each save is."""

from ckptstore.core.model import Launch
from ckptstore.resume.lineage import branches
from tests.resume.builders import launch


def placed(launches: list[Launch], steps: dict[str, list[int]]) -> dict[tuple[str, int], str]:
    firsts = {launch_id: min(real) for launch_id, some in steps.items() if (real := [step for step in some if step])}
    return branches(launches, firsts, steps)


def test_a_straight_history_is_one_lineage() -> None:
    launches = [launch("L1", 1), launch("L2", 2, parent=("L1", 20)), launch("L3", 3, parent=("L2", 30))]
    steps = {"L1": [10, 20], "L2": [30], "L3": [40]}
    assert set(placed(launches, steps).values()) == {""}


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
