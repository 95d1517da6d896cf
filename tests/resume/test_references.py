"""The state that a reference names, with real files on disk, on both databases."""

import os
from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.cli import explanation
from ckptstore.core.model import Resolution
from ckptstore.errors import NothingRestorableError, UnknownRunError, UsageError
from ckptstore.resume import dicts
from ckptstore.resume.resolve import choose_state, names_state, states_of, step_named
from ckptstore.training.rank_launch import RankLaunch
from tests.jobs import Job, started

METRICS = {10: {"loss": 0.5, "accuracy": 0.7}, 20: {"loss": 0.2, "accuracy": 0.9}, 30: {"loss": 0.2}, 40: {"loss": 0.4}}


def measured(catalog: Catalog, directory: Path, world_size: int = 1) -> tuple[Job, list[RankLaunch]]:
    """A job whose second launch went back to step 20 of its first."""
    job, ranks = started(catalog, directory, world_size=world_size)
    save(job, ranks, *METRICS)
    return job, ranks


def save(job: Job, ranks: list[RankLaunch], *steps: int) -> None:
    for step in steps:
        for rank in ranks:
            path = job.write(rank, step)
            rank.register(path, global_step=step, optimizer_step=step, metrics=METRICS.get(step))


def at(catalog: Catalog, reference: str) -> tuple[str, int]:
    plan = choose_state(catalog.database, reference)
    return plan.launch.id, plan.global_step


def passed_over(found: Resolution) -> list[int]:
    return [each.global_step for each in found.rejections]


@pytest.mark.parametrize(
    ("reference", "step"),
    [
        ("run", 40),
        ("run@10", 10),
        ("run@good", 20),
        ("run@best", 30),
        ("run@best:loss", 30),
        ("run@best:loss:max", 10),
        ("run@best:accuracy:max", 20),
        ("run/L1", 40),
        ("run/L1@30", 30),
        ("run/L1@best:accuracy:min", 10),
    ],
)
def test_each_form_of_a_reference(catalog: Catalog, tmp_path: Path, reference: str, step: int) -> None:
    """Of equals the newer is the best."""
    measured(catalog, tmp_path)
    catalog.tag("run", 20, "good")
    assert at(catalog, reference) == ("L1", step)
    assert step_named(catalog.database, reference) == ("run", step)
    assert names_state(catalog.database, reference) == (reference != "run")


def test_the_states_that_a_shell_completes(catalog: Catalog, tmp_path: Path) -> None:
    measured(catalog, tmp_path)
    catalog.tag("run", 20, "good")
    best = [f"best:{metric}:{mode}" for metric in ("accuracy", "loss") for mode in ("min", "max")]
    states = ["good", "40", "30", "20", "10", *best]
    assert states_of(catalog.database, "run") == [f"run@{state}" for state in states]
    assert states_of(catalog.database, "run/L1") == [f"run/L1@{state}" for state in states]
    assert {at(catalog, reference)[0] for reference in states_of(catalog.database, "run")} == {"L1"}


def test_a_tag_named_best_counts_before_the_best_loss(catalog: Catalog, tmp_path: Path) -> None:
    measured(catalog, tmp_path)
    catalog.tag("run", 10, "best")
    assert at(catalog, "run@best") == ("L1", 10)
    assert at(catalog, "run@best:loss") == ("L1", 30)
    for name in ("12", "best:loss", "a@b"):
        with pytest.raises(UsageError, match=f"{name}' cannot be a tag: numbers mean steps"):
            catalog.tag("run", 10, name)


@pytest.mark.of_files
def test_the_best_state_is_whole_and_of_the_history_that_the_run_is_on(catalog: Catalog, tmp_path: Path) -> None:
    job, _ = measured(catalog, tmp_path, world_size=2)
    catalog.branch(choose_state(catalog.database, "run@20"))
    save(job, job.start(), 25, 40)
    assert at(catalog, "run@best") == ("L1", 20), "step 30 was given up"
    assert at(catalog, "run/L1@best") == ("L1", 30)
    found = catalog.resolve("run@best", every_lineage=True)
    assert found.plan.global_step == 30
    (job.folder(1) / "net-2_10.ckpt").unlink()
    found = catalog.resolve("run@best")
    assert (found.plan.launch.id, found.plan.global_step, passed_over(found)) == ("L2", 40, [20])


def test_a_metric_is_the_mean_over_the_ranks(catalog: Catalog, tmp_path: Path) -> None:
    job, ranks = started(catalog, tmp_path)
    for step, losses in {10: (0.1, 0.9), 20: (0.4, 0.4)}.items():
        for rank, loss in zip(ranks, losses, strict=True):
            rank.register(job.write(rank, step), global_step=step, optimizer_step=step, metrics={"loss": loss})
    plan = choose_state(catalog.database, "run@best")
    assert (plan.global_step, plan.metrics) == (20, {"loss": 0.4})
    assert {save.global_step: save.metrics for save in catalog.saves("run")} == {10: {"loss": 0.5}, 20: {"loss": 0.4}}


def test_it_is_so_where_each_node_has_a_disk_of_its_own_at_that_path(catalog: Catalog, tmp_path: Path) -> None:
    """Before, the files of one path counted as one, and the metrics of the last rank alone were told."""
    job, ranks = started(catalog, tmp_path)
    for rank, loss in zip(ranks, (0.1, 0.9), strict=True):
        path = job.write(ranks[0], 10)
        os.utime(path, ns=(10**18, 10**18))  # this process sees one of the disks
        rank.register(path, global_step=10, optimizer_step=10, metrics={"loss": loss})
        path.parent.rename(tmp_path / f"disk_of_{rank.rank}")
    (tmp_path / "disk_of_1").rename(job.folder(0))
    assert choose_state(catalog.database, "run@10").metrics == {"loss": 0.5}


