"""What doctor finds of a run: each thing made to happen, and found; and nothing changed by looking."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import sqlalchemy as sa

from ckptstore.catalog import trash
from ckptstore.catalog.tables import gc_locks
from ckptstore.core.policy import Policy
from ckptstore.errors import UnknownRunError
from ckptstore.ops import gc_lock, register
from ckptstore.ops.checkup import Status
from ckptstore.ops.connect import Catalog, connect
from ckptstore.ops.doctor import examine
from ckptstore.ops.launch import RankLaunch
from ckptstore.ops.owner import this_process
from ckptstore.storage import claims, exit_flags, journal
from ckptstore.storage.exit_flags import Flag
from tests.ops.checkups import checks, said, unchanged
from tests.ops.jobs import Job
from tests.ops.test_resolve_scale import statements
from tests.ops.wide import RUN, Wide

HOUR = timedelta(hours=1)
ERROR = "RuntimeError"


def later(by: timedelta) -> datetime:
    """As if that time had passed."""
    return datetime.now(timezone.utc) + by


def started(
    catalog: Catalog, directory: Path, monkeypatch: pytest.MonkeyPatch, world_size: int = 4
) -> list[RankLaunch]:
    """A launch of which every two ranks are on a host of their own."""
    job = Job(catalog, directory, world_size, layout="data_parallel")
    ranks = job.start()
    for launch in ranks:
        monkeypatch.setattr(claims, "host_name", lambda at=launch.rank // 2: f"node-{at}")
        job.announce(launch)
    return ranks


def saved(catalog: Catalog, directory: Path, steps: tuple[int, ...] = (5, 10, 15)) -> Job:
    """A run of two ranks that says where it saves, and has saved."""
    job = Job(catalog, directory, layout="data_parallel")
    ranks = job.start()
    for launch in ranks:
        job.announce(launch)
    for step in steps:
        job.save(ranks, step)
    return job


def test_a_run_that_is_well(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    saved(catalog, tmp_path / "data")
    found = checks(database_url)
    assert {check.status for check in found.values()} == {Status.OK}, found
    assert said(found["restorable"])[1].startswith("step 15, saved 0 s ago")
    assert found["ranks"].detail == "all ranks of 2 saved step 15"
    assert found["launch"].detail.startswith("L1 runs as far as is known")
    assert found["directories"].detail == f"2 in {tmp_path / 'data'}"
    assert found["journals"].detail == "2 journals, all in the catalog"
    assert {check.run for check in found.values()} == {None, "run"}
    assert examine(database_url).exit_code == 0


def test_an_empty_catalog_and_a_run_that_is_none(catalog: Catalog, database_url: str) -> None:
    assert said(checks(database_url, None)["runs"]) == ("ok", "none yet")
    with pytest.raises(UnknownRunError, match="'run'"):
        checks(database_url, "run")


def test_a_launch_that_has_just_joined(catalog: Catalog, database_url: str) -> None:
    catalog.join("run")
    found = checks(database_url)
    assert found["launch"].status is Status.NOTE
    assert said(found["restorable"]) == ("note", "nothing was saved yet")
    found = checks(database_url, now=later(HOUR))
    assert found["launch"].status is Status.WARNING
    assert "has not begun to train" in found["launch"].detail


# Ranks


def save(job_ranks: list[RankLaunch], directory: Path, step: int) -> None:
    job = Job(Catalog(job_ranks[0].database), directory, len(job_ranks))
    job.save(job_ranks, step)


def test_ranks_that_stopped_saving(
    catalog: Catalog, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = started(catalog, tmp_path, monkeypatch)
    save(ranks, tmp_path, 10)
    save(ranks[:3], tmp_path, 20)
    assert checks(database_url)["ranks"].status is Status.NOTE  # it may be saving just now
    assert checks(database_url, now=later(HOUR))["ranks"].status is Status.WARNING
    save(ranks[:3], tmp_path, 30)
    found = checks(database_url)["ranks"]
    assert said(found) == ("warning", "rank 3 (on node-1) saved step 10 last; the newest save is step 30")
    assert found.hint


def test_a_rank_that_stopped_long_ago_and_one_that_never_saved(
    catalog: Catalog, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = started(catalog, tmp_path, monkeypatch)
    save(ranks[:3], tmp_path, 1)
    for step in range(2, 12):
        save(ranks[:2], tmp_path, step)
    found = checks(database_url)["ranks"]
    assert found.detail == (
        "rank 3 (on node-1) is in none of the last 200 saves; rank 2 (on node-1) saved step 1 last; "
        "the newest save is step 11"
    )


def test_ranks_that_never_save_and_whose_state_nobody_else_has(
    catalog: Catalog, database_url: str, tmp_path: Path
) -> None:
    job = Job(catalog, tmp_path)
    ranks = job.start()
    job.announce(ranks[0])
    job.save(ranks[:1], 10)
    found = checks(database_url)
    assert said(found["ranks"])[0] == "warning"
    assert said(found["restorable"]) == ("problem", "none of 1 state that were saved")
    assert examine(database_url).exit_code == 1


def test_a_rank_whose_replica_saves_is_not_missed(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    job = Job(catalog, tmp_path, layout="data_parallel")
    ranks = job.start()
    job.announce(ranks[0])
    job.save(ranks[:1], 10)
    assert said(checks(database_url)["ranks"]) == ("ok", "rank 0 of 2 saved step 10")


# The launch


def test_a_launch_that_was_killed(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    saved(catalog, tmp_path)
    found = checks(database_url, now=later(3 * HOUR))["launch"]
    assert found.status is Status.WARNING
    assert found.detail.startswith("L1 gave no sign of life for 3 h")
    assert "start the job again" in found.hint


def test_a_launch_that_makes_steps_lives(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path)
    ranks = job.start()
    for launch in ranks:
        job.announce(launch)
    ranks[0].renew_lease()
    assert checks(database_url, now=later(2 * HOUR))["launch"].status is Status.OK
    assert checks(database_url, now=later(3 * HOUR))["launch"].status is Status.WARNING


def test_a_launch_that_does_not_save_any_more(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    saved(catalog, tmp_path)
    found = checks(database_url, now=later(HOUR))["launch"]
    assert said(found)[0] == "warning"
    assert "L1 has not saved for" in found.detail


def test_how_a_launch_ended(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    job = Job(catalog, tmp_path, 3, layout="data_parallel")
    ranks = job.start()
    for launch in ranks:
        job.announce(launch)
    job.save(ranks, 10)
    ranks[0].set_ending(10, 10, None)
    partly = checks(database_url)["launch"]
    assert said(partly) == ("note", "L1 ended after step 10 on rank 0; ranks 1-2 said nothing")
    assert checks(database_url, now=later(HOUR))["launch"].status is Status.WARNING
    for launch in ranks[1:]:
        launch.set_ending(10, 10, None)
    assert said(checks(database_url, now=later(HOUR))["launch"]) == ("ok", "L1 ended after step 10 on ranks 0-2")
    ranks[1].set_ending(11, 11, ERROR)
    failed = checks(database_url)["launch"]
    assert said(failed) == ("warning", "L1 ended by RuntimeError on rank 1 after step 11")


def test_launches_that_end_before_they_save(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path)
    for _ in range(2):
        job.start()
    assert "saved nothing" not in checks(database_url)["launch"].detail
    job.start()
    assert said(checks(database_url)["launch"]) == ("warning", "the last 3 launches saved nothing")


def test_a_run_that_was_taken_back(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    saved(catalog, tmp_path)
    plan = catalog.resolve("run", step=10).plan
    assert plan is not None
    catalog.branch(plan)
    found = checks(database_url)
    assert said(found["launch"]) == ("note", "the run was taken back to step 10 of L1, and has not gone on yet")
    assert found["restorable"].detail.startswith("step 10")


def test_a_run_that_was_scanned(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    job = Job(connect(str(tmp_path / "other.db")), tmp_path / "data")
    job.save(job.start(), 10)
    for folder in (tmp_path / "data").rglob(".ckptstore"):
        shutil.rmtree(folder)
    catalog.scan(tmp_path / "data", run="run", world_size=2)
    found = checks(database_url, now=later(99 * HOUR))
    assert found["launch"].status is Status.OK
    assert found["clocks"].status is Status.OK


# The state to go on from


def test_newer_states_that_cannot_be_restored(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    job = Job(catalog, tmp_path)
    ranks = job.start()
    job.save(ranks, 10)
    job.save(ranks[:1], 20)
    found = checks(database_url)["restorable"]
    assert found.status is Status.NOTE
    assert "1 newer one cannot be restored" in found.detail
    assert "resolve run --explain" in found.hint


def test_directories_that_are_gone(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path / "data")
    shutil.rmtree(job.folder(1))
    found = checks(database_url)
    assert said(found["directories"]) == (
        "warning",
        f"1 of 2 cannot be seen: {job.folder(1)} (No such file or directory)",
    )
    shutil.rmtree(tmp_path / "data")
    found = checks(database_url)
    assert found["restorable"].status is Status.PROBLEM
    assert "2 directories of it cannot be seen" in found["restorable"].detail
    assert examine(database_url).exit_code == 1


# Clocks


def skewed(ranks: list[RankLaunch], directory: Path, ahead: dict[int, timedelta], steps: tuple[int, ...]) -> None:
    """Saves that hosts whose clocks are that far ahead record."""
    job = Job(Catalog(ranks[0].database), directory, len(ranks))
    for step in steps:
        for launch in ranks:
            described = register.describe(
                launch.facts, rank=launch.rank, path=job.write(launch, step), kind="periodic", global_step=step
            )
            file = register.measured(described)
            assert file is not None
            assert file.created_at is not None
            at = file.created_at + ahead.get(launch.rank, timedelta(0))
            launch.record([replace(file, created_at=at)])


@pytest.mark.parametrize("minutes", [25, -25])
def test_a_clock_that_is_off(
    catalog: Catalog, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    ranks = started(catalog, tmp_path, monkeypatch, 6)
    off = dict.fromkeys((2, 3), timedelta(minutes=minutes))
    skewed(ranks, tmp_path, off, (10, 20, 30))
    proven = checks(database_url)["clocks"]
    assert proven.status is Status.PROBLEM
    assert proven.detail.startswith("node-1 is at least 2")
    assert ("ahead of this machine" if minutes > 0 else "behind the file system") in proven.detail
    if minutes > 0:  # an hour later nothing proves it, and the ranks' records still differ
        estimated = checks(database_url, now=later(HOUR))["clocks"]
        assert estimated.status is Status.WARNING
        assert re.match(r"node-1 is about 2[45] min ahead of the others, by .* the last 3 saves", estimated.detail)


def test_a_file_that_came_back_from_a_copy_says_nothing_of_clocks(
    catalog: Catalog, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verification gives the record the time of the copy, which was made after the record."""
    skewed(started(catalog, tmp_path, monkeypatch), tmp_path, {}, (10, 20))
    file = catalog.show("run", 20)[0]
    path, content = Path(file.path), Path(file.path).read_bytes()
    path.write_bytes(b"x" + content[1:])
    assert catalog.verify("run", digest=True).damaged
    path.write_bytes(content)
    copied = (datetime.now(timezone.utc) + HOUR / 2).timestamp()
    os.utime(path, (copied, copied))
    assert not catalog.verify("run", digest=True).damaged
    (now,) = (each for each in catalog.files("run") if each.id == file.id)
    assert (now.state, now.mtime_ns) != (file.state, file.mtime_ns)
    assert checks(database_url, now=later(HOUR))["clocks"].status is not Status.PROBLEM


