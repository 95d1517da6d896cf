"""A directory that was copied with its journals, as by `cp -r`: a start and a sync read these too."""

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.catalog.engine import Connection, Database
from ckptstore.core.model import FileState, Kind
from ckptstore.disk.run_directories import remember
from ckptstore.errors import RefusedError
from ckptstore.retention.policy import Policy
from ckptstore.training.recorder_thread import RecorderThread
from ckptstore.training.save_places import SavePlaces
from ckptstore.training.start import Progress, begin, decide
from tests.contents import contents
from tests.doctor.checkups import checks, said
from tests.jobs import Job, begun
from tests.journal.builders import cut_off

ONE = Policy(keep_last=1, floor=1)
HOW = ("cp -r", "cp -a", "cp -al")


def copied(source: Path, how: str, target: Path) -> Path:
    target.parent.mkdir(exist_ok=True)
    subprocess.run([*how.split(), source, target], check=True)
    return target


def files_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.ckpt"))


def sizes(catalog: Catalog) -> list[tuple[int, int]]:
    return [(save.global_step, save.bytes) for save in catalog.saves("run")]


def read_by_a_start(catalog: Catalog, job: Job) -> None:
    """The directories of the run's ranks, and all below them, as a start of another process reads them."""
    remember(catalog.database.name, ["run"], str(job.folder(0)))
    begin(catalog.database, "run", rank=0, world_size=1, launch_id="N", layout=None).let_go()


@pytest.mark.of_files
@pytest.mark.parametrize("place", ["backup", "rank_0.bak", "older/rank_0"])
@pytest.mark.parametrize("how", HOW)
def test_a_start_does_not_take_a_backup_below_its_directory_for_files_of_the_run(
    catalog: Catalog, tmp_path: Path, how: str, place: str
) -> None:
    job, ranks = begun(catalog, tmp_path / "ckpt", 5, 10, world_size=1)
    backup = copied(job.folder(0), how, tmp_path / "ckpt" / place)
    job.save(ranks, 15)
    before = sizes(catalog)
    read_by_a_start(catalog, job)
    assert sizes(catalog) == before
    for _ in range(2):
        catalog.execute(catalog.plan_gc("run", ONE))
        catalog.purge("run", now=True)
        assert files_in(backup) == ["net-1_10.ckpt", "net-1_5.ckpt"]
        read_by_a_start(catalog, job)
    assert files_in(job.folder(0)) == ["net-2_5.ckpt"]


@pytest.mark.of_files
@pytest.mark.parametrize("read", [Catalog.sync, Catalog.scan])
@pytest.mark.parametrize("is_purged", [False, True])
@pytest.mark.parametrize("how", HOW)
def test_a_backup_that_is_read_after_gc_brings_nothing_back(
    catalog: Catalog, tmp_path: Path, how: str, read: Callable[[Catalog, Path], object], *, is_purged: bool
) -> None:
    begun(catalog, tmp_path / "ckpt", 5, 10, 15, world_size=1)
    backup = copied(tmp_path / "ckpt", how, tmp_path / "backup")
    catalog.execute(catalog.plan_gc("run", ONE), now=is_purged)
    before = sizes(catalog)
    read(catalog, backup)
    assert sizes(catalog) == before
    catalog.execute(catalog.plan_gc("run", ONE))
    assert files_in(backup / "rank_0") == ["net-1_10.ckpt", "net-1_5.ckpt", "net-2_5.ckpt"]
    if not is_purged:
        catalog.undo("run")
        assert catalog.plan_gc("run", ONE).bytes_freed == 2 * sum(size for _, size in before)


@pytest.mark.of_files
@pytest.mark.parametrize("place", ["backup", "rank_0.bak", "older/rank_0"])
@pytest.mark.parametrize("how", HOW)
def test_a_lost_catalog_does_not_make_the_copy_the_original(
    catalog: Catalog, other: Catalog, tmp_path: Path, how: str, place: str
) -> None:
    job, _ = begun(catalog, tmp_path / "ckpt", 5, 10, 15, world_size=1)
    backup = copied(job.folder(0), how, tmp_path / "ckpt" / place)
    other.scan(tmp_path / "ckpt", world_size=1)
    if how != "cp -al":  # its files are the same two times: nothing tells which was there first
        assert [each.source.path for each in other.resolve("run").plan.ranks] == [str(job.folder(0) / "net-2_5.ckpt")]
    assert sizes(other) == sizes(catalog)
    other.execute(other.plan_gc("run", ONE))
    assert how == "cp -al" or len(files_in(backup)) == 3


