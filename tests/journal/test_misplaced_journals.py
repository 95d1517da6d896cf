"""Journals that were copied, doubled, put elsewhere, are unreadable or newer; catalogs that are older than journals."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ckptstore.api import Catalog, connect
from ckptstore.catalog.engine import open_database
from ckptstore.core.events import FileRecorded, to_line
from ckptstore.core.model import Kind, launch_key
from ckptstore.disk.name_claims import FOLDER
from ckptstore.errors import CkptstoreError, UsageError
from ckptstore.journal import jsonl
from ckptstore.journal.sync import found_below
from ckptstore.resume.resolver import Query
from ckptstore.resume.start import Decided
from ckptstore.retention.policy import Policy
from ckptstore.training.start import begin, decide, follow
from tests.contents import back_up, contents, put_back
from tests.jobs import Job, begun
from tests.journal.builders import cut_off, plan_of, states
from tests.retention.gc_world import NOBODY, do_apart, give_to_nobody


def two_launches(job: Job) -> None:
    """Steps 5 to 15, and 20 and 25 of a second launch."""
    job.save(job.begin(), 5, 10, 15)
    job.save(job.begin(), 20, 25)


def sources(catalog: Catalog) -> tuple[int, set[Path]]:
    """The step of the plan, and the directories that its files are in."""
    plan = catalog.resolve("run").plan
    return plan.global_step, {Path(each.source.path).parent for each in plan.ranks}


@pytest.mark.of_files
@pytest.mark.parametrize("is_gone", [False, True])
def test_a_whole_tree_that_was_copied(catalog: Catalog, other: Catalog, tmp_path: Path, *, is_gone: bool) -> None:
    """Scanned into the catalog of the original and into an empty one, with the original there, or gone."""
    job = Job(catalog, tmp_path / "ckpt")
    two_launches(job)
    catalog.pin("run", 10)
    before = contents(catalog, but=("journals",))
    original, copy = {job.folder(0), job.folder(1)}, {tmp_path / "copy" / f"rank_{rank}" for rank in (0, 1)}
    shutil.copytree(tmp_path / "ckpt", tmp_path / "copy", symlinks=True)
    if is_gone:
        shutil.rmtree(tmp_path / "ckpt")
    other.scan(tmp_path / "copy")
    assert sources(other) == (25, copy)
    assert [row["global_step"] for row in contents(other)["pins"]] == [10]
    catalog.scan(tmp_path / "copy", run="run")
    assert sources(catalog) == (25, copy if is_gone else original)
    after = contents(catalog, but=("journals",))
    assert [after[name] for name in ("launches", "pins")] == [before[name] for name in ("launches", "pins")]
    third = job.begin()
    assert plan_of(third[0]).global_step == 25
    job.save(third, 30)
    assert sources(catalog) == (30, original)
    done = catalog.execute(catalog.plan_gc("run", Policy(keep_last=2)))
    assert done.troubles == ()
    assert sources(catalog) == (30, original)
    assert {path.name for path in (tmp_path / "copy").rglob("rank_0/*.ckpt")} >= {"net-1_10.ckpt", "net_1-3_5.ckpt"}
    catalog.sync(tmp_path / "copy")
    assert catalog.resolve("run").plan is not None


@pytest.mark.of_files
def test_journals_that_are_there_twice(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    """Beside the original, under a name of no journal, under another rank's name, and in another rank's directory."""
    job = Job(catalog, tmp_path / "ckpt")
    two_launches(job)
    before = contents(catalog, but=("journals",))
    for own in map(Path, jsonl.journals_in(str(job.folder(0)))):
        shutil.copy(own, own.with_name(f"{own.stem} (copy).jsonl"))
        shutil.copy(own, own.with_name(own.name.replace("rank_0", "rank_7")))
    other.scan(tmp_path / "ckpt")
    assert contents(other, but=("journals",)) == before
    assert catalog.sync(tmp_path / "ckpt").records == 0
    assert contents(catalog, but=("journals",)) == before
    for own in jsonl.journals_in(str(job.folder(0))):
        shutil.copy(own, job.folder(1) / FOLDER)  # it speaks of rank 0's files there: they are rank 1's
    for each in (catalog, other):
        each.sync(tmp_path / "ckpt")
        plan = each.resolve("run").plan
        assert plan.global_step == 25
        assert [Path(one.source.path).parent for one in plan.ranks] == [job.folder(0), job.folder(1)]


def test_what_a_newer_program_wrote_is_taken_up_by_it(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older one has met the journal in between, and a record of its own is behind the newer one's."""
    job, (launch,) = begun(catalog, tmp_path / "ckpt", 5, world_size=1)
    with monkeypatch.context() as newer:
        cut_off(launch, newer)
        newer.setattr(jsonl, "VERSION", 2)
        job.save([launch], 10)
    launch.recorder.behind = False
    job.save([launch], 15)
    assert states(catalog).keys() == {5, 15}
    for _ in range(2):
        (skipped,) = catalog.sync("run").skipped
        assert "newer ckptstore" in skipped.reason
    monkeypatch.setattr(jsonl, "VERSION", 2)
    assert catalog.sync("run").records == 1
    assert states(catalog).keys() == {5, 10, 15}
    assert catalog.sync("run").read == 0


