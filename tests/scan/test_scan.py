"""Scanning a tree: what is adopted, what is left alone, and that nothing changes when nothing has changed."""

import errno
import json
import os
import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from ckptstore.api import Catalog, connect
from ckptstore.catalog import reads
from ckptstore.catalog.runs import find_run
from ckptstore.catalog.tables import launches
from ckptstore.core.events import LaunchStarted
from ckptstore.core.model import SCANNED, Checkpoint, Content, FileState, Kind, Launch, Skipped
from ckptstore.core.replicas import stand_alone
from ckptstore.disk.name_claims import FOLDER
from ckptstore.errors import RefusedError, UsageError
from ckptstore.evidence import writers
from ckptstore.journal import jsonl
from ckptstore.retention.policy import Policy
from ckptstore.scan import scan as scan_module
from ckptstore.scan.known_files import unwatched
from ckptstore.scan.plan import Scanned
from ckptstore.scan.tree import Tree, changed
from tests import ckpt_bytes, parts_bytes
from tests.contents import contents
from tests.jobs import Job, begun, started
from tests.projecting import put
from tests.resume import builders
from tests.retention.gc_world import NOBODY, do_apart, give_to_nobody
from tests.scan.builders import LENGTH, save


def found(catalog: Catalog, run: str = "job") -> dict[str, tuple[int, FileState]]:
    return {Path(file.path).name: (file.global_step, file.state) for file in catalog.files(run)}


def test_a_tree_is_adopted_and_a_second_scan_changes_nothing(catalog: Catalog, root: Path) -> None:
    for rank in (0, 1):
        save(root, 3, 6, 9, rank=rank)
    dry = catalog.scan(root, world_size=2, dry_run=True)
    assert len(dry.adopted) == 6
    assert catalog.runs() == []
    done = catalog.scan(root, world_size=2)
    assert [file.global_step for file in done.adopted].count(9) == 2
    plan = catalog.resolve("job").plan
    assert [(plan.global_step, item.rank, item.source.rank) for item in plan.ranks] == [(9, 0, 0), (9, 1, 1)]
    before = catalog.files("job")
    again = catalog.scan(root, world_size=2)
    assert (again.adopted, again.known) == ((), 6)
    assert catalog.files("job") == before
    save(root, 12, rank=0)
    save(root, 12, rank=1)
    more = catalog.scan(root, world_size=2)
    assert [file.global_step for file in more.adopted] == [12, 12]
    assert {file.launch for file in more.adopted} == {file.launch for file in before}
    assert catalog.resolve("job").plan.global_step == 12


def test_more_ranks_than_a_launch_may_have_are_refused(catalog: Catalog, root: Path) -> None:
    """They would take all memory wherever the catalog is read."""
    save(root, 3)
    with pytest.raises(UsageError, match="world size is 2147483647, not a whole number from 1 to 100000"):
        catalog.scan(root, world_size=2**31 - 1)
    save(root, 3, rank=2**31 - 2)
    for world_size in (None, 1):
        with pytest.raises(UsageError, match="is of rank 2147483646, and a launch has at most 100000 ranks"):
            catalog.scan(root, world_size=world_size)
    assert catalog.runs() == []


def test_what_changed_behind_the_catalog_is_marked(catalog: Catalog, root: Path, tmp_path: Path) -> None:
    three, six, nine = save(root, 3, 6, 9)
    catalog.scan(root, world_size=1)
    nine.write_bytes(nine.read_bytes()[:-1])
    six.rename(tmp_path / "elsewhere")
    done = catalog.scan(root, world_size=1)
    assert [Path(file.path) for file in done.damaged] == [nine]
    assert [Path(file.path) for file in done.missing] == [six]
    assert found(catalog) == {
        nine.name: (9, FileState.DAMAGED),
        six.name: (6, FileState.MISSING),
        three.name: (3, FileState.COMPLETE),
    }
    (tmp_path / "elsewhere").rename(six)
    assert catalog.scan(root, world_size=1).damaged == (), "it is recorded as damaged"
    assert found(catalog)[six.name] == (6, FileState.COMPLETE)


def test_what_is_no_checkpoint_is_counted_or_said(catalog: Catalog, root: Path) -> None:
    save(root, 3, 6)
    home = root / "rank_0"
    (home / "net-2_2.tmp").touch()
    (home / "net-graph.meta").touch()
    (home / "notes.txt").touch()
    (home / "model_best.pth.tar").touch()
    (home / "broken-1_1.ckpt").write_bytes(b"no checkpoint at all")
    Path(os.fsdecode(os.fsencode(home) + b"/net\xff-1_1.ckpt")).touch()
    (root / "loop").symlink_to(root)
    done = catalog.scan(root, world_size=1)
    assert len(done.adopted) == 2
    assert done.counts == {"checkpoint": 3, "debris": 1, "companion": 1, "stranger": 1, "opaque": 1}
    reasons = {Path(each.path).name: each.reason for each in done.skipped}
    assert set(reasons) == {"net-2_2.tmp", "broken-1_1.ckpt", "net\\udcff-1_1.ckpt", "model_best.pth.tar", "loop"}
    assert "is not a whole .ckpt file" in reasons["broken-1_1.ckpt"]


