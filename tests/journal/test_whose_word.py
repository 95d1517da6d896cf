"""A journal speaks for its own directory, and for the runs of the user whose file it is."""

import os
import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from ckptstore.api import Catalog, connect
from ckptstore.catalog import reads, user_events
from ckptstore.core.model import Kind
from ckptstore.disk.trust import Trust
from ckptstore.doctor.checkup import Status
from ckptstore.doctor.doctor import examine
from ckptstore.errors import RefusedError, UsageError
from ckptstore.journal import jsonl, summaries, sync
from ckptstore.journal.copied_directories import copied_journals
from ckptstore.retention import stored_policy
from ckptstore.retention.policy import Policy
from tests import ckpt_bytes
from tests.cli.advice import follow
from tests.command_line import ckptstore
from tests.doctor.checkups import checks
from tests.jobs import Job, begun
from tests.retention.gc_world import give

pytestmark = [
    pytest.mark.of_files,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes files of other users"),
]
ANN, BOB = 61001, 61002
NOW = "2026-01-01T00:00:00+00:00"


def journal_of(directory: Path) -> Path:
    return Path(jsonl.journals_in(str(directory))[0])


def add(journal: Path, *lines: dict[str, Any]) -> None:
    with journal.open("ab") as file:
        file.write(b"".join(map(jsonl.encode, lines)))


def file_line(path: str, step: int) -> dict[str, Any]:
    told = {"t": "file", "run": "run", "launch": "L1", "global_step": step, "rank": 0, "kind": "periodic", "at": NOW}
    return {**told, "path": path, "content": "full", "state": "complete", "format": "ckpt", "size": 1, "mtime_ns": 1}


def pinned(catalog: Catalog) -> frozenset[int]:
    with catalog.database.read() as connection:
        return user_events.pinned_steps(connection, reads.run_id(connection, "run") or 0)


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../other/x.ckpt", "a/../../x.ckpt", "./x.ckpt", "a//x.ckpt", "link/x.ckpt", "in/link/x.ckpt"],
)
def test_a_path_that_leads_out_of_the_directory(catalog: Catalog, tmp_path: Path, path: str) -> None:
    job, _ = begun(catalog, tmp_path / "ckpt", 10)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x.ckpt").write_bytes(b"!")
    (job.folder(0) / "link").symlink_to(outside)
    (job.folder(0) / "in").mkdir()
    (job.folder(0) / "in" / "link").symlink_to(outside)
    add(journal_of(job.folder(0)), file_line(path, 99))
    synced = catalog.sync(tmp_path / "ckpt")
    assert synced.spoiled == 1
    assert {file.global_step for file in catalog.files("run")} == {10}
    (refused,) = synced.refused
    assert ("is a link" if "link" in path else f"'{path}' is no path below its directory") in refused.reason


def test_a_removal_behind_a_link(catalog: Catalog, tmp_path: Path) -> None:
    job, _ = begun(catalog, tmp_path / "ckpt", 10)
    (job.folder(0) / "link").symlink_to(tmp_path)
    removed = {"t": "removal", "run": "run", "collection": "gc", "wanted": "gone", "settled": False, "at": NOW}
    add(journal_of(job.folder(0)), {**removed, "files": [["link/x", 1, 1, "", ""]]})
    (refused,) = catalog.sync(tmp_path / "ckpt").refused
    assert "is a link" in refused.reason


