"""The trash of a run: on a disk that is away for a while, and of steps that somebody wants to protect by then."""

from collections.abc import Sequence
from errno import EIO
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from ckptstore.api import Catalog
from ckptstore.core.model import FileState
from ckptstore.disk import files
from ckptstore.resume import reconcile
from ckptstore.retention import plan as plan_module
from ckptstore.retention import stored_policy
from ckptstore.retention import worker as worker_module
from ckptstore.retention.execute import execute
from ckptstore.retention.plan import plan_gc
from ckptstore.retention.policy import Policy
from ckptstore.retention.purge import purge
from ckptstore.retention.undo import undo
from ckptstore.training import rank_launch
from tests.jobs import Job, started
from tests.retention.builders import LAST_2, gc, names, removed, saved, tree

pytestmark = pytest.mark.of_files


@pytest.mark.parametrize("is_empty", [False, True], ids=["no directory", "an empty mount point"])
@pytest.mark.parametrize("action", ["undo", "purge"])
def test_trash_on_a_disk_that_is_not_mounted_is_not_forgotten(
    catalog: Catalog, tmp_path: Path, action: str, *, is_empty: bool
) -> None:
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    before = tree(job.directory)
    gc(catalog)
    job.folder(1).rename(tmp_path / "away")
    if is_empty:
        job.folder(1).mkdir()
    done = undo(catalog.database, "run") if action == "undo" else purge(catalog.database, "run", at_once=True)
    what = "is empty" if is_empty else "is not there"
    unheard = {f"{job.folder(1)} was away as its journals were to be read: they may protect what is beside them"}
    reasons = {f"its directory {what}: it may not be mounted"} | (unheard if action == "purge" else set())
    assert {trouble.reason.partition(";")[0] for trouble in done.troubles} == reasons
    if is_empty:
        job.folder(1).rmdir()  # nothing was written there
    (tmp_path / "away").rename(job.folder(1))
    done = undo(catalog.database, "run") if action == "undo" else purge(catalog.database, "run", at_once=True)
    assert done.troubles == ()
    assert set(tree(job.directory)) == names(job.directory)
    assert (tree(job.directory) == before) == (action == "undo")


@pytest.mark.parametrize("announced", [False, True])
def test_states_on_a_disk_that_is_not_mounted_are_not_said_to_be_gone(
    catalog: Catalog, tmp_path: Path, *, announced: bool
) -> None:
    job = Job(catalog, tmp_path / "data")
    ranks = job.start()
    for rank in ranks if announced else ():
        job.announce(rank)
    job.save(ranks, 10, 20, 30, 40)
    homes = [str(job.folder(rank)) for rank in (0, 1)]
    job.directory.rename(tmp_path / "away")
    for _ in range(2):
        plan = plan_gc(catalog.database, "run", LAST_2)
        assert removed(plan) == []
        assert {each.path for each in plan.unseen} == set(homes)
        assert plan.unseen[0].reason == "is not there: it may not be mounted"
        doubts = {because.detail for verdict in plan.decision.keep for because in verdict.reasons}
        assert announced or f"{homes[0]} is not there: it may not be mounted" in doubts
    (tmp_path / "away").rename(job.directory)
    plan = plan_gc(catalog.database, "run", LAST_2)
    assert (removed(plan), plan.unseen) == ([("L1", 20), ("L1", 10)], ())


def away_during(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, directory: Path, steps: Sequence[int] = ()
) -> None:
    """A directory is not there while a function looks, and back as soon as it has; or only at the files of steps."""
    look = getattr(module, name)
    paths = [str(directory / f"net-{step // 10}_10.ckpt") for step in steps]

    def looks(*args: Any, **kwargs: Any) -> Any:
        if paths and args[0] not in paths:
            return look(*args, **kwargs)
        directory.rename(directory.with_name("away"))
        try:
            return look(*args, **kwargs)
        finally:
            directory.with_name("away").rename(directory)

    monkeypatch.setattr(module, name, looks)


