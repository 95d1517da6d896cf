"""A tree was moved and its catalog lost: what undo brought back there did not count again."""

from tests.world.machine import simulated
from tests.world.world import World


def test_history() -> None:
    with simulated(200192) as machine:
        world = World(machine, size=2, replicas=False, disks="one", nodes=1)
        happens(world)


def happens(world: World) -> None:
    world.start()
    world.save()
    world.save()
    world.gc(keep_last=1, floor=1)
    world.move_tree()
    world.lose_catalog()
    world.finish()
