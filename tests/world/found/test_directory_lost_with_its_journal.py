"""A power loss took a directory that nobody had synced, and with it the journal of what had been registered in it."""

from tests.world.machine import simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(0) as machine:
        world = World(machine, size=2, disks="one", nodes=1)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.power_loss()
    world.finish()
