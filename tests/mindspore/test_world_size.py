"""Another number of ranks goes on with the very samples that are left of the epoch, or says why it cannot."""

import json
from itertools import chain
from pathlib import Path

import pytest

from tests.mindspore.running import Run

pytestmark = pytest.mark.msrun
EVERY_STEP = {"sharded": True, "config": {"save_checkpoint_steps": 1, "exception_save": False}}
SAMPLES = 80


def taken(run: Run, launch: int, ranks: int, steps: slice) -> list[float]:
    """What the ranks of a launch took in these of its steps, all together."""
    files = [run.out / f"seen-{launch}-{rank}.jsonl" for rank in range(ranks)]
    rows: list[list[float]] = [json.loads(line) for file in files for line in file.read_text().splitlines()[steps]]
    return list(chain.from_iterable(rows))


def assert_each_once(samples: list[float]) -> None:
    assert (len(samples), len(set(samples))) == (SAMPLES, SAMPLES)


@pytest.mark.long
def test_two_ranks_then_one(tmp_path: Path) -> None:
    """Killed in epoch 2 after step 3 of 5: one rank goes on after step 6 of 10, with the 32 samples left."""
    run = Run(tmp_path)
    assert run.launch(ranks=2, fault="kill 9", **EVERY_STEP).code != 0
    alone = run.launch(**EVERY_STEP)
    assert alone.code == 0, alone.output
    assert {**alone.start, "append_info": 0} == {
        "fresh": False,
        "global_step": 16,
        "epoch": 2,
        "step_in_epoch": 6,
        "initial_epoch": 1,
        "append_info": 0,
    }
    assert "going on after step 16 (epoch 2, step 6 of 10), saved as step 8 by launch" in alone.output
    assert_each_once(taken(run, 1, 2, slice(5, 8)) + taken(run, 2, 1, slice(0, 4)))
    assert_each_once(taken(run, 2, 1, slice(4, None)))
    assert run.steps() == [*range(30, 16, -1), *range(8, 0, -1)]
    newest = run.catalog.resolve("run")
    assert (newest.plan.global_step, newest.rejections) == (30, ())
    counted = {file.global_step: file.optimizer_step for file in run.catalog.files("run") if file.rank == 0}
    assert (counted[8], counted[17], counted[30]) == (8, 9, 22)


@pytest.mark.long
def test_one_rank_then_two(tmp_path: Path) -> None:
    """Step 7 of an epoch leaves no whole steps of two ranks: that is refused; step 6 is step 3 of theirs."""
    run = Run(tmp_path)
    assert run.launch(fault="kill 18", **EVERY_STEP).code != 0
    refused = run.launch(ranks=2, **EVERY_STEP)
    assert refused.code != 0
    assert "step 17 of launch" in refused.output
    assert "the 56 samples already trained in that epoch do not divide into steps of 16" in refused.output
    assert "the newest earlier step that works is 16" in refused.output
    newest = next(file for file in run.catalog.files("run") if file.global_step == 17)
    Path(newest.path).unlink()
    both = run.launch(ranks=2, **EVERY_STEP)
    assert both.code == 0, both.output
    assert [both.start[name] for name in ("global_step", "epoch", "step_in_epoch", "initial_epoch")] == [8, 2, 3, 1]
    assert_each_once(taken(run, 1, 1, slice(10, 16)) + taken(run, 3, 2, slice(0, 2)))
    assert_each_once(taken(run, 3, 2, slice(2, None)))
    assert run.final(0) == run.final(1)
