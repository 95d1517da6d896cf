"""A catalog was made while a rank's disk was away, and the rank had saved elsewhere in the next launch."""

from tests.world.machine import simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(671143) as machine:
        world = World(machine, size=2, replicas=False, disks="each", nodes=1, late=True, keeps=0, coarse=False)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.start(kill_rank=3, place=1)
    world.fail()
    world.unmount(which=2, gone=True)
    world.gc(keep_last=1, floor=3, catalog=1)
    world.finish()