@pytest.mark.parametrize("at", [1, 2])
def test_nothing_is_adopted_below_a_directory_in_which_no_journals_could_be_looked_for(
    catalog: Catalog, other: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """A network file system that fails once: the files of a registered launch counted as those of a scanned one."""
    begun(catalog, tmp_path / "job", 5, 10)
    listed, looks = os.scandir, []

    def scandir(path: Any) -> Any:
        looks.extend([path] if str(path).endswith("/rank_0") else [])
        if looks[-1:] == [path] and len(looks) == at:
            raise OSError(errno.EIO, "I/O error", str(path))
        return listed(path)

    with monkeypatch.context() as once:
        once.setattr(os, "scandir", scandir)
        done = other.scan(tmp_path / "job", run="run")
    assert len(looks) >= at
    assert done.adopted == ()
    assert str(tmp_path / "job" / "rank_0") in {each.path for each in done.skipped}
    other.scan(tmp_path / "job", run="run")
    assert {file.launch for file in other.files("run")} == {"L1"}


def test_a_part_that_cannot_be_read_loses_nothing(catalog: Catalog, root: Path, monkeypatch) -> None:
    save(root, 3, 6, rank=0)
    save(root, 3, 6, rank=1)
    catalog.scan(root, world_size=2)
    scandir = os.scandir

    def refused(path: str) -> object:
        if str(path).endswith("rank_1"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    save(root, 9, rank=0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refused)
        done = catalog.scan(root, world_size=2)
    assert str(root / "rank_1") in {each.path for each in done.skipped}
    assert done.missing == ()
    assert [file.global_step for file in done.adopted] == [9]


def test_old_launches_come_before_the_ones_that_were_watched(catalog: Catalog, root: Path) -> None:
    """ckptstore came later than the job: its newest launch stays the newest."""
    save(root, 3, 6)
    launch = catalog.join("job", launch_id="live")
    launch.resolve()
    (path,) = save(root, 9, prefix="other")
    launch.register(path, global_step=9, optimizer_step=9)
    catalog.scan(root, world_size=1)
    plan = catalog.resolve("job").plan
    assert (plan.launch.id, plan.global_step) == ("live", 9)
    path.unlink()
    older = catalog.resolve("job").plan
    assert older is None or older.global_step == 6


def test_what_a_scan_took_in_before_its_rank_registered_it_gives_nothing_up(
    catalog: Catalog, other: Catalog, root: Path
) -> None:
    """It had made a launch of it, newer than the one that trained on: what that saved later was given up."""
    (root / "rank_0").mkdir(parents=True)
    launch = catalog.join("job", launch_id="L1")
    launch.set_steps_per_epoch(LENGTH)
    launch.resolve()
    path = ckpt_bytes.write(root / "rank_0" / "net-1_3.ckpt", 3)
    assert [file.path for file in catalog.scan(root, run="job").adopted] == [str(path)]
    launch.register(path, global_step=3, optimizer_step=3)
    launch.register(ckpt_bytes.write(root / "rank_0" / "net-2_1.ckpt", 6), global_step=6, optimizer_step=6)
    moved = [file.launch for file in catalog.files("job") if file.state is FileState.MOVED]
    assert [launch.startswith(SCANNED) for launch in moved] == [True]
    other.scan(root, run="job")
    for each in (catalog, other):
        plan = each.resolve("job").plan
        assert (plan.launch.id, plan.global_step) == ("L1", 6)


def test_a_scan_adopts_what_no_start_looks_for_any_more(catalog: Catalog, tmp_path: Path) -> None:
    """The disk of one rank was not mounted when the next launch began, and that one has saved since."""
    job, first = begun(catalog, tmp_path / "ckpt", 10)
    first[1].register(job.write(first[1], 15), global_step=15, optimizer_step=15)
    late = job.write(first[0], 15)
    late.rename(tmp_path / "away")
    job.save(job.begin(), 20)
    (tmp_path / "away").rename(late)
    assert catalog.resolve("run", lineage="L1").plan.global_step == 10
    done = catalog.scan(tmp_path / "ckpt", run="run")
    assert ([file.path for file in done.adopted], done.known, done.skipped) == ([str(late)], 5, ())
    assert catalog.scan(tmp_path / "ckpt", run="run").adopted == ()
    plan = catalog.resolve("run", lineage="L1").plan
    assert (plan.launch.id, plan.global_step) == ("L1", 15)
    assert catalog.resolve("run").plan.launch.id == "L2"


def train(catalog: Catalog, root: Path, run: str = "llama", *steps: int) -> None:
    """What a run leaves that is trained with ckptstore."""
    launch = catalog.join(run, launch_id=f"of-{run}")
    launch.set_steps_per_epoch(LENGTH)
    launch.resolve()
    for step, path in zip(steps, save(root, *steps), strict=True):
        launch.register(path, global_step=step, optimizer_step=step)


def untaken(done: Scanned, root: Path) -> dict[str, str]:
    return {str(Path(each.path).relative_to(root)): each.reason for each in done.skipped}


def test_a_directory_whose_disk_may_not_be_mounted_is_named(catalog: Catalog, tmp_path: Path) -> None:
    job, _ = begun(catalog, tmp_path / "ckpt", 10)
    job.folder(1).rename(tmp_path / "away")
    job.folder(1).mkdir()
    done = catalog.scan(tmp_path / "ckpt", run="run")
    (reason,) = {reason for name, reason in untaken(done, tmp_path / "ckpt").items() if name == "rank_1"}
    assert reason.startswith("perhaps its disk is not mounted: its records stay")
    assert done.missing == ()


@pytest.mark.parametrize("knows", ["nothing", "all"])
@pytest.mark.parametrize("name", ["two", "llama"])
def test_a_trained_run_gets_no_files_from_beside_it(catalog: Catalog, tmp_path: Path, name: str, knows: str) -> None:
    """Its next start would go on from them: what journals tell of is one run, what lies beside it may be any."""
    root = tmp_path / name
    train(catalog, root / "ckpt", "llama", 3, 6, 9)
    save(root / "exp_b", 3, 6)
    asked = connect(f"sqlite:///{tmp_path / 'new.db'}") if knows == "nothing" else catalog
    hint = f"scan {root / 'exp_b'} and name its run with --run"
    told = f"it is in no directory that run 'llama' saves to: {hint}"
    for dry_run in (True, False):
        done = asked.scan(root, dry_run=dry_run, world_size=1)
        assert (done.run, done.adopted) == ("llama", ())
        assert set(untaken(done, root).values()) == {told}
    plan = asked.join("llama", launch_id="next").resolve()
    assert (plan.launch.id, plan.global_step) == ("of-llama", 9)
    assert len(asked.scan(root, run="exp_b", world_size=1).adopted) == 2
    assert asked.resolve("exp_b").plan is not None


def test_a_trained_run_gets_what_lies_in_its_own_directories(catalog: Catalog, tmp_path: Path) -> None:
    root = tmp_path / "two"
    save(root / "ckpt", 3, 6)
    train(catalog, root / "ckpt", "llama", 13)
    save(root / "ckpt", 3, 6, rank=1)
    ttp = root / "ckpt" / "ttp_saved_checkpoints-step_6" / "rank_0" / "ttp_rank_0-2_1.ckpt"
    ttp.parent.mkdir(parents=True)
    ckpt_bytes.write(ttp, 6)
    done = catalog.scan(root, world_size=2)
    assert (done.run, untaken(done, root)) == ("llama", {})
    assert len(done.adopted) == 5


def test_what_lies_among_the_files_of_another_run_is_not_taken(catalog: Catalog, tmp_path: Path) -> None:
    """Of two runs with journals neither gives the name; and nothing else of theirs goes to the directory's."""
    root = tmp_path / "two"
    train(catalog, root / "a", "llama", 13)
    train(catalog, root / "b", "gpt", 13)
    save(root / "a", 3)
    save(root / "c", 3, 6)
    done = catalog.scan(root, world_size=1)
    assert (done.run, len(done.adopted)) == ("two", 2)
    assert untaken(done, root)["a/rank_0/net-1_3.ckpt"] == (
        f"it lies among files of run 'llama': scan {root / 'a'} and name its run with --run"
    )
    assert len(catalog.scan(root / "a", world_size=1).adopted) == 1
    assert {file.run for file in catalog.files()} == {"llama", "gpt", "two"}


def test_files_of_two_runs_in_one_directory_are_recorded_already(catalog: Catalog, tmp_path: Path) -> None:
    old = connect(f"sqlite:///{tmp_path / 'old.db'}")
    for run in ("one", "two"):
        launch = old.join(run, launch_id="L1")
        for step in (3, 6):
            launch.save(
                lambda path: ckpt_bytes.write(Path(path), 6), global_step=step, directory=tmp_path, name="my.ckpt"
            )
    (tmp_path / "old.db").rename(tmp_path / "my.db")
    for dry_run, records in ((True, 4), (False, 4), (False, 0)):
        done = catalog.scan(tmp_path, dry_run=dry_run)
        assert (done.synced.records, done.synced.runs, done.adopted) == (records, ("one", "two"), ())
        assert (done.counts["checkpoint"], done.known) == (4, 4)


@pytest.mark.parametrize("knows", ["nothing", "half", "all"])
def test_a_dry_run_says_what_the_scan_does(catalog: Catalog, tmp_path: Path, knows: str) -> None:
    """The case that matters is that of a lost catalog: the journals know what no name and no header tells."""
    old = connect(f"sqlite:///{tmp_path / 'old.db'}")
    root = tmp_path / "ckpt"
    launch = (catalog if knows == "all" else old).join("llama", launch_id="L1")
    launch.set_steps_per_epoch(LENGTH)
    launch.resolve()
    for step in (3, 6, 9):
        launch.register(*save(root, step - 2), global_step=step)  # name and counter are two behind
        if knows == "half" and step == 3:
            catalog.scan(root)
    (older,) = save(root, 2, prefix="older")
    (root / "rank_0" / "net-1_1.ckpt").unlink()
    before = contents(catalog)
    dry = catalog.scan(root, dry_run=True)
    assert contents(catalog) == before, "nothing was written"
    done = catalog.scan(root)
    assert done == dry
    assert (done.run, [file.path for file in done.adopted]) == ("llama", [str(older)])
    assert done.synced.records == {"nothing": 3, "half": 2, "all": 0}[knows]


def test_mistakes_are_named(catalog: Catalog, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a directory; give the directory that the checkpoints are in"):
        catalog.scan(tmp_path / "nowhere")
    save(tmp_path / "a" / "job", 3)
    save(tmp_path / "b" / "job", 3)
    catalog.scan(tmp_path / "a" / "job", world_size=1)
    with pytest.raises(RefusedError, match="has a run 'job' whose files are elsewhere, as in .*/a/job/rank_0"):
        catalog.scan(tmp_path / "b" / "job", world_size=1)
    catalog.scan(tmp_path / "b" / "job", world_size=1, run="other")
    mixed = catalog.scan(tmp_path, run="third", world_size=1)
    assert mixed.adopted == ()
    assert {each.reason for each in mixed.skipped} == {"it is of run 'job'", "it is of run 'other'"}


@pytest.mark.parametrize("what", [".ckptstore", ".ckptstore/trash", "gc", "link"])
def test_what_is_in_the_trash_is_not_taken_in(catalog: Catalog, tmp_path: Path, what: str) -> None:
    """The next purge deletes it: a run that was made of it would be lost."""
    job, _ = started(catalog, tmp_path / "ckpt", 5, 10, 15, world_size=1)
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=2)))
    (gc,) = (job.folder(0) / FOLDER / "trash").iterdir()
    link = tmp_path / "link"
    link.symlink_to(gc)
    root = {"gc": gc, "link": link}.get(what, job.folder(0) / what)
    for dry_run in (True, False):
        with pytest.raises(UsageError, match=f"^{root} is in .ckptstore, which belongs to ckptstore itself; give"):
            catalog.scan(root, run="other", dry_run=dry_run)
    assert [each.run for each in catalog.runs()] == ["run"]


