"""A tree that was copied beside itself: copies are told, and not taken, unless they are to be a run of their own."""

import os
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.catalog import reads
from ckptstore.core.model import SCANNED, FileState, Grade, Kind
from ckptstore.disk import files
from ckptstore.errors import RefusedError, UsageError
from ckptstore.evidence.reconstruct import rank_of
from ckptstore.replicate.replicator import Replicator
from ckptstore.retention.policy import Policy
from ckptstore.scan import copies
from tests import ckpt_bytes
from tests.cli import advice
from tests.evidence.builders import found
from tests.jobs import Job, begun, started
from tests.journal.builders import cut_off
from tests.scan.builders import save, stamp
from tests.tiers.jobs import declared


def copied(root: Path, how: str) -> Path:
    """A copy as `cp -r` or `cp -rp` makes it, with the journals or without."""
    ignored = shutil.ignore_patterns(".ckptstore") if "alone" in how else None
    backup = shutil.copytree(root, root.parent / "backup", ignore=ignored)
    if "p" not in how.split(maxsplit=1)[0]:
        for path in backup.rglob("*.ckpt"):
            path.touch()
    return backup


def test_a_dry_run_tells_of_a_copy_what_the_scan_does_while_the_catalog_lacks_lines_of_the_original(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read on in the journals of a run whose launches it had not taken along, and left their files out."""
    job, (launch,) = begun(catalog, tmp_path / "ckpt", 5, world_size=1)
    with monkeypatch.context() as outage:
        cut_off(launch, outage)
        job.save([launch], 10)
    backup = copied(tmp_path / "ckpt", "-rp")
    dry, done = catalog.scan(backup, dry_run=True), catalog.scan(backup)
    assert dry.skipped == done.skipped


def test_a_dry_run_refuses_the_copy_of_a_forgotten_run_as_the_scan_does(catalog: Catalog, tmp_path: Path) -> None:
    """It read in the journals beside the originals that the run was forgotten, and said that the catalog lacks that."""
    begun(catalog, tmp_path / "ckpt", 5, world_size=1)
    backup = copied(tmp_path / "ckpt", "-rp")
    catalog.forget("run")
    for dry_run in (True, False):
        with pytest.raises(RefusedError, match="which was forgotten"):
            catalog.scan(backup, dry_run=dry_run)


HOW = ("-r", "-rp", "-r alone", "-rp alone")


@pytest.fixture
def plain(catalog: Catalog, tmp_path: Path) -> Path:
    """A scanned tree with the states of steps 4 to 16, on two ranks."""
    for rank in (0, 1):
        save(tmp_path / "plain1", 4, 8, 12, 16, rank=rank)
    catalog.scan(tmp_path / "plain1", world_size=2)
    return tmp_path / "plain1"


def homes(catalog: Catalog, run: str) -> set[str]:
    """The trees in which a run has live files, by their names."""
    live = [file for file in catalog.files(run) if file.state is FileState.COMPLETE]
    return {Path(file.path).parents[1].name for file in live}


@pytest.mark.parametrize("how", HOW)
def test_a_scan_of_a_copy_moves_no_run(catalog: Catalog, plain: Path, how: str) -> None:
    backup = copied(plain, how)
    (backup / "rank_0" / "net-4_1.ckpt").unlink()  # of an earlier day
    for dry_run in (True, False, False):
        done = catalog.scan(backup, dry_run=dry_run)
        assert (done.adopted, done.damaged, done.missing) == ((), (), ())
        told = {each.path: each.reason for each in done.skipped}
        assert told.keys() == set(map(str, backup.rglob("*.ckpt")))
        assert all(f"a copy of files in {plain}/rank_" in each and "--run NEW" in each for each in told.values())
    shutil.rmtree(backup)
    plan = catalog.resolve("plain1").plan
    assert (plan.global_step, homes(catalog, "plain1")) == (16, {"plain1"})


@pytest.mark.parametrize("how", HOW)
def test_a_copy_becomes_a_run_of_its_own(catalog: Catalog, plain: Path, how: str) -> None:
    backup = copied(plain, how)
    dry = catalog.scan(backup, run="new", dry_run=True)
    done = catalog.scan(backup, run="new")
    assert dry.adopted == done.adopted
    assert sorted(file.path for file in done.adopted) == sorted(map(str, backup.rglob("*.ckpt")))
    for run, home in (("new", backup), ("plain1", plain)):
        plan = catalog.resolve(run).plan
        assert plan.global_step == 16
        assert [Path(each.source.path).parents[1] for each in plan.ranks] == [home, home]
        assert homes(catalog, run) == {home.name}
    again = catalog.scan(backup, run="new")
    assert (again.adopted, again.skipped, again.known) == ((), (), 8)
    shutil.rmtree(plain)
    assert catalog.resolve("new").plan.global_step == 16


@pytest.mark.parametrize("how", ["-r", "-rp"])
def test_a_run_of_copies_does_not_go_on_from_a_file_that_was_changed_before_it_was_copied(
    catalog: Catalog, tmp_path: Path, how: str
) -> None:
    """It had the record of the file that was saved, proven, with a digest that the copy never had."""
    job, (rank,) = begun(catalog, tmp_path / "job", 5, 10, world_size=1)
    changed = job.write(rank, 10)
    changed.write_bytes(changed.read_bytes()[:-1] + b"?")
    backup = copied(tmp_path / "job", how)
    for _ in range(2):
        catalog.scan(backup, run="new")
        assert catalog.resolve("new").plan.global_step == 5


@pytest.mark.parametrize("how", ["-r alone", "-rp alone"])
def test_copies_of_files_that_were_damaged_since_take_no_run_back(catalog: Catalog, tmp_path: Path, how: str) -> None:
    """They were adopted as a launch of this day, and a start went on from it, though a newer state was whole."""
    begun(catalog, tmp_path / "job", 5, 10)
    backup = copied(tmp_path / "job", how)
    for path in (tmp_path / "job").rglob("net-1_5.ckpt"):
        os.truncate(path, 0)
    done = catalog.scan(tmp_path, run="run")
    assert done.adopted == ()
    assert catalog.resolve("run").plan.global_step == 10
    catalog.scan(backup, run="new")
    assert {(save.tally.global_step, save.restorable) for save in catalog.saves("new")} == {(10, True), (5, True)}


@pytest.mark.parametrize("how", ["-r alone", "-rp alone"])
def test_the_copy_of_a_damaged_file_is_no_new_file(catalog: Catalog, tmp_path: Path, how: str) -> None:
    """It was adopted as a whole file, since only those of complete files counted as copies."""
    begun(catalog, tmp_path / "job", 5, 10, world_size=1)
    changed = tmp_path / "job" / "rank_0" / "net-1_10.ckpt"
    changed.write_bytes(changed.read_bytes()[:-1] + b"?")
    backup = copied(tmp_path / "job", how)
    catalog.verify("run", digest=True)
    assert catalog.scan(tmp_path, run="run").adopted == ()
    assert catalog.resolve("run").plan.global_step == 5
    catalog.scan(backup, run="new")
    assert catalog.resolve("new").plan.global_step == 5


def test_copies_of_what_was_written_over_recorded_files_are_states_of_their_own(
    catalog: Catalog, plain: Path, tmp_path: Path
) -> None:
    """They were adopted as damaged copies of the files that were there before: nothing of them could be restored."""
    job, (rank,) = begun(catalog, tmp_path / "job", 5, 10, world_size=1)
    for step in (5, 10):
        path = job.write(rank, step)
        path.write_bytes(path.read_bytes()[:-1] + b"?")  # by a training without ckptstore
    for path in plain.rglob("*.ckpt"):
        path.touch()  # no digest is known
    for home, step in ((tmp_path / "job", 10), (plain, 16)):
        backup = copied(home, "-rp alone")
        catalog.scan(backup, run=f"new-{home.name}")
        assert catalog.resolve(f"new-{home.name}").plan.global_step == step
        backup.rename(tmp_path / f"of-{home.name}")


def test_the_copy_of_what_another_run_has_not_registered_is_told_as_such(catalog: Catalog, tmp_path: Path) -> None:
    """It was said to be a copy of this run's files."""
    job, (rank,) = begun(catalog, tmp_path / "job", 5, world_size=1, run="other")
    path = job.write(rank, 10)
    copy = shutil.copytree(job.folder(0), tmp_path / "copy", ignore=shutil.ignore_patterns(".ckptstore")) / path.name
    told = {each.path: each.reason for each in catalog.scan(tmp_path, run="mine", world_size=1).skipped}
    assert told[str(copy)].startswith(f"a copy of files in {job.folder(0)}, of another run: ")


def test_files_beside_whole_ones_of_the_same_name_and_size_are_not_read_to_their_ends(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was read once for each run of the same network, as of a sweep of seeds."""
    for run in ("one", "two"):
        job, (rank,) = begun(catalog, tmp_path / run, world_size=1, run=run)
        job.save([rank], 10)
    path = ckpt_bytes.write(tmp_path / "new" / "rank_0" / "net-1_10.ckpt", 10, weight=9)
    read: list[str] = []
    monkeypatch.setattr(files, "digest", lambda path, digest=files.digest: read.append(path) or digest(path))
    assert [file.path for file in catalog.scan(tmp_path / "new").adopted] == [str(path)]
    assert read == []


@pytest.mark.parametrize("now", [True, False])
@pytest.mark.parametrize("how", ["-r", "-rp"])
def test_copies_of_files_that_gc_removed_become_a_run_with_all_states(
    catalog: Catalog, tmp_path: Path, how: str, *, now: bool
) -> None:
    begun(catalog, tmp_path / "job", 5, 10, 15)
    backup = copied(tmp_path / "job", how)
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=1, floor=1)), now=now)
    catalog.scan(backup, run="new")
    assert [(save.tally.global_step, save.restorable) for save in catalog.saves("new")] == [
        (step, True) for step in (15, 10, 5)
    ]
    again = catalog.scan(backup, run="new")
    assert (again.adopted, again.skipped, again.known) == ((), (), 6)


@pytest.mark.parametrize("how", HOW)
def test_when_the_original_is_gone_the_copy_is_taken(catalog: Catalog, plain: Path, how: str) -> None:
    backup = copied(plain, how)
    catalog.scan(backup)
    shutil.rmtree(plain)
    catalog.scan(backup, run="plain1", world_size=2)
    plan = catalog.resolve("plain1").plan
    assert (plan.global_step, Path(plan.ranks[0].source.path).parents[1]) == (16, backup)


@pytest.mark.parametrize("how", ["-r", "-rp"])
def test_a_lost_tree_that_was_brought_back_is_no_copy_of_its_backup(catalog: Catalog, tmp_path: Path, how: str) -> None:
    """The backup was scanned while the tree was lost, so that the run had its files there for a time."""
    begun(catalog, tmp_path / "job", 5, 10)
    backup = copied(tmp_path / "job", how)
    shutil.rmtree(tmp_path / "job")
    catalog.scan(backup, run="run")
    assert homes(catalog, "run") >= {"backup"}
    shutil.copytree(backup, tmp_path / "job")
    done = catalog.scan(tmp_path / "job")
    assert (done.skipped, done.known) == ((), 4)
    shutil.rmtree(backup)
    plan = catalog.resolve("run").plan
    assert (plan.global_step, Path(plan.ranks[0].source.path).parents[1]) == (10, tmp_path / "job")


def test_the_copy_of_a_lost_quarantined_file_is_quarantined__before_a_start_went_on_from_it(
    catalog: Catalog, tmp_path: Path
) -> None:
    """A power loss may take the journals of both."""
    job, (rank,) = begun(catalog, tmp_path / "run", world_size=1)
    saved = rank.register(job.write(rank, 10), global_step=10)
    rank.record_files([replace(saved, quarantine="the loss was nan")])
    copied(tmp_path / "run", "-r alone")
    Path(saved.path).unlink()
    (copy,) = catalog.scan(tmp_path / "backup", run="run").adopted
    assert copy.quarantine == "the loss was nan"
    assert catalog.resolve("run", lineage=copy.launch).plan is None
    assert catalog.resolve("run", lineage=copy.launch, take_quarantined=True).plan is not None


def test_a_copy_of_some_steps_is_gone_on_from_when_the_original_is_gone(catalog: Catalog, plain: Path) -> None:
    backup = copied(plain, "-rp alone")
    for path in backup.rglob("net-[34]*.ckpt"):
        path.unlink()
    shutil.rmtree(plain)
    catalog.scan(backup, run="plain1", world_size=2)
    assert catalog.resolve("plain1").plan.global_step == 8


def test_what_was_saved_beside_a_launch_whose_disk_is_away_stays_before_it(catalog: Catalog, plain: Path) -> None:
    away = plain.rename(plain.with_name("away"))
    for rank in (0, 1):
        save(plain.parent / "beside", 6, 10, rank=rank)
    catalog.scan(plain.parent / "beside", run="plain1", world_size=2)
    away.rename(plain)
    assert catalog.resolve("plain1").plan.global_step == 16


@pytest.mark.parametrize("how", HOW)
def test_the_copy_of_a_registered_run_does_not_double_it(catalog: Catalog, tmp_path: Path, how: str) -> None:
    job = Job(catalog, tmp_path / "job", world_size=2)
    for launch in job.begin():
        for step in (5, 10):
            launch.register(job.write(launch, step), global_step=step, optimizer_step=step, metrics={"loss": step})
    before = [(save.global_step, save.bytes) for save in catalog.saves("run")]
    backup = copied(tmp_path / "job", how)
    told = catalog.scan(backup, run="run")
    assert (told.adopted, len(told.skipped)) == ((), 4)
    assert [(save.global_step, save.bytes) for save in catalog.saves("run")] == before
    job.start()  # nor does a start take it up again
    assert [(save.global_step, save.bytes) for save in catalog.saves("run")] == before
    for _ in range(2):  # nor takes gc the copy for what it has removed before
        catalog.execute(catalog.plan_gc("run", Policy(keep_last=1, floor=1)))
        assert len(list(backup.rglob("*.ckpt"))) == 4
    catalog.undo("run")
    done = catalog.scan(backup, run="new")
    assert {(file.global_step, file.grade, file.metrics["loss"]) for file in done.adopted} == {
        (5, Grade.PROVEN, 5),
        (10, Grade.PROVEN, 10),
    }
    assert catalog.resolve("new").plan.global_step == 10
    assert [(save.global_step, save.bytes) for save in catalog.saves("run")] == before


def test_a_scan_that_takes_a_run_back_says_so(catalog: Catalog, database_url: str, tmp_path: Path) -> None:
    """Copies with new times of steps that gc has removed since: nothing tells them from a launch that went back."""
    begun(catalog, tmp_path / "job", 5, 10, 15, 20)
    backup = copied(tmp_path / "job", "-rp alone")
    for path in backup.rglob("*.ckpt"):
        later = path.stat().st_mtime + 7200
        path.unlink() if "net-2" in path.name else os.utime(path, (later, later))
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=2)), now=True)
    dry = catalog.scan(backup, run="run", world_size=2, dry_run=True)
    done = catalog.scan(backup, run="run", world_size=2)
    again = "ckptstore resolve run --lineage L1 --branch"
    assert done.warnings == dry.warnings
    assert [each.partition("if they are copies: ")[2] for each in done.warnings] == [again]
    assert "run run is taken to have gone back, and goes on after step 10" in done.warnings[0]
    assert catalog.resolve("run").plan.global_step == 10
    assert advice.follow(database_url, again).code == 0
    assert catalog.resolve("run").plan.global_step == 20
    assert catalog.scan(backup, run="run", world_size=2).warnings == ()


@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("how", ["-r", "-rp"])
def test_the_copy_of_an_adopted_file_is_taken_only_where_that_is_gone(
    catalog: Catalog, tmp_path: Path, how: str, *, is_gone: bool
) -> None:
    """The copy was made before a start adopted it, so that no journal in the copy tells of it."""
    job, (launch,) = begun(catalog, tmp_path / "job", 10, world_size=1)
    path = job.write(launch, 15, name="net-2_5_breakpoint.ckpt")
    launch.let_go()
    backup = copied(tmp_path / "job", how)
    assert catalog.resolve("run").plan.global_step == 15
    if is_gone:
        path.unlink()
    catalog.scan(backup, run="run")
    there = backup / "rank_0" / path.name if is_gone else path
    live = [file for file in catalog.show("run", 15) if file.state is FileState.COMPLETE]
    assert [file.path for file in live] == [str(there)]
    if is_gone:  # nobody announced the backup: the file counts once a start knows how long an epoch is
        assert (live[0].grade, live[0].launch.startswith(SCANNED)) == (Grade.CONSISTENT, True)
    else:
        assert catalog.resolve("run").plan.ranks[0].source.path == str(path)


def test_a_catalog_made_anew_knows_which_is_the_copy(catalog: Catalog, other: Catalog, plain: Path) -> None:
    backup = copied(plain, "-r")
    catalog.scan(backup)
    for tree in (plain, backup):
        other.scan(tree)
    assert homes(other, "plain1") == {"plain1"}


@pytest.mark.parametrize(("first", "second", "step"), [(2, 4, None), (4, 2, 16)])
def test_the_run_of_copies_has_the_stated_number_of_ranks(
    catalog: Catalog, tmp_path: Path, first: int, second: int, step: int | None
) -> None:
    for rank in (0, 1):
        save(tmp_path / "job", 12, 16, rank=rank)
    catalog.scan(tmp_path / "job", world_size=first)
    backup = copied(tmp_path / "job", "-rp alone")
    with pytest.raises(UsageError, match="rank 1, and the job is said to have 1 rank"):
        catalog.scan(backup, run="new", world_size=1)
    assert catalog.scan(backup, run="new", world_size=second).warnings == ()
    plan = catalog.resolve("new").plan
    assert (plan and plan.global_step) == step
    (warning,) = catalog.scan(backup, run="new", world_size=3).warnings
    assert f"keeps the {second} ranks that an earlier scan recorded" in warning
    shutil.rmtree(backup)
    assert catalog.scan(copied(tmp_path / "job", "-rp alone"), run="new", world_size=3).warnings == (warning,)
    with catalog.database.read() as connection:
        (launch,) = reads.launches_of(connection, reads.run_id(connection, "new") or 0)
    assert launch.world_size == second


def test_a_copy_of_a_registered_launch_has_the_number_of_ranks_that_trained(catalog: Catalog, tmp_path: Path) -> None:
    begun(catalog, tmp_path / "job", 5)
    done = catalog.scan(copied(tmp_path / "job", "-rp alone"), run="new", world_size=4)
    assert done.warnings == ("1 launch keeps the 2 ranks of its original",)
    assert catalog.resolve("new").plan.global_step == 5


def test_what_was_trained_on_in_the_copy_is_no_copy(catalog: Catalog, plain: Path) -> None:
    backup = copied(plain, "-rp alone")
    for rank in (0, 1):
        save(backup, 20, 24, rank=rank)
    done = catalog.scan(backup, run="new", world_size=2)
    assert sorted({file.global_step for file in done.adopted}) == [4, 8, 12, 16, 20, 24]
    assert catalog.resolve("new").plan.global_step == 24
    assert catalog.resolve("plain1").plan.global_step == 16


@pytest.mark.parametrize("world_size", [2, None])
def test_copies_of_some_ranks_make_no_state_without_the_new_files_of_the_others(
    catalog: Catalog, tmp_path: Path, world_size: int | None
) -> None:
    """Else rank 1 would load rank 0's file, or nothing would be whole."""
    save(tmp_path / "net", 12, 16)
    catalog.scan(tmp_path / "net", run="net", world_size=1)
    mixed = shutil.copytree(tmp_path / "net", tmp_path / "mixed", ignore=shutil.ignore_patterns(".ckptstore"))
    save(mixed, 12, 16, rank=1)
    for dry_run in (True, False):
        with pytest.raises(RefusedError, match="rank 0 is a copy of a file of run 'net', and rank 1 is") as error:
            catalog.scan(mixed, run="new", world_size=world_size, dry_run=dry_run)
    assert [each.run for each in catalog.runs()] == ["net"]
    advised = advice.commands_in(error.value.hint)
    options = ["--run", "new", "--world-size", "2"]
    assert advised == [["scan", str(home), *options] for home in (mixed / "rank_0", mixed)]
    for _, home, *_ in advised:
        catalog.scan(home, run="new", world_size=2)
    assert [each.source.rank for each in catalog.resolve("new").plan.ranks] == [0, 1]


def test_a_copy_in_the_tree_of_its_original_is_told(catalog: Catalog, root: Path) -> None:
    """Nobody knew either: the older file is the original."""
    save(root, 4, 8, 12, 16)
    (root / "best").mkdir()
    shutil.copy2(root / "rank_0" / "net-2_3.ckpt", root / "best")
    stamp(root / "best" / "net-2_3.ckpt", 500)
    done = catalog.scan(root, run="job", world_size=1)
    assert [Path(each.path).parent.name for each in done.skipped] == ["best"]
    assert catalog.resolve("job").plan.global_step == 16


def test_another_training_of_the_same_names_and_sizes_is_no_copy(catalog: Catalog, plain: Path, tmp_path: Path) -> None:
    for rank in (0, 1):
        for path in save(tmp_path / "other", 4, 8, rank=rank):
            content = path.read_bytes()
            path.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
            stamp(path, 77)
    done = catalog.scan(tmp_path / "other", world_size=2)
    assert (len(done.adopted) + len(done.uncertain), done.skipped) == (4, ())


def test_a_run_that_trains_gets_no_copy_of_another_runs_file(catalog: Catalog, tmp_path: Path) -> None:
    """A fine-tuning beside it saves the same bytes twice, under a name that it never registered."""
    _, ranks = begun(catalog, tmp_path / "ckpt", 5, 10)
    tuned = Job(catalog, tmp_path / "ckpt", run="tuned")
    for rank in tuned.start():
        path = tuned.write(rank, 15, name="tuned-2_5.ckpt")
        rank.register(path, global_step=15, optimizer_step=15)
        shutil.copy2(path, path.with_name("net_1-2_5.ckpt"))
    for rank in ranks:
        rank.let_go()
    done = catalog.scan(tmp_path / "ckpt", run="run")
    assert done.adopted == ()
    assert {Path(each.path).name for each in done.skipped if "a copy of" in each.reason} == {"net_1-2_5.ckpt"}
    assert catalog.resolve("run").plan.global_step == 10


@pytest.mark.parametrize("later", [7200, 0])
@pytest.mark.parametrize("folder", ["backup", "the_backup"])
def test_the_copy_of_a_file_that_its_launch_has_not_registered_is_told(
    catalog: Catalog, tmp_path: Path, folder: str, later: int
) -> None:
    """Taken for a new file, it would take the run back behind the states that were saved before the copy."""
    job, (launch,) = begun(catalog, tmp_path / "job", 10, world_size=1)
    path = job.write(launch, 15, name="net-2_5_breakpoint.ckpt")
    launch.register(job.write(launch, 20), global_step=20, optimizer_step=20)
    copy = tmp_path / "job" / folder / path.name
    copy.parent.mkdir()
    shutil.copy(path, copy)
    written = path.stat().st_mtime_ns + later * 10**9
    os.utime(copy, ns=(written, written))
    done = catalog.scan(tmp_path / "job", run="run", world_size=1)
    assert (done.adopted, done.warnings) == ((), ())
    assert [each.path for each in done.skipped if f"a copy of files in {path.parent}" in each.reason] == [str(copy)]
    assert catalog.resolve("run").plan.global_step == 20


@pytest.mark.parametrize("how", ["-r", "-rp"])
def test_a_pin_is_journalled_beside_the_original(catalog: Catalog, other: Catalog, tmp_path: Path, how: str) -> None:
    """Not beside a scanned backup, which sorts before it: a catalog made anew from the original must know the pin."""
    started(catalog, tmp_path / "data", 10, 20)
    catalog.scan(copied(tmp_path / "data", how))
    catalog.pin("run", 10)
    catalog.tag("run", 20, "good")
    other.scan(tmp_path / "data")
    assert [(row.tally.global_step, row.pinned, row.tags) for row in other.saves("run")] == [
        (20, False, ("good",)),
        (10, True, ()),
    ]


def test_the_copy_of_a_file_that_only_its_record_tells_of_is_not_asked_for(
    catalog: Catalog, other: Catalog, tmp_path: Path
) -> None:
    """A script names its own files, as with `launch.save`: nothing in them tells a step."""
    job, (launch,) = begun(catalog, tmp_path / "job", world_size=1)
    for step in (5, 10):
        path = job.folder(0) / f"kept/model_{step}"
        path.parent.mkdir(exist_ok=True)
        for part in (".index", ".data-00000-of-00001"):
            path.with_name(path.name + part).write_bytes(b"%d" % step)
        launch.register(path, global_step=step)
    shutil.copytree(job.folder(0), job.folder(0) / "backup")
    done = other.scan(tmp_path / "job", world_size=1)
    assert (done.uncertain, done.opaque) == ((), ())
    assert {Path(each.path).name for each in done.skipped} == {"model_5", "model_10"}


@pytest.mark.parametrize("below", [".", "run", "run/L1/15"])
def test_a_scan_of_a_tier_adopts_no_copy(catalog: Catalog, other: Catalog, tmp_path: Path, below: str) -> None:
    job = Job(catalog, tmp_path / "ckpt")
    job.save(job.begin(), 5, 15)
    tier = declared(catalog, tmp_path / "shared")
    Replicator(catalog.database).round(settled_for=timedelta(0))
    for asked in (catalog, other):  # the other one stands for a catalog made anew
        done = asked.scan(Path(tier.directory, below), run="run")
        assert done.adopted == ()
        (told,) = done.skipped
        assert told.path == f"{tier.directory}/run/L1"
        assert f"ckptstore scan {tier.directory} --into DIRECTORY" in told.reason
    assert catalog.resolve("run").plan.global_step == 15
    assert not other.runs()
    url = other.database.url.render_as_string(hide_password=False)
    assert advice.follow(url, told.reason, DIRECTORY=str(tmp_path / "from")).code == 0
    assert len(other.files("run")) == 4


def test_a_prefix_that_looks_like_a_digest_is_no_copy(catalog: Catalog, tmp_path: Path) -> None:
    paths = save(tmp_path / "mlruns" / "run" / "0", 4, 8, prefix="0123456789abcdef" * 2)
    done = catalog.scan(tmp_path / "mlruns", world_size=1)
    assert {file.path for file in done.adopted} == set(map(str, paths))


def test_the_ranks_of_a_save_are_not_compared_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their files have the same name and size."""
    asked = []
    monkeypatch.setattr(copies, "rank_of", lambda file: (asked.append(file), rank_of(file))[1])
    files = [found(Kind.PERIODIC, (1, 5), 5, rank=rank, path=f"/out/rank_{rank}/net-1_5.ckpt") for rank in range(64)]
    files += [replace(files[0], path="/out2/rank_0/net-1_5.ckpt")]
    told = copies.copies_among(files, lambda one, other: Path(one).parent.name == Path(other).parent.name)
    assert told == {"/out2/rank_0/net-1_5.ckpt": "/out/rank_0/net-1_5.ckpt"}
    assert len(asked) <= 2 * len(files)