def test_names_that_hold_the_signs_of_references(catalog: Catalog, tmp_path: Path) -> None:
    """The most literal reading of which the run is there counts."""
    for name in ("me@host", "team/run", "team"):
        started(catalog, tmp_path / name, 10, 20, world_size=1, run=name)
    assert at(catalog, "me@host") == ("L1", 20)
    assert at(catalog, "me@host@10") == ("L1", 10)
    assert at(catalog, "team/run") == ("L1", 20)
    assert at(catalog, "team/run/L1@10") == ("L1", 10)
    assert at(catalog, "team/L1@10") == ("L1", 10)
    catalog.rename("team", "squad")
    assert at(catalog, "squad@10") == at(catalog, "team@10") == ("L1", 10)


def test_an_unknown_one_says_which_there_are(catalog: Catalog, tmp_path: Path) -> None:
    measured(catalog, tmp_path)
    with pytest.raises(UsageError, match="run 'run' has no tag 'good'; it has none"):
        at(catalog, "run@good")
    catalog.tag("run", 20, "final")
    with pytest.raises(UsageError, match="run 'run' has no tag 'good'; its tags: final"):
        at(catalog, "run@good")
    with pytest.raises(UsageError, match="no state of run 'run' has the metric 'bleu'; known: accuracy, loss"):
        at(catalog, "run@best:bleu:max")
    with pytest.raises(UsageError, match="run 'run' has no launch 'L9'"):
        at(catalog, "run/L9@10")
    for reference in ("run/L9@10", "run/L9@final"):
        with pytest.raises(UsageError, match="run 'run' has no launch 'L9'; see: ckptstore history run"):
            step_named(catalog.database, reference)
    with pytest.raises(NothingRestorableError, match="run run has no save of step 15; it has 10, 20, 30, 40;"):
        at(catalog, "run@15")
    with pytest.raises(UnknownRunError, match="no run 'digits' in"):
        at(catalog, "digits@15")


def test_json_says_why_there_is_no_plan(catalog: Catalog, tmp_path: Path) -> None:
    measured(catalog, tmp_path)
    found = dicts.resolution(catalog.resolve("run@15"))
    assert (found["rejected"], found["why_none"]) == ([], "run run has no save of step 15; it has 10, 20, 30, 40")
    assert dicts.resolution(catalog.resolve("run@20"))["why_none"] is None


def test_of_many_steps_some_are_named(catalog: Catalog, tmp_path: Path) -> None:
    started(catalog, tmp_path, *range(1, 12))
    with pytest.raises(NothingRestorableError, match="it has 1, 2, …, 6, 7, 8, 9, 10, 11;"):
        at(catalog, "run@15")


def test_a_tag_whose_state_is_gone_has_a_step_and_no_plan(catalog: Catalog, tmp_path: Path) -> None:
    measured(catalog, tmp_path)
    catalog.tag("run", 20, "good")
    for file in catalog.show("run", 20):
        Path(file.path).unlink()
    assert catalog.resolve("run@good").plan is None
    assert step_named(catalog.database, "run@good") == ("run", 20)


@pytest.mark.of_files
def test_a_state_that_is_not_whole_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    job, _ = measured(catalog, tmp_path)
    (job.folder(0) / "net-2_10.ckpt").unlink()
    with pytest.raises(NothingRestorableError, match="step 20 of run run cannot be restored; see: ckptstore resolve"):
        at(catalog, "run@20")
    for name in ("net-1_10", "net-3_10", "net-4_10"):
        (job.folder(0) / f"{name}.ckpt").unlink()
    with pytest.raises(NothingRestorableError, match="no state of run run that has the metric loss can be restored"):
        at(catalog, "run@best")


@pytest.mark.parametrize("asked", [{"step": 10}, {"lineage": "L1"}])
def test_a_reference_and_an_option_do_not_both_choose(
    catalog: Catalog, tmp_path: Path, asked: dict[str, int | str]
) -> None:
    measured(catalog, tmp_path)
    with pytest.raises(UsageError, match="both choose the state"):
        catalog.resolve("run/L1@best", **asked)  # type: ignore[arg-type]


def test_a_tag_in_a_journal_that_the_catalog_lacks(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    measured(catalog, tmp_path)
    other.scan(tmp_path)
    catalog.tag("run", 20, "good")
    assert at(other, "run@good") == ("L1", 20)


def test_it_is_told_that_a_step_was_saved_again_after_its_tag_was_set(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job, _ = measured(catalog, tmp_path)
    catalog.tag("run", 20, "good")
    assert at(catalog, "run@good") == ("L1", 20)
    assert not caplog.messages
    catalog.branch(catalog.resolve("run@10").plan)
    save(job, job.start(), 20)
    assert at(catalog, "run@good") == ("L2", 20)
    (told,) = caplog.messages
    assert told.startswith("launch L2 saved step 20 after the tag good was set on it, and its state is taken")
    assert at(catalog, "run/L1@20") == ("L1", 20)


@pytest.mark.of_files
def test_a_replica_stands_in_for_the_rank_that_measured(
    catalog: Catalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, ranks = started(catalog, tmp_path, 10, 20, layout="data_parallel")
    ranks[0].record(step=10, accuracy=0.9)
    (job.folder(0) / "net-1_10.ckpt").unlink()
    found = catalog.resolve("run@best:accuracy:max")
    explanation.resolution(found, is_asked=True, in_full=True)
    assert "step 10 of run run (epoch 1, step 10 of 10) has the highest accuracy\n" in capsys.readouterr().out
