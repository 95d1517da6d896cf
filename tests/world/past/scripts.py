"""The shortest that shows each bug of the past: with its patch it breaks a promise, without it none.

Some need a fault at one call of many, or one of several journals. Which one changes with the code: so several are
tried. `python -m tests.world.past.scripts NAME` tells what the code that it runs breaks; the runner has it run in a
patched copy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.world.machine import Fault, simulated
from tests.world.truth import ViolationError
from tests.world.world import World

Happens = Callable[[World, int], None]


class Script(NamedTuple):
    """How a world is set up, what happens in it, and at which calls of it the fault may be."""

    settings: dict[str, Any]
    happens: Happens
    places: range

    def run(self, at: int) -> None:
        with simulated(1) as machine:
            world = World(machine, **self.settings)
            self.happens(world, at)
            world.check()
            world.finish()


SCRIPTS: dict[str, Script] = {}


def script(places: range = range(1), **settings: Any) -> Callable[[Happens], Happens]:
    def add(happens: Happens) -> Happens:
        SCRIPTS[happens.__name__] = Script(settings, happens, places)
        return happens

    return add


def saves(world: World, count: int) -> None:
    world.start()
    for _ in range(count):
        world.save()


@script()
def another_runs_file_adopted(world: World, _: int) -> None:
    world.start()
    world.neighbour()
    world.save()
    world.neighbour_saves(untold=True)
    world.start()


@script(range(0, 120, 2))
def branch_to_removed_state(world: World, at: int) -> None:
    saves(world, 4)
    world.fault = Fault(at, "stop", beside=("gc", {"keep_last": 1, "floor": 1}))
    world.branch(step=0)


@script(range(8, 40, 4), keeps=1, coarse=True)
def coarse_time_file_taken_for_moved(world: World, at: int) -> None:
    saves(world, 1)
    world.fault = Fault(at, "kill")
    world.save(kill_rank=1)
    world.start()


@script()
def floor_not_asked_again(world: World, _: int) -> None:
    saves(world, 4)
    world.plan(keep_last=1, floor=2)
    world.branch(step=1)
    world.execute()


@script()
def floor_quarantined_meanwhile(world: World, _: int) -> None:
    saves(world, 4)
    world.plan(keep_last=1, floor=2)
    world.quarantine(back=2)
    world.execute()


@script()
def fresh_start_refused_second_time(world: World, _: int) -> None:
    saves(world, 2)
    world.start(fresh=True)
    world.start()
    world.start()


@script()
def fresh_start_while_unmounted(world: World, _: int) -> None:
    saves(world, 2)
    world.unmount()
    world.start()


@script(range(236, 400, 4))
def interrupted_gc_finished_on_its_word(world: World, at: int) -> None:
    saves(world, 4)
    world.fault = Fault(at, "kill")
    world.gc(keep_last=1, floor=2)
    world.delete(which=7)
    world.gc(keep_last=1, floor=2)


@script(range(295, 400, 5))
def interrupted_gc_purged_without_grace(world: World, at: int) -> None:
    saves(world, 4)
    world.fault = Fault(at, "kill")
    world.gc(keep_last=1, floor=2)
    world.wait(seconds=100_000)
    world.gc(keep_last=1, floor=2)


@script(range(96, 160))
def kill_leaves_half_a_prefix(world: World, at: int) -> None:
    world.fault = Fault(at, "kill")
    world.keep()
    world.keep()


@script(range(8, 60, 4), disks="each")
def late_save_of_launch_before_last(world: World, at: int) -> None:
    saves(world, 1)
    world.slow(which=1)
    world.fault = Fault(at, "kill")
    world.save(kill_rank=1)
    world.start()
    world.wait(seconds=30)
    world.relieve()
    world.start()


@script(range(295, 400, 5))
def later_gc_shortens_promised_grace(world: World, at: int) -> None:
    saves(world, 4)
    world.fault = Fault(at, "kill")
    world.gc(keep_last=1, floor=2, hours=100)
    world.gc(keep_last=1, floor=2, hours=1)
    world.wait(seconds=100_000)
    world.purge()


@script(disks="each")
def marks_by_last_read(world: World, _: int) -> None:
    saves(world, 2)
    world.unmount(which=0)
    world.pin()
    world.mount()
    world.pin(undo=True)


@script()
def nothing_heard_before_the_deed(world: World, _: int) -> None:
    saves(world, 4)
    world.scan(catalog=1)
    world.plan(keep_last=1, floor=2)
    world.pin(catalog=1)
    world.execute()


@script(disks="each")
def old_breakpoint_of_another_launch(world: World, _: int) -> None:
    saves(world, 1)
    world.slow(which=0)
    world.fail(steps=2, rank=0, told=False, every=False)
    world.start(fresh=True)
    world.wait(seconds=30)
    world.relieve()
    world.fail(steps=3, rank=1, told=False, every=False)
    world.start()


@script()
def other_runs_record_marks_file_gone(world: World, _: int) -> None:
    saves(world, 2)
    world.share(saves=2)
    world.neighbour_gc(keep_last=1)
    world.resolve()


@script()
def other_runs_record_missed_after_touch(world: World, _: int) -> None:
    saves(world, 2)
    world.share(saves=2)
    world.touch(which=1)
    world.touch(which=3)
    world.verify(digest=True, beside=True)
    world.neighbour_gc(keep_last=1)
    world.resolve()


@script()
def purge_before_clock_slack(world: World, _: int) -> None:
    saves(world, 4)
    world.gc(keep_last=1, floor=2)
    world.clock(node=0, seconds=290)
    world.wait(seconds=-100, to_grace=True)
    world.purge()


@script()
def purge_deletes_pinned_in_trash(world: World, _: int) -> None:
    saves(world, 4)
    world.scan(catalog=1)
    world.gc(keep_last=1, floor=2)
    world.pin(catalog=1)
    world.purge(now=True)


@script()
def reused_launch_id_gets_old_plan(world: World, _: int) -> None:
    saves(world, 1)
    world.start()
    saves(world, 1)
    world.start(again=2)


@script()
def rewritten_same_size_is_taken(world: World, _: int) -> None:
    saves(world, 2)
    world.flip(which=1)
    world.resolve()


@script(size=1, disks="one")
def scan_adopts_beside_unread_journal(world: World, _: int) -> None:
    saves(world, 1)
    world.catalog_away()
    world.lose_catalog()
    world.relieve()
    world.spoil()
    world.scan()
    world.relieve()
    saves(world, 1)
    world.gc(keep_last=1, floor=1, hours=100)
    world.take_out()


@script(range(340, 460, 4))
def trash_two_files_one_place(world: World, at: int) -> None:
    saves(world, 2)
    saves(world, 2)
    world.fault = Fault(at, "kill")
    world.gc(keep_last=1, floor=1)
    world.start(fresh=True)
    for _ in range(4):
        world.save()
    world.gc(keep_last=1, floor=1)


@script()
def two_starts_make_one_state(world: World, _: int) -> None:
    world.bare(steps=2)
    world.bare(steps=2, ranks=1)
    world.scan_bare()


@script()
def undo_blocked_by_file_in_way(world: World, _: int) -> None:
    saves(world, 4)
    world.gc(keep_last=3, floor=1)
    world.gc(keep_last=2, floor=1)
    world.take_out(which=0)
    world.take_out(which=2)


@script()
def undo_leaves_a_copy_uncounted(world: World, _: int) -> None:
    saves(world, 4)
    world.gc(keep_last=2, floor=1)
    world.move_tree()


@script(range(20), late=True)
def unfinished_launch_gives_up(world: World, at: int) -> None:
    saves(world, 1)
    world.start(place=1)
    world.save()
    world.unmount(which=0)
    world.start()
    world.fault = Fault(at, "kill")
    world.save(ranks=1, behind=True)
    world.mount()
    world.start()


@script(range(6), disks="each")
def unread_journal_stops_no_gc(world: World, at: int) -> None:
    saves(world, 4)
    world.scan(catalog=1)
    world.pin(catalog=1)
    world.spoil(which=at)
    world.gc(keep_last=1, floor=2)


def broken(name: str, at: int) -> str:
    """The promise that a script breaks; empty if it breaks none."""
    try:
        SCRIPTS[name].run(at)
    except ViolationError as error:
        return str(error)
    return ""


def main(name: str) -> int:
    told = next(filter(None, (broken(name, at) for at in SCRIPTS[name].places)), "")
    print(told)
    return 1 if told else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