@pytest.mark.of_files
@pytest.mark.parametrize("is_lost", [False, True], ids=["known", "lost"])
@pytest.mark.parametrize("place", ["a backup", "ckpt/backup", "ckpt/rank_0.bak", "z backup"])
def test_no_transaction_shows_copies_as_files_of_the_run(
    catalog: Catalog, other: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, *, is_lost: bool
) -> None:
    """A gc between two transactions of a sync moved them to the trash."""
    begun(catalog, tmp_path / "ckpt", 5, 10, world_size=1)
    copied(tmp_path / "ckpt" / "rank_0", "cp -r", tmp_path / place)
    reader = other if is_lost else catalog
    write = Database.in_write
    shown: set[Path] = set()

    def watch(database: Database, work: Callable[[Connection], object]) -> object:
        done = write(database, work)
        shown.update(Path(file.path).parent for file in reader.files("run") if file.state is FileState.COMPLETE)
        return done

    monkeypatch.setattr(Database, "in_write", watch)
    reader.sync(tmp_path)
    assert shown == {tmp_path / "ckpt" / "rank_0"}
    assert {file.state for file in reader.files("run")} == {FileState.COMPLETE, FileState.MOVED}


@pytest.mark.of_files
@pytest.mark.parametrize("read", [Catalog.sync, Catalog.scan])
@pytest.mark.parametrize("how", HOW)
def test_a_copy_is_told_from_originals_with_new_times(
    catalog: Catalog, tmp_path: Path, how: str, read: Callable[[Catalog, Path], object]
) -> None:
    """The recorded times are those of the originals now, and the copied journal has the old ones."""
    job, _ = begun(catalog, tmp_path / "ckpt", 5, 10, 15, world_size=1)
    backup = copied(tmp_path / "ckpt", how, tmp_path / "backup")
    before = sizes(catalog)
    for file in job.folder(0).glob("*.ckpt"):
        os.utime(file)
    catalog.verify("run", digest=True)
    for _ in range(2):
        read(catalog, backup)
    assert sizes(catalog) == before
    catalog.execute(catalog.plan_gc("run", ONE))
    assert files_in(backup / "rank_0") == ["net-1_10.ckpt", "net-1_5.ckpt", "net-2_5.ckpt"]


@pytest.mark.of_files
def test_an_original_that_came_back_from_a_backup_below_it_is_the_original(
    catalog: Catalog, other: Catalog, tmp_path: Path
) -> None:
    """The backup seems to be older. So it does if the clock of the machine that made it is behind."""
    job, _ = begun(catalog, tmp_path / "ckpt", 5, 10, world_size=1)
    backup = job.folder(0) / "backup"
    aside = job.folder(0).rename(tmp_path / "aside")
    job.folder(0).mkdir()
    aside.rename(backup)
    shutil.copytree(backup, job.folder(0), dirs_exist_ok=True)
    other.scan(tmp_path / "ckpt", world_size=1)
    assert [each.source.path for each in other.resolve("run").plan.ranks] == [str(job.folder(0) / "net-1_10.ckpt")]
    other.execute(other.plan_gc("run", ONE))
    assert files_in(backup) == ["net-1_10.ckpt", "net-1_5.ckpt"]


@pytest.mark.of_files
@pytest.mark.parametrize("how", HOW)
def test_an_original_that_undo_brought_back_stays_the_original(
    catalog: Catalog, other: Catalog, tmp_path: Path, how: str
) -> None:
    """A rename changes the newest of its times; that of its directory's identity stays."""
    job, _ = begun(catalog, tmp_path / "ckpt", 5, 10, 15, world_size=1)
    copied(tmp_path / "ckpt", how, tmp_path / "a backup")
    catalog.execute(catalog.plan_gc("run", ONE))
    catalog.undo("run")
    other.sync(tmp_path)
    assert how == "cp -al" or {file.path for file in other.files("run") if file.state == "complete"} == {
        str(job.folder(0) / name) for name in files_in(job.folder(0))
    }


