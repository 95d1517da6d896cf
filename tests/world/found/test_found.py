"""Histories that broke a promise, each as short as it could be made."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.world.machine import Fault, simulated
from tests.world.tier import TierWorld
from tests.world.world import RUN, World


def history(*seeds: int, of: type[World] = World, **settings: Any) -> pytest.MarkDecorator:
    """The `world` of a test: one of each seed, with these settings."""
    return pytest.mark.parametrize(
        "world", [(of, seed, settings) for seed in seeds], ids=map(str, seeds), indirect=True
    )


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    of, seed, settings = request.param
    with simulated(seed) as machine:
        yield of(machine, **settings)


@history(509195, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_adopted_beside_an_unread_journal(world: World) -> None:
    """A start adopted a file beside a journal that it could not read, for the launch before the one that wrote it."""
    world.start()
    world.start()
    world.save()
    world.start()
    world.start()
    world.save(steps=1, kill_rank=1, ranks=1, behind=True)
    world.spoil(which=1)
    world.lose_catalog()
    world.start()
    world.finish()


@history(2613873, size=2, replicas=False, disks="one", nodes=2, late=False, keeps=0, coarse=False)
def test_backup_by_a_machine_whose_clock_is_behind(world: World) -> None:
    """Made anew, a catalog took the backup below the run's directory for the original: it seemed to be older."""
    world.clock(node=0, seconds=-290)
    world.start()
    world.save()
    world.back_up(which=5, times=True)
    world.finish()