@pytest.mark.of_files
@pytest.mark.parametrize("what", ["directory", "link", "pipe", "no folder"])
def test_something_else_where_a_journal_should_be(
    catalog: Catalog, tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is read from it or written through it; the catalog has the records, and it is said once."""
    job = Job(catalog, tmp_path / "ckpt")
    outside = tmp_path / "outside.jsonl"
    outside.write_bytes(b"")
    place = job.folder(0) / FOLDER / "rank_0.jsonl"
    place.parent.parent.mkdir(parents=True)
    if what == "no folder":
        place.parent.touch()
    else:
        place.parent.mkdir()
    if what == "directory":
        place.mkdir()
    elif what == "link":
        place.symlink_to(outside)
    elif what == "pipe":
        os.mkfifo(place)
    two_launches(job)
    assert outside.read_bytes() == b""
    assert sources(catalog)[0] == 25
    assert caplog.text.count("cannot be written (") <= 2  # once a launch
    assert catalog.sync(tmp_path / "ckpt").skipped == ()
    assert states(catalog).keys() == {5, 10, 15, 20, 25}


def as_another_user(url: str, directory: str, hidden: str) -> None:
    if os.getuid() == 0:
        os.setuid(NOBODY)
    catalog = connect(url)
    synced = catalog.sync(Path(directory))
    assert [(each.path, each.reason) for each in synced.skipped] == [(hidden, "Permission denied")]
    assert all(each.path.startswith(hidden) for each in catalog.scan(directory, run="run").unread)
    assert catalog.resolve("run").plan.global_step == 25
    begin(catalog.database, "run", rank=0, world_size=2, launch_id="N1", layout=None, directories=[directory])
    away = open_database("/nowhere/catalog.db")
    try:
        launch = begin(away, "run", rank=0, world_size=2, launch_id="N2", layout=None, directories=[directory])
        decide(launch, [directory])
    except CkptstoreError as error:
        assert f"{hidden} cannot be read (Permission denied)" in str(error)
        assert "Traceback" not in str(error)
        return
    raise AssertionError("it decided without knowing what is in that journal")


@pytest.mark.parametrize("what", ["journal", "folder", "directory"])
def test_journals_that_may_not_be_read(sqlite_url: str, tmp_path: Path, what: str) -> None:
    """By another user: they are named; with a catalog nothing depends on them, without one the start says it."""
    catalog = connect(sqlite_url)
    job = Job(catalog, tmp_path / "ckpt")
    two_launches(job)
    with catalog.database.write() as connection:
        connection.exec_driver_sql("DELETE FROM journals WHERE path LIKE '%rank_0%'")
    folder = job.folder(0) / FOLDER
    hidden = {
        "journal": Path(jsonl.journals_in(str(job.folder(0)))[0]),
        "folder": folder,
        "directory": tmp_path / "ckpt" / "other",
    }[what]
    (tmp_path / "ckpt" / "other").mkdir()
    (tmp_path / "ckpt" / "lost+found").mkdir(mode=0)
    give_to_nobody(tmp_path)
    hidden.chmod(0)
    catalog.database.disconnect()
    do_apart(as_another_user, sqlite_url, str(tmp_path / "ckpt"), str(hidden))


def test_a_catalog_restored_from_an_old_backup(sqlite_url: str, tmp_path: Path) -> None:
    """It lacks two launches. The next one is newer than both of them, whoever joins it and how."""
    catalog = connect(sqlite_url)
    job, _ = begun(catalog, tmp_path / "ckpt", 5, world_size=1)
    backup = tmp_path / "backup.db"
    back_up(catalog, backup)
    for step in (10, 15):
        job.save(job.begin(), step)
    catalog = job.catalog = put_back(catalog, backup)
    (launch,) = job.begin()
    assert launch.facts.parent_step == 15
    job.save([launch], 20)
    (again,) = job.begin()
    assert (again.facts.order, again.facts.parent_step) == (5, 20)


def test_a_rank_that_has_the_catalog_tells_it_what_rank_0_decided_without(
    catalog: Catalog, other: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 lost the catalog while it decided, and then its disk: where the launch began is known all the same."""
    job, _ = begun(catalog, tmp_path / "ckpt", 5, 10, 15, layout="data_parallel")
    joined = begin(
        connect(str(catalog.database.url.render_as_string(hide_password=False))).database,
        "run",
        rank=0,
        world_size=2,
        launch_id="L2",
        layout="data_parallel",
        directories=[tmp_path / "ckpt"],
    )
    joined.set_steps_per_epoch(10)
    cut_off(joined, monkeypatch)
    decision = decide(joined, [tmp_path / "ckpt"], Query(step=5))
    assert joined.recorder.is_late
    assert decision.plan is not None
    follower = follow(catalog.database, joined.facts, 1, "data_parallel", away=False)
    follower.facts = decision.launch
    follower.note_start(Decided(decision.launch, decision.plan, decision.at))
    job.announce(follower)
    job.save([follower], 8)
    shutil.rmtree(job.folder(0) / FOLDER)  # rank 0's node is gone with what it wrote
    plan = catalog.resolve("run").plan
    assert (plan.launch.id, plan.global_step) == ("L2", 8)
    first, second = launch_key("run", "L1"), launch_key("run", "L2")
    launch = next(row for row in contents(catalog)["resolutions"] if row["launch_id"] == second)
    assert (launch["parent_launch_id"], launch["parent_step"], launch["branched"]) == (first, 5, True)
    Path(plan.ranks[0].source.path).unlink()
    assert catalog.resolve("run").plan.global_step == 5, "the launch went back on purpose: 10 and 15 were given up"


CANNOT_BE_HELD: list[dict[str, object]] = [
    {"epoch": 2**31},
    {"step_in_epoch": 2**70},
    {"optimizer_step": 2**63},
    {"global_step": 1.5},
    {"global_step": True},
    {"rank": -1},
    {"mtime_ns": 9_300_000_000_000_000_000},
    {"path": "n\udce9.ckpt"},
    {"strategy_file": "/n\udce9"},
    {"metrics": {"loss": float("nan")}},
    {"metrics": {"n\0": 1.0}},
    {"launch": "L" * 201},
    {"digest": "0" * 65},
    {"at": "0001-01-01T00:00:00+14:00"},
]


def test_lines_that_no_catalog_can_hold_stop_nobody(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    """As another program may have written them: what is before and behind each of them counts."""
    job, (launch,) = begun(catalog, tmp_path / "ckpt", world_size=1)
    (path,) = found_below([str(tmp_path)])[0]
    for step, changed in enumerate(CANNOT_BE_HELD, start=5):
        (file,) = job.save([launch], step)
        line = {**to_line(FileRecorded(replace(file, global_step=50)), str(job.folder(0))), **changed}
        with Path(path).open("ab") as written:
            written.write(jsonl.encode(line))
    last = 5 + len(CANNOT_BE_HELD)
    job.save([launch], last)
    assert catalog.resolve("run").plan.global_step == last
    assert other.sync(tmp_path).spoiled == len(CANNOT_BE_HELD)
    assert states(other).keys() == set(range(5, last + 1))
    (again,) = job.begin()
    job.save([again], 20)
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=1, floor=1)), allow_mass_delete=True)
    other.scan(tmp_path / "ckpt")
    assert catalog.resolve("run").plan.global_step == 20


