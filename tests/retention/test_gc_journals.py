"""What journals say of a run holds for gc and purge too; what nobody can read may hold as well."""

import re
import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from ckptstore.api import Catalog, connect
from ckptstore.catalog import user_events
from ckptstore.catalog.tables import policies
from ckptstore.core.model import FileState
from ckptstore.errors import RefusedError, UsageError
from ckptstore.journal import jsonl
from ckptstore.outside import utc_now
from ckptstore.retention import stored_policy
from ckptstore.retention.execute import execute
from ckptstore.retention.in_trash import undo
from ckptstore.retention.plan import plan_gc
from ckptstore.retention.policy import Policy
from ckptstore.training.retention_thread import RetentionThread
from tests.cli.advice import advised
from tests.command_line import ckptstore
from tests.contents import contents
from tests.doctor.checkups import checks
from tests.retention.builders import LAST_2, gc, removed, saved, tree


def end_in_a_newer_entry(path: Path) -> None:
    with path.open("ab") as file:
        file.write(jsonl.encode({"t": "pin", "step": 10, "v": jsonl.VERSION + 1}))


def test_nothing_goes_while_a_journal_was_not_read(catalog: Catalog, tmp_path: Path) -> None:
    """It may tell that a step is pinned, or that a launch starts from it."""
    job = saved(catalog, tmp_path, 10, 20, 30, 40)
    made_before = plan_gc(catalog.database, "run", LAST_2)
    assert removed(made_before) == [("L1", 20), ("L1", 10)]
    before = tree(job.directory)
    unread = Path(jsonl.journals_in(str(job.folder(1)))[0])
    end_in_a_newer_entry(unread)
    plan = plan_gc(catalog.database, "run", LAST_2)
    assert removed(plan) == []
    assert [each.path for each in plan.unseen] == [str(unread)]
    assert all("may have pins or tags" in verdict.state.doubt for verdict in plan.decision.keep)
    done = execute(catalog.database, made_before)
    assert (done.removed, {each.reason for each in done.skipped}) == ((), {plan.decision.keep[0].state.doubt})
    assert tree(job.directory) == before


def test_what_undo_brings_back_beside_an_unread_journal_counts_at_once(catalog: Catalog, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path / "ckpt", 10, 20, 30, 40)
    gc(catalog)
    end_in_a_newer_entry(Path(jsonl.journals_in(str(job.folder(1)))[0]))
    assert undo(catalog.database, "run").files == 4
    assert {file.state for file in catalog.files("run")} == {FileState.COMPLETE}
    with pytest.raises(UsageError, match="nothing of run 'run' is in the trash"):
        undo(catalog.database, "run")


def test_a_catalog_from_a_backup_does_not_collect_by_its_old_policy(catalog: Catalog, tmp_path: Path) -> None:
    """A newer policy may keep more: gc asks which one counts. Rules that gc is given count at once."""
    saved(catalog, tmp_path / "ckpt", 10, 20, 30, 40)
    stored_policy.store(catalog.database, "run", LAST_2)
    assert removed(catalog.plan_gc("run")) == [("L1", 20), ("L1", 10)]
    (before,) = contents(catalog)["policies"]
    for policy in (Policy(keep_last=3), Policy(keep_last=4)):
        stored_policy.store(catalog.database, "run", policy)
    assert removed(catalog.plan_gc("run")) == []
    with catalog.database.write() as connection:  # as a backup from before has it
        connection.execute(policies.update().values(rules=before["rules"], version=before["version"]))
    told = (
        "a journal has a newer policy than the catalog; store the right one: ckptstore policy run "
        "--keep-last 4 --floor 2 (the journal's) or ckptstore policy run --keep-last 2 --floor 2 (the catalog's); or "
    )
    with pytest.raises(RefusedError, match=re.escape(told)):
        catalog.plan_gc("run")
    assert removed(catalog.plan_gc("run", LAST_2)) == [("L1", 20), ("L1", 10)]
    stored_policy.store(catalog.database, "run", LAST_2)
    assert removed(catalog.plan_gc("run")) == [("L1", 20), ("L1", 10)]


def test_the_same_policy_in_another_catalog_is_no_newer_one(catalog: Catalog, sqlite_url: str, tmp_path: Path) -> None:
    """Two catalogs of one tree, each with a gc by a timer: the later one that got the policy stopped the other's gc."""
    job = saved(catalog, tmp_path / "ckpt", 10, 20, 30, 40)
    stored_policy.store(catalog.database, "run", LAST_2)
    other = connect(f"{sqlite_url}-other")
    other.scan(job.directory)
    stored_policy.store(other.database, "run", Policy(keep_last=4))
    with pytest.raises(RefusedError, match="newer policy"):
        catalog.plan_gc("run")
    stored_policy.store(other.database, "run", LAST_2)
    assert removed(catalog.plan_gc("run")) == [("L1", 20), ("L1", 10)]
    stored_policy.clear(catalog.database, "run")
    stored_policy.clear(other.database, "run")
    assert "marks" not in checks(catalog.database.url.render_as_string(hide_password=False))