@pytest.mark.parametrize(("world_size", "rank", "ranks"), [(None, 3, 4), (8, 3, 8), (1, 0, 1)])
def test_the_directory_of_a_rank_that_is_scanned_alone_is_of_that_rank(
    catalog: Catalog, root: Path, world_size: int | None, rank: int, ranks: int
) -> None:
    """Only a user who says that the job had one rank means that the number is none."""
    save(root, 3, rank=3)
    done = catalog.scan(root / "rank_3", run="job", world_size=world_size)
    assert ([file.rank for file in done.adopted], done.world_size) == ([rank], ranks)
    assert (catalog.resolve("job").plan is not None) == (ranks == 1)


@pytest.mark.parametrize("below", ["", "rank_0"])
def test_the_directory_of_ttp_that_is_scanned_alone_tells_kind_and_step(
    catalog: Catalog, tmp_path: Path, below: str
) -> None:
    home = tmp_path / "ttp_saved_checkpoints-step_6"
    ckpt_bytes.write(home / "rank_0" / "ttp_rank_0-2_1.ckpt", 6)
    (file,) = catalog.scan(home / below, run="job").adopted
    assert (file.kind, file.global_step, file.doubt) == (Kind.TTP, 6, "")


def test_the_new_name_of_a_scanned_run_is_journalled_where_it_was_scanned(
    catalog: Catalog, other: Catalog, root: Path
) -> None:
    for rank in (0, 1):
        save(root, 3, 6, rank=rank)
    catalog.scan(root, world_size=2)
    assert catalog.rename("job", "new")
    assert list(root.rglob(FOLDER)) == [root / FOLDER]
    other.sync(root)
    assert [row.run for row in other.runs()] == ["new"]