@pytest.mark.of_files
def test_a_copy_is_taken_where_the_original_is_gone(catalog: Catalog, tmp_path: Path) -> None:
    job, _ = begun(catalog, tmp_path / "ckpt", 5, 10, world_size=1)
    backup = copied(tmp_path / "ckpt", "cp -r", tmp_path / "backup")
    (job.folder(0) / "net-1_10.ckpt").unlink()
    catalog.sync(backup)
    plan = catalog.resolve("run").plan
    assert (plan.global_step, plan.ranks[0].source.path) == (10, str(backup / "rank_0" / "net-1_10.ckpt"))


@pytest.mark.of_files
@pytest.mark.parametrize("how", ["cp -r", "cp -a"])
def test_of_several_backups_one_has_the_files_whose_originals_are_gone(
    catalog: Catalog, tmp_path: Path, how: str
) -> None:
    """Each of them was counted, and gc moved those of all backups to the trash."""
    job, ranks = begun(catalog, tmp_path / "ckpt", 5, world_size=1)
    backups = [copied(tmp_path / "ckpt", how, tmp_path / "monday")]
    job.save(ranks, 10)
    backups.append(copied(tmp_path / "ckpt", how, tmp_path / "tuesday"))
    job.save(ranks, 15)
    backups.append(copied(tmp_path / "ckpt", how, tmp_path / "wednesday"))
    before = sizes(catalog)
    for name in ("net-1_5.ckpt", "net-1_10.ckpt"):
        (job.folder(0) / name).unlink()
    catalog.verify("run")
    catalog.sync(tmp_path)
    assert sizes(catalog) == before
    catalog.execute(catalog.plan_gc("run", ONE))
    left = [files_in(backup / "rank_0") for backup in backups]
    assert left == [[], ["net-1_5.ckpt"], ["net-1_10.ckpt", "net-1_5.ckpt", "net-2_5.ckpt"]]


@pytest.mark.of_files
def test_a_backup_of_a_backup_that_is_a_run_of_its_own(catalog: Catalog, tmp_path: Path) -> None:
    begun(catalog, tmp_path / "ckpt", 5, 10, world_size=1)
    catalog.scan(copied(tmp_path / "ckpt", "cp -r", tmp_path / "backup"), run="own")
    before = sizes(catalog)
    catalog.sync(copied(tmp_path / "backup", "cp -r", tmp_path / "another"))
    assert [(save.global_step, save.bytes) for save in catalog.saves("own")] == before == sizes(catalog)


@pytest.mark.of_files
@pytest.mark.parametrize("is_removed", [False, True])
def test_a_catalog_that_has_not_read_the_newest_of_the_originals(
    catalog: Catalog, other: Catalog, tmp_path: Path, *, is_removed: bool
) -> None:
    """It took files of the backup for the run's own, and its gc moved them to the trash."""
    job, ranks = begun(catalog, tmp_path / "ckpt", 5, 10, 15, world_size=1)
    other.sync(tmp_path / "ckpt")
    job.save(ranks, 20)
    job.save(job.begin(), 25)  # its journals are in both directories, and the other catalog knows neither
    backup = copied(tmp_path / "ckpt", "cp -r", tmp_path / "backup")
    if is_removed:
        catalog.execute(catalog.plan_gc("run", ONE), now=True)
    other.sync(backup)
    assert {file.state for file in other.files("run") if file.path.startswith(str(backup))} == {FileState.MOVED}
    assert sizes(other) == sizes(catalog)
    other.execute(other.plan_gc("run", ONE))
    assert len(files_in(backup / "rank_0")) == 5