@history(641309, size=1, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_breakpoint_on_the_disk_of_a_launch_below_it(world: World) -> None:
    """A launch saved below the mount point; the breakpoint of the one before, on the disk, counted as its own."""
    world.start()
    world.fault = Fault(at=289, what="stop", error="", where="any", beside=("gc", {"keep_last": 3, "floor": 3}))
    world.start()
    world.fail()
    world.fault = Fault(at=3, what="stop", error="", where="change", beside=("unmount", {"which": 1, "gone": False}))
    world.start(kill_rank=3, fresh=True)
    world.save()
    world.fail()
    world.fault = Fault(at=7, what="stop", error="", where="any", beside=("scan", {}))
    world.start()
    world.finish()


@history(643252, size=4, replicas=True, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_breakpoint_replaced_by_a_later_launch(world: World) -> None:
    """A launch replaced a breakpoint that the launch before had left under the same name."""
    world.start()
    world.save()
    world.slow(which=1)
    world.fail()
    world.fault = Fault(at=20, what="kill_after", error="", where="change", beside=None)
    world.start(kill_rank=2)
    world.cut()
    world.cut(which=20)
    world.relieve()
    world.start()
    world.fail()
    world.finish()


@pytest.mark.parametrize("told", [True, False])
@history(510311, size=2)
def test_catalog_lost_after_a_full_disk(world: World, told: bool) -> None:  # noqa: FBT001
    """A launch began while its disk was full: until it saved, its records were in the catalog alone, which was lost."""
    world.start()
    world.fill()
    world.start()
    world.relieve()
    world.fail(told=told)
    world.lose_catalog()
    world.finish()


@history(601044, size=2, replicas=True, disks="each", nodes=1, late=False, keeps=0, coarse=False)
def test_clock_set_back_and_id_used_again(world: World) -> None:
    """A clock was set back, and a launch id used again: its breakpoint is still its own."""
    world.start()
    world.start()
    world.clock(node=0, seconds=-290)
    world.fail()
    world.start(kill_rank=2, place=1, again=1)
    world.finish()


@history(641630, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_clock_set_back_within_a_launch(world: World) -> None:
    """A clock was set back after a launch began, and a name was used again whose file somebody had deleted."""
    world.start()
    world.save()
    world.start()
    world.save()
    world.delete()
    world.start(kill_rank=3, place=1, fresh=True)
    world.clock(node=0, seconds=-290)
    world.save()
    world.finish()


@history(500487, size=2, replicas=True, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_copied_out_and_damaged(world: World) -> None:
    """A damaged copy out of the trash got a digest of its own, and was restored as the state."""
    world.start()
    world.save()
    world.save()
    world.save()
    world.start()
    world.flip()
    world.save()
    world.save()
    world.save()
    world.gc(keep_last=3, floor=2, hours=1, now=True)
    world.gc(keep_last=1, floor=1, hours=1)
    world.take_out()
    world.take_out(which=10, times=False)
    world.flip()
    world.start(kill_rank=3, step=1)
    world.finish()


@history(3174, size=2)
def test_copied_out_of_the_trash(world: World) -> None:
    """Files copied out of the trash counted as those of a later launch with their prefix, which never saved them."""
    world.start()
    world.save()
    world.start()
    world.save()
    world.save()
    world.gc()
    world.start(fresh=True)  # its files have the prefix that those in the trash had
    world.save(steps=5)
    world.take_out(which=0)
    world.take_out(which=1)
    world.start()
    saved = world._operate("files", lambda opened: opened.files(RUN))
    assert ("L2", 1) not in {(file.launch, file.global_step) for file in saved.result}
    world.finish()


@history(4369, size=2, replicas=True)
def test_copied_out_while_its_launch_lives(world: World) -> None:
    """A file was copied out of the trash while its launch lived: `resolve` leaves it to that launch.

    A start, which the launch does not outlive, takes it.
    """
    world.start()
    world.save()
    world.save()
    world.save()
    world.gc()
    world.take_out()
    world.quarantine(back=2)
    world.resolve()
    world.finish()


@history(600290, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_copied_out_without_a_digest(world: World) -> None:
    """A file without a digest was copied out of the trash without its times: undo cannot tell, and purge deletes it."""
    world.start()
    world.save()
    world.start(kill_rank=0, place=1, plain=True)
    world.fault = Fault(at=4, what="kill", error="", where="change", beside=None)
    world.save()
    world.start()
    world.save()
    world.save()
    world.gc()
    world.wait()
    world.lose_catalog()
    world.start()
    world.save()
    world.gc()
    world.take_out(which=17, times=False)
    world.finish()


@history(507913, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=True)
def test_copy_of_another_runs_file(world: World) -> None:
    """A scan with --run gave a run that trains the copy of another run's file."""
    world.start()
    world.save()
    world.neighbour()
    world.share()
    world.neighbour_saves(untold=True)
    world.resolve(catalog=1)
    world.finish()


@history(*range(4), of=TierWorld, size=1, replicas=False, disks="one", nodes=1)
def test_copy_whose_folders_a_power_loss_took(world: TierWorld) -> None:
    """A copy was recorded as ready before the folders above it in the tier were on the disk: a power loss took it."""
    world.declare()
    world.start()
    world.save()
    world.replicate()
    world.power_loss()
    world.finish()


@history(18086, size=2, replicas=True)
def test_cut_before_it_was_recorded(world: World) -> None:
    """A file was cut before its rank recorded it: its size is another one than its replicas', so none stood in."""
    world.start()
    world.save()
    world.fault = Fault(at=2, what="stop", beside=("cut", {"which": 1}))
    world.save()
    world.start()


@history(0, size=2, disks="one", nodes=1)
def test_directory_lost_with_its_journal(world: World) -> None:
    """A power loss took a directory that nobody had synced, and with it the journal of what was registered in it."""
    world.start()
    world.save()
    world.power_loss()
    world.finish()


@history(106, of=TierWorld, size=2, replicas=False, disks="one", nodes=1, keeps=1)
def test_failed_copy_of_a_file_that_is_gone(world: TierWorld) -> None:
    """That a tier lacks a copy was recorded in the catalog alone if the file is gone: its directory was not known."""
    world.start()
    world.declare()
    world.save()
    world.replicate()
    world.lose_copy()
    world.save()
    world.quarantine()
    world.finish()


@history(675874, of=TierWorld, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_fetched_below_a_mount_point(world: TierWorld) -> None:
    """Copies were fetched below an empty mount point: a scan took it for the directory, and all else for gone."""
    world.declare()
    world.start()
    world.save()
    world.fault = Fault(at=37, what="kill", error="", where="change", beside=None)
    world.start()
    world.save()
    world.replicate()
    world.unmount()
    world.fault = Fault(at=103, what="kill", error="", where="any", beside=None)
    world.start(kill_rank=3)
    world.scan()
    world.finish()


@history(632537, size=4, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_file_whose_times_a_power_loss_took(world: World) -> None:
    """An interrupted gc --now was to delete a file that stayed at its place, and lost its times in a power loss."""
    world.start()
    world.save()
    world.save()
    world.save()
    world.save()
    world.gc(keep_last=3, floor=3, now=True, catalog=1)
    world.start()
    world.save()
    world.plan(keep_last=1, floor=2, catalog=1)
    world.pin(step=23)
    world.fault = Fault(at=23, what="error_after", error="ESTALE", where="change", beside=None)
    world.execute(now=True)
    world.start()
    world.save(steps=5, kill_rank=3)
    world.power_loss()
    world.gc()
    world.finish()


@history(600189, size=2, replicas=True, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_hidden_below_a_mount_point(world: World) -> None:
    """A launch saved below a mount point; then the disk was mounted, and the catalog lost: nothing tells of it."""
    world.unmount(which=3, gone=False)
    world.start()
    world.fault = Fault(at=0, what="kill_after", error="", where="change", beside=None)
    world.save()
    world.mount()
    world.lose_catalog()
    world.start(kill_rank=1, plain=True)
    world.finish()


@history(16013, size=2, disks="each")
def test_journal_below_a_mount_point(world: World) -> None:
    """The record of a file is in a locked catalog, and in a journal below a mount point: a start knows of neither."""
    world.unmount(which=1)
    world.start()
    world.save()
    world.mount()
    world.lock_catalog()
    world.start()
    world.finish()


@pytest.mark.parametrize("which", [0, 1], ids=["of rank 0", "of rank 1"])
@pytest.mark.parametrize("launches", [1, 2])
@history(16069, size=2)
def test_journal_that_nobody_has_read(world: World, launches: int, which: int) -> None:
    """The catalog was lost, a journal of the newest launch could not be read: a start went on from an older state."""
    for _ in range(launches):
        world.start()
        world.save()
    world.spoil(which=which)
    world.lose_catalog()
    world.start()
    world.finish()


@history(40044, size=2)
def test_launch_nobody_heard_of(world: World) -> None:
    """The second launch began without a catalog, where it could not write: its file is the first one's."""
    world.start()
    world.save()
    world.start()
    world.protect()
    world.catalog_away()
    world.start()
    world.relieve()
    world.save()
    world.finish()
    assert world.checked["unheard"], "nothing tells of the second launch"


@history(506403, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_listed_late_in_a_summary(world: World) -> None:
    """A file that the disk listed late was left out of a summary, and so of the catalog that read it."""
    world.start()
    world.catalog_away()
    world.start()
    world.slow()
    world.wait()
    world.save()
    world.save()
    world.fault = Fault(at=6, what="kill_after", error="", where="any", beside=None)
    world.save()
    world.start()
    world.save()
    world.finish()


@history(200908, size=2, replicas=False, disks="one", nodes=1)
def test_moved_and_removed_again(world: World) -> None:
    """After a move gc took a later file of the same path: undo looked at its record, and came to no gc before that."""
    world.start()
    world.save()
    world.save()
    world.save()
    world.save()
    world.gc(keep_last=3, floor=2)
    world.save()
    world.save()
    world.gc()
    world.move_tree()
    world.fault = Fault(at=4, what="stop", error="", where="any", beside=("unmount", {"which": 1, "gone": False}))
    world.start(kill_rank=2, plain=True)
    world.start(kill_rank=0, fresh=True)
    world.save()
    world.save()
    world.save()
    world.gc(keep_last=1, floor=1)
    world.finish()


@history(200192, size=2, replicas=False, disks="one", nodes=1)
def test_moved_tree_and_lost_catalog(world: World) -> None:
    """A tree was moved and its catalog lost: what undo brought back there did not count again."""
    world.start()
    world.save()
    world.save()
    world.gc(keep_last=1, floor=1)
    world.move_tree()
    world.lose_catalog()
    world.finish()


@history(200771, size=2, replicas=False, disks="one", nodes=1)
def test_moved_twice(world: World) -> None:
    """A tree was moved twice: the summary that a start wrote in between forgot what was in the trash."""
    world.start()
    world.save()
    world.save()
    world.save()
    world.gc()
    world.move_tree()
    world.start()
    world.save()
    world.move_tree()
    world.finish()


@history(616480, size=1, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_name_of_a_save_that_never_came(world: World) -> None:
    """A save was announced and never written; the next launch took its name, and died before it registered the file."""
    world.start()
    world.fault = Fault(at=0, what="kill", error="", where="any", beside=None)
    world.save(steps=1, kill_rank=1, behind=True)
    world.start()
    world.fault = Fault(at=34, what="kill_after", error="", where="any", beside=None)
    world.save()
    world.finish()


@history(621568, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_name_used_again_by_a_clock_that_is_behind(world: World) -> None:
    """A clock was set back, and a name used again of which the former file is in the trash."""
    world.fault = Fault(at=3, what="error", error="ENOSPC", where="any", beside=None)
    world.start()
    world.save()
    world.start()
    world.save(steps=1, kill_rank=2, ranks=1)
    world.start()
    world.save()
    world.clock(node=1, seconds=-290)
    world.fault = Fault(at=27, what="kill", error="", where="change", beside=None)
    world.gc()
    world.start(kill_rank=3, step=6)
    world.save()
    world.finish()


@history(504901, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_newest_files_of_two_steps(world: World) -> None:
    """Summaries told of no state that was complete once, and a start began at step 0 for that."""
    world.start()
    world.save()
    world.power_loss()
    world.gc()
    world.neighbour()
    world.neighbour_saves()
    world.catalog_away()
    world.fault = Fault(at=21, what="kill_after", error="", where="change", beside=None)
    world.start()
    world.finish()


@history(3107, size=2)
def test_older_run_of_the_same_prefix(world: World) -> None:
    """What a run that had begun first saved under the same prefix, and did not register, was taken for this run's."""
    world.neighbour()
    world.start()
    world.save()
    world.neighbour_saves(untold=True)
    world.finish()


@history(605124, size=2, replicas=False, disks="each", nodes=1, late=False, keeps=0, coarse=False)
def test_others_below_a_mount_point(world: World) -> None:
    """Files of another framework were saved below the mount point of a rank: a scan took the rank's files for gone."""
    world.start()
    world.save()
    world.save()
    world.fault = Fault(
        at=55, what="stop", error="", where="any", beside=("gc", {"keep_last": 6, "floor": 2, "now": True})
    )
    world.start()
    world.save()
    world.unmount()
    world.keep()
    world.scan()
    world.finish()


@history(612530, size=4, replicas=False, disks="one", nodes=1, late=False, keeps=2, coarse=False)
def test_pinned_in_the_trash_of_a_moved_tree(world: World) -> None:
    """A pinned step was in the trash when its tree was moved and the catalog lost: purge deleted it."""
    world.start()
    world.save()
    world.save()
    world.save()
    world.save()
    world.save()
    world.save(steps=1, kill_rank=0, ranks=1)
    world.save()
    world.gc()
    world.take_out(which=11, times=False)
    world.move_tree()
    world.lose_catalog()
    world.pin(step=11)
    world.purge(now=True)
    world.finish()


@history(77005, size=2, replicas=False, disks="each", nodes=1, late=False)
def test_power_loss_after_undo(world: World) -> None:
    """An undo was recorded before its moves were on the disk: after a loss of power no undo brought the files back."""
    world.start()
    world.save()
    world.forget()
    world.save(steps=2, kill_rank=2)
    world.save()
    world.start()
    world.flip()
    world.purge()
    world.save(steps=2, kill_rank=3)
    world.save()
    world.save()
    world.save()
    world.save(steps=2, kill_rank=0)
    world.save()
    world.save()
    world.policy()
    world.fault = Fault(at=4, what="stop", error="", where="any", beside=("gc", {"keep_last": 1, "floor": 2}))
    world.undo()
    world.save()
    world.save()
    world.save()
    world.save()
    world.save()
    world.fault = Fault(at=0, what="stop", error="", where="any", beside=("pin", {"step": 2, "undo": True}))
    world.save()
    world.fault = Fault(at=2, what="error_after", error="EACCES", where="file", beside=None)
    world.pin()
    world.power_loss()
    world.finish()


@history(10232, size=2, late=True)
def test_record_without_identity(world: World) -> None:
    """The disk fails while a save looks for the directory's identity; a scan while that disk is away lost the file."""
    world.start(place=1, plain=True)
    world.save()
    world.fault = Fault(at=27, what="error", error="ENOSPC")
    world.save()
    world.unmount()
    world.scan()
    world.finish()


@history(500314, size=2, replicas=False, disks="each", nodes=1)
def test_saved_into_an_empty_mount_point(world: World) -> None:
    """A rank saved on into an empty mount point, and gc took an older state whose files there nobody had heard of."""
    world.start()
    world.catalog_away()
    world.fault = Fault(at=3, what="stop", beside=("purge", {}))
    world.save()
    world.relieve()
    world.fault = Fault(at=24, what="stop", beside=("unmount", {"which": 1, "gone": False}))
    world.scan()
    world.save()
    world.gc()
    world.finish()


@history(69, size=2)
def test_scanned_and_written_over(world: World) -> None:
    """A file that a scan had found was written over by another start, and counted with those of the first one."""
    world.bare(steps=1, ranks=0)
    world.scan_bare()
    world.bare(steps=1, ranks=1)
    world.scan_bare()
    world.finish()


@history(510849, size=2, replicas=True, disks="each", nodes=1, late=False, keeps=0, coarse=False)
def test_seen_before_it_was_registered(world: World) -> None:
    """A scan saw a file before its rank registered it; then a power loss turned the time of the file back."""
    world.start()
    world.save()
    world.save()
    world.save()
    world.fail(steps=1, rank=2, told=False, every=False)
    world.start()
    world.spoil(which=23)
    world.gc()
    world.save()
    world.branch()
    world.branch()
    world.fault = Fault(at=7, what="stop", error="", where="any", beside=("undo", {}))
    world.gc()
    world.wait(seconds=100000)
    world.keep(prefix=False)
    world.keep()
    world.start(kill_rank=2, plain=True)
    world.fault = Fault(at=19, what="stop", error="", where="any", beside=("purge", {}))
    world.save()
    world.fault = Fault(at=20, what="stop", error="", where="any", beside=("scan", {}))
    world.save(steps=2, kill_rank=1)
    world.power_loss()
    world.finish()


@history(620186, size=1, replicas=False, disks="one", nodes=1, late=True, keeps=0, coarse=False)
def test_seen_beside_a_journal_that_failed(world: World) -> None:
    """A scan saw a file before its rank's record, which a journal that could not be read just then has."""
    world.start()
    world.save()
    world.save()
    world.save()
    world.save()
    world.save()
    world.save()
    world.fault = Fault(at=7, what="error", error="ESTALE", where="change", beside=None)
    world.save()
    world.save()
    world.save()
    world.save()
    world.save(steps=1, kill_rank=3, behind=True)
    world.gc()
    world.plan(keep_last=1, floor=1, catalog=1)
    world.save()
    world.execute()
    world.delete(which=1)
    world.save()
    world.start()
    world.save()
    world.spoil()
    world.lose_catalog()
    world.delete(which=2)
    world.fault = Fault(at=18, what="error_after", error="EIO", where="file", beside=None)
    world.scan()
    world.finish()


@history(701535, size=2, replicas=False, disks="each", nodes=2, late=True, keeps=0, coarse=False)
def test_state_that_a_launch_began_from(world: World) -> None:
    """A second catalog took the file that a launch began from for its own: the launch before lost its state.

    The disk listed late: neither the launch nor the scan saw what the launch before had recorded.
    """
    world.start()
    world.save()
    world.wait(seconds=50000)
    world.start()
    world.slow(which=2)
    world.clock(node=1, seconds=-290)
    world.save()
    world.start()
    world.scan(catalog=1)
    launch = world.truth.launches[-1].name
    task = world._operate("files", lambda opened: opened.files("run"), 1)
    assert launch not in {file.launch for file in task.result}
    world.finish()


@history(723192, of=TierWorld, size=1, replicas=False, disks="one", nodes=1, late=False, keeps=1, coarse=False)
def test_state_that_goes_if_another_is_held(world: TierWorld) -> None:
    """A gc of nodes' disks held a state for its lost copy. So another went, whose copy the tier was not asked for."""
    world.declare()
    world.start()
    world.save()
    world.start()
    world.save()
    world.start()
    world.save()
    world.save()
    world.replicate()
    world.lose_copy()
    world.lose_copy(which=20, cut=True)
    world.free_nodes(keep_last=1, floor=1)
    world.finish()


@history(28, size=2, replicas=False, disks="one", nodes=1)
def test_tag_before_the_move_was_seen(world: World) -> None:
    """A tag set before anything had seen where a tree was moved to was in one catalog: gc of another took its files."""
    world.start()
    for _ in range(3):
        world.save()
    world.gc()
    world.move_tree()
    world.tag(step=1, name=1)
    world.start()
    world.sync()
    world.save()
    world.fault = Fault(at=6, what="kill_after", where="change")
    world.save()
    world.gc(keep_last=1, floor=3, hours=100, catalog=1)
    world.finish()


@history(200506, size=2, disks="one", nodes=1)
def test_touched_and_moved(world: World) -> None:
    """A file was touched, removed by gc, and its tree moved: what undo brought back did not count again."""
    world.start()
    world.save()
    world.save()
    world.touch()
    world.save()
    world.gc(keep_last=1, floor=1)
    world.move_tree()
    world.finish()


@history(7477, size=2)
def test_two_gcs_and_a_moved_tree(world: World) -> None:
    """After two gcs and a move of the tree every undo brings back the last gc again, and none the one before."""
    world.start()
    world.save()
    world.save()
    world.gc(keep_last=1, floor=1)
    world.start()
    world.save()
    world.save()
    world.fault = Fault(at=2, what="kill", error="", where="change", beside=None)
    world.save()
    world.gc()
    world.move_tree()
    world.finish()


@history(279, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_two_runs_of_one_prefix(world: World) -> None:
    """Two runs save in one directory under one prefix, and a launch of one left its breakpoint before both had saved.

    The breakpoint was taken for the other run's: as if that had ended. So its unregistered files were adopted, and
    a start took them.
    """
    world.start()
    world.save()
    world.neighbour()
    world.fault = Fault(at=5, what="kill", error="", where="any", beside=None)
    world.fail()
    world.start()
    world.neighbour_saves(untold=True)
    world.finish()


@history(10139, size=2, replicas=False, disks="one", nodes=1, late=False)
def test_undo_finished_by_gc(world: World) -> None:
    """A gc ended an undo that was refused; files that a rank had missed stayed recorded as gone, and were back."""
    world.start()
    world.save()
    world.save()
    world.gc(keep_last=1, floor=1)
    world.save()
    world.start()
    world.as_stranger(name="undo", arguments={})
    world.save()
    world.gc()
    world.finish()


@history(200766, size=2, replicas=False, disks="one", nodes=1)
def test_undo_where_a_later_file_never_came(world: World) -> None:
    """A later launch announced a file of the path, which never came: what undo brought back there did not count."""
    world.start()
    world.save()
    world.save()
    world.gc(keep_last=1, floor=1)
    world.delete(which=0)
    world.start(fresh=True)
    world.fill()
    world.save(behind=True)
    world.finish()


@history(4194, size=2, replicas=True, keeps=1)
def test_undo_where_a_later_file_was(world: World) -> None:
    """What undo brought back stayed recorded as gone: a later file had been at its place, and was gone too."""
    world.start()
    world.save()
    world.pin()
    world.start()
    world.save()
    world.save(steps=5, kill_rank=2, ranks=1)
    world.gc(keep_last=1, floor=1)
    world.flip()
    world.cut()
    world.start()
    world.save()
    world.save()
    world.save()
    world.finish()


@history(728406, of=TierWorld, size=4, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_unmounted_while_a_file_is_fetched(world: TierWorld) -> None:
    """A disk was unmounted just after a start had fetched a file to it: an error of the disk reached the script."""
    world.start()
    world.save()
    world.declare()
    world.replicate()
    world.delete()
    world.delete(which=19)
    world.start()
    world.cut()
    world.tier_away()
    world.start()
    world.mount()
    world.fault = Fault(at=19, what="stop", error="", where="change", beside=("unmount", {"which": 1, "gone": False}))
    world.start(kill_rank=1)
    world.finish()


@history(602785, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_unread_journal_by_a_clock_that_is_behind(world: World) -> None:
    """A clock was set back: an unread journal that is older than the chosen state may still tell of a newer one."""
    world.start()
    world.save()
    world.neighbour()
    world.neighbour()
    world.clock(node=0, seconds=-290)
    world.neighbour()
    world.start()
    world.save()
    world.fill()
    world.lose_catalog()
    world.spoil(which=4)
    world.start()
    world.finish()


@history(64, size=2, replicas=True, keeps=2, coarse=True)
def test_unread_journal_of_the_same_second(world: World) -> None:
    """Times are whole seconds: a journal as old as the chosen state may record a newer one, and was passed over.

    The catalog was lost and the journal could not be read: the start went on from the older state.
    """
    world.start()
    for _ in range(5):
        world.save()
    world.spoil(which=1)
    world.lose_catalog()
    world.delete(which=1)
    world.start()
    world.finish()


@history(200611, size=2, replicas=False, disks="each", nodes=1)
def test_unseen_disk_of_a_launch(world: World) -> None:
    """A catalog was made while a rank's disk was away, and took the state before for one that the rank never saved."""
    world.start()
    world.save()
    world.start()
    world.unmount()
    world.save()
    world.gc(keep_last=1, floor=2, now=True, catalog=1)
    world.finish()


@history(671143, size=2, replicas=False, disks="each", nodes=1, late=True, keeps=0, coarse=False)
def test_unseen_disk_of_one_launch(world: World) -> None:
    """A catalog was made while a rank's disk was away, and the rank had saved elsewhere in the next launch."""
    world.start()
    world.save()
    world.start(kill_rank=3, place=1)
    world.fail()
    world.unmount(which=2, gone=True)
    world.gc(keep_last=1, floor=3, catalog=1)
    world.finish()


@history(5, size=2)
def test_untold_file_of_another_run(world: World) -> None:
    """What another run did not come to register was taken by a scan that was asked for this run."""
    world.start()
    world.save()
    world.neighbour()
    world.neighbour_saves()
    world.neighbour_saves(untold=True)
    world.scan()
    world.finish()


@history(3103912, size=2)
def test_copies_between_two_transactions(world: World) -> None:
    """A scan took the files of a backup for the run's, and marked them as copies one transaction later.

    A verify recorded their new times in between, so that they never were alike, and gc moved them to the trash.
    """
    world.start()
    for _ in range(3):
        world.save()
    world.back_up()
    world.fault = Fault(at=8, what="stop", error="", where="change", beside=("verify", {"digest": True}))
    world.scan()
    world.fault = Fault(at=1, what="stop", error="", where="any", beside=("purge", {"catalog": 1}))
    world.gc()
    world.finish()


@pytest.mark.parametrize("at", [6, 7, 17])
@history(3101793, of=TierWorld, size=2, replicas=True, disks="each")
def test_killed_launch_below_a_mount_point(world: TierWorld, at: int) -> None:
    """It left a `.ckptstore` without an identity, as a user makes one where all files are gone for good.

    So the trash on the unmounted disk was recorded as gone, and no undo brought it back.
    """
    world.start()
    world.save()
    world.declare()
    world.save()
    world.replicate()
    world.free_nodes(keep_last=1, floor=1)
    world.wait(seconds=100000)
    world.unmount(which=3)
    world.fault = Fault(at=at, what="kill_after", error="", where="change")
    world.start(kill_rank=3, place=1)
    world.gc()
    world.finish()


@history(3216834, of=TierWorld, size=1)
def test_copy_of_a_lost_quarantined_file(world: TierWorld) -> None:
    """A power loss took the file and the journals of its backup, and a scan placed the backup's file by its name.

    The state was in quarantine, the scanned one was not, and a start went on from it.
    """
    world.start()
    world.save()
    world.declare()
    world.quarantine()
    world.gc()
    world.free_nodes()
    world.purge()
    world.start(kill_rank=0, plain=True)
    world.replicate()
    world.free_nodes()
    world.purge()
    world.start()
    world.undo()
    world.free_nodes()
    world.gc()
    world.back_up()
    world.power_loss()
    world.scan()
    world.finish()


@history(3310932, of=TierWorld, size=2, replicas=True, disks="each")
def test_purge_of_a_moved_tree_beside_an_unmounted_disk(world: TierWorld) -> None:
    """Another catalog's gc had named records of the old place, so the trash's directory had no known identity.

    A launch that began below the mount point then passed for that directory: the trash was recorded as deleted.
    """
    world.start()
    world.save()
    world.save()
    world.save()
    world.move_tree()
    world.gc(keep_last=2, floor=2, catalog=1)
    world.move_tree()
    world.start()
    world.unmount()
    world.purge(now=True)
    world.start()
    world.undo()
    world.finish()


@history(3553178, size=2, replicas=False, disks="each", nodes=1, late=False, keeps=0, coarse=False)
def test_a_scan_of_files_whose_launch_no_journal_tells_of(world: World) -> None:
    """A scan took files of another run: a journal told of them, but no journal told of their launch."""
    world.start()
    world.save()
    world.share()
    world.slow()
    world.rot(which=17)
    world.scan(catalog=1)
    world.finish()


@history(3553861, of=TierWorld, size=2, replicas=False, disks="each", nodes=1, late=True, keeps=0, coarse=False)
def test_a_directory_whose_first_sync_failed(world: TierWorld) -> None:
    """The directories above were never synced again, so a power loss took a directory with its journals."""
    world.start()
    world.fault = Fault(at=57, what="error", error="EACCES", where="any", beside=None)
    world.start(kill_rank=3, place=1)
    world.fault = None
    world.start(kill_rank=0, place=1)
    world.save()
    world.replace_disk(which=2)
    world.start()
    world.power_loss()
    world.finish()


@history(3755214, size=1, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_a_backup_of_a_changed_file(world: World) -> None:
    """A scan took the copy of a file that a user had changed for a new file, and a start went on from it."""
    world.start()
    world.save()
    world.save(steps=2, kill_rank=0, behind=True)
    world.flip()
    world.back_up()
    world.lose_catalog()
    world.finish()


@history(3589326, of=TierWorld, size=2, replicas=True, disks="each", nodes=1, late=False, keeps=0, coarse=False)
def test_saved_after_the_mount_for_another_catalog(world: TierWorld) -> None:
    """The launch's journal is below the mount point: a second catalog takes its breakpoint for the one before it."""
    world.start()
    world.save()
    world.unmount(which=2)
    world.start()
    world.start()
    world.mount()
    world.fail()
    world.plan(keep_last=1, floor=2, catalog=1)
    world.finish()
    assert world.checked["unheard"], "the breakpoint counts as one of the launch before"


@history(3594917, of=TierWorld, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_copy_of_an_unproven_breakpoint(world: TierWorld) -> None:
    """A scan adopted the copy of a breakpoint that no launch had registered: the run went back to an older state."""
    world.start()
    world.save()
    world.fault = Fault(at=73, what="stop", error="", where="any", beside=("tune", {"step": 9, "saves": True}))
    world.start()
    world.fail()
    world.start()
    world.save(steps=5, kill_rank=0)
    world.replicate()
    world.back_up()
    world.scan()
    world.finish()


@history(3603548, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_pinned_again_after_a_killed_unpin(world: World) -> None:
    """The unpin had reached the journal alone: the pin was told to be there, and a catalog made anew lacked it."""
    world.start()
    world.save()
    world.pin()
    world.fault = Fault(at=2, what="kill_after", error="", where="change", beside=None)
    world.pin(step=6, undo=True)
    world.pin()
    world.finish()


@history(3604754, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_summary_while_a_removal_is_not_listed(world: World) -> None:
    """A summary leaves out a file in the trash, since the journal of the gc is not listed yet: only a scan knows it."""
    world.start()
    world.save()
    world.save()
    world.save()
    world.start()
    world.wait()
    world.gc(keep_last=1, floor=1, hours=100)
    world.slow()
    world.fault = Fault(at=9, what="stop", error="", where="any", beside=("gc", {"keep_last": 6, "floor": 1}))
    world.save()
    world.relieve()
    world.move_tree()
    world.finish()


@history(3613211, of=TierWorld, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_fetched_files_go_while_undo_runs(world: TierWorld) -> None:
    """The first save of the launch is recorded late, during an undo: then the launch deletes what it fetched."""
    world.start()
    world.save()
    world.declare()
    world.replicate()
    world.power_loss()
    world.lock_catalog()
    world.start()
    world.save()
    world.undo()
    world.finish()


@history(3617040, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_other_run_that_only_the_lost_catalog_knew(world: World) -> None:
    """Another run began where it could not write, and the catalog was lost: its file may count as the run's."""
    world.start()
    world.save()
    world.start(kill_rank=0, place=1)
    world.protect()
    world.neighbour()
    world.lose_catalog()
    world.relieve()
    world.neighbour_saves(untold=True)
    world.finish()


@history(3624737, of=TierWorld, size=2, replicas=False, disks="each", nodes=1, late=False, keeps=0, coarse=False)
def test_purge_while_another_directory_is_in_its_place(world: TierWorld) -> None:
    """A file saved below the mount point had no identity in its record: it proved the directory of the trash."""
    world.start()
    world.declare()
    world.save()
    world.save()
    world.replicate()
    world.free_nodes(keep_last=1, floor=1)
    world.unmount(which=1, gone=True)
    world.start(kill_rank=0, plain=True)
    world.save()
    world.fault = Fault(at=27, what="error_after", error="EACCES", where="any", beside=None)
    world.save(steps=5, kill_rank=1)
    world.purge(now=True)
    world.finish()


@history(3649711, of=TierWorld, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_copy_that_another_catalog_purged(world: TierWorld) -> None:
    """The journals that tell of the purge are lost with their disk: a second catalog still names the copy."""
    world.start()
    world.declare()
    world.save()
    world.replicate()
    world.scan(catalog=1)
    world.save()
    world.save()
    world.replicate()
    world.tier_gc()
    world.tier_purge(now=True)
    world.replace_disk(which=2)
    world.replace_disk(which=1)
    world.resolve(catalog=1)
    world.finish()


@history(3649995, of=TierWorld, size=2, replicas=False, disks="each", nodes=1, late=False, keeps=0, coarse=False)
def test_saved_below_a_mount_point_before_the_catalog_was_lost(world: TierWorld) -> None:
    """Nothing that can be read says that rank 0 has saved, so its launch may start again."""
    world.start()
    world.unmount()
    world.save()
    world.mount()
    world.lose_catalog()
    world.start(kill_rank=1, plain=True, again=3)
    world.finish()


@history(3651728, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_backup_of_what_gc_removed_in_a_moved_tree(world: World) -> None:
    """A second catalog counted the copies as files of the run, since the originals were in the trash: gc took them."""
    world.start()
    world.save()
    world.save()
    world.save()
    world.save()
    world.back_up()
    world.gc()
    world.move_tree()
    world.gc(keep_last=6, floor=1, catalog=1)
    world.check()
    world.finish()


@history(3663166, size=2, replicas=False, disks="each", nodes=1, late=True, keeps=0, coarse=False)
def test_backups_below_a_directory_that_could_not_be_listed(world: World) -> None:
    """The look for journals failed once, and the scan adopted copies as files of the run: gc took them."""
    world.start()
    world.save()
    world.save()
    world.back_up()
    world.move_tree()
    world.move_tree()
    world.back_up()
    world.move_tree()
    world.fault = Fault(at=78, what="error", error="EIO", where="any", beside=None)
    world.scan()
    world.fault = Fault(at=3, what="error", error="EINTR", where="file", beside=None)
    world.start()
    world.gc()
    world.check()
    world.finish()


@history(3678489, size=2, replicas=True, disks="one", nodes=2, late=False, keeps=0, coarse=False)
def test_breakpoint_dated_before_its_launch(world: World) -> None:
    """The clock of its node was set back: the file counts as one of the launch before, with the bytes of its step."""
    world.start()
    world.clock(node=1, seconds=-100000)
    world.wait(seconds=100000)
    world.start()
    world.fail()
    world.finish()
    assert world.checked["unheard"], "the breakpoint counts as one of the first launch"


@history(3632727, size=2, replicas=True, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_backups_of_states_that_a_power_loss_damaged(world: World) -> None:
    """The copies were adopted as a launch of their own, and a start went back to it from a newer whole state."""
    world.start()
    world.save()
    world.save()
    world.save()
    world.start(kill_rank=0, ranks=1)
    world.slow()
    world.fail()
    beside = ("gc", {"keep_last": 1, "floor": 2, "hours": 1})
    world.fault = Fault(at=0, what="stop", error="", where="any", beside=beside)
    world.gc()
    world.fault = None
    world.pin(step=14, catalog=1)
    world.relieve()
    world.purge(now=True)
    world.back_up()
    world.back_up(which=13, times=False)
    world.power_loss()
    world.lose_catalog()
    world.finish()


@history(3681069, size=1, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_backup_at_once_of_what_another_run_has_not_registered(world: World) -> None:
    """The scan of this run adopted the copy, since it was made within two seconds of the original."""
    world.start()
    world.neighbour()
    world.save(steps=5, kill_rank=1, behind=True)
    world.neighbour_saves(untold=True)
    world.back_up()
    world.scan()
    world.finish()


@history(3916649, of=TierWorld, size=4, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_gc_in_the_middle_of_one_with_a_shorter_grace(world: TierWorld) -> None:
    """The files that the first gc moves have its grace, not that of the gc that runs while the first one waits."""
    world.start()
    world.save()
    world.save()
    world.save()
    beside = ("gc", {"keep_last": 6, "floor": 3, "now": True})
    world.fault = Fault(at=278, what="stop", error="", where="any", beside=beside)
    world.gc(keep_last=1, floor=2, hours=1)
    world.fault = None
    world.wait(seconds=50000)
    world.purge()
    world.finish()


@history(3921841, of=TierWorld, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_undo_that_may_not_remove_a_name_in_the_trash(world: TierWorld) -> None:
    """The undo reports that; the file counts, and is copied to a tier, after the next gc or undo."""
    world.declare()
    world.start()
    world.save()
    world.save()
    world.save()
    world.save()
    world.gc()
    world.fault = Fault(at=21, what="error", error="EACCES", where="change", beside=None)
    world.undo()
    world.fault = None
    world.unmount()
    world.mount()
    world.replicate()
    world.finish()


@history(3934210, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=True)
def test_cut_file_that_has_its_old_size_after_a_power_loss(world: World) -> None:
    """It has its recorded size and, on a file system with coarse times, its recorded time: only its bytes tell."""
    world.start()
    world.save()
    world.save()
    world.save()
    world.cut()
    world.cut(which=14)
    world.move_tree()
    world.resolve(catalog=1)
    world.power_loss()
    world.finish()
    assert world.checked["rotten"], "a state with it is handed out; its bytes are compared when it is loaded"


@history(3935563, of=TierWorld, size=1, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_saves_below_a_mount_point_of_a_launch_that_fetched_an_older_state(world: TierWorld) -> None:
    """Nothing that can be read says that it saved, so the state on the disk that is mounted again was not given up."""
    world.start()
    world.declare()
    world.save()
    world.replicate()
    world.save()
    world.unmount()
    world.start()
    world.catalog_away()
    world.save()
    world.finish()
    assert world.checked["hidden"]


@history(3941005, of=TierWorld, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=1, coarse=False)
def test_unregistered_file_that_was_not_listed_when_the_next_launch_began(world: TierWorld) -> None:
    """Either launch may have written it: a start names it, and goes on from the state in the tier."""
    world.declare()
    world.start()
    world.save()
    world.replicate()
    world.slow()
    world.fault = Fault(at=20, what="error", error="EIO", where="file", beside=None)
    world.save()
    world.fault = Fault(at=26, what="kill", error="", where="any", beside=None)
    world.start(kill_rank=3, step=6)
    world.fault = None
    world.finish()


@history(3942071, size=1, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_gc_of_another_run_in_a_moved_tree_that_is_not_listed_yet(world: World) -> None:
    """It registered a file there, and cannot see the journal that says whose the file is. An undo brings it back."""
    world.start()
    world.save()
    world.move_tree()
    world.slow()
    world.share()
    world.neighbour_gc()
    world.finish()


@history(3962062, of=TierWorld, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_gc_in_the_middle_of_one_that_has_moved_a_state_of_both_plans(world: TierWorld) -> None:
    """The state that the first gc had moved already has the grace of the first gc."""
    world.start()
    for _ in range(7):
        world.save()
    beside = ("gc", {"keep_last": 2, "floor": 3, "hours": 100})
    world.fault = Fault(at=23, what="stop", error="", where="change", beside=beside)
    world.gc(keep_last=6, floor=2)
    world.fault = None
    world.wait(seconds=100000)
    world.purge()
    world.finish()


@history(3963402, of=TierWorld, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
def test_bad_state_that_an_undo_of_another_catalog_brought_back(world: TierWorld) -> None:
    """The catalog that has not heard of the undo marks the state as bad: it is not copied to the tier."""
    world.start()
    world.declare()
    world.save()
    world.save()
    world.gc(keep_last=1, floor=1)
    world.undo(catalog=1)
    world.quarantine(back=2)
    world.replicate()
    world.finish()