def test_a_missing_highest_rank_is_no_smaller_job(catalog: Catalog, root: Path) -> None:
    for rank in (0, 1):
        save(root, 3, rank=rank)
    (root / "rank_2").mkdir()  # it never saved
    done = catalog.scan(root)
    assert done.world_size == 3
    assert any("--world-size" in warning for warning in done.warnings)
    assert catalog.resolve("job").plan is None
    shutil.rmtree(root / "rank_2")


@pytest.mark.parametrize("named", [True, False], ids=["by directory", "by content"])
def test_a_rank_beyond_the_stated_size_is_refused_before_anything_is_written(
    catalog: Catalog, root: Path, tmp_path: Path, *, named: bool
) -> None:
    """A launch of one rank serves all: rank 1 would load rank 0's file."""
    old = connect(f"sqlite:///{tmp_path / 'old.db'}")
    train(old, root, "job", 3)  # a journal has news too
    path, _ = save(root, 3, 6, rank=2)
    if not named:
        shutil.rmtree(root / "rank_2")
        path = ckpt_bytes.write(root / "net-2_1.ckpt", 6)
        path.write_bytes(path.read_bytes() + ckpt_bytes.value("cur_rank", "Int64", (), (2).to_bytes(8, "little")))
    before = contents(catalog)
    for dry_run in (True, False):
        with pytest.raises(UsageError) as error:
            catalog.scan(root, run="job", world_size=2, dry_run=dry_run)
        assert str(error.value) == (
            f"{path} is of rank 2, and the job is said to have 2 ranks; give the number of ranks that saved it, "
            "--world-size 3 or more; if the file is of another job, scan each alone"
        )
        assert contents(catalog) == before
    assert catalog.scan(root, run="job", world_size=3).world_size == 3


