"""A tree was moved twice: the summary that a start wrote in between forgot what was in the trash."""

from tests.world.machine import simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(200771) as machine:
        world = World(machine, size=2, replicas=False, disks="one", nodes=1)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.save()
    world.save()
    world.gc()
    world.move_tree()
    world.start()
    world.save()
    world.move_tree()
    world.finish()