def first_steps(catalog: Catalog, job: Job, launch_id: str) -> int:
    """What a launch does before its first step, but for loading; returns the step it begins after."""
    home = str(job.folder(0))
    launch = begin(catalog.database, "run", rank=0, world_size=1, launch_id=launch_id, layout=None, directories=[home])
    launch.set_steps_per_epoch(10)
    progress, recorder = Progress(start=decide(launch, [home])), RecorderThread(launch)
    try:
        SavePlaces(launch, progress, recorder).add(home, kind=Kind.PERIODIC, prefix=launch_id, names_before=None)
    finally:
        assert recorder.flush(60)
        launch.let_go()
    return progress.start.global_step


@pytest.mark.of_files
def test_a_start_in_an_original_whose_backup_was_read_before_it(
    catalog: Catalog, other: Catalog, tmp_path: Path
) -> None:
    """The catalog was lost, and the backup was scanned while the disk was not mounted.

    The start went on from the older state in the backup, and no start after it found the newer one.
    """
    job, ranks = begun(catalog, tmp_path / "ckpt", 5, 10, world_size=1)
    backup = copied(tmp_path / "ckpt", "cp -r", tmp_path / "backup")
    job.save(ranks, 15)
    (tmp_path / "ckpt").rename(tmp_path / "unmounted")
    other.scan(backup)
    (tmp_path / "unmounted").rename(tmp_path / "ckpt")
    for began, newest in ((10, 15), (15, 20)):
        with pytest.raises(RefusedError, match=rf"after step {began}, but .* holds step {newest} of run run") as error:
            first_steps(other, job, f"N{began}")
        assert "start again: it is found now" in error.value.hint
        assert first_steps(other, job, f"O{newest}") == newest
        job.save(ranks, newest + 5)  # as a training does while its catalog cannot be used


@pytest.mark.of_files
def test_a_start_in_a_copy_of_a_state_that_it_passed_over(catalog: Catalog, tmp_path: Path) -> None:
    """It knew the state: nothing is to be found by another start."""
    job, ranks = begun(catalog, tmp_path / "ckpt", 5, world_size=1)
    (bad,) = job.save(ranks, 10)
    ranks[0].record_files([replace(bad.amended(), quarantine="the loss was nan")])
    copied(tmp_path / "ckpt", "cp -r", tmp_path / "copy")
    assert first_steps(catalog, Job(catalog, tmp_path / "copy", world_size=1), "N") == 5
    assert len([file for file in catalog.files("run") if file.state is FileState.MOVED]) == 2


@pytest.mark.of_files
def test_a_directory_that_was_moved_aside_is_no_copy_of_what_is_in_its_place_now(
    catalog: Catalog, tmp_path: Path
) -> None:
    """Another training has written files of the same names and sizes to the old path."""
    job, _ = begun(catalog, tmp_path / "ckpt", 5, 10, world_size=1)
    (tmp_path / "ckpt").rename(tmp_path / "aside")
    job.folder(0).mkdir(parents=True)
    for name in files_in(tmp_path / "aside" / "rank_0"):
        (job.folder(0) / name).write_bytes((tmp_path / "aside" / "rank_0" / name).read_bytes()[::-1])
    catalog.sync(tmp_path / "aside")
    plan = catalog.resolve("run").plan
    assert (plan.global_step, plan.ranks[0].source.path) == (10, str(tmp_path / "aside" / "rank_0" / "net-1_10.ckpt"))