def test_a_rank_that_is_of_another_launch_may_be_beyond_the_stated_size(catalog: Catalog, root: Path) -> None:
    """The job had four ranks, later two: each launch keeps its own number. An empty directory is no rank's file."""
    for rank in range(4):
        save(root / "wide", 3, 6, rank=rank)
    catalog.scan(root, world_size=4)
    for rank in range(2):
        save(root / "narrow", 13, 16, rank=rank, at=1000)
    (root / "narrow" / "rank_3").mkdir()
    assert len(catalog.scan(root, run="job", world_size=2).adopted) == 4
    save(root / "wide", 9, rank=3)
    done = catalog.scan(root, world_size=2)
    assert len(done.adopted) == 1
    assert done.warnings[-1].startswith("1 launch keeps the 4 ranks that an earlier scan recorded")
    with catalog.database.read() as connection:
        known = reads.launches_of(connection, reads.run_id(connection, "job") or 0)
    assert sorted(launch.world_size for launch in known) == [2, 4]


@pytest.mark.parametrize("is_renamed", [True, False], ids=["a rank comes later", "both were taken for one rank's"])
def test_a_launch_that_was_scanned_with_too_few_ranks_gets_the_right_number(
    catalog: Catalog, root: Path, *, is_renamed: bool
) -> None:
    save(root, 3, 6)
    if is_renamed:
        catalog.scan(root, world_size=1)
    save(root, 3, 6, rank=1)
    done = catalog.scan(root, world_size=2)
    assert (len(done.adopted), done.warnings) == (2 if is_renamed else 4, ())
    if not is_renamed:
        with catalog.database.write() as connection:  # as an earlier ckptstore left it
            connection.execute(launches.update().values(world_size=1))
        again = catalog.scan(root, world_size=2)
        assert (again.adopted, again.warnings) == ((), ())
    plan = catalog.resolve("job", world_size=2).plan
    assert [(item.rank, item.source.rank) for item in plan.ranks] == [(0, 0), (1, 1)]
    (root / "rank_1" / "net-2_1.ckpt").unlink()
    assert catalog.resolve("job", world_size=2).plan.global_step == 3


def test_a_scan_with_too_many_ranks_is_corrected_by_a_new_name(catalog: Catalog, other: Catalog, root: Path) -> None:
    """The files of a run that was only scanned, and forgotten, are free; gc of the new run can remove them."""
    for rank in range(2):
        save(root, LENGTH, 2 * LENGTH, 3 * LENGTH, rank=rank)
    assert len(catalog.scan(root, world_size=4).adopted) == 6
    (warning,) = catalog.scan(root, world_size=2).warnings
    assert "ckptstore forget job --apply" in warning
    assert len(catalog.scan(root, run="right", world_size=2).skipped) == 6, "of a run that is not forgotten"
    assert catalog.resolve("job").plan is None
    assert catalog.forget("job")
    assert len(catalog.scan(root, run="right", world_size=2, steps_per_epoch=LENGTH).adopted) == 6
    assert (goes_on_from(catalog, "right") or ("", 0))[1] == 3 * LENGTH
    assert len(catalog.plan_gc("right", Policy(keep_last=1, floor=1)).decision.remove) == 2
    other.sync(f"{root}/")
    assert goes_on_from(other, "right") == goes_on_from(catalog, "right")


def test_a_file_that_was_written_again_is_another_file(catalog: Catalog, root: Path) -> None:
    """Another training in the same directory, unseen: the same name and size, another state."""
    three, six = save(root, 3, 6)
    catalog.scan(root, world_size=1)
    ckpt_bytes.write(six, 6, weight=2.0)
    resolution = catalog.resolve("job")
    assert resolution.plan.global_step == 3
    assert "was written again since it was recorded: scan its directory again" in (
        resolution.rejections[0].reasons[0].detail
    )
    again = catalog.scan(root, world_size=1)
    assert ([file.global_step for file in again.adopted], again.missing) == ([6], ())
    assert catalog.resolve("job").plan.global_step == 6
    assert {path: state for path, (_, state) in found(catalog).items()} == {
        three.name: FileState.COMPLETE,
        six.name: FileState.COMPLETE,
    }


def test_a_file_that_is_cut_between_two_parameters_is_not_adopted(catalog: Catalog, root: Path) -> None:
    """It loads in MindSpore without a word (mindspore.md §1), and its step is proven: only its siblings tell."""
    three, six = save(root, 3, 6)
    moments = ckpt_bytes.value("moments.weight", "Float32", (1,), bytes(4))
    three.write_bytes(ckpt_bytes.checkpoint(3).replace(step_num(3), moments))
    six.write_bytes(ckpt_bytes.checkpoint(6).replace(step_num(6), b""))
    done = catalog.scan(root, world_size=1)
    assert [Path(file.path) for file in done.adopted] == [three]
    reason = "it lacks 'moments.weight', which other files of its rank have: it may be cut"
    assert [(Path(skipped.path), skipped.reason) for skipped in done.skipped] == [(six, reason)]


