"""What doctor finds of a run: each thing made to happen, and found; and nothing changed by looking."""

import logging
import os
import queue
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ckptstore.api import Catalog, connect
from ckptstore.catalog import leases, removals
from ckptstore.catalog.runs import find_run, run_names
from ckptstore.catalog.tables import gc_locks
from ckptstore.cli.main import cli
from ckptstore.core.model import launch_key
from ckptstore.disk import name_claims
from ckptstore.disk.owner import this_process
from ckptstore.doctor.check_launch import newest_launch
from ckptstore.doctor.checkup import Status
from ckptstore.doctor.doctor import examine
from ckptstore.doctor.run_facts import gather
from ckptstore.errors import UnknownRunError
from ckptstore.journal import jsonl
from ckptstore.outside import utc_now
from ckptstore.resume import register
from ckptstore.retention import worker
from ckptstore.retention.policy import Policy
from ckptstore.training.rank_launch import RankLaunch
from tests import ckpt_bytes
from tests.doctor.checkups import checks, said, unchanged
from tests.jobs import Job, begun, set_ending, started
from tests.resume.wide import RUN, Wide, statements
from tests.small_disks import hanging_disk
from tests.tiers import jobs as tiers

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
ERROR = "RuntimeError"


def later(by: timedelta) -> datetime:
    """As if that time had passed."""
    return datetime.now(timezone.utc) + by


