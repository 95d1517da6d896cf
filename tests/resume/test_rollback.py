"""Going back to an older state on purpose, and what comes of states that could not be loaded."""

from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.core.model import Rule
from ckptstore.errors import NothingRestorableError, UsageError
from ckptstore.resume.resolver import Query
from tests.jobs import newest, started


def test_a_launch_that_asks_for_an_older_step_gives_up_what_came_after(catalog: Catalog, tmp_path: Path) -> None:
    job, _ = started(catalog, tmp_path, 5, 10, 15)
    back = job.start(resume=False)
    plans = [back[0].resolve(step=5), back[1].resolve(step=10), back[0].resolve()]
    assert [plan.global_step for plan in plans if plan] == [5, 5, 5]  # the first answer is the launch's
    assert newest(catalog) == 5  # though the branch saved nothing yet
    assert {row.tally.global_step: row.abandoned for row in catalog.saves("run")} == {5: False, 10: True, 15: True}
    (row,) = catalog.runs()
    assert (row.newest_restorable and row.newest_restorable.tally.global_step) == 5
    rejected = catalog.resolve("run").rejections
    assert [(each.global_step, each.reasons[0].rule) for each in rejected] == [
        (15, Rule.NOT_LINEAGE),
        (10, Rule.NOT_LINEAGE),
    ]
    for each in rejected:
        assert each.remedies[0].startswith(f"to go back to it: ckptstore resolve run/L1@{each.global_step} --branch, ")
        assert newest(catalog, lineage="L1", step=each.global_step) == each.global_step
    job.save(back, 7)
    assert newest(catalog) == 7
    assert newest(catalog, lineage="L1") == 15
    assert newest(catalog, every_lineage=True) == 15
    assert newest(catalog, every_lineage=True, step=7) == 7
    assert newest(catalog, step=10) is None
    again = job.start(resume=False)
    with pytest.raises(NothingRestorableError, match="step 10 of run 'run' cannot be restored: the run went back"):
        again[0].resolve(step=10)
    plan = again[0].resolve(step=10, lineage="L1")
    assert plan is not None
    assert newest(catalog) == 10
    assert {row.launch.id: row.abandoned for row in catalog.saves("run") if row.tally.global_step in (7, 10)} == {
        "L2": True,
        "L1": False,
    }


def test_one_step_of_several_launches_is_that_of_the_newest(catalog: Catalog, tmp_path: Path) -> None:
    job, _ = started(catalog, tmp_path, 5, 10)
    back = job.start(resume=False)
    for rank in back:
        rank.resolve(step=5)
    job.save(back, 10)
    found = catalog.resolve("run", every_lineage=True).plan
    assert (found.launch.id, found.global_step) == ("L2", 10)


def test_who_begins_anew_and_fails_again_and_again_before_a_whole_save_begins_anew(
    catalog: Catalog, tmp_path: Path
) -> None:
    """The second launch after it was refused. What they saved themselves is a loss as it always is."""
    job, _ = started(catalog, tmp_path, 10, 20, 30)
    (first, _) = job.start(resume=False)
    assert first.decide_start(catalog.database, Query(fresh=True)).plan is None
    job.save([first], 5)
    for _ in range(3):
        (first, _) = job.start()
        assert (first.facts.decided, first.facts.parent) == (True, None)
    job.save([first], 5, 10, 15)
    with pytest.raises(NothingRestorableError, match="launch L5 saved 3 steps, and none of them is complete"):
        job.start()
    assert catalog.join("run", world_size=2, launch_id="L9").resolve(lineage="L1").global_step == 30


def test_what_cannot_be_meant_is_said(catalog: Catalog, tmp_path: Path) -> None:
    job, _ = started(catalog, tmp_path, 5)
    again = job.start(resume=False)
    with pytest.raises(UsageError, match="step is 0; to start afresh give the run another name"):
        again[0].resolve(step=0)
    with pytest.raises(NothingRestorableError, match="step 6 of run 'run' cannot be restored: there is no such save"):
        again[0].resolve(step=6)


def test_a_file_that_could_not_be_loaded_is_passed_over_until_a_launch_goes_on_from_it(
    catalog: Catalog, tmp_path: Path
) -> None:
    job, ranks = started(catalog, tmp_path, 5)
    bad = job.save(ranks, 10)[1]
    job.start()[1].load_failed(bad, "Input/output error")
    found = catalog.resolve("run")
    assert found.plan.global_step == 5
    (rejection,) = found.rejections
    assert rejection.reasons[0].rule is Rule.QUARANTINED
    assert rejection.reasons[0].detail == f"{bad.path} could not be loaded: Input/output error (rank 1 of launch L2)"
    trying = job.start(resume=False)
    for rank in trying:
        assert rank.resolve(take_quarantined=True).global_step == 10
    assert newest(catalog) == 5  # nobody knows yet how it went
    for file in job.save(trying, 12):
        Path(file.path).unlink()
    assert newest(catalog) == 10  # it did load, and training went on from it


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_went_on_does_not_speak_for_one_that_could_not_load_its_file(
    catalog: Catalog, tmp_path: Path, failing: int
) -> None:
    """Ranks that do not wait for each other: where the first one failed, each start chose the same state again."""
    job, ranks = started(catalog, tmp_path, 5)
    bad = job.save(ranks, 10)[failing]
    again = job.start()
    again[failing].load_failed(bad, "Input/output error")
    job.save([again[1 - failing]], 12)
    assert newest(catalog) == 5


def test_a_load_that_failed_for_another_reason_than_the_file_speaks_against_nothing(
    catalog: Catalog, tmp_path: Path
) -> None:
    job, _ = started(catalog, tmp_path, 5)
    job.start()[1].load_failed(None, "No such file or directory")
    assert newest(catalog) == 5


def test_to_go_back_while_a_launch_trains_is_warned_of(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job, ranks = started(catalog, tmp_path, 10, 20)
    ranks[0].signs.begin()
    plan = catalog.resolve("run", step=10).plan
    assert plan is not None
    catalog.branch(plan)
    assert "launch L1 of run run is training, and what it saves is given up too: stop it" in caplog.text
    ranks[0].signs.end()
    caplog.clear()
    catalog.branch(plan)
    assert caplog.text == ""
    job.save(ranks, 30)
    assert [state.global_step for state in catalog.saves("run") if not state.abandoned] == [10]


def test_a_branch_without_a_plan_says_so__before_none_had_no_global_step(catalog: Catalog) -> None:
    catalog.join("run")
    with pytest.raises(UsageError, match="the plan is None: nothing can be restored; give the plan of a resolution"):
        catalog.branch(catalog.resolve("run").plan)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the plan is a Resolution; give the plan of a resolution"):
        catalog.branch(catalog.resolve("run"))  # type: ignore[arg-type]


def test_no_return_is_told_of_a_run_that_only_went_on(catalog: Catalog, tmp_path: Path) -> None:
    job, _ = started(catalog, tmp_path, 5, 10)
    job.save(job.begin(), 15)
    (rejected,) = catalog.resolve("run", lineage="L1").rejections
    assert rejected.global_step == 15
    assert [str(each.detail) for each in rejected.reasons] == ["it is not in the history that leads to launch L1"]
    back = job.start(resume=False)[0]
    with pytest.raises(NothingRestorableError, match="of L1 of run 'run' cannot be restored: it is not in the history"):
        back.resolve(lineage="L1", step=15)
    assert back.resolve(lineage="L1").global_step == 10
    assert catalog.history("run")[-1].passed == (), "it was given up on purpose"
