"""A later launch announced a file of the path, which never came: what undo brought back there did not count."""

from tests.world.machine import simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(200766) as machine:
        world = World(machine, size=2, replicas=False, disks="one", nodes=1)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.save()
    world.gc(keep_last=1, floor=1)
    world.delete(which=0)
    world.start(fresh=True)
    world.fill()
    world.save(behind=True)
    world.finish()