def test_journals_in_a_directory_whose_name_is_not_utf8(catalog: Catalog, tmp_path: Path) -> None:
    job, _ = begun(catalog, tmp_path / "ckpt", 5, world_size=1)
    shutil.copytree(tmp_path / "ckpt", tmp_path / os.fsdecode(b"n\xe9"))
    for synced in (catalog.sync(tmp_path), catalog.scan(tmp_path, run="run").synced):
        (skipped,) = synced.skipped
        assert "udce9" in skipped.path
        assert "not UTF-8" in skipped.reason
    (launch,) = job.start()
    with pytest.raises(UsageError, match="directory is .* not UTF-8"):
        launch.add_source("/n\udce9", kind=Kind.PERIODIC, prefix="net", breakpoint_prefix="net", names_before=())


@pytest.mark.of_files
def test_records_of_a_launch_that_another_journal_tells_of_later(
    catalog: Catalog, other: Catalog, tmp_path: Path
) -> None:
    """Rank 1's own lines of the launch are spoiled: its files count as soon as rank 0's journal is read."""
    job, _ = begun(catalog, tmp_path / "ckpt", 5)
    ranks = job.begin()
    job.save(ranks, 10)
    for path in (job.folder(1) / FOLDER).glob("*.jsonl"):
        lines = path.read_bytes().splitlines(keepends=True)
        spoilt = [b"\0" * (len(line) - 1) + b"\n" if b'"id":"L2"' in line else line for line in lines]
        path.write_bytes(b"".join(spoilt))
    first = other.sync(job.folder(1))
    (skipped,) = first.skipped
    assert Path(skipped.path).name == "net_1-1_10.ckpt"
    assert "no journal here tells of launch L2" in skipped.reason
    assert states(other).keys() == {5}
    assert other.sync(job.folder(0)).records == 2
    assert other.sync(tmp_path).skipped == ()
    assert sources(other) == (10, {job.folder(0), job.folder(1)})
    assert other.sync(tmp_path).read == 0