def on_two_hosts(catalog: Catalog, directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[RankLaunch]:
    """A launch of which every two ranks are on a host of their own."""
    job, ranks = started(catalog, directory, world_size=4, layout="data_parallel")
    for launch in ranks:
        monkeypatch.setattr(name_claims, "host_name", lambda at=launch.rank // 2: f"node-{at}")
        job.announce(launch)
    return ranks


def saved(catalog: Catalog, directory: Path, steps: tuple[int, ...] = (5, 10, 15)) -> Job:
    """A run of two ranks that says where it saves, and has saved."""
    return begun(catalog, directory, *steps, layout="data_parallel")[0]


def test_a_run_that_is_well(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    saved(catalog, tmp_path / "data")
    found = checks(database_url)
    assert {check.status for check in found.values()} == {Status.OK}, found
    assert said(found["restorable"])[1].startswith("step 15, saved 0 s ago")
    assert found["ranks"].detail == "all 2 ranks saved step 15"
    assert found["launch"].detail.startswith("L1 seems to be running")
    assert found["directories"].detail == f"2 at or below {tmp_path / 'data'}"
    assert found["journals"].detail == "2 journals, all in the catalog"
    assert {check.run for check in found.values()} == {None, "run"}
    assert examine(database_url).exit_code == 0


def test_an_empty_catalog_and_a_run_that_is_none(catalog: Catalog, database_url: str) -> None:
    assert said(checks(database_url, None)["runs"]) == ("note", "none yet")
    with pytest.raises(UnknownRunError, match="'run'"):
        checks(database_url, "run")


def saved_twice(job: Job, *steps: int) -> None:
    job.save(job.begin(), *(steps or (5, 10, 15)))


def renewed(job: Job) -> None:
    saved_twice(job)
    job.begin()[0].renew_lease()


def signed_elsewhere(job: Job) -> None:
    """It gives a sign of life every 20 seconds."""
    saved_twice(job)
    job.begin()
    with job.catalog.database.write() as connection:
        leases.give_sign(connection, launch_key("run", "L2"), "node-7|42|1|abcd@another", later(timedelta(0)))


def started_again(job: Job, times: int) -> None:
    saved_twice(job)
    for _ in range(times):
        job.start()


def taken_back(job: Job) -> None:
    saved_twice(job)
    job.catalog.branch(job.catalog.resolve("run", step=10).plan)


def saved_by_one(job: Job) -> None:
    """The other one is its replica."""
    ranks = job.start()
    job.announce(ranks[0])
    job.save(ranks[:1], 10)


def saved_by_one_without_replica(job: Job) -> None:
    job.layout = None
    saved_by_one(job)


def saved_by_one_more(job: Job) -> None:
    job.layout = None
    saved_twice(job, 10)
    job.save(job.begin()[:1], 20)


def quarantined(job: Job) -> None:
    saved_twice(job, 10)
    ranks = job.begin()
    for rank, file in zip(ranks, job.save(ranks, 20), strict=True):
        rank.record_files([replace(file, quarantine="the loss was nan")])


def copied(job: Job) -> None:
    job.directory = job.directory / "data"
    saved_twice(job)
    shutil.copytree(job.directory, job.directory.with_name("copy"))
    job.catalog.sync(job.directory.with_name("copy"))


def journal_copied(job: Job) -> None:
    saved_twice(job)
    (path,) = jsonl.journals_in(str(job.folder(0)))
    shutil.copy(path, Path(path).with_name("rank_0-abc.jsonl"))


def journal_of_before(job: Job) -> None:
    saved_twice(job)
    (path,) = map(Path, jsonl.journals_in(str(job.folder(0))))
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    job.catalog.sync(job.directory)


def beside_another_run(job: Job) -> None:
    saved_twice(job)
    saved_twice(Job(job.catalog, job.directory, run="other"), 6)


def truncated(job: Job, *steps: int) -> None:
    saved_twice(job, 5, 12, 15)
    for step in steps:
        for path in job.directory.glob(f"rank_*/net-2_{step - 10}.ckpt"):
            path.write_bytes(b"x")
    job.catalog.verify("run")


def collected(job: Job) -> None:
    saved_twice(job, 5, 10, 15, 20, 25)
    job.catalog.execute(job.catalog.plan_gc("run", Policy(keep_last=2)), allow_mass_delete=True)


def scanned_before_it_was_registered(job: Job) -> None:
    """The files have two records then, and the launch that the scan made of them has none of its own left."""
    ranks = job.start()
    paths = [job.write(launch, 10) for launch in ranks]
    job.catalog.scan(job.directory, run="run", world_size=2)
    for launch, path in zip(ranks, paths, strict=True):
        launch.register(path, global_step=10, optimizer_step=10)


def scanned_at_step_0(job: Job) -> None:
    ckpt_bytes.write(job.directory / "net-0_0.ckpt", 0)
    job.catalog.scan(job.directory, run="run")


def corrected(job: Job) -> None:
    for launch in job.begin():
        for step in range(1, 8):
            path = job.write(launch, step)
            for told in (1000 * step, step):  # the first is a mistake
                launch.register(path, global_step=told)


NOW = timedelta(0)
FOUND = [
    (scanned_before_it_was_registered, NOW, "ranks", "ok", "all 2 ranks saved step 10"),
    (scanned_before_it_was_registered, NOW, "launch", "ok", "L1: only its files are known"),
    (scanned_at_step_0, NOW, "ranks", "ok", "rank 0 saved step 0"),  # nothing was said of the launch and its disk
    (corrected, NOW, "ranks", "ok", "all 2 ranks saved step 7"),
    (lambda job: job.catalog.join("run"), NOW, "launch", "note", "no saver or registrar has reported a step since"),
    (lambda job: job.catalog.join("run"), NOW, "restorable", "note", "nothing was saved yet"),
    (lambda job: job.catalog.join("run"), HOUR, "launch", "warning", "no saver or registrar has reported a step since"),
    (saved_twice, HOUR, "launch", "warning", "L1 has not saved for"),
    (saved_twice, 3 * HOUR, "launch", "warning", "L1 gave no sign of life for 3 h"),
    (renewed, 2 * HOUR, "launch", "ok", "L2 seems to be running"),
    (renewed, 3 * HOUR, "launch", "warning", "L2 gave no sign of life for"),
    (signed_elsewhere, 5 * MINUTE, "launch", "ok", "L2 seems to be running"),
    (signed_elsewhere, 15 * MINUTE, "launch", "warning", "L2 gave no sign of life for 15 min"),
    (partial(started_again, times=2), NOW, "launch", "note", "no saver or registrar has reported a step since"),
    (partial(started_again, times=3), NOW, "launch", "warning", "the last 3 launches saved nothing"),
    (taken_back, NOW, "launch", "note", "the run was taken back to step 10 of L1, and has not gone on yet"),
    (taken_back, NOW, "restorable", "ok", "step 10"),
    (saved_by_one, NOW, "ranks", "ok", "rank 0 of 2 saved step 10; its file serves the other ranks, its replicas"),
    (saved_by_one_without_replica, NOW, "ranks", "warning", "only rank 0 of 2 save"),
    (saved_by_one_without_replica, NOW, "restorable", "problem", "none of 1 saved state can be restored"),
    (saved_by_one_more, NOW, "restorable", "note", "1 newer one cannot be restored"),
    (lambda job: truncated(job, 15), NOW, "damaged", "warning", "step 15 of launch L1 has 2 damaged files: /"),
    (lambda job: truncated(job, 12, 15), NOW, "damaged", "warning", "(size_mismatch); 1 other state has some too"),
    (
        quarantined,
        NOW,
        "restorable",
        "warning",
        "1 newer one cannot be restored; step 20 of launch L2 is quarantined: ",
    ),
    (copied, NOW, "journals", "ok", "2 journals, all in the catalog"),
    (journal_copied, NOW, "journals", "warning", "records not in the catalog"),
    (journal_of_before, NOW, "journals", "ok", "2 journals, all in the catalog"),
    (beside_another_run, NOW, "journals", "ok", "2 journals, all in the catalog"),
    (collected, NOW, "trash", "ok", "6 files"),
    (collected, 24 * HOUR + 9 * MINUTE, "trash", "ok", "6 files"),  # purge would leave it
    (collected, 25 * HOUR, "trash", "note", "for longer than the grace"),
    (lambda job: (collected(job), job.catalog.purge("run", now=True)), NOW, "trash", "ok", "empty"),
]


@pytest.mark.parametrize("case", FOUND)
def test_what_is_found(
    sqlite_url: str, tmp_path: Path, case: tuple[Callable[[Job], None], timedelta, str, str, str]
) -> None:
    arrange, after, name, status, words = case
    arrange(Job(connect(sqlite_url), tmp_path, layout="data_parallel"))
    found = checks(sqlite_url, now=later(after))[name]
    assert (found.status.value, words in found.detail) == (status, True), found


def test_only_the_newest_states_are_judged(
    catalog: Catalog, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that could go on from an older state it was said that no state can be restored."""
    quarantined(Job(catalog, tmp_path))
    monkeypatch.setattr("ckptstore.doctor.check_launch._STATES_JUDGED", 1)
    assert said(checks(database_url)["restorable"]) == ("problem", "none of the newest 1 saved state can be restored")


# Ranks


def save(job_ranks: list[RankLaunch], directory: Path, step: int) -> None:
    job = Job(Catalog(job_ranks[0].database), directory, len(job_ranks))
    job.save(job_ranks, step)


def test_ranks_that_stopped_saving(
    catalog: Catalog, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = on_two_hosts(catalog, tmp_path, monkeypatch)
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
    ranks = on_two_hosts(catalog, tmp_path, monkeypatch)
    save(ranks[:3], tmp_path, 1)
    for step in range(2, 12):
        save(ranks[:2], tmp_path, step)
    found = checks(database_url)["ranks"]
    assert found.detail == (
        "rank 3 (on node-1) is in none of the last saves (200 at most); rank 2 (on node-1) saved step 1 last; "
        "the newest save is step 11"
    )


# The launch


def test_how_a_launch_ended(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    _, ranks = begun(catalog, tmp_path, 10, world_size=3, layout="data_parallel")
    set_ending(ranks[0], 10, 10, None)
    partly = checks(database_url)["launch"]
    assert said(partly) == ("note", "L1 ended after step 10 on rank 0; ranks 1-2 said nothing")
    assert checks(database_url, now=later(HOUR))["launch"].status is Status.WARNING
    for launch in ranks[1:]:
        set_ending(launch, 10, 10, None)
    assert said(checks(database_url, now=later(HOUR))["launch"]) == ("ok", "L1 ended after step 10 on ranks 0-2")
    set_ending(ranks[1], 11, 11, ERROR)
    failed = checks(database_url)["launch"]
    assert said(failed) == ("warning", "L1 ended by RuntimeError on rank 1 after step 11")


def test_a_training_that_could_not_save_its_last_steps(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    job, ranks = begun(catalog, tmp_path, 10)
    for launch in ranks:
        set_ending(launch, 13, 13, None)
    unsaved = checks(database_url)["launch"]
    assert said(unsaved) == ("warning", "L1 ended after step 13 on ranks 0-1; its newest save is of step 10")
    for launch in ranks:
        launch.register(job.write(launch, 13), kind="graceful_exit", global_step=13, optimizer_step=13)
    assert said(checks(database_url)["launch"]) == ("ok", "L1 ended after step 13 on ranks 0-1")
    for launch in job.begin():  # as a job that had nothing left to do
        set_ending(launch, 13, 13, None)
    assert said(checks(database_url)["launch"]) == ("ok", "L2 ended after step 13 on ranks 0-1")


def test_a_training_that_saved_nothing(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    """Its newest save was said to be of step 0; and one of larger batches was judged by the steps of its parent."""
    _, ranks = begun(catalog, tmp_path)
    for launch in ranks:
        set_ending(launch, 13, 13, None)
    unsaved = checks(database_url)["launch"]
    assert said(unsaved) == ("warning", "L1 ended after step 13 on ranks 0-1; it saved nothing")
    facts = gather(catalog.database, "run", find_run(catalog.database, "run"), utc_now())
    larger = replace(facts.launches[-1], parent="L0", parent_step=20, start_step=10)
    assert newest_launch(replace(facts, launches=(larger,))).detail.endswith("; its newest save is of step 10")


def test_a_run_that_is_forgotten_during_the_checks(
    catalog: Catalog, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in ("a", "b", "c"):
        begun(catalog, tmp_path / run, 10, run=run)

    def named(*asked: Any) -> list[str]:
        found = run_names(*asked)
        catalog.forget("b")
        return found

    monkeypatch.setattr("ckptstore.doctor.doctor.run_names", named)
    assert {check.run for check in examine(database_url).checks} == {None, "a", "c"}


def test_a_run_that_was_scanned(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    started(connect(str(tmp_path / "other.db")), tmp_path / "data", 10)
    for folder in (tmp_path / "data").rglob(".ckptstore"):
        shutil.rmtree(folder)
    catalog.scan(tmp_path / "data", run="run", world_size=2)
    found = checks(database_url, now=later(99 * HOUR))
    assert found["launch"].status is Status.OK
    assert found["clocks"].status is Status.OK


# Clocks


@pytest.mark.parametrize("what", ["record", "file"])
@pytest.mark.parametrize(("minutes", "status"), [(25, Status.PROBLEM), (9, Status.OK), (-25, Status.OK)])
def test_what_is_dated_in_the_future(sqlite_url: str, tmp_path: Path, minutes: int, status: Status, what: str) -> None:
    """By the clock of the host that recorded it, or of its file system."""
    job = Job(connect(sqlite_url), tmp_path / "data")
    launch = job.start()[1]
    path = job.write(launch, 10)
    now = datetime.now(timezone.utc)
    moment = now + timedelta(minutes=minutes)
    if what == "file":
        os.utime(path, (moment.timestamp(), moment.timestamp()))
    file = register.measured(
        register.describe(launch.facts, rank=launch.rank, path=path, kind="periodic", global_step=10)
    )
    assert file is not None
    launch.record_files([replace(file, created_at=moment if what == "record" else now)])
    found = checks(sqlite_url, now=now)["clocks"]
    assert found.status is status
    if status is Status.PROBLEM:
        assert found.detail == f"the clock of rank 1 is at least 25 min ahead of this machine's: {path} is dated so"
        assert "NTP" in found.hint
        assert checks(sqlite_url, now=now + HOUR)["clocks"].status is Status.OK


# Journals


def test_records_that_are_not_in_the_catalog(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    job, ranks = started(catalog, tmp_path, 10, layout="data_parallel")
    for launch in ranks:
        launch.recorder.postponed = True  # as in an outage: journals only
    job.save(ranks, 20)
    with unchanged(tmp_path, database_url):
        found = checks(database_url)["journals"]
    assert said(found) == ("warning", f"2 records not in the catalog, in {job.folder(0)}, {job.folder(1)}")
    assert found.hint == "ckptstore sync run"
    catalog.sync("run")
    assert checks(database_url)["journals"].status is Status.OK


def test_a_launch_that_lost_the_catalog_is_not_called_silent(
    catalog: Catalog, database_url: str, tmp_path: Path
) -> None:
    """It was called killed, and an operator who believed that started a second training beside it."""
    job, ranks = begun(catalog, tmp_path, 10, layout="data_parallel")
    for launch in ranks:
        launch.recorder.postponed = True  # as in an outage: journals only
    saved = replace(job.save(ranks, 20)[0], created_at=later(30 * MINUTE))
    ranks[0].record_files([saved])
    with catalog.database.write() as connection:
        leases.give_sign(connection, launch_key("run", "L1"), "node-7|42|1|abcd@another", later(timedelta(0)))
    with unchanged(tmp_path, database_url):
        found = checks(database_url, now=later(35 * MINUTE))["launch"]
        before_next_save = checks(database_url, now=later(59 * MINUTE))["launch"]
        silent = checks(database_url, now=later(4 * HOUR))["launch"]
    assert said(found) == ("ok", "L1 seems to be running; its last sign of life was 5 min ago")
    assert said(before_next_save)[0] == "ok", "it can give no signs, and saves every half an hour"
    assert silent.status is Status.WARNING
    assert silent.hint.startswith("its newest records are only in journals, so it may have lost the catalog: ")
    for launch in ranks:
        set_ending(launch, 20, 20, None)
    ended = checks(database_url, now=later(35 * MINUTE))["launch"]
    assert said(ended) == ("ok", "L1 ended after step 20 on ranks 0-1")


# What is left behind


def test_who_holds_the_lock(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    saved(catalog, tmp_path)
    with catalog.database.read() as connection:
        run_id = connection.execute(sa.text("SELECT id FROM runs")).scalar_one()
    with worker.GcLock(catalog.database, "run", run_id):
        alive = checks(database_url)["gc_lock"]
        assert "is at work" in alive.detail
        assert "died" in checks(database_url, now=later(HOUR))["gc_lock"].detail
    assert "gc_lock" not in checks(database_url)
    with catalog.database.write() as connection:
        owner = this_process().replace(f"|{os.getpid()}|", f"|{os.getpid()}|another start")
        removals.take_lock(connection, run_id, owner, later(-HOUR), later(HOUR))
    with unchanged(tmp_path, database_url):
        dead = checks(database_url)["gc_lock"]
    assert "died" in dead.detail
    with catalog.database.read() as connection:
        assert connection.execute(sa.select(gc_locks)).all()


# What it costs


def cost(url: str, root: Path, *, ranks: int, history: int) -> int:
    """How many statements a page takes for a run of so many ranks and saves."""
    wide = Wide(root, ranks)
    wide.write()
    wide.fill(connect(url), history, layout="data_parallel", sources=True)
    with statements() as asked:
        found = checks(url, RUN)
    assert found["ranks"].detail == f"all {ranks} ranks saved step {history}"
    assert found["directories"].detail == f"{ranks} at or below {root}"
    return len(asked)


def test_neither_a_thousand_ranks_nor_history_take_more_statements(tmp_path: Path) -> None:
    sizes = [(2, 5), (1000, 5), (2, 300)]
    counts = [
        cost(str(tmp_path / f"{ranks}-{history}.db"), tmp_path / f"{ranks}-{history}", ranks=ranks, history=history)
        for ranks, history in sizes
    ]
    assert len(set(counts)) == 1, counts
    assert counts[0] < 40


def test_an_empty_mount_point(sqlite_url: str, tmp_path: Path) -> None:
    """The files may be on a disk that is not mounted: the next start would be refused."""
    job, _ = started(connect(sqlite_url), tmp_path / "data", 10, world_size=1)
    job.directory.rename(tmp_path / "unmounted")
    job.folder(0).mkdir(parents=True)
    found = checks(sqlite_url)["restorable"]
    assert found.status is Status.PROBLEM
    assert f"cannot be seen: {job.folder(0)} is empty: perhaps it is not mounted" in found.detail


def test_the_old_place_of_a_moved_directory(sqlite_url: str, tmp_path: Path) -> None:
    """For which gc keeps states, until a scan says that what was there is gone."""
    catalog = connect(sqlite_url)
    job = saved(catalog, tmp_path / "old")
    old, job.directory = job.directory, tmp_path / "new"
    old.rename(job.directory)
    catalog.scan(job.directory, run="run")
    job.save(job.begin(), 20, 25)
    with unchanged(tmp_path, sqlite_url):
        found = checks(sqlite_url)
    assert said(found["gc_waits"]) == (
        "warning",
        f"for 2 directories with states of the run: the first is {old}/rank_0 is not there: perhaps it is not mounted",
    )
    waits = {each.path: each.reason for each in catalog.plan_gc("run", Policy(keep_last=1)).unseen}
    assert waits[f"{old}/rank_0"] in found["gc_waits"].detail
    assert found["gc_waits"].hint.endswith("mkdir -p DIRECTORY/.ckptstore, then ckptstore scan DIRECTORY --run run")
    for rank in (0, 1):
        (old / f"rank_{rank}" / ".ckptstore").mkdir(parents=True)
        catalog.scan(old / f"rank_{rank}", run="run")
    assert "gc_waits" not in checks(sqlite_url)
    assert catalog.plan_gc("run", Policy(keep_last=1)).unseen == ()


def test_directories_without_their_journals(sqlite_url: str, tmp_path: Path) -> None:
    """gc keeps states for them: they may have held a pin. So doctor and gc name all of them."""
    catalog = connect(sqlite_url)
    job = saved(catalog, tmp_path)
    for rank in (0, 1):
        shutil.rmtree(job.folder(rank) / ".ckptstore")
    with unchanged(tmp_path, sqlite_url):
        found = checks(sqlite_url)
    assert said(found["gc_waits"]) == (
        "warning",
        (
            f"for 2 directories with states of the run: the first is {job.folder(0)} has no .ckptstore any more: "
            "perhaps it is not mounted"
        ),
    )
    waits = [each.path for each in catalog.plan_gc("run", Policy(keep_last=1)).unseen]
    assert waits == [str(job.folder(0)), str(job.folder(1))]
    for rank in (0, 1):
        (job.folder(rank) / ".ckptstore").mkdir(exist_ok=True)
        catalog.scan(job.folder(rank), run="run")
    assert "gc_waits" not in checks(sqlite_url)
    assert catalog.plan_gc("run", Policy(keep_last=1)).unseen == ()


def test_a_file_of_the_newest_state_that_is_gone(sqlite_url: str, tmp_path: Path) -> None:
    job, _ = started(connect(sqlite_url), tmp_path, 10)
    gone = job.folder(1) / "net-1_10.ckpt"
    gone.unlink()
    found = checks(sqlite_url)["restorable"]
    assert found.status is Status.PROBLEM
    assert found.detail.endswith(f"; but 1 file of it cannot be seen: {gone}")


def test_a_state_that_a_tier_has_can_be_restored(sqlite_url: str, tmp_path: Path) -> None:
    catalog = connect(sqlite_url)
    job, _ = started(catalog, tmp_path / "ckpt", 10, 20)
    tiers.copied(catalog, tiers.declared(catalog, tmp_path / "shared"), catalog.files(RUN))
    lost, *_ = catalog.show(RUN, 20)
    Path(lost.path).unlink()
    catalog.verify(RUN)
    status, detail = said(checks(sqlite_url)["restorable"])
    assert (status, detail.partition(", ")[0]) == ("note", "step 20")
    assert detail.endswith("; 1 file of it must be fetched from a tier: a start does that")
    shutil.rmtree(job.directory)
    status, detail = said(checks(sqlite_url)["restorable"])
    assert (status, detail.partition(", ")[0]) == ("note", "step 20")
    assert detail.endswith("; 2 files of it must be fetched from a tier: a start does that")


def test_a_command_that_waits_for_a_disk_says_so(
    catalog: Catalog, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited without a word."""
    monkeypatch.setattr("ckptstore.disk.waiting.ANSWER_SECONDS", 1.0)
    monkeypatch.setattr("ckptstore.doctor.unanswered.ANSWER_SECONDS", 1.0)
    told: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(logging.getLogger("ckptstore"), "warning", lambda *what: told.put(what[0] % what[1:]))
    begun(catalog, tmp_path / "nfs", 10)
    with ThreadPoolExecutor(1) as other, hanging_disk(tmp_path / "nfs"):
        done = other.submit(cli.main, ["--db", database_url, "resolve", "run"], standalone_mode=False)
        assert told.get(timeout=60).startswith(f"{tmp_path}/nfs: no answer from the disk")
        assert not done.done()
