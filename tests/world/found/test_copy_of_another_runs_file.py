"""A scan with --run gave a run that trains the copy of another run's file."""

from tests.world.machine import simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(507913) as machine:
        world = World(machine, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=True)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.neighbour()
    world.share()
    world.neighbour_saves(untold=True)
    world.resolve(catalog=1)
    world.finish()