@pytest.mark.parametrize(
    "grid",
    [[1 << 40], [10**4000] * 2, [1] * 64 + [8]],
    ids=["too many ranks", "a number that is not printed", "too many axes"],
)
def test_a_strategy_file_of_more_ranks_than_there_are_is_damaged(catalog: Catalog, root: Path, grid: list[int]) -> None:
    save(root, 3)
    lists = {"tensor_map": [0], "param_split_shape": [], "indices_offset": []}
    numbers = dict.fromkeys(("field", "opt_weight_shard_step", "opt_weight_shard_size"), 0)
    layout = {"dev_matrix": grid, **lists, **numbers}
    (root / "strategy.json").write_text(json.dumps({"parallel_layout_item": {"weight": layout}}))
    done = catalog.scan(root)
    assert (done.world_size, len(done.adopted)) == (1, 1)


def test_files_that_end_at_one_parameter_are_not_cut(catalog: Catalog, root: Path) -> None:
    """The script was changed: its newest files lack what came last. To go on from an older one would hide them."""
    three, six, nine = save(root, 3, 6, 9)
    three.write_bytes(ckpt_bytes.checkpoint(3) + ckpt_bytes.value("ema.weight", "Float32", (2,), bytes(8)))
    with pytest.raises(RefusedError, match="is of another network than .*: it lacks ema.weight; "):
        catalog.scan(root, world_size=1)
    nine.unlink()
    assert [Path(each.path) for each in catalog.scan(root, world_size=1, dry_run=True).skipped] == [six]


def step_num(step: int) -> bytes:
    return ckpt_bytes.value("step_num", "Int64", (), step.to_bytes(8, "little"))


@pytest.mark.parametrize(
    ("note", "content"),
    [
        ({"remove_redundancy": "True"}, Content.SHARE),
        ({"remove_redundancy": "False"}, Content.FULL),
        ({}, Content.FULL),
    ],
)
def test_a_safetensors_file_says_whether_it_is_a_share(
    catalog: Catalog, root: Path, note: dict[str, str], content: Content
) -> None:
    for step in (3, 6, 9):
        for rank in (0, 1):
            home = root / f"rank_{rank}"
            home.mkdir(parents=True, exist_ok=True)
            path = home / f"net-{(step - 1) // LENGTH + 1}_{(step - 1) % LENGTH + 1}.safetensors"
            path.write_bytes(
                parts_bytes.safetensors({"global_step": step, f"weight.{rank}": 1}, {"format": "ms", **note})
            )
            os.utime(path, ns=(step * 10**9, step * 10**9))
    catalog.scan(root, world_size=2)
    assert {file.content for file in catalog.files("job")} == {content}
    plan = catalog.resolve("job").plan
    assert (plan.global_step, plan.in_shares) == (9, content is Content.SHARE)
    Path(plan.ranks[1].source.path).unlink()
    older = catalog.resolve("job", replicas="dp").plan.global_step
    assert older == (6 if content is Content.SHARE else 9), "no share stands in for another"


def test_a_clock_that_is_ahead_brings_nothing_back_that_was_given_up(catalog: Catalog, root: Path) -> None:
    """The first launch ran on a host five minutes ahead; the second went back to step 20, and on from there."""
    ahead = datetime.now(timezone.utc) + timedelta(minutes=5)
    began = Launch(id="L1", run="job", order=0, world_size=1, layout=stand_alone(), created_at=ahead)
    put(catalog, [LaunchStarted(began)])
    first = catalog.join("job", launch_id="L1")
    for step, path in zip((10, 20, 30), save(root, 10, 20, 30), strict=True):
        first.register(path, global_step=step, optimizer_step=step)
    second = catalog.join("job", launch_id="L2")
    second.resolve(step=20)
    second.register(*save(root, 25, prefix="net_1"), global_step=25, optimizer_step=25)
    save(root, 5, prefix="older")
    assert [file.global_step for file in catalog.scan(root, world_size=1).adopted] == [5]
    plan = catalog.resolve("job").plan
    assert (plan.launch.id, plan.global_step) == ("L2", 25)
    assert order(catalog)[1:] == ["L1", "L2"]


def two_launches(catalog: Catalog, root: Path) -> list[list[Checkpoint]]:
    """The first saves 10 to 30, the second goes on: 40 and 50. Data parallel, a directory a start."""
    saved = []
    for number, steps in ((0, (10, 20, 30)), (1, (40, 50))):
        job = Job(catalog, root / f"start_{number}", layout="data_parallel")
        job.launches = number
        ranks = job.begin()
        saved += [job.save(ranks, step) for step in steps]
    return saved


def goes_on_from(catalog: Catalog, run: str = "run") -> tuple[str, int] | None:
    plan = catalog.resolve(run).plan
    return None if plan is None else (plan.launch.id, plan.global_step)


