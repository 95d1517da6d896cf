"""What a run that had begun first saved under the same prefix, and did not register, was taken for this run's."""

from tests.world.machine import simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(3107) as machine:
        world = World(machine, size=2)
        happens(world)


def happens(world: World) -> None:
    world.neighbour()
    world.start()
    world.save()
    world.neighbour_saves(untold=True)
    world.finish()
