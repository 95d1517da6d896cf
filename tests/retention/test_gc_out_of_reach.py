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
from ckptstore.errors import UsageError
from ckptstore.resume import reconcile
from ckptstore.retention import worker as worker_module
from ckptstore.retention.execute import execute
from ckptstore.retention.in_trash import purge, undo
from ckptstore.retention.plan import plan_gc
from ckptstore.retention.policy import Policy
from tests.retention.builders import LAST_2, gc, removed, saved

pytestmark = pytest.mark.of_files


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


def test_a_journal_that_is_away_when_it_is_carried_out_protects_its_states(
    catalog: Catalog, other: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    other.sync(job.directory)
    plan = plan_gc(catalog.database, "run", LAST_2)
    other.pin("run", 10)
    away_during(monkeypatch, worker_module, "sync_run", job.folder(0))
    done = execute(catalog.database, plan, allow_mass_delete=True)
    may = "a journal may have a pin or tag of this state"
    reason = f"{job.folder(0)} was not there (or its .ckptstore) when the journals were read; {may}"
    assert (done.removed, {each.reason for each in done.skipped}) == ((), {reason})


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


def test_the_trash_of_a_directory_that_is_gone_for_good(catalog: Catalog, tmp_path: Path) -> None:
    """Made anew as the message says, it has no trash any more: undo and purge do not wait for it for ever."""
    job = saved(catalog, tmp_path, 10, 20, 30)
    gc(catalog)
    rmtree(job.folder(0))
    assert purge(catalog.database, "run", at_once=True).troubles
    (job.folder(0) / ".ckptstore").mkdir(parents=True)
    catalog.scan(job.folder(0), run="run")
    assert purge(catalog.database, "run", at_once=True).troubles == ()
    with pytest.raises(UsageError, match="nothing of run 'run' is in the trash"):
        undo(catalog.database, "run")


@pytest.mark.parametrize("scanned", ["itself", "above"])
def test_the_trash_of_a_replaced_disk_on_which_training_goes_on(
    catalog: Catalog, other: Catalog, tmp_path: Path, scanned: str
) -> None:
    """It has another identity, so it cannot have been made anew by hand. A scan of that very directory says it."""
    job = saved(catalog, tmp_path, 10, 20, 30)
    gc(catalog)
    rmtree(job.folder(0))
    ranks = job.begin(resume=False)
    job.save(ranks, 40, 50)
    there = [path for path in tmp_path.rglob("*") if path.is_file() and "trash" in path.parts]
    done = catalog.scan(job.folder(0) if scanned == "itself" else job.directory, run="run")
    assert [each for each in done.warnings if "trash" in each] == (
        [f"the trash of {job.folder(0)} is gone with the directory: 1 file, 106 B"] if scanned == "itself" else []
    )
    purged = purge(catalog.database, "run", at_once=True)
    assert len(purged.troubles) == (0 if scanned == "itself" else 1)
    assert not any(path.exists() for path in there)
    other.scan(job.directory, run="run")
    assert purge(other.database, "run", at_once=True).troubles == ()


def test_the_trash_of_a_disk_that_is_mounted_again_after_a_scan_without_it(catalog: Catalog, tmp_path: Path) -> None:
    """A job had saved below its mount point: so the scan took its files for gone."""
    job = saved(catalog, tmp_path, 10, 20, 30)
    gc(catalog)
    disk = job.folder(0).rename(tmp_path / "disk")
    ranks = job.begin(resume=False)
    job.save(ranks, 40, 50)
    catalog.scan(job.folder(0), run="run")
    rmtree(job.folder(0))
    disk.rename(job.folder(0))
    (found,) = catalog.scan(job.folder(0), run="run").trash
    assert found.files == 1
    assert undo(catalog.database, "run").troubles == ()
    assert sorted(file.rank for file in catalog.files("run") if file.global_step == 10) == [0, 1]
    assert {file.state for file in catalog.files("run") if file.global_step == 10} == {FileState.COMPLETE}