def test_a_policy_that_is_stored_again_counts_though_a_clock_was_ahead(
    catalog: Catalog, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other catalog's machine was a year ahead: the command that gc names must end what it is about."""
    job = saved(catalog, tmp_path / "ckpt", 10, 20, 30, 40)
    stored_policy.store(catalog.database, "run", LAST_2)
    other = connect(f"{sqlite_url}-other")
    other.scan(job.directory)
    with monkeypatch.context() as ahead:
        ahead.setattr(user_events, "utc_now", lambda: utc_now() + timedelta(days=365))
        stored_policy.store(other.database, "run", Policy(keep_last=4))
    for policy in (LAST_2, Policy(keep_last=1)):
        with pytest.raises(RefusedError, match="newer policy"):
            catalog.plan_gc("run")
        stored_policy.store(catalog.database, "run", policy)
        assert removed(catalog.plan_gc("run")) == [("L1", 20), ("L1", 10)]
        stored_policy.store(other.database, "run", Policy(keep_last=4))


def test_a_newer_policy_is_seen_behind_many_other_lines(catalog: Catalog, tmp_path: Path) -> None:
    """Each gc writes what it removes into a journal: after some months these are long."""
    job = saved(catalog, tmp_path / "ckpt", 10, 20, 30, 40)
    stored_policy.store(catalog.database, "run", LAST_2)
    (before,) = contents(catalog)["policies"]
    stored_policy.store(catalog.database, "run", Policy(keep_last=4))
    with catalog.database.write() as connection:  # as a backup from before has it
        connection.execute(policies.update().values(rules=before["rules"], version=before["version"]))
    first, *others = (Path(path) for path in jsonl.journals_in(str(job.folder(0))) if "/shared-" in path)
    for path in (first, *others):
        shutil.copy(path, job.folder(1) / ".ckptstore")
        path.write_bytes(b"")
    first.write_bytes(jsonl.encode({"t": "launch", "id": "x" * (9 << 20)}) * 2)
    with pytest.raises(RefusedError, match="newer policy than the catalog"):
        catalog.plan_gc("run")


def test_a_training_that_collects_hears_why_nothing_goes(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = saved(catalog, tmp_path, 10, 20, 30)
    unread = Path(jsonl.journals_in(str(job.folder(1)))[0])
    end_in_a_newer_entry(unread)
    ranks = job.start()
    thread = RetentionThread(ranks[0], LAST_2)
    thread.file_registered(job.save(ranks, 40)[0])
    thread.finish(10)
    assert f"gc could not do all: {unread}" in caplog.text
    assert {file.state.value for file in catalog.files("run")} == {"complete"}


def test_a_training_that_collects_begins_one_journal_in_a_directory__before_one_at_each_gc(
    catalog: Catalog, other: Catalog, tmp_path: Path
) -> None:
    job = saved(catalog, tmp_path, 10, 20)
    ranks = job.start()
    thread = RetentionThread(ranks[0], LAST_2)
    for step in (30, 40, 50, 60):
        thread.file_registered(job.save(ranks, step)[0])
        thread.finish(10)
    assert sorted({file.global_step for file in catalog.files("run") if file.state.is_there}) == [50, 60]
    journals = [Path(path).name for rank in (0, 1) for path in jsonl.journals_in(str(job.folder(rank)))]
    assert sum(name.startswith(jsonl.SHARED) for name in journals) == 2
    other.scan(tmp_path)
    assert contents(other) == contents(catalog)


def test_a_training_that_may_not_remove_so_much_names_the_command__before_only_its_option(
    catalog: Catalog, database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = saved(catalog, tmp_path, *range(10, 310, 10))
    ranks = job.start()
    thread = RetentionThread(ranks[0], LAST_2)
    thread.file_registered(job.save(ranks, 310)[0])
    thread.finish(10)
    shown = ["--db", database_url, *advised(caplog.text)]
    assert "would go, 2 stay" in ckptstore(*shown, "--allow-mass-delete").out
    assert ckptstore(*shown, "--allow-mass-delete", "--apply").code == 0
    thread.file_registered(job.save(ranks, 320)[0])
    thread.finish(10)
    assert sorted({file.global_step for file in catalog.files("run") if file.state.is_there}) == [310, 320]
