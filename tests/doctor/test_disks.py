"""What doctor finds of the disks that checkpoints are on: real small ones, and mount tables as of clusters."""

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ckptstore.api import Catalog, connect
from ckptstore.catalog import mounts
from ckptstore.disk import name_claims
from ckptstore.doctor import check_storage, unanswered
from ckptstore.doctor.checkup import Status
from ckptstore.doctor.doctor import examine
from ckptstore.doctor.run_facts import Room, room_of
from ckptstore.retention.policy import Policy
from ckptstore.serve import metrics
from ckptstore.training.rank_launch import RankLaunch
from tests import ckpt_bytes
from tests.cli.advice import follow
from tests.command_line import ckptstore
from tests.doctor.checkups import checks, said, unchanged
from tests.jobs import Job, begun, started
from tests.small_disks import fill, hanging_disk, read_only, small_disk
from tests.tiers import jobs as tiers

pytestmark = pytest.mark.of_files


@pytest.fixture
def small(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A real file system with the options that the test names."""
    with small_disk(tmp_path / "small", request.param) as home:
        yield home


def save(ranks: list[RankLaunch], directory: Path, step: int, size: int) -> None:
    """Every rank saves so many bytes."""
    for launch in ranks:
        path = directory / f"rank_{launch.rank}" / f"net-{step}_1.ckpt"
        path.parent.mkdir(exist_ok=True, parents=True)
        begin = ckpt_bytes.value("x", "Float32", (1,), bytes(4))
        path.write_bytes(begin.ljust(size, b"x"))
        launch.register(path, global_step=step)


@pytest.mark.parametrize("small", ["size=1m"], indirect=True)
def test_room_for_more_saves(catalog: Catalog, database_url: str, small: Path) -> None:
    ranks = Job(catalog, small / "data").start()
    save(ranks, small / "data", 10, 40_000)
    found = checks(database_url)["disk"]
    assert found.status is Status.OK
    assert "more saves of 80.0 kB" in found.detail
    save(ranks, small / "data", 20, 100_000)
    save(ranks, small / "data", 30, 80_000)  # the largest of the last ones counts
    found = checks(database_url)["disk"]
    assert found.status is Status.WARNING
    assert "room for 2 more saves of 200.0 kB" in found.detail
    save(ranks, small / "data", 40, 150_000)
    with unchanged(small):
        found = checks(database_url)["disk"]
    assert found.status is Status.PROBLEM
    assert "room for 0 more saves of 300.0 kB" in found.detail
    gc = "ckptstore gc run --keep-last 2"
    assert found.hint == f"{gc} shows what may go, and {gc} --apply --now deletes it"
    assert examine(database_url).exit_code == 1
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=3)))
    purge, rest = checks(database_url)["disk"].hint.split("; ")
    assert (purge, rest) == ("ckptstore purge run --now frees up to 80.0 kB", found.hint)
    assert "would go" in follow(database_url, rest).out
    for command, room in ((purge.partition(" frees")[0], 80_000), (found.hint.rpartition(" and ")[2], 200_000)):
        before = room_of(str(small)).bytes
        done = ckptstore("--db", database_url, *command.removesuffix(" deletes it").split()[1:])
        assert done.code == 0, done
        segments = 2 * 4096  # what the command itself tells in two directories takes a block each
        assert room_of(str(small)).bytes >= before + room - segments
    assert "no state of this run can be removed" in checks(database_url)["disk"].hint


@pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as somebody else")
def test_a_full_disk_beside_a_directory_that_one_may_not_enter(monkeypatch: pytest.MonkeyPatch) -> None:
    """doctor and watch ended with "Permission denied", just when there was no room."""
    with tempfile.TemporaryDirectory(dir="/tmp") as shared:
        Path(shared).chmod(0o755)
        job, _ = begun(connect(f"{shared}/c.db"), Path(shared, "ckpt"), 10)
        job.folder(1).chmod(0o700)
        monkeypatch.setattr(check_storage, "room_of", lambda _: Room(0, None))
        os.seteuid(61001)
        try:
            found = checks(f"{shared}/c.db")
        finally:
            os.seteuid(0)
    assert (found["disk"].status, found["directories"].status) == (Status.PROBLEM, Status.WARNING)


def test_a_catalog_on_the_disk_that_its_checkpoints_have_filled(tmp_path: Path) -> None:
    """Not even purge can write to it: another one can, and the first one hears of it from the journals."""
    with small_disk(tmp_path / "small", "size=2m") as home:
        url = str(home / "catalog.db")
        catalog = connect(url)
        ranks = Job(catalog, home / "data").start()
        for step in (10, 20, 30, 40, 50):
            save(ranks, home / "data", step, 100_000)
        catalog.execute(catalog.plan_gc("run", Policy(keep_last=4)))
        catalog.database.disconnect()
        fill(home)
        full = ckptstore("--db", url, "runs")
        assert f"the disk of {home} is full" in full.err
        other = {"OTHER.db": str(tmp_path / "other.db"), "DIR": str(home / "data"), "RUN": "run"}
        for said in re.findall(r"ckptstore (--db OTHER\.db .*?)(?: to| for|, |$)", full.err.strip()):
            done = ckptstore(*(other.get(word, word) for word in said.split()))
            assert done.code == 0, done
        assert {file.global_step for file in connect(url).files("run") if file.state == "complete"} >= {40, 50}
        assert sorted(int(path.name[4:6]) for path in (home / "data" / "rank_0").glob("*.ckpt")) == [40, 50]
        assert connect(url).resolve("run").plan.global_step == 50


@pytest.mark.parametrize("small", ["size=1m,nr_inodes=19"], indirect=True)
def test_room_for_files(catalog: Catalog, database_url: str, small: Path) -> None:
    ranks = Job(catalog, small / "data").start()
    for step in (10, 20, 30):
        save(ranks, small / "data", step, 1)
    found = checks(database_url)["disk"]
    assert found.status is Status.WARNING
    assert found.detail.endswith(": there is room for 3 more files, and a save needs 2")


@pytest.mark.parametrize("small", ["size=1m"], indirect=True)
def test_each_disk_is_looked_at_by_itself(tmp_path: Path, sqlite_url: str, small: Path) -> None:
    _, ranks = started(connect(sqlite_url), tmp_path / "data")
    save(ranks[:1], small, 10, 400_000)
    save(ranks[1:], tmp_path / "data", 10, 400_000)
    found = [said(check) for check in examine(sqlite_url).checks if check.name == "disk"]
    assert len(found) == 2
    ((status, detail),) = [each for each in found if str(small) in each[1]]
    assert status == "warning"
    assert "room for 1 more save of 400.0 kB" in detail
    assert [status for status, detail in found if str(tmp_path / "data") in detail] == ["ok"]


@pytest.mark.parametrize(
    ("kind", "hosts", "status", "words"),
    [
        ("ext4", 1, Status.OK, "ext4"),
        ("ext4", 2, Status.WARNING, "a disk of one machine, and the ranks run on 2"),
        ("lustre", 2, Status.NOTE, "a network file system"),
        ("nfs4", 1, Status.NOTE, "a network file system"),
        ("tmpfs", 1, Status.WARNING, "in memory"),
    ],
)
def test_file_systems(  # noqa: PLR0917
    tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, kind: str, hosts: int, status: Status, words: str
) -> None:
    job, ranks = started(connect(sqlite_url), tmp_path / "data")
    for launch in ranks:
        monkeypatch.setattr(name_claims, "host_name", lambda at=launch.rank % hosts: f"node-{at}")
        job.announce(launch)
    job.save(ranks, 10)
    monkeypatch.setattr(
        mounts, "_table", lambda: f"9 1 0:9 / / rw - ext4 x rw\n10 9 0:10 / {job.directory} rw - {kind} x rw"
    )
    found = checks(sqlite_url)["file_system"]
    assert found.status is status
    assert words in found.detail


def refuse(_: str) -> Room:
    raise OSError(5, os.strerror(5))


@pytest.mark.parametrize(
    ("saves", "module", "attribute", "stand_in", "check", "words"),
    [
        (0, check_storage, "_FEW_SAVES", 3, "ok disk", "no periodic save yet to tell how much one takes"),
        (1, check_storage, "room_of", lambda _: Room(10**15, None), "ok disk", "room for more than 1000 saves"),
        (1, check_storage, "room_of", refuse, "warning disk", "its room is not known (Input/output error)"),
        (1, mounts, "_table", lambda: "", "note file_system", "of unknown kind"),
    ],
    ids=["no save", "no limit of files", "no room told", "no mount table"],
)
def test_what_a_system_does_not_tell(  # noqa: PLR0917
    tmp_path: Path,
    sqlite_url: str,
    monkeypatch: pytest.MonkeyPatch,
    saves: int,
    module: ModuleType,
    attribute: str,
    stand_in: object,
    check: str,
    words: str,
) -> None:
    begun(connect(sqlite_url), tmp_path / "data", *range(10, 10 + saves))
    monkeypatch.setattr(module, attribute, stand_in)
    status, name = check.split()
    found = checks(sqlite_url)[name]
    assert (found.status.value, words in found.detail) == (status, True), found


def test_a_disk_that_the_system_made_read_only(
    catalog: Catalog, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Linux does after an error of the disk: no save succeeds any more. A machine that only reads may have it so."""
    with small_disk(tmp_path / "disk", "size=8m") as home:
        begun(catalog, home, 5)
        assert said(checks(database_url)["disk"])[0] == "ok"
        read_only(home)
        told = f"{home}: mounted read-only here: nothing can be saved to it, or removed from it"
        assert said(checks(database_url)["disk"]) == ("warning", told)
        monkeypatch.setattr(name_claims, "host_name", lambda: "login")
        assert said(checks(database_url)["disk"]) == ("note", told)


def test_a_disk_that_hangs_is_named(
    catalog: Catalog, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Doctor waited for it without a word; the states on it stay, and a gc waits for it."""
    monkeypatch.setattr("ckptstore.disk.waiting.ANSWER_SECONDS", 1.0)
    begun(catalog, tmp_path / "nfs" / "other", 10, run="other")
    job, _ = begun(catalog, tmp_path / "nfs", 10)
    job.directory = tmp_path / "disk"
    job.save(job.begin(), 20)
    tiers.declared(catalog, tmp_path / "nfs" / "tier")
    with hanging_disk(tmp_path / "nfs"):
        (tier,) = (check for check in examine(database_url).checks if check.name == "tiers" and not check.run)
        assert (tier.status, tier.detail) == (Status.PROBLEM, f"tier tier: {tmp_path}/nfs/tier does not answer")
        found = {check.name: check for check in examine(database_url).checks if check.run == "run"}
        assert metrics.measure(catalog.database).available.keys() == {"run"}
    assert found["directories"].status is Status.OK
    assert f"{tmp_path}/nfs/rank_0 does not answer within 5 s" in found["gc_waits"].detail
    assert "gc_waits" not in checks(database_url)


def test_a_disk_that_hangs_is_named_for_a_run_that_a_scan_found(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only directories that registrars announced were asked: its commands waited without a word."""
    monkeypatch.setattr("ckptstore.disk.waiting.ANSWER_SECONDS", 1.0)
    ckpt_bytes.write(tmp_path / "nfs" / "rank_0" / "net-1_10.ckpt", 10)
    catalog.scan(tmp_path / "nfs", run="plain", world_size=1)
    with hanging_disk(tmp_path / "nfs"):
        assert unanswered.unanswered_of(catalog.database, None) == {f"{tmp_path}/nfs/rank_0"}


def test_nothing_waits_for_a_catalog_while_a_disk_is_asked(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork of a training, as for the workers of its dataset, waited for the transaction and then went on with it."""
    begun(catalog, tmp_path, 10)
    taken: list[int] = []

    def asked(directories: set[str]) -> set[str]:
        taken.append(catalog.database._engine.pool.checkedout())
        return directories

    monkeypatch.setattr(unanswered, "hanging", asked)
    assert unanswered.unanswered_of(catalog.database, None) == {f"{tmp_path}/rank_0", f"{tmp_path}/rank_1"}
    assert taken == [0], "connections with a transaction"