@pytest.mark.parametrize("is_renamed", [False, True], ids=["fills the gap", "is held in doubt"])
def test_a_rank_whose_journal_is_lost_cuts_no_history(catalog: Catalog, tmp_path: Path, *, is_renamed: bool) -> None:
    """A copy by `cp rank_1/*` leaves the journal behind; then the catalog was lost too.

    What has another name than the others' files is not proven to be what their state lacks.
    """
    root = tmp_path / "data"
    two_launches(connect(f"sqlite:///{tmp_path / 'lost.db'}"), root)
    shutil.rmtree(root / "start_1" / "rank_1" / FOLDER)
    for path in (root / "start_1" / "rank_1").glob("*.ckpt") if is_renamed else ():
        path.rename(path.with_name(path.name.replace("net_1", "other")))
    done = catalog.scan(root, run="run", world_size=2)
    assert {Path(file.path).parent.name for file in done.adopted} == {"rank_1"}
    assert ({file.launch for file in done.adopted} == {"L2"}) is not is_renamed
    assert goes_on_from(catalog) == ("L2", 50)
    warned = [warning for warning in done.warnings if "launch L2" in warning and "-4_10.ckpt" in warning]
    assert bool(warned) is is_renamed
    assert catalog.scan(root, run="run", world_size=2).adopted == ()
    launch = catalog.join("run", rank=0, world_size=2, launch_id="L3", layout="data_parallel")
    assert launch.resolve() is not None
    assert (launch.facts.parent, launch.facts.parent_step) == ("L2", 50)
    assert [each for each in order(catalog, "run") if not each.startswith(SCANNED)] == ["L1", "L2", "L3"]


