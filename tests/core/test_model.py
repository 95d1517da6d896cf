"""Ids, and the place of a step in its epoch."""

from dataclasses import replace

import pytest

from ckptstore.core.model import Initial, Kind, epoch_and_step, initial_of
from tests.resume.builders import file, launch


@pytest.mark.parametrize(
    ("step", "expected"), [(0, (0, 0)), (1, (1, 1)), (10, (1, 10)), (11, (2, 1)), (20, (2, 10)), (26, (3, 6))]
)
def test_epoch_and_step(step: int, expected: tuple[int, int]) -> None:
    assert epoch_and_step(step, 10) == expected


def test_without_the_length_of_an_epoch_there_is_no_place_in_it() -> None:
    assert epoch_and_step(5, None) == (None, None)


def test_ids_depend_on_what_the_record_is_about_and_on_nothing_else() -> None:
    of = launch()
    one = file(of, 0)
    assert one.id == replace(one, size=7, digest="x").id
    others = [
        file(of, 1),
        file(of, 0, 16),
        file(of, 0, kind=Kind.TTP),
        replace(one, launch="L2"),
        replace(one, path="/x"),
    ]
    assert len({one.id, *(other.id for other in others)}) == 1 + len(others)
    assert one.save_id == file(of, 1).save_id
    assert len({one.save_id, file(of, 0, 16).save_id, file(of, 0, kind=Kind.TTP).save_id}) == 3


def test_a_run_began_from_what_its_newest_launch_did() -> None:
    initial = Initial("pretrain", "L9", 40, "pretrain@best:loss")
    begun = replace(launch("L1", order=1), initial=initial)
    assert initial_of([launch("L3", order=3, decided=False), begun]) == initial
    assert initial.launch_key == replace(launch("L9"), run="pretrain").key
    assert initial_of([begun, launch("L2", order=2, parent=("L1", 10))]) is None
    assert initial_of([]) is None
    assert begun.undecided().initial is None