def below(directory: Path) -> dict[str, bytes]:
    """All that is below a directory, by its path there."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.of_files
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("is_known", [False, True], ids=["read after gc", "read before gc too"])
def test_nothing_is_done_in_the_trash_of_a_copy(catalog: Catalog, tmp_path: Path, how: str, *, is_known: bool) -> None:
    job, ranks = begun(catalog, tmp_path / "ckpt", 5, 10, 15, world_size=1)
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=2, floor=1)))
    backup = copied(tmp_path / "ckpt", how, tmp_path / "backup")
    if is_known:
        catalog.sync(backup)
    job.save(ranks, 20)
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=2, floor=1)))
    before = below(backup)
    catalog.sync(backup)
    catalog.undo("run")
    catalog.pin("run", 20)
    catalog.rename("run", "other")
    catalog.purge("other", now=True)
    told = {name for name in before if how == "cp -al" and name.endswith(".jsonl")}  # links to those of the run
    assert {name: content for name, content in below(backup).items() if name not in told} == {
        name: content for name, content in before.items() if name not in told
    }
    assert "net-1_5.ckpt" in {Path(name).name for name in before}
    assert files_in(job.folder(0)) == ["net-1_10.ckpt", "net-2_10.ckpt", "net-2_5.ckpt"]


@pytest.mark.of_files
def test_a_copy_that_was_removed_is_no_directory_of_the_run(catalog: Catalog, tmp_path: Path) -> None:
    job, _ = begun(catalog, tmp_path / "ckpt", 5, 10, world_size=1)
    backup = copied(job.folder(0), "cp -r", tmp_path / "ckpt" / "backup")
    catalog.sync(backup)
    shutil.rmtree(backup)
    assert said(checks(str(catalog.database.url))["directories"]) == ("ok", f"1 at or below {job.directory}")


@pytest.mark.of_files
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("is_known", [False, True], ids=["read since", "read before too"])
def test_a_copy_whose_original_is_gone_tells_all(catalog: Catalog, tmp_path: Path, how: str, *, is_known: bool) -> None:
    begun(catalog, tmp_path / "ckpt", 5, 10, 15, world_size=1)
    catalog.execute(catalog.plan_gc("run", ONE))
    backup = copied(tmp_path / "ckpt", how, tmp_path / "backup")
    if is_known:
        catalog.sync(backup)
    shutil.rmtree(tmp_path / "ckpt")
    catalog.scan(backup, run="run", world_size=1)
    assert files_in(backup / "rank_0") == ["net-2_5.ckpt"]
    assert catalog.resolve("run").plan.global_step == 15
    catalog.undo("run")
    assert files_in(backup / "rank_0") == ["net-1_10.ckpt", "net-1_5.ckpt", "net-2_5.ckpt"]


def test_a_pin_that_was_taken_away_in_another_directory_does_not_come_back(
    catalog: Catalog, other: Catalog, tmp_path: Path
) -> None:
    begun(catalog, tmp_path / "ckpt", 5, 10)
    catalog.pin("run", 5)
    pinned = next(tmp_path.glob("ckpt/rank_*/.ckptstore/shared*")).parent.parent
    copied(pinned, "cp -r", tmp_path / "ckpt" / "backup")
    pinned.rename(tmp_path / "unmounted")
    catalog.unpin("run", 5)
    (tmp_path / "unmounted").rename(pinned)
    other.scan(tmp_path / "ckpt")
    assert [row["pinned"] for row in contents(other)["pins"]] == [False]


def test_the_copy_of_what_gc_removed_is_a_copy_in_a_tree_that_was_moved(
    catalog: Catalog, other: Catalog, tmp_path: Path
) -> None:
    """A catalog that reads the moved tree first counted it as a file of the run: its gc took the user's backup."""
    job, _ = begun(catalog, tmp_path / "ckpt", 5, 10, 15, 20)
    copied(job.folder(0), "cp -r", tmp_path / "backup").rename(job.folder(0) / "backup")
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=2, floor=2)))
    moved = (tmp_path / "ckpt").rename(tmp_path / "moved")
    other.scan(moved, run="run")
    assert not [file.path for file in other.files("run") if "backup" in file.path and file.state.is_there]
    other.execute(other.plan_gc("run", Policy(keep_last=1, floor=1)))
    assert len(list((moved / "rank_0" / "backup").glob("*.ckpt"))) == 4


@pytest.mark.of_files
def test_what_a_rank_recorded_in_an_outage_counts_though_a_backup_was_read_first(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own journal counted as the copy: the catalog "has all records", it said, and had none."""
    job = Job(catalog, tmp_path / "ckpt", 1)
    (launch,) = job.start()
    with monkeypatch.context() as outage:
        cut_off(launch, outage)
        job.announce(launch)
        (file,) = job.save([launch], 5)
    catalog.sync(copied(tmp_path / "ckpt", "cp -r", tmp_path / "backup"))
    launch.recorder.catch_up()
    assert file.path in {each.path for each in catalog.files("run")}