def test_a_journal_of_a_user_who_does_not_own_the_directory(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    """It is named, and waits for --trust."""
    root = tmp_path / "ckpt"
    job, _ = begun(catalog, root, 10, world_size=1)
    give(root, ANN)
    os.chown(journal_of(job.folder(0)), BOB, BOB)
    for look in (other.sync, other.scan):
        found = look(root)
        unread = found.unreadable if look == other.sync else found.unread
        assert str(BOB) in unread[0].reason
        assert str(ANN) in unread[0].reason
    assert not [file for file in other.files() if file.launch == "L1"]
    assert other.sync(root, trust=[str(BOB)]).records == 1
    assert other.resolve("run").plan is not None


@pytest.mark.parametrize(("owner", "trusted", "is_copy"), [(ANN, (), True), (BOB, (), False), (BOB, (BOB,), True)])
def test_no_user_makes_the_journals_of_another_one_copies(
    catalog: Catalog, tmp_path: Path, owner: int, trusted: tuple[int, ...], *, is_copy: bool
) -> None:
    """What counts of a copy is less: nobody else's older directory may bring that about."""
    job, _ = begun(catalog, tmp_path / "ckpt", 10, world_size=1)
    copy = shutil.copytree(job.folder(0), tmp_path / "a" / "deeper" / "copy")  # both may get their owners in one moment
    give(job.folder(0), owner)
    give(copy, ANN)
    paths = {str(journal_of(each)) for each in (job.folder(0), copy)}
    found = copied_journals(paths, (), Trust(frozenset(trusted)))
    assert found.keys() == ({str(journal_of(copy))} if is_copy else set())


def test_trust_by_the_environment_and_the_command_line(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "ckpt"
    job, _ = begun(catalog, root, 10, world_size=1)
    give(root, ANN)
    os.chown(journal_of(job.folder(0)), BOB, BOB)
    url = str(tmp_path / "anew.db")
    assert ckptstore("--db", url, "sync", str(root)).code == 1
    assert ckptstore("--db", url, "scan", "--dry-run", str(root), "--trust", str(BOB)).code == 0
    assert ckptstore("--db", url, "sync", str(root), "--trust", str(BOB)).code == 0
    monkeypatch.setenv("CKPTSTORE_TRUST", f"{BOB}, root")
    assert connect(str(tmp_path / "third.db")).sync(root).records == 1
    monkeypatch.setenv("CKPTSTORE_TRUST", "nobody-of-that-name")
    with pytest.raises(UsageError, match="no user and no group"):
        catalog.sync(root)


def test_another_user_cannot_speak_for_a_run(catalog: Catalog, tmp_path: Path) -> None:
    """Seen before: a scan took newer states and a policy of a stranger, and gc removed all that was the victim's."""
    begun(catalog, tmp_path / "ann", 10, 20, 30, world_size=1, layout="data_parallel")
    with catalog.database.write() as connection:
        connection.exec_driver_sql(f"UPDATE launches SET owner = {ANN}")
    stored_policy.store(catalog.database, "run", Policy(keep_last=3))
    twin = connect(str(tmp_path / "bob.db"))
    theirs = Job(twin, tmp_path / "bob", world_size=1, layout="data_parallel")
    theirs.launches = 8
    theirs.save(theirs.begin(), 40, 50)
    stored_policy.store(twin.database, "run", Policy(keep_last=1, floor=1, drop_branches=True))
    give(tmp_path / "bob", BOB)
    synced = catalog.sync(tmp_path)
    assert synced.runs == ("run",)
    assert f"run 'run' is of user {ANN}: what user {BOB} tells of it is left out" in synced.refused[0].reason
    assert catalog.resolve("run").plan.global_step == 30
    assert stored_policy.show(catalog.database, "run") == Policy(keep_last=3)
    assert catalog.plan_gc("run").removes_nothing
    assert {file.launch for file in catalog.files("run")} == {"L1"}
    assert catalog.sync(tmp_path).refused == synced.refused
    assert catalog.sync(tmp_path, trust=[str(BOB)]).records == 2
    assert catalog.resolve("run").plan.global_step == 50


def test_of_two_users_runs_of_one_name_the_first_has_it(catalog: Catalog, tmp_path: Path) -> None:
    for user, name in ((ANN, "a"), (BOB, "b")):
        begun(connect(str(tmp_path / f"{name}.db")), tmp_path / name, 10, world_size=1)
        give(tmp_path / name, user)
    synced = catalog.sync(tmp_path)
    assert synced.runs == ("run",)
    assert f"run 'run' is of user {ANN}" in synced.refused[0].reason
    assert {Path(file.path).parent.parent.name for file in catalog.files("run")} == {"a"}


def test_a_strangers_launch_does_not_take_the_id_of_a_launch_of_the_runs_owner(
    catalog: Catalog, tmp_path: Path
) -> None:
    """The stranger's had another number of ranks, and was left out. So was the owner's then, as another launch."""
    for name, user, launches, ranks in (("b", BOB, 0, 2), ("a", ANN, 1, 1), ("c", BOB, 1, 2)):
        job = Job(connect(str(tmp_path / f"{name}.db")), tmp_path / name, ranks)
        job.launches = launches
        job.save(job.begin(), 10 * (launches + ranks))
        give(tmp_path / name, user)
        if name == "b":
            catalog.sync(tmp_path / name)
    assert {f"user {ANN}" in each.reason for each in catalog.sync(tmp_path).refused} == {True}
    assert catalog.resolve("run").plan.global_step == 30


@pytest.mark.parametrize("at_once", [1, 16 << 20])
def test_of_a_strangers_run_and_the_readers_own_of_one_name_the_readers_counts(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """However many bytes of journals are read at once: with many, the stranger's were taken up before the reader's."""
    monkeypatch.setattr(sync, "_BYTES", at_once)
    for user, name in ((ANN, "a"), (os.geteuid(), "b")):
        begun(connect(str(tmp_path / f"{name}.db")), tmp_path / name, 10, world_size=1)
        give(tmp_path / name, user)
    assert f"what user {ANN} tells of it is left out" in catalog.sync(tmp_path).refused[0].reason
    assert {Path(file.path).parent.parent.name for file in catalog.files("run")} == {"b"}


def test_the_readers_own_run_counts_from_a_summary_in_the_directory_of_another_user(
    catalog: Catalog, tmp_path: Path
) -> None:
    """A summary has what ranks wrote. It counted as the directory's owner's: with it a stranger's run of the name."""
    for user, name in ((ANN, "a"), (os.geteuid(), "b")):
        job, (rank,) = begun(connect(str(tmp_path / f"{name}.db")), tmp_path / name, 10, world_size=1)
        summaries.make(str(job.folder(0)), "")
        summary = Path(rank.recorder._writers[str(job.folder(0))].path).with_name(f"summary-{os.geteuid()}.jsonl")
        summary.rename(summary.with_name(f"summary-{user}.jsonl"))
        give(tmp_path / name, user)
    os.chown(job.folder(0), BOB, BOB)
    sync.take_up_found(catalog.database, sync.found_below([str(tmp_path)])[0])
    assert {Path(file.path).parent.parent.name for file in catalog.files("run")} == {"b"}


def test_what_a_journal_says_of_a_run_that_the_catalog_has_waits_for_somebody(
    catalog: Catalog, other: Catalog, database_url: str, tmp_path: Path
) -> None:
    """A pin that protects is heard; what takes protection away is told, and done by nobody but by what is printed."""
    job, _ = begun(catalog, tmp_path / "ckpt", 10, 20, world_size=1)
    other.scan(tmp_path / "ckpt")
    for each in (catalog, other):
        each.pin("run", 10)
        each.tag("run", 20, "the best")
    later = {"run": "run", "at": datetime.now(timezone.utc).isoformat()}
    lines = (
        {"t": "pin", "global_step": 10, "pinned": False},
        {"t": "tag", "name": "the best", "global_step": None},
        {"t": "policy", "rules": {"keep_last": 1, "keep_kind": {"ttp": 2}, "keep_parents": True, "floor": 1}},
        {"t": "pin", "global_step": 20, "pinned": True},
    )
    shared = next(path for path in jsonl.journals_in(str(job.folder(0))) if "shared" in path)
    add(Path(shared), *(line | later for line in lines))
    refused = [each.reason for each in catalog.sync(tmp_path / "ckpt").refused]
    told = [reason.rpartition("ckptstore ")[2] for reason in refused]
    rules = "--keep-last 1 --keep-kind ttp=2 --keep-parents --floor 1"
    assert told == ["unpin run 10", "untag run 'the best'", f"policy run {rules}"]
    note = checks(catalog.database.url.render_as_string(hide_password=False))["marks"]
    assert (note.status, note.detail.partition(": ")[0]) == (Status.NOTE, shared)
    assert note.detail.endswith("and 2 more")
    assert pinned(catalog) == {10, 20}
    assert stored_policy.show(catalog.database, "run") is None
    anew = connect(str(tmp_path / "anew.db"))
    anew.scan(tmp_path / "ckpt")
    assert pinned(anew) == {20}, "a lost catalog is made anew by all"
    policy = Policy(keep_last=1, keep_kind={Kind.TTP: 2}, keep_parents=True, floor=1)
    assert stored_policy.show(anew.database, "run") == policy
    for reason in refused:
        assert follow(database_url, reason).code == 0, reason
    assert pinned(catalog) == {20}
    assert stored_policy.show(catalog.database, "run") == policy
    assert catalog.sync(tmp_path / "ckpt").refused == ()


def test_doctor_tells_the_newest_policy_in_any_journal_once(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    begun(catalog, tmp_path / "ckpt", 10, 20, world_size=1)
    other.scan(tmp_path / "ckpt")
    for keep in (3, 4):
        stored_policy.store(other.database, "run", Policy(keep_last=keep))
    url = catalog.database.url.render_as_string(hide_password=False)
    for name in ("run", "thesis"):
        catalog.rename("run", name)
        catalog.sync(tmp_path / "ckpt")
        told = [each.detail for each in examine(url, name).checks if each.name == "marks"]
        assert ["--keep-last 4" in each for each in told] == [True]


def test_a_folder_of_journals_that_is_a_link(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    job, _ = begun(catalog, tmp_path / "ckpt", 10, world_size=1)
    folder = journal_of(job.folder(0)).parent
    shutil.move(folder, tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    synced = other.sync(tmp_path / "ckpt")
    assert synced.records == 0
    assert synced.unreadable[0].reason == ".ckptstore is a link"


def test_a_journal_that_is_swapped_while_it_is_read(
    catalog: Catalog, other: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose it is, the file that was opened says, and no name."""
    job, _ = begun(catalog, tmp_path / "ckpt", 10, world_size=1)
    give(tmp_path / "ckpt", ANN)
    journal = journal_of(job.folder(0))
    opened = jsonl._opened

    def swapped(path: str) -> Any:
        if path == str(journal) and not (tmp_path / "aside").exists():
            content = journal.read_bytes()
            journal.rename(tmp_path / "aside")
            journal.write_bytes(content)
            os.chown(journal, BOB, BOB)
        return opened(path)

    monkeypatch.setattr(jsonl, "_opened", swapped)
    synced = other.sync(tmp_path / "ckpt")
    assert synced.records == 0
    assert f"it belongs to user {BOB}" in synced.unreadable[0].reason


def test_a_state_that_another_user_saved_is_nobody_elses_start(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, whoever joined a run of that name was handed its states."""
    job, _ = begun(catalog, tmp_path / "ann", 10, world_size=1, layout="data_parallel")
    with catalog.database.write() as connection:
        connection.exec_driver_sql(f"UPDATE launches SET owner = {ANN}")
    later = job.start(resume=False)
    with pytest.raises(RefusedError, match=f"step 10 of run 'run' was saved by user {ANN}") as refused:
        later[0].resolve()
    assert f"CKPTSTORE_TRUST={ANN}" in refused.value.hint
    assert catalog.resolve("run").plan is not None, "who looks is told"
    monkeypatch.setenv("CKPTSTORE_TRUST", str(ANN))
    plan = later[0].resolve()
    assert plan.global_step == 10


@pytest.mark.parametrize("at_once", [1, 16 << 20])
def test_a_run_is_not_roots_because_root_pinned_a_step_of_it(
    catalog: Catalog, other: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """The journal with the pin tells of the launch too: it was read first, and what the run's owner tells left out."""
    monkeypatch.setattr(sync, "_BYTES", at_once)
    begun(other, tmp_path / "ckpt", 10, world_size=2)
    give(tmp_path / "ckpt", ANN)
    other.pin("run", 10)
    assert catalog.sync(tmp_path).refused == ()
    assert catalog.resolve("run").plan.global_step == 10
    with catalog.database.read() as connection:
        assert reads.owners_of(connection, "run") == {ANN}


def test_what_root_scans_is_its_owners(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    """Before, it was root's, and what its owner saved after that was of another run."""
    home = tmp_path / "run"
    for step in (10, 20):
        ckpt_bytes.write(home / f"net-{step // 10}_10.ckpt", step, step)
    give(home, ANN)
    catalog.scan(home, world_size=1)
    folder = home / ".ckptstore"
    told = {"t": "launch", "run": "run", "id": "L1", "world_size": 1, "layout": "data_parallel", "created_at": NOW}
    (folder / "rank_0.jsonl").write_bytes(b"")
    add(folder / "rank_0.jsonl", told | {"steps_per_epoch": 10, "batch_size": None, "shards": None})
    os.chown(folder / "rank_0.jsonl", ANN, ANN)
    for each in (catalog, other):
        synced = each.sync(home)
        assert (synced.runs, synced.refused) == (("run",), ())
        with each.database.read() as connection:
            assert reads.owners_of(connection, "run") == {ANN}
    assert catalog.join("run", rank=0, world_size=1, launch_id="roots").resolve() is not None, "it was root's to scan"


def test_no_journal_is_begun_behind_a_link_above_its_directory(catalog: Catalog, tmp_path: Path) -> None:
    """Before, who may put a link above a run's directory had root write one where it leads."""
    begun(catalog, tmp_path / "above" / "ckpt", 10, world_size=1, layout="data_parallel")
    (tmp_path / "above").rename(tmp_path / "was")
    (tmp_path / "others" / "ckpt" / "rank_0").mkdir(parents=True)
    (tmp_path / "above").symlink_to(tmp_path / "others")
    catalog.pin("run", 10)
    assert not list(tmp_path.rglob("others/**/.ckptstore"))