@pytest.mark.parametrize("what", ["journal", "folder", "newer"])
def test_files_beside_a_journal_that_is_not_read_are_left_alone(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """They are the newest state, as it tells: taken in by their names they would count as old copies."""
    root = tmp_path / "data"
    lost = connect(f"sqlite:///{tmp_path / 'lost.db'}")
    two_launches(lost, root)
    home = root / "start_1" / "rank_1"
    ttp = home / "ttp_saved_checkpoints-step_51" / "rank_1" / "ttp_rank_1-6_1.ckpt"
    ttp.parent.mkdir(parents=True)
    ckpt_bytes.write(ttp, 51)
    journal_path = Path(jsonl.journals_in(str(home))[0])
    hidden, reason = str(journal_path), "Permission denied"
    with monkeypatch.context() as patch:
        if what == "newer":
            reason = "it has entries of a newer ckptstore: update ckptstore here to read them"
            with journal_path.open("ab") as file:
                patch.setattr(jsonl, "VERSION", 2)
                file.write(jsonl.encode({"t": "another"}))
            patch.undo()
        elif what == "journal":
            read = jsonl.read
            patch.setattr(jsonl, "read", lambda path, *more: refuse() if path == hidden else read(path, *more))
        else:
            hidden = str(journal_path.parent)
            sizes = jsonl.sizes_in
            patch.setattr(jsonl, "sizes_in", lambda path: refuse() if path == hidden else sizes(path))
        left = [] if what == "newer" else sorted(map(str, home.glob("*.ckpt")))  # what it says up to there is known
        for dry_run in (True, False):
            done = catalog.scan(root, run="run", world_size=2, dry_run=dry_run)
            assert (done.adopted, done.warnings) == ((), ())
            assert [(each.path, each.reason) for each in done.unread] == [(hidden, reason)]
            assert set(done.unread) <= set(done.skipped)
            told = {each.path: each.reason for each in done.skipped if each not in done.unread}
            unread = f"{hidden}, which may tell of it, was not read in full: {reason}"
            assert told == dict.fromkeys([*left, str(ttp)], unread)
    if what != "newer":
        done = catalog.scan(root, run="run", world_size=2)
        assert done.unread == ()
        assert goes_on_from(catalog) == ("L2", 50)


def as_another_user(url: str, directory: str, hidden: str, *, adopted: int) -> None:
    if os.getuid() == 0:
        os.setuid(NOBODY)
    catalog = connect(url)
    synced = catalog.sync(Path(directory))
    assert [(each.path, each.reason) for each in synced.unreadable] == [(hidden, "Permission denied")]
    for dry_run in (True, False):
        done = catalog.scan(Path(directory), run="run", world_size=2, dry_run=dry_run)
        assert (hidden, "Permission denied") in {(each.path, each.reason) for each in done.unread}
        assert set(done.unread) <= set(done.skipped)
        assert len(done.adopted) == adopted


@pytest.mark.parametrize("what", [".", ".ckptstore"])
def test_directories_that_may_not_be_read(sqlite_url: str, tmp_path: Path, what: str) -> None:
    """A disk that is away must not pass for one on which there is nothing to do; all that can be read is taken in."""
    root = tmp_path / "data"
    job, ranks = started(connect(f"sqlite:///{tmp_path / 'lost.db'}"), root, 5, 10, 15, layout="data_parallel")
    job.catalog.execute(job.catalog.plan_gc("run", Policy(keep_last=2)))
    for rank in (0, 1):
        for step in (20, 30):
            job.write(ranks[rank], step)
    hidden = job.folder(1) / what
    catalog = connect(sqlite_url)
    catalog.database.disconnect()
    give_to_nobody(tmp_path)
    hidden.chmod(0)
    do_apart(as_another_user, sqlite_url, str(root), str(hidden), adopted=2)
    hidden.chmod(0o700)
    done = catalog.scan(root, run="run", world_size=2)
    assert done.unread == ()
    assert catalog.undo("run").files == 2
    assert {file.global_step for file in catalog.files("run")} == {5, 10, 15, 20, 30}


def refuse() -> None:
    raise PermissionError(13, "Permission denied")


def test_a_file_that_was_written_again_beside_an_unread_journal_is_still_known(
    catalog: Catalog, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three, six = save(root, 3, 6)
    catalog.scan(root, world_size=1)
    ckpt_bytes.write(six, 6, weight=2.0)
    folder = three.parent / FOLDER
    folder.mkdir()
    sizes = jsonl.sizes_in
    with monkeypatch.context() as patch:
        patch.setattr(jsonl, "sizes_in", lambda path: refuse() if path == str(folder) else sizes(path))
        done = catalog.scan(root, world_size=1)
    assert (done.adopted, done.missing, done.damaged) == ((), (), ())
    assert [file.path for file in catalog.scan(root, world_size=1).adopted] == [str(six)]


def order(catalog: Catalog, run: str = "job") -> list[str]:
    with catalog.database.read() as connection:
        return [launch.id for launch in reads.launches_of(connection, reads.run_id(connection, run) or 0)]


def test_what_is_saved_again_while_a_scan_looks_is_not_damaged(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a callback that gives every save one name: the record is newer than what was seen of the file."""
    job, (rank,) = begun(catalog, tmp_path, world_size=1)
    path = job.write(rank, 10)
    rank.register(path, global_step=10)
    real = scan_module.look_at

    def looked(*about: Any) -> Tree:
        tree = real(*about)
        path.write_bytes(path.read_bytes() + ckpt_bytes.value("more", "Float32", (1,), bytes(4)))
        rank.register(path, global_step=10)
        return tree

    monkeypatch.setattr(scan_module, "look_at", looked)
    assert catalog.scan(tmp_path, run="run").damaged == ()
    assert [file.state for file in catalog.files("run")] == [FileState.COMPLETE]


def test_a_missing_file_is_not_compared_with_each_path_that_was_passed_over(root: Path) -> None:
    asked = []

    class Counted(str):
        __slots__ = ()

        def rstrip(self, chars: str | None = None, /) -> str:
            asked.append(self)
            return super().rstrip(chars)

    one = builders.file(builders.launch("L1", 1), 0)
    known = {f"{root}/rank_{rank}/net-1_5.ckpt": one for rank in range(50)}
    tree = Tree(str(root), skipped=[Skipped(Counted(f"{root}/rank_{rank}/left.tmp"), "left") for rank in range(50)])
    tree.skipped.append(Skipped(f"{root}/rank_7", "Permission denied"))
    root.mkdir()
    (root / "other").touch()
    _, missing, _, away = changed(known, tree)
    assert len(missing) + len(away) == 49
    assert len(asked) == 50


def test_files_of_the_future_do_not_date_the_launches_after_them(catalog: Catalog, tmp_path: Path) -> None:
    """A launch adopts no file that was written before it began."""
    job = Job(catalog, tmp_path / "ckpt", world_size=1)
    ahead = int(datetime.now(timezone.utc).timestamp()) + 30 * 24 * 3600
    save(job.directory, 3, 4, prefix="old", at=ahead)
    save(job.directory, 3, 4, prefix="old_1", at=ahead + 3600)
    catalog.scan(job.directory, run="run", world_size=1)
    first = job.begin()
    assert first[0].facts.parent_step == 4
    job.save(first, 5, 10)
    job.write(first[0], 15)  # and is killed before it registers that
    assert job.begin()[0].facts.parent_step == 15


@pytest.mark.parametrize(
    "name", ["net_rank_{}-1_5.ckpt", "ttp_saved_checkpoints-step_5/rank_{0}/ttp_rank_{0}-1_5.ckpt"]
)
def test_a_file_is_compared_with_the_sources_that_write_its_name_alone(
    catalog: Catalog, root: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    asked = []
    writes = writers._writes
    monkeypatch.setattr(writers, "_writes", lambda *about: (asked.append(about), writes(*about))[1])
    kind, prefix = (Kind.TTP, "") if "ttp" in name else (Kind.PERIODIC, "net_rank_{}")
    job = Job(catalog, root, world_size=30)
    for launch in job.start():
        of_rank = prefix.format(launch.rank)
        launch.add_source(str(root), kind=kind, prefix=of_rank, breakpoint_prefix=of_rank, names_before=[])
    paths = [f"{root}/{name.format(rank)}" for rank in range(30)]
    assert unwatched(catalog.database, find_run(catalog.database, "run"), paths) == ([], {})
    assert len(asked) == 30