def test_clocks_that_agree_and_a_record_that_came_late(
    catalog: Catalog, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = started(catalog, tmp_path, monkeypatch)
    skewed(ranks, tmp_path, {}, (10, 20))
    skewed(ranks, tmp_path, {2: 5 * HOUR, 3: 5 * HOUR}, (30,))
    found = checks(database_url, now=later(9 * HOUR))["clocks"]
    assert found.status is Status.OK
    assert found.detail.startswith("2 clocks agree to ")


# Journals


def test_records_that_are_not_in_the_catalog(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    job = Job(catalog, tmp_path, layout="data_parallel")
    ranks = job.start()
    job.save(ranks, 10)
    for launch in ranks:
        launch.ledger.postponed = True  # as in an outage: journals only
    job.save(ranks, 20)
    with unchanged(tmp_path, database_url):
        found = checks(database_url)["journals"]
    assert said(found) == ("warning", f"2 records not in the catalog, in {job.folder(0)}, {job.folder(1)}")
    assert found.hint == "ckptstore sync run"
    catalog.sync("run")
    assert checks(database_url)["journals"].status is Status.OK


def test_journals_that_cannot_be_read(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path)
    hidden = job.folder(1) / ".ckptstore"
    hidden.rename(tmp_path / "kept")
    hidden.symlink_to(hidden)  # as where the permission is lacking: root has every permission
    found = checks(database_url)
    assert (found["directories"].status, found["restorable"].status) == (Status.OK, Status.OK)
    assert found["journals"].status is Status.WARNING
    assert found["journals"].detail.startswith(f"what is in {hidden} cannot be read (")
    assert found["journals"].detail.endswith("); else 1 journal, all in the catalog")
    assert examine(database_url).exit_code == 0


def test_torn_and_foreign_lines(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path)
    for rank, text in ((0, b"not ours\n"), (1, b'{"v":1,"t":"file","laun')):
        (path,) = journal.journals_in(str(job.folder(rank)))
        with open(path, "ab") as file:  # noqa: PTH123
            file.write(text)
    found = checks(database_url)["journals"]
    assert said(found) == ("note", "2 journals, all in the catalog; 2 lines are torn, or of another program")
    (path,) = journal.journals_in(str(job.folder(0)))
    with open(path, "ab") as file:  # noqa: PTH123
        file.write(journal.encode({"t": "new", "v": 99}))
    assert "of a newer ckptstore" in checks(database_url)["journals"].detail


def test_a_journal_that_no_catalog_ever_saw(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path)
    (path,) = journal.journals_in(str(job.folder(0)))
    shutil.copy(path, Path(path).with_name("rank_0-abc.jsonl"))
    assert "records not in the catalog" in checks(database_url)["journals"].detail


def test_more_journals_than_are_read(
    catalog: Catalog, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = saved(catalog, tmp_path)
    for rank in range(2):
        (path,) = journal.journals_in(str(job.folder(rank)))
        shutil.copy(path, Path(path).with_name(f"rank_{rank}-abc.jsonl"))
    monkeypatch.setattr("ckptstore.ops.check_journals._MOST_BYTES", 1)
    assert checks(database_url)["journals"].detail.startswith("at least 5 records not in the catalog")


# What is left behind


def test_a_flag_that_is_still_up(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    job = saved(catalog, tmp_path / "data")
    flag = tmp_path / "elsewhere" / "graceful_exit.json"
    flag.parent.mkdir()
    for rank in range(2):
        exit_flags.note(str(job.folder(rank)), rank, Flag(str(flag)))
    assert said(checks(database_url)["exit_flag"]) == ("ok", "1 flag, none up")
    flag.write_text(json.dumps({"GracefulExit": 1, "reason": "maintenance"}))
    now = checks(database_url)["exit_flag"]
    assert now.status is Status.NOTE
    assert "about to end" in now.detail
    os.utime(flag, (0, 0))
    assert "ignores it" in checks(database_url)["exit_flag"].detail
    with unchanged(tmp_path, database_url):
        stuck = checks(database_url, now=later(5 * HOUR))["exit_flag"]
    assert stuck.status is Status.WARNING
    assert stuck.detail.startswith(f"{flag} asks for an exit (GracefulExit: 1, set ")
    assert '{"GracefulExit": 0}' in stuck.hint
    flag.write_text('{"GracefulExit": 0}')
    assert checks(database_url, now=later(5 * HOUR))["exit_flag"].status is Status.OK


def test_a_flag_that_nobody_noted(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    saved(catalog, tmp_path)
    assert "exit_flag" not in checks(database_url)
    (tmp_path / "other.json").write_text("[1]")
    (tmp_path / "no.json").write_text("GracefulExit")
    (tmp_path / "exit.json").write_text('{"GracefulExit": 1}')
    found = checks(database_url, now=later(5 * HOUR))["exit_flag"]
    assert found.status is Status.WARNING
    assert found.detail.startswith(str(tmp_path / "exit.json"))


def test_trash(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    saved(catalog, tmp_path, (5, 10, 15, 20, 25))
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=2)), allow_mass_delete=True)
    found = checks(database_url)["trash"]
    assert found.status is Status.OK
    assert "6 files" in found.detail
    over = checks(database_url, now=later(24 * HOUR + timedelta(minutes=9)))["trash"]
    assert over.status is Status.OK, "purge would leave it"
    due = checks(database_url, now=later(25 * HOUR))["trash"]
    assert due.status is Status.NOTE
    assert "for longer than the grace" in due.detail
    assert due.hint.startswith("ckptstore purge run")
    catalog.purge("run", now=True)
    assert said(checks(database_url)["trash"]) == ("ok", "empty")


def test_who_holds_the_lock(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    saved(catalog, tmp_path)
    with catalog.database.read() as connection:
        run_id = connection.execute(sa.text("SELECT id FROM runs")).scalar_one()
    with gc_lock.GcLock(catalog.database, "run", run_id):
        alive = checks(database_url)["gc_lock"]
        assert "is at work" in alive.detail
        assert "died" in checks(database_url, now=later(HOUR))["gc_lock"].detail
    assert "gc_lock" not in checks(database_url)
    with catalog.database.write() as connection:
        owner = this_process().replace(f"|{os.getpid()}|", f"|{os.getpid()}|another start")
        trash.take_lock(connection, run_id, owner, later(-HOUR), later(HOUR))
    with unchanged(tmp_path, database_url):
        dead = checks(database_url)["gc_lock"]
    assert "died" in dead.detail
    with catalog.database.read() as connection:
        assert connection.execute(sa.select(gc_locks)).all()


def test_a_copied_tree(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    saved(catalog, tmp_path / "data")
    assert "copies" not in checks(database_url)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    catalog.sync(tmp_path / "copy")
    found = checks(database_url)["copies"]
    assert found.status is Status.WARNING
    assert {"data", "copy"} <= set(found.detail.replace("/", " ").split())


# What it costs


def cost(url: str, root: Path, *, ranks: int, history: int) -> int:
    """How many statements a page takes for a run of so many ranks and saves."""
    wide = Wide(root, ranks)
    wide.write()
    wide.fill(connect(url), history, layout="data_parallel", sources=True)
    with statements() as asked:
        found = checks(url, RUN)
    assert found["ranks"].detail == f"all ranks of {ranks} saved step {history}"
    assert found["directories"].detail == f"{ranks} in {root}"
    return len(asked)


def test_a_thousand_ranks_take_a_few_statements(database_url: str, tmp_path: Path) -> None:
    assert cost(database_url, tmp_path / "data", ranks=1000, history=5) < 40


def test_neither_ranks_nor_history_take_more_statements(tmp_path: Path) -> None:
    sizes = [(2, 5), (300, 5), (2, 300)]
    counts = [
        cost(str(tmp_path / f"{ranks}-{history}.db"), tmp_path / f"{ranks}-{history}", ranks=ranks, history=history)
        for ranks, history in sizes
    ]
    assert len(set(counts)) == 1, counts
