"""A clock was set back after a launch began, and a name was used again whose file somebody had deleted."""

from tests.world.machine import simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(641630) as machine:
        world = World(machine, size=2, replicas=False, disks="one", nodes=1, late=False, keeps=0, coarse=False)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.start()
    world.save()
    world.delete()
    world.start(kill_rank=3, place=1, fresh=True)
    world.clock(node=0, seconds=-290)
    world.save()
    world.finish()
