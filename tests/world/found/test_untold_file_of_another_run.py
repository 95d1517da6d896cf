"""What another run did not come to register was taken by a scan that was asked for this run."""

from tests.world.machine import simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(5) as machine:
        world = World(machine, size=2)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.neighbour()
    world.neighbour_saves()
    world.neighbour_saves(untold=True)
    world.scan()
    world.finish()
