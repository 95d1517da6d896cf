"""A catalog was made while the disk of a rank was away, and took the state before for one that the rank never saved."""

from tests.world.machine import simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(200611) as machine:
        world = World(machine, size=2, replicas=False, disks="each", nodes=1)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.start()
    world.unmount()
    world.save()
    world.gc(keep_last=1, floor=2, now=True, catalog=1)
    world.finish()
