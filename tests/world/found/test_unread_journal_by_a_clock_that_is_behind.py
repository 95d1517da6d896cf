"""A clock was set back: an unread journal that is older than the chosen state may still tell of a newer one."""

from tests.world.machine import simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(602785) as machine:
        world = World(machine, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
        happens(world)


def happens(world: World) -> None:
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
