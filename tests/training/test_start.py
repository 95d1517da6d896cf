"""Where a launch begins, as one value: what follows from it, and what the other ranks get."""

import json
from dataclasses import FrozenInstanceError, replace
from datetime import datetime, timezone

import pytest

from ckptstore.core.model import Assignment, Checkpoint, Initial, Kind, Launch, RestorePlan
from ckptstore.core.replicas import data_parallel
from ckptstore.training.start import Start, start_from_json

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def launch(name: str, **more: object) -> Launch:
    return Launch(
        id=name,
        run="run",
        order=int(name[1:]),
        world_size=2,
        layout=data_parallel(2),
        steps_per_epoch=10,
        created_at=NOW,
        **more,
    )


def start_at(step: int, *, saved_step: int) -> Start:
    """A start from a step that another launch saved, which counted its steps otherwise."""
    source = Checkpoint(
        run="run",
        launch="L1",
        kind=Kind.PERIODIC,
        global_step=saved_step,
        rank=1,
        path="/ckpt/a",
        size=7,
        digest="ab",
        created_at=NOW,
    )
    ranks = (Assignment(0, source), Assignment(1, source))
    plan = RestorePlan(launch=launch("L1"), global_step=saved_step, ranks=ranks)
    own = launch("L2", decided=True, parent="L1", parent_step=saved_step, start_step=step, branched=True)
    return Start(launch=own, plan=plan, at=NOW, by_journals=True, known={"L1": saved_step, "L2": 0}, offset=-3)


@pytest.mark.parametrize(
    ("step", "epoch", "step_in_epoch", "initial_epoch"), [(1, 1, 1, 0), (10, 1, 10, 1), (11, 2, 1, 1), (25, 3, 5, 2)]
)
def test_the_place_in_the_data_follows_from_the_first_step_of_the_launch(
    step: int, epoch: int, step_in_epoch: int, initial_epoch: int
) -> None:
    start = start_at(step, saved_step=7)
    assert not start.fresh
    found = (start.global_step, start.epoch, start.step_in_epoch, start.initial_epoch)
    assert found == (step, epoch, step_in_epoch, initial_epoch)


def test_it_prints_as_one_line() -> None:
    assert str(start_at(7, saved_step=7)) == ("going on after step 7 (epoch 1, step 7 of 10), saved by launch L1")
    assert str(start_at(11, saved_step=7)) == (
        "going on after step 11 (epoch 2, step 1 of 10), saved as step 7 by launch L1"
    )
    saved = replace(launch("L1"), steps_per_epoch=20)
    start = start_at(11, saved_step=7)
    assert start.plan is not None
    of_20 = replace(start, plan=replace(start.plan, launch=saved))
    assert str(of_20).endswith(", saved as step 7 by launch L1, whose epochs had 20 steps")
    fresh = Start(launch=launch("L1", decided=True), plan=None, at=NOW)
    assert str(fresh) == "starting at step 0"
    assert str(replace(fresh, initial=start_at(7, saved_step=7).plan)) == "starting at step 0, from step 7 of run run"


def test_every_rank_gets_what_rank_0_decided() -> None:
    fresh = Start(launch=launch("L1", decided=True), plan=None, at=NOW)
    assert fresh.fresh
    assert (fresh.global_step, fresh.epoch, fresh.step_in_epoch, fresh.initial_epoch) == (0, 0, 0, 0)
    saved = start_at(5, saved_step=10).plan
    assert saved is not None
    initial = Initial("run", "L1", 10, "run@best:loss")
    begun = Start(launch=launch("L2", decided=True, initial=initial), plan=None, at=NOW, initial=saved)
    assert begun.fresh
    for start in (start_at(5, saved_step=10), fresh, begun):
        assert start_from_json(json.loads(json.dumps(start.to_json()))) == start


def test_what_a_file_held_is_each_rank_s_own() -> None:
    start = start_at(5, saved_step=10)
    own = replace(start, append_info={"epoch_num": 1})
    assert start_from_json(own.to_json()) == start
    with pytest.raises(FrozenInstanceError):
        own.append_info = {}