@pytest.mark.parametrize(
    "look", [(files, "facts", (50, 60)), (reconcile, "_listings", ())], ids=["at two files", "at directories"]
)
def test_files_that_were_away_for_a_moment_are_not_gone(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: tuple[Any, str, Sequence[int]]
) -> None:
    """Else the other ranks' files of a state would go, since it could not be restored; and then its own."""
    job = saved(catalog, tmp_path, *range(10, 90, 10))
    module, name, steps = look
    away_during(monkeypatch, module, name, job.folder(0), steps)
    plan = plan_gc(catalog.database, "run", Policy(keep_last=5))
    execute(catalog.database, plan, allow_mass_delete=True)
    monkeypatch.undo()
    assert {file.state for file in catalog.files("run")} <= {FileState.COMPLETE, FileState.TRASHED}
    plan = plan_gc(catalog.database, "run", Policy(keep_last=5))
    execute(catalog.database, plan, allow_mass_delete=True)
    assert [state.global_step for state in catalog.saves("run")] == [80, 70, 60, 50, 40]


def test_what_a_launch_saved_and_does_not_see_for_a_moment_is_not_gone(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each save a rank looks which of its files MindSpore has deleted."""
    job, ranks = started(catalog, tmp_path / "ckpt", 10, 20, 30)
    away_during(monkeypatch, rank_launch, "names_in", job.folder(0))
    ranks[0].live_files.notice_vanished(job.folder(0))
    monkeypatch.undo()
    assert {file.state for file in catalog.files("run")} == {FileState.COMPLETE}
    job.write(ranks[0], 10).unlink()
    ranks[0].live_files.notice_vanished(job.folder(0))
    assert [file.global_step for file in catalog.files("run") if file.state is FileState.MISSING] == [10]


@pytest.mark.parametrize("action", ["gc", "purge"])
def test_a_pin_in_a_journal_that_is_away_as_journals_are_read_is_kept(
    catalog: Catalog, other: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """What protects a state is said beside one of its files: that directory was not heard, and its files are there."""
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    other.sync(job.directory)
    if action == "purge":
        gc(catalog)
    other.pin("run", 10)
    for module in (plan_module, worker_module):
        away_during(monkeypatch, module, "sync_run", job.folder(0))
    if action == "purge":
        assert purge(catalog.database, "run", at_once=True).waiting == 4
    else:
        plan = plan_gc(catalog.database, "run", LAST_2)
        assert [each.path for each in plan.unseen] == [str(job.folder(0))]
        gc(catalog)
    monkeypatch.undo()
    gc(catalog) if action == "gc" else purge(catalog.database, "run", at_once=True)
    kept = [list(job.folder(rank).rglob("net-1_10.ckpt")) for rank in (0, 1)]
    assert all(kept), "the pinned step"
    assert action == "gc" or not list(job.directory.rglob("net-2_10.ckpt"))


def test_a_journal_that_is_away_when_it_is_carried_out_protects_its_states(
    catalog: Catalog, other: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    other.sync(job.directory)
    plan = plan_gc(catalog.database, "run", LAST_2)
    other.pin("run", 10)
    away_during(monkeypatch, worker_module, "sync_run", job.folder(0))
    done = execute(catalog.database, plan, allow_mass_delete=True)
    reason = f"{job.folder(0)} was away as its journals were to be read: they may protect what is beside them"
    assert (done.removed, {each.reason for each in done.skipped}) == ((), {reason})


@pytest.mark.parametrize("action", ["verify", "pin", "rename", "forget", "policy", "scan", "fresh"])
def test_an_empty_mount_point_that_somebody_works_on_is_none_whose_files_are_gone(
    catalog: Catalog, tmp_path: Path, action: str
) -> None:
    """What was written there once made it pass for one: gc removed what the other rank had of every state."""
    job = saved(catalog, tmp_path, 10, 20, 30, 40, 50, 60)
    job.folder(0).rename(tmp_path / "away")
    job.folder(0).mkdir()
    match action:
        case "verify":
            assert len(catalog.verify("run").troubles) == 6
        case "pin":
            catalog.pin("run", 60)
            catalog.unpin("run", 60)
        case "rename":
            catalog.rename("run", "other")
            catalog.rename("other", "run")
        case "forget":
            catalog.forget("run")
            catalog.forget("run", undo=True)
        case "policy":
            stored_policy.store(catalog.database, "run", LAST_2)
        case "scan":
            catalog.scan(job.folder(0), run="run")
        case "fresh":
            ranks = job.begin(resume=False)
            job.save(ranks, 70)
    left = [path.name for path in job.folder(0).rglob("*")]
    assert action == "fresh" or left == [], "nothing is written there"
    assert removed(plan_gc(catalog.database, "run", Policy(keep_last=6))) == []
    gc(catalog, Policy(keep_last=6))
    rmtree(job.folder(0))
    (tmp_path / "away").rename(job.folder(0))
    whole = [state.global_step for state in catalog.saves("run") if state.restorable]
    assert [step for step in whole if step <= 60] == [60, 50, 40, 30, 20, 10]
    assert catalog.resolve("run", step=60).plan is not None


def test_an_empty_mount_point_in_a_tree_that_was_scanned(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    """The journal is that of the tree: of a directory in it none is missed."""
    job = saved(other, tmp_path, 10, 20, 30)
    for folder in [*job.directory.rglob(".ckptstore")]:
        rmtree(folder)
    catalog.scan(job.directory, run="run", steps_per_epoch=10)
    later = Job(catalog, tmp_path / "later")
    later.save(later.start(resume=False), 40, 50)
    job.folder(0).rename(tmp_path / "away")
    job.folder(0).mkdir()
    plan = plan_gc(catalog.database, "run", Policy(keep_last=5))
    assert removed(plan) == []
    assert [(each.path, each.reason.partition(":")[0]) for each in plan.unseen] == [(str(job.folder(0)), "is empty")]
    catalog.scan(job.directory, run="run", steps_per_epoch=10)
    assert removed(plan_gc(catalog.database, "run", Policy(keep_last=5))) == [], "it is empty still"
    (job.folder(0) / ".ckptstore").mkdir()
    catalog.scan(job.directory, run="run", steps_per_epoch=10)
    assert len(removed(plan_gc(catalog.database, "run", Policy(keep_last=5)))) == 3, "gone for good"


@pytest.mark.parametrize("what", ["cannot be read", "is cut"])
def test_what_was_found_to_be_damaged_and_does_not_look_so_now_stays(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A network file system may fail for a moment; and who brings a file back need not verify it before gc runs."""
    job = saved(catalog, tmp_path, 10, 20, 30)
    path = str(job.folder(0) / "net-1_10.ckpt")
    digest, facts = files.digest, files.facts

    def fails(asked: str, *others: Any) -> str:
        if asked == path:
            raise OSError(EIO, "Input/output error")
        return digest(asked, *others)

    def is_short(asked: str) -> Any:
        found = facts(asked)
        return found._replace(size=found.size - 1) if found and asked == path else found

    monkeypatch.setattr(files, *(("facts", is_short) if what == "is cut" else ("digest", fails)))
    assert [each.path for each in catalog.verify("run", digest=True).damaged] == [path]
    monkeypatch.undo()
    plan = plan_gc(catalog.database, "run", LAST_2)
    assert removed(plan) == []
    assert "does not look so now" in plan.decision.keep[-1].reasons[0].detail
    catalog.verify("run")
    assert [state.restorable for state in catalog.saves("run")] == [True] * 3
    assert removed(plan_gc(catalog.database, "run", LAST_2)) == [("L1", 10)]


def test_files_that_cannot_be_looked_at_stay_and_are_told(catalog: Catalog, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    for rank in (0, 1):
        path = job.folder(rank) / "net-1_10.ckpt"
        path.unlink()
        path.symlink_to(path)  # as where the permission is lacking: root has every permission
    plan = plan_gc(catalog.database, "run", LAST_2)
    assert removed(plan) == [("L1", 20)]
    assert [verdict.state.global_step for verdict in plan.decision.keep] == [40, 30, 10]
    assert [each.path for each in plan.unseen] == [str(job.folder(0))]
    assert plan.unseen[0].reason.startswith("net-1_10.ckpt cannot be looked at: ")


def two_gcs(catalog: Catalog, tmp_path: Path) -> Job:
    """Step 10 went with the first gc, step 20 with the second."""
    job = saved(catalog, tmp_path, 10, 20, 30, 40, 50)
    gc(catalog, Policy(keep_last=4))
    gc(catalog, Policy(keep_last=3))
    return job


def there(job: Job) -> set[str]:
    return {name for name in names(job.directory) if name.endswith(("-1_10.ckpt", "-2_10.ckpt"))}


def test_undo_reaches_the_gc_before_one_whose_file_is_in_the_way(catalog: Catalog, tmp_path: Path) -> None:
    job = two_gcs(catalog, tmp_path)
    (job.folder(0) / "net-2_10.ckpt").write_bytes(b"another")
    first = undo(catalog.database, "run")
    assert (first.files, first.passed_over) == (1, ()), "the other rank's came back"
    second = undo(catalog.database, "run")
    assert (second.files, len(second.passed_over)) == (2, 1)
    reason = "another file is at its place now: it stays in the trash"
    assert [(each.path, each.reason) for each in second.troubles] == [(str(job.folder(0) / "net-2_10.ckpt"), reason)]
    assert there(job) == {f"rank_{rank}/net-{end}.ckpt" for rank in (0, 1) for end in ("1_10", "2_10")}
    assert (job.folder(0) / "net-2_10.ckpt").read_bytes() == b"another"
    for _ in range(2):
        third = undo(catalog.database, "run")
        assert (third.files, third.passed_over, len(third.troubles)) == (0, (), 1), "it is told each time, and waits"
    (job.folder(0) / "net-2_10.ckpt").unlink()
    assert undo(catalog.database, "run").files == 1
    assert catalog.resolve("run", step=20).plan is not None


def test_a_replaced_disk_stops_no_training_and_takes_nothing_for_deleted(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Until somebody says that the former one is gone for good."""
    job = saved(catalog, tmp_path, 10, 20, 30)
    rmtree(job.folder(0))
    ranks = job.begin(resume=False)
    assert f"{job.folder(0)} is not the directory that run run saved to before" in caplog.text
    assert str(job.folder(1)) not in caplog.text
    job.save(ranks, 40, 50)
    gc(catalog)
    assert {file.state for file in catalog.files("run")} == {FileState.COMPLETE}
    plan = plan_gc(catalog.database, "run", LAST_2)
    assert [each.path for each in plan.unseen] == [str(job.folder(0))]
    assert removed(plan) == []
    catalog.scan(job.folder(0), run="run")
    assert [file.global_step for file in catalog.files("run") if file.state is FileState.MISSING] == [30, 20, 10]
    assert len(removed(plan_gc(catalog.database, "run", Policy(keep_last=2)))) == 3


def test_a_disk_that_goes_away_while_training_goes_on(
    catalog: Catalog, other: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is said of the run, and no file, is not written to the mount point; and the run goes on as it can."""
    job, ranks = started(catalog, tmp_path / "ckpt", 10, 20)
    job.folder(0).rename(tmp_path / "away")
    job.folder(0).mkdir()
    ranks[0].set_steps_per_epoch(10, batch_size=4)
    assert list(job.folder(0).iterdir()) == []
    assert "is empty: it may not be mounted" in caplog.text
    ranks[0].live_files.notice_vanished(job.folder(0))
    job.save(ranks, 30)
    assert {file.state for file in catalog.files("run")} == {FileState.COMPLETE}
    job.folder(0).rename(tmp_path / "mount point")
    (tmp_path / "away").rename(job.folder(0))
    ranks[0].live_files.notice_vanished(job.folder(0))
    states = {(file.rank, file.global_step): file.state for file in catalog.files("run")}
    assert set(states.values()) == {FileState.COMPLETE}, "step 30 is in another directory"
    plan = catalog.resolve("run").plan
    assert plan is not None
    assert plan.global_step == 20


def test_a_file_of_the_same_name_on_another_disk_is_no_damage(catalog: Catalog, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path, 10, 20, 30)
    job.folder(0).rename(tmp_path / "away")
    job.folder(0).mkdir()
    (job.folder(0) / "net-1_10.ckpt").write_bytes(b"another")
    done = catalog.verify("run")
    assert (done.damaged, len(done.troubles)) == ((), 3)
    catalog.scan(job.directory, run="run")
    assert removed(plan_gc(catalog.database, "run", LAST_2)) == []
    assert next(file for file in catalog.files("run") if file.global_step == 10).state is FileState.COMPLETE
